"""The client of the sandbox: one server per worker, and the jobs they run.

A job is sent as a message and returns an Outcome. Expected values are sent only to the judge, and
the program's output is not parsed here. If the sandbox itself fails, SandboxBroken is raised and no
response is graded.
"""

import json
import os
import queue
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from .. import ProgramsError
from .messages import receive, send

SERVER = Path(__file__).resolve().parent / "server.py"
GRACE = 30.0  # seconds for a supervisor to answer after the wall-clock limit


class SandboxBroken(ProgramsError):
    """The sandbox cannot be started, or has broken. The run must stop."""


@dataclass(frozen=True)
class Limits:
    """A program's limits. The wall clock only stops programs that sleep."""

    cpu_seconds: float = 6.0  # per run or function call, summed over threads
    wall_seconds: float = 60.0  # per run, plus `load` times the CPU time used
    load: float = 10.0
    memory_mb: int = 1024  # of address space
    output_bytes: int = 1_000_000  # raised if a test expects more
    runs: int = 1  # number of calls; each has cpu_seconds


@dataclass(frozen=True)
class Outcome:
    """How a program ended."""

    stopped: str  # "", or why it was killed: cpu, wall, output, answered (its judge has ended)
    code: int  # exit code, or minus the signal that killed it
    output: str
    errors: str  # the end of its standard error
    cpu_seconds: float
    seconds: float


class Job:
    """A job that a supervisor has started."""

    def __init__(self, channel: socket.socket, wall_seconds: float):
        self.channel = channel
        channel.settimeout(wall_seconds + GRACE)

    def outcome(self) -> Outcome:
        """Wait for the outcome.

        Raises EOFError if the supervisor was killed, SandboxBroken if the supervisor failed.
        """
        with self.channel:
            try:
                answer = receive(self.channel)
            except (ConnectionError, TimeoutError) as error:
                raise EOFError from error
        if "broken" in answer:
            raise SandboxBroken(f"the program sandbox broke ({answer['broken']})")
        return Outcome(**answer)


class Server:
    """A process that forks supervisors; see server.py."""

    def __init__(self, best: str = "strict"):
        # "run" shows in the process list which run these programs belong to.
        settings = {"best": best, "run": os.getpid()}
        environment = {"PYTHONHASHSEED": "0"}
        libraries = library_folders(os.environ.get("LD_LIBRARY_PATH", ""))
        if libraries:  # some builds of Python need it to start; it is hidden from programs
            environment["LD_LIBRARY_PATH"] = libraries
        self.door, theirs = socket.socketpair()
        with theirs:
            # -s -P isolate Python like -I, but keep the hash seed. With different seeds, workers
            # would order sets of strings differently.
            self.process = subprocess.Popen(
                [sys.executable, "-s", "-P", str(SERVER), json.dumps(settings)],
                env=environment,
                cwd="/",
                stdin=theirs,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        try:
            found = receive(self.door)
        except EOFError as error:
            raise SandboxBroken("the program sandbox cannot be started") from error
        if "broken" in found:
            raise SandboxBroken(
                f"programs cannot be run safely here ({found['broken']}): "
                "run as an ordinary user, or on a kernel that allows user namespaces"
            )
        self.walls = found["walls"]  # strict or landlock
        self.missing = found["missing"]  # why stronger walls are not available

    def run(self, *jobs: tuple[dict, Limits]) -> list[Outcome]:
        """The outcomes of one job, or of two jobs joined by a socket. Raises like Job.outcome."""
        if len(jobs) == 1:
            started = [self.start(*jobs[0])]
        else:
            ends = socket.socketpair()
            with ends[0], ends[1]:
                started = [self.start(*job, end) for job, end in zip(jobs, ends, strict=True)]
        return [job.outcome() for job in started]

    def start(self, job: dict, limits: Limits, calls: socket.socket | None = None) -> Job:
        """Start a job.

        calls: the socket on which a program receives calls, or a judge sends them
        """
        here, there = socket.socketpair()
        with there:
            handed = [there.fileno()]
            if calls:
                handed.append(calls.fileno())
            try:
                socket.send_fds(self.door, [b"j"], handed)
            except ConnectionError as error:
                here.close()
                raise EOFError from error
        with suppress(ConnectionError):  # `outcome` then raises EOFError
            send(here, {**job, **asdict(limits)})
        return Job(here, limits.wall_seconds + limits.load * limits.runs * limits.cpu_seconds)

    def close(self) -> None:
        """End the server. Programs that are still running are killed with their supervisors."""
        self.door.close()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def library_folders(path: str) -> str:
    """The absolute folders of a search path. Relative folders are dropped: servers start in /."""
    return ":".join(folder for folder in path.split(":") if os.path.isabs(folder))


class Sandbox:
    """A pool with one server per worker.

    best: strict or landlock, the strongest walls to use. Only tests choose landlock.
    """

    def __init__(self, workers: int = 0, best: str = "strict"):
        if sys.platform != "linux":
            raise SandboxBroken("programs can be run on Linux only")
        self.workers = workers or cores_of_rank()
        self.best = best
        self.owner = os.getpid()
        self.idle = queue.SimpleQueue()
        self.servers = [Server(best) for _ in range(self.workers)]
        for server in self.servers:
            self.idle.put(server)
        self.threads = ThreadPoolExecutor(self.workers, thread_name_prefix="sandbox")

    def map(self, function: Callable, *columns: list) -> list:
        """function(*row) for each row, in order, as many at a time as there are workers."""
        return list(self.threads.map(function, *columns))

    @contextmanager
    def server(self):
        """An idle server, reserved for the caller."""
        server = self.idle.get()
        try:
            if server.process.poll() is not None:  # it was killed
                self.servers.remove(server)
                server.door.close()
                server = Server(self.best)
                self.servers.append(server)
            yield server
        finally:
            self.idle.put(server)

    def close(self) -> None:
        self.threads.shutdown(cancel_futures=True)
        for server in self.servers:
            server.close()


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


# What a program can do behind each kind of wall: the values of --code-sandbox, strongest first.
LEFT = {
    "strict": "use its time and memory",
    "landlock": "use its time and memory, and see file names and the process list",
}


def start_sandbox(mode: str) -> str:
    """Start this process's sandbox. Returns a line that says what programs can do.

    mode: a key of LEFT. Raises ProgramsError if only weaker walls are available.
    """
    sandbox = shared()
    server = sandbox.servers[0]
    if mode == "strict" and server.walls != mode:
        raise ProgramsError(
            f"--code-sandbox strict is not available here ({server.missing}): allow user "
            "namespaces, or let programs see file names with --code-sandbox landlock"
        )
    return (
        f"programs   run {sandbox.workers} at a time in the sandbox ({server.walls}): a program "
        f"can only {LEFT[server.walls]}"
    )
