"""A clean Python that forks a supervisor for every program.

Started by client.py as a script. It imports the standard library only, enters its namespaces, says
what it could do, and then forks for every connection that it is handed. It reads no job itself, so
that nothing of a program is left for the next.
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


def serve(door: socket.socket, settings: dict):
    """Fork a supervisor for each connection that comes through `door`, until it closes.

    Returns in the process of a program alone: (its job, its connection for calls).
    """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # supervisors that have ended vanish at once
    while True:
        message, descriptors, _, _ = socket.recv_fds(door, 1, 2)
        if not message:
            os._exit(0)
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            door.close()
            return supervisor.supervise(settings, *map(connection, descriptors))
        for descriptor in descriptors:
            os.close(descriptor)


def connection(descriptor: int) -> socket.socket:
    return socket.socket(fileno=descriptor)


def enter(settings: dict) -> dict:
    """Put up the walls that settings allow and the kernel has.

    {"namespaces": ..., "filter": ..., and, for where there are no namespaces, "landlock": ...}.
    Each is True, or the reason why it is missing.
    """
    missing = {}
    if not settings["filter"]:
        missing["filter"] = "switched off"
    elif not seccomp.known_machine():
        missing["filter"] = f"not written for {os.uname().machine}"
    else:
        missing["filter"] = failure(filter_this)

    missing["namespaces"] = "switched off"
    if settings["namespaces"]:
        missing["namespaces"] = failure(walls.enter_namespaces)
        if not missing["namespaces"]:
            walls.enter_namespaces()
    if missing["namespaces"]:
        walls.leave_root()
        missing["landlock"] = "switched off"
        if settings["landlock"]:
            missing["landlock"] = failure(lock_this)
    return {name: reason or True for name, reason in missing.items()}


def filter_this() -> None:
    walls.prctl(walls.NO_NEW_RIGHTS, 1)
    seccomp.install(walls.libc, strict=True)


def lock_this() -> None:
    walls.prctl(walls.NO_NEW_RIGHTS, 1)
    walls.close_other_files("/")


def failure(attempt) -> str:
    """Why `attempt` fails in a process of its own; empty where it does not."""
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
    """Put up the walls, tell client.py what stands, and serve; returns as `serve`."""
    door = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    settings = json.loads(sys.argv[1])
    for name in WARM.split():
        importlib.import_module(name)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        there = enter(settings)
    except OSError as error:
        send(door, {"broken": str(error)})
        os._exit(1)

    was_root = settings["root"]
    release = tuple(int(number) for number in os.uname().release.split(".")[:2])
    held = {name: there[name] is True for name in there}
    held["counts_own"] = was_root or (held["namespaces"] and release >= (5, 14))
    held["landlock"] = there.get("landlock") is True
    send(door, there)
    if not held["namespaces"] and not held["filter"]:
        os._exit(1)
    if held["filter"]:
        seccomp.build(not held["namespaces"])
    gc.collect()
    gc.freeze()
    return serve(door, held)


if __name__ == "__main__":
    program.run(*start())
