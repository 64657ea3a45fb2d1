"""Programs that may be hostile, run where they can harm nothing and see nothing of ours.

    this process: client.py -------- the pool
        |  a socket
    server.py, one for each worker - a clean Python in namespaces of its own; it only forks
        |  fork, for each program and for each judge
    its supervisor.py -------------- measures time and output from outside, kills, cleans up
        |  fork
    program.py --------------------- behind walls.py, seccomp.py and landlock.py: the program, or
                                     judge.py, which alone is told what is expected of it

A judge calls its program through the program's supervisor. The last three are started apart from
ours and import the standard library only. values.py is how values travel, compare.py how they are
compared.
"""
