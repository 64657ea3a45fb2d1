"""Runs programs in the sandbox, which is a pool of servers, one for each worker."""

import json
import os
import queue
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import cache
from pathlib import Path

from .. import ProgramsError
from .values import excerpt
from .watch import Limits, Process, watch

SERVER = Path(__file__).resolve().parent / "server.py"
PATIENCE = 60.0  # seconds for a server to answer
KNOWN = "try: open('/proc/self/status')\nexcept PermissionError: print(7)"


class SandboxBroken(ProgramsError):
    """The sandbox cannot be started, or has broken. The run must stop."""


class Failed(Exception):
    """A program failed. The message says why, for people to read."""


class Server:
    """The client's end of a process that forks programs; see server.py."""

    def __init__(self):
        libraries = os.environ.get("LD_LIBRARY_PATH", "")  # some builds of Python need it to start
        # All threads share one arena, because each arena reserves 64 MB of address space.
        settings = {"PYTHONHASHSEED": "0", "PYTHONUTF8": "1", "MALLOC_ARENA_MAX": "1"}
        self.door, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.door.settimeout(PATIENCE)
        with theirs:
            # -s -P isolate Python like -I, but keep the hash seed. With different seeds, workers
            # would order sets of strings differently.
            self.process = subprocess.Popen(
                [sys.executable, "-s", "-P", str(SERVER)],
                env=settings | {"LD_LIBRARY_PATH": libraries},
                cwd="/",
                stdin=subprocess.DEVNULL,  # like a program's input, it can seek
                stdout=theirs,
                start_new_session=True,
            )

    def run(self, wall: float, *jobs: tuple[dict, Limits]) -> tuple[list[Process], float]:
        """Run a program, or a judge and the program that it calls, with `wall` idle seconds.

        Returns (the ended processes, their idle seconds). Raises OSError or SandboxBroken if the
        server fails; the caller must then kill it.
        """
        ends = socket.socketpair() if len(jobs) > 1 else (None,)
        made = []
        with ExitStack() as opened:
            for (job, limits), end in zip(jobs, ends, strict=True):
                made.append(self.start(job, limits, end, opened))
            for end in filter(None, ends):
                end.close()  # else neither process would notice that the other has ended
            idle = watch(made, wall, each_call=jobs[0][0]["kind"] == "values")
            for each in made:
                self.door.send(b"%d" % each.number)  # the server kills it
                each.finish(int(self.answer()[0]))
        return made, idle

    def start(
        self, job: dict, limits: Limits, calls: socket.socket | None, opened: ExitStack
    ) -> Process:
        """Start a job. `calls` joins a judge and a program; `opened` closes all descriptors."""
        (out, their_out), (err, their_err) = os.pipe(), os.pipe()
        given = [os.memfd_create("job"), their_out, their_err]
        for stream in (out, err):
            os.set_blocking(stream, False)
            opened.callback(os.close, stream)
        try:
            os.pwrite(given[0], json.dumps({**job, "memory_mb": limits.memory_mb}).encode(), 0)
            socket.send_fds(self.door, [b"job"], given + ([calls.fileno()] if calls else []))
        finally:
            for descriptor in given:
                os.close(descriptor)
        message, listeners = self.answer()
        number, _, reason = message.partition(" ")
        if reason:
            raise SandboxBroken(reason)
        handles = [os.pidfd_open(int(number)), *listeners]
        for handle in handles:
            opened.callback(os.close, handle)
        return Process(limits, int(number), out, err, *handles)

    def answer(self) -> tuple[str, list[int]]:
        """The server's next message and its descriptors. Raises SandboxBroken if it has ended."""
        message, descriptors, _, _ = socket.recv_fds(self.door, 1000, 2)
        if not message:
            raise SandboxBroken("the server process has ended")
        return message.decode(errors="replace"), descriptors

    def kill(self) -> None:
        """End the server at once. The kernel then kills its programs."""
        self.process.kill()
        self.process.wait()
        self.door.close()


def started(_: int = 0) -> Server:
    """A new server that has run a known program behind its wall. Raises SandboxBroken."""
    server = None
    try:
        server = Server()
        job = {"kind": "run", "text": KNOWN, "contest": False}
        (known,), _ = server.run(PATIENCE, (job, Limits()))
        if known.text() != "7\n":
            raise SandboxBroken(known.last_error() or "files stay readable")
        os.listdir(f"/proc/{server.process.pid}/task")  # as watch.py counts threads
    except (OSError, SandboxBroken) as error:
        if server:
            server.kill()
        raise SandboxBroken(
            f"programs cannot be run safely here ({error}): this needs Linux 5.13 or newer "
            "with Landlock, in a container that allows its system calls"
        ) from error
    return server


class Sandbox:
    """A pool with one server per worker. Raises SandboxBroken if programs cannot be run."""

    def __init__(self, workers: int = 0):
        if sys.platform != "linux":
            raise SandboxBroken("programs can be run on Linux only")
        ranks = int(os.environ.get("LOCAL_WORLD_SIZE", 1))  # on this machine, by torchrun
        self.workers = workers or max(1, len(os.sched_getaffinity(0)) // ranks)
        self.idle = queue.SimpleQueue()
        self.threads = ThreadPoolExecutor(self.workers)  # for callers with many programs
        for server in self.threads.map(started, range(self.workers)):
            self.idle.put(server)

    def run(self, wall: float, *jobs: tuple[dict, Limits]) -> tuple[list[Process], float]:
        """Run jobs on an idle server; see Server.run. If it fails, they run once more on a new one.

        Raises Failed if both servers fail, and SandboxBroken if a new one fails a known program.
        """
        for _ in range(2):
            server = self.idle.get()
            try:
                return server.run(wall, *jobs)
            except BaseException as error:
                server.kill()
                if not isinstance(error, OSError | SandboxBroken):
                    raise
                reason = excerpt(str(error))
                server = started()
            finally:
                self.idle.put(server)
        raise Failed(f"broke the sandbox twice: {reason}")


@cache
def sandbox_of(process: int) -> Sandbox:
    """The sandbox that a process uses; a forked process gets one of its own."""
    return Sandbox()


def shared() -> Sandbox:
    """The sandbox of this process, started at the first call."""
    return sandbox_of(os.getpid())


def start_sandbox() -> str:
    """Start this process's sandbox. Returns a line about it. Raises SandboxBroken."""
    return (
        f"programs   run {shared().workers} at a time in the sandbox: a program can read Python's "
        "libraries, ask whether a file exists, and use its time and memory"
    )
