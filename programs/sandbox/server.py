"""A clean Python process that forks a process for every program; client.py starts it as a script.

The server imports only the standard library and reads no job, so no program affects the next one.
Through the door, its socket to the client, it receives a job's descriptors or a process's number.
A job's process answers with its number and the listener for new threads, or with its number and why
it failed. If a process's number arrives, the server kills it and answers with its exit code.
"""

import gc
import json
import os
import resource
import signal
import socket
import sys

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from sandbox import program  # noqa: E402
from sandbox.seccomp import DOOR  # noqa: E402
from sandbox.wall import OPEN_FILES, Wall  # noqa: E402

sys.path.pop()
LONGEST = 500  # bytes of a message


def start() -> tuple[dict, socket.socket | None]:
    """Serve. Returns (job, socket for calls), and only in a job's process, behind the wall."""
    door = socket.socket(fileno=os.dup2(1, DOOR))  # a job's process closes 1
    exec(program.READY, {})  # imports modules once for all programs
    gc.collect()
    gc.freeze()
    server = os.getpid()
    try:
        wall, file, *streams = serve(door)
        job = json.loads(os.pread(file, os.fstat(file).st_size, 0))
        os.ftruncate(file, 0)  # it becomes the program's standard input
        os.pwrite(file, job.pop("input", "").encode("utf-8", "surrogateescape"), 0)
        for number, descriptor in enumerate([file, *streams[:2]]):
            os.dup2(descriptor, number)
            os.close(descriptor)
        listener = wall.enter(job["memory_mb"], server)
        socket.send_fds(door, [b"%d" % os.getpid()], [listener])
    except Exception as error:
        door.send(f"{os.getpid()} {error}".encode()[:LONGEST])
        os._exit(1)
    for descriptor in (listener, door.detach()):
        os.close(descriptor)
    # Lowered only now: it also limits the descriptors that all of a user's processes are sending.
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, OPEN_FILES))
    return job, socket.socket(fileno=streams[2]) if len(streams) > 2 else None


def serve(door: socket.socket) -> tuple:
    """Fork for each job, and kill for each number, until the client closes the door.

    Returns (the wall, the job's descriptors...), and only in a job's process.
    """
    wall = None
    while True:
        message, descriptors, _, _ = socket.recv_fds(door, LONGEST, 8)
        if not message:
            os._exit(0)
        if not descriptors:
            os.kill(int(message), signal.SIGKILL)
            _, status = os.waitpid(int(message), 0)
            door.send(b"%d" % os.waitstatus_to_exitcode(status))
            continue
        wall = wall or Wall()
        if os.fork() == 0:
            return wall, *descriptors
        for descriptor in descriptors:
            os.close(descriptor)


if __name__ == "__main__":
    program.run(*start())
