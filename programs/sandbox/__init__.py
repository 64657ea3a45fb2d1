"""Runs hostile programs without harm to the machine (../README.md says what they cannot do).

client.py keeps one server (server.py) for each core, which forks a process for each program. That
process builds the wall (wall.py, seccomp.py) and runs the program (program.py), watched from
outside (watch.py). For functions and scripts a second process behind a wall of its own is the judge
(judge.py).
"""
