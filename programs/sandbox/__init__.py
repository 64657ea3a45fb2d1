"""Programs that may be hostile, run where they can harm nothing and see nothing of ours.

    this process: client.py -------- the pool; tests and expected outputs stay here
        |  a socket
    server.py, one for each worker - a clean Python in namespaces of its own; it only forks
        |  fork, for each program
    its supervisor.py -------------- measures time and output from outside, kills, cleans up
        |  fork
    program.py --------------------- behind walls.py and seccomp.py: the program

The last three are started apart from ours, import the standard library only, and are told a
program and its inputs, never what is expected of it. values.py is how values travel.
"""
