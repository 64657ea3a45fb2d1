"""A clean Python process that forks a supervisor for every program.

client.py starts this file as a script. The server imports only the standard library, enters its
namespaces, reports its walls, and forks for every connection that it receives. The server reads no
job, so no program can affect the next one.
"""

import gc
import importlib
import json
import os
import resource
import signal
import socket
import sys

FOLDER = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.dirname(FOLDER))
from sandbox import program, seccomp, supervisor, walls  # noqa: E402
from sandbox.messages import send  # noqa: E402

sys.path.pop()

WARM = (
    "ast atexit bisect collections copy datetime decimal fractions functools heapq io itertools "
    "json math operator random re statistics string threading time traceback types typing"
)  # imported once for all programs


# ---- the server ----------------------------------------------------------------------------------


def serve(door: socket.socket, namespaces: bool):
    """Fork a supervisor for each connection received from `door`, until `door` closes.

    Returns (job, connection for calls), and only in a program's process.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies
    while True:
        message, descriptors, _, _ = socket.recv_fds(door, 1, 2)
        if not message:
            os._exit(0)
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            door.close()
            return supervisor.supervise(namespaces, *map(connection, descriptors))
        for descriptor in descriptors:
            os.close(descriptor)


def connection(descriptor: int) -> socket.socket:
    return socket.socket(fileno=descriptor)


def enter(best: str) -> dict:
    """Set up the strongest walls that the kernel supports, up to `best`.

    Returns {"walls": "strict" or "landlock", "missing": why stronger walls are not available}.
    Raises OSError if neither is available.
    """
    reason = failure(filter_this)
    if reason:
        raise OSError(f"system-call filter: {reason}")

    reason = "switched off"
    if best == "strict":
        reason = failure(walls.enter_namespaces)
    if not reason:
        walls.enter_namespaces()
        return {"walls": "strict", "missing": ""}

    walls.leave_root()
    reason_of_landlock = failure(lock_this)
    if reason_of_landlock:
        raise OSError(f"namespaces: {reason}; {reason_of_landlock}")
    return {"walls": "landlock", "missing": f"namespaces: {reason}"}


def filter_this() -> None:
    walls.prctl(walls.NO_NEW_RIGHTS, 1)
    seccomp.install(walls.libc, strict=True)


def lock_this() -> None:
    walls.prctl(walls.NO_NEW_RIGHTS, 1)
    walls.close_other_files()


def failure(attempt) -> str:
    """Why `attempt` fails in a separate process; empty if it succeeds."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            attempt()
            reason = ""
        except OSError as error:
            reason = str(error)
        os.write(write, reason.encode())
        os._exit(0)
    os.close(write)
    _, status = os.waitpid(child, 0)
    with open(read) as file:
        reason = file.read()
    return reason or ("" if status == 0 else f"ended with status {status}")


# ---- start ---------------------------------------------------------------------------------------


def start():
    """Set up the walls, report them to client.py, and serve. Returns like `serve`."""
    door = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    settings = json.loads(sys.argv[1])
    for name in WARM.split():
        importlib.import_module(name)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        there = enter(settings["best"])
    except OSError as error:
        send(door, {"broken": str(error)})
        os._exit(1)
    send(door, there)
    namespaces = there["walls"] == "strict"
    seccomp.build(not namespaces)
    gc.collect()
    gc.freeze()
    return serve(door, namespaces)


if __name__ == "__main__":
    program.run(*start())
