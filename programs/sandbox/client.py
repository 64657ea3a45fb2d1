"""Runs programs in the sandbox: a pool of servers, one for each worker."""

import fcntl
import json
import os
import queue
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from .. import ProgramsError
from .watch import Limits, Process, watch

SERVER = Path(__file__).resolve().parent / "server.py"
PATIENCE = 60.0  # seconds for a server to answer
SEALS = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_WRITE
# A server is used after it has run this program, which finds the wall in place.
KNOWN = """
try:
    open("/proc/self/status")
except PermissionError:
    print(7)
"""


class SandboxBroken(ProgramsError):
    """The sandbox cannot be started, or has broken. The run must stop."""


class Server:
    """A process that forks programs; see server.py. Call `prove` before the first job."""

    def __init__(self):
        libraries = os.environ.get("LD_LIBRARY_PATH", "")  # some builds of Python need it to start
        self.door, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.door.settimeout(PATIENCE)
        with theirs:
            # -s -P isolate Python like -I, but keep the hash seed. With different seeds, workers
            # would order sets of strings differently.
            self.process = subprocess.Popen(
                [sys.executable, "-s", "-P", str(SERVER)],
                env={"PYTHONHASHSEED": "0", "LD_LIBRARY_PATH": libraries},
                cwd="/",
                stdin=theirs,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )

    def prove(self) -> None:
        """Run a known program, as before the first job. Raises SandboxBroken if it fails."""
        try:
            (known,), _ = self.run(({"kind": "run", "text": KNOWN, "contest": False}, Limits()))
            if known.text() != "7\n":
                raise SandboxBroken(known.last_error() or "files stay readable")
            os.listdir(f"/proc/{self.process.pid}/task")  # as watch.py counts threads
        except (OSError, SandboxBroken) as error:
            self.kill()
            raise SandboxBroken(
                f"programs cannot be run safely here ({error}): this needs Linux 5.13 or newer "
                "with Landlock, in a container that allows its system calls"
            ) from error

    def run(self, *jobs: tuple[dict, Limits]) -> tuple[list[Process], float]:
        """Run a program, or a judge and the program that it calls, joined by a socket.

        Returns (the ended processes, idle seconds). Raises OSError or SandboxBroken if the server
        fails; the caller must then kill it.
        """
        made = []
        ends = socket.socketpair() if len(jobs) > 1 else (None,)
        with ExitStack() as opened:
            for (job, limits), end in zip(jobs, ends, strict=True):
                made.append(self.start(job, limits, end, opened))
            for end in filter(None, ends):
                end.close()  # else neither process would notice that the other has ended
            idle = watch(made)
            for each in made:
                signal.pidfd_send_signal(each.handle, signal.SIGKILL)
                each.code = self.reap(each.number)
                each.read_rest()
        return made, idle

    def start(
        self, job: dict, limits: Limits, calls: socket.socket | None, opened: ExitStack
    ) -> Process:
        """Start a job.

        calls: the socket on which a program receives calls, or a judge sends them
        opened: closes the process's descriptors in the end
        """
        content = json.dumps({**job, "input": "", "memory_mb": limits.memory_mb})
        streams = [os.pipe(), os.pipe()]  # output and errors: (reading end, writing end)
        given = [memory_file(content), memory_file(job.get("input", ""))]
        given += [writing for _, writing in streams]
        for reading, _ in streams:
            os.set_blocking(reading, False)
            opened.callback(os.close, reading)
        lent = given + ([calls.fileno()] if calls else [])
        try:
            socket.send_fds(self.door, [b"job"], lent)
            message, handles, _, _ = socket.recv_fds(self.door, 1000, 2)
        finally:
            for descriptor in given:
                os.close(descriptor)
        for handle in handles:
            opened.callback(os.close, handle)
        number, _, reason = message.decode().partition(" ")
        if len(handles) < 2:
            raise SandboxBroken(reason or "its server has ended")
        return Process(limits, int(number), *handles, *[reading for reading, _ in streams])

    def reap(self, number: int) -> int:
        """The exit code of a process that was killed, or ended before."""
        self.door.send(b"%d" % number)
        answer = self.door.recv(1000)
        if not answer:
            raise SandboxBroken("its server has ended")
        return int(answer)

    def kill(self) -> None:
        """End the server at once. The kernel then kills its programs."""
        self.process.kill()
        self.process.wait()
        self.door.close()


def memory_file(content: str) -> int:
    """A descriptor of a file in memory that nobody can change."""
    descriptor = os.memfd_create("job", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(content.encode("utf-8", "surrogateescape"))
    os.lseek(descriptor, 0, os.SEEK_SET)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
    return descriptor


class Sandbox:
    """A pool with one server per worker. Raises SandboxBroken if programs cannot be run."""

    def __init__(self, workers: int = 0):
        if sys.platform != "linux":
            raise SandboxBroken("programs can be run on Linux only")
        self.workers = workers or cores_of_rank()
        self.owner = os.getpid()
        self.idle = queue.SimpleQueue()
        self.servers = [Server() for _ in range(self.workers)]  # they start at the same time
        for server in self.servers:
            server.prove()
            self.idle.put(server)
        self.threads = ThreadPoolExecutor(self.workers, thread_name_prefix="sandbox")

    def map(self, function: Callable, *columns: list) -> list:
        """function(*row) for each row, in order, as many at a time as there are workers."""
        return list(self.threads.map(function, *columns))

    @contextmanager
    def server(self):
        """An idle server, reserved for the caller. It is replaced if it was killed."""
        server = self.idle.get()
        try:
            if server.process.poll() is not None:
                self.servers.remove(server)
                server.door.close()
                server = Server()
                self.servers.append(server)
                server.prove()
            yield server
        except BaseException:
            server.kill()
            raise
        finally:
            self.idle.put(server)

    def close(self) -> None:
        """End all servers and their programs."""
        self.threads.shutdown(cancel_futures=True)
        for server in self.servers:
            server.kill()


def cores_of_rank() -> int:
    """The number of cores for this process: its share if torchrun started several ranks."""
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    return max(1, len(os.sched_getaffinity(0)) // ranks)


SHARED: list[Sandbox] = []  # the sandbox of this process, after the first call of `shared`


def shared() -> Sandbox:
    """The sandbox of this process, started at the first call."""
    if SHARED and SHARED[0].owner != os.getpid():
        SHARED.clear()  # this process is a fork; the servers belong to its parent
    if not SHARED:
        SHARED.append(Sandbox())
    return SHARED[0]


def start_sandbox() -> str:
    """Start this process's sandbox. Returns a line about it. Raises SandboxBroken."""
    return (
        f"programs   run {shared().workers} at a time in the sandbox: a program can read Python's "
        "libraries, ask whether a file exists, and use its time and memory"
    )
