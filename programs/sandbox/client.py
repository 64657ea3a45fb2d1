"""Our side of the sandbox: servers, one for each worker, and the jobs that they run.

A job goes out as a message and comes back as an Outcome. What is expected of a program goes to its
judge alone, and what the program says is not read here. Raises SandboxBroken when the sandbox
itself fails: no response can then be graded, and none is.
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
GRACE = 30.0  # seconds over its wall clock limit in which a supervisor has to answer


class SandboxBroken(ProgramsError):
    """The sandbox cannot be started, or broke: the run has to stop."""


@dataclass(frozen=True)
class Limits:
    """What a program may use. CPU time decides; the wall clock only ends what sleeps."""

    cpu_seconds: float = 6.0  # of a run, or of a call of a function; all threads together
    wall_seconds: float = 60.0  # of a run, beside `load` times the CPU time it has used
    load: float = 10.0
    memory_mb: int = 1024  # of address space
    output_bytes: int = 1_000_000  # or what a test expects, if that is more
    runs: int = 1  # how many calls have the CPU time, each for itself


@dataclass(frozen=True)
class Outcome:
    """How a program ended."""

    stopped: str  # "", or what it was killed for: cpu, wall, output, answered (its judge has ended)
    code: int  # its exit code; minus the signal that killed it
    output: str
    errors: str  # the end of what it wrote to standard error
    cpu_seconds: float
    seconds: float


class Job:
    """A job that a supervisor has begun."""

    def __init__(self, channel: socket.socket, wall_seconds: float):
        self.channel = channel
        channel.settimeout(wall_seconds + GRACE)

    def outcome(self) -> Outcome:
        """Wait for the end.

        Raises EOFError where the supervisor itself was killed, SandboxBroken where it failed.
        """
        with self.channel:
            try:
                answer = receive(self.channel)
            except (ConnectionError, TimeoutError) as error:
                raise EOFError from error
        if "broken" in answer:
            raise SandboxBroken(f"the sandbox for programs broke ({answer['broken']})")
        return Outcome(**answer)


class Server:
    """A process that forks supervisors; see server.py."""

    def __init__(self, best: str = "strict"):
        # "run": whose programs these are, for who reads a list of processes
        settings = {"best": best, "run": os.getpid()}
        environment = {"PYTHONHASHSEED": "0"}
        libraries = library_folders(os.environ.get("LD_LIBRARY_PATH", ""))
        if libraries:  # some Pythons do not start without it; programs do not see it
            environment["LD_LIBRARY_PATH"] = libraries
        self.door, theirs = socket.socketpair()
        with theirs:
            # python -I, but for the seed of hashes, which -I would ignore: with a seed of its own
            # each worker would have sets of texts in another order.
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
            raise SandboxBroken("the sandbox for programs cannot be started") from error
        if "broken" in found:
            raise SandboxBroken(
                f"programs cannot be run safely here ({found['broken']}): "
                "run as an ordinary user, or where the kernel allows user namespaces"
            )
        self.walls = found["walls"]  # strict or landlock
        self.missing = found["missing"]  # why there are no better ones

    def run(self, *jobs: tuple[dict, Limits]) -> list[Outcome]:
        """The outcomes of jobs, two of them joined by a socket for calls. Raises as Job does."""
        if len(jobs) == 1:
            started = [self.start(*jobs[0])]
        else:
            ends = socket.socketpair()
            with ends[0], ends[1]:
                started = [self.start(*job, end) for job, end in zip(jobs, ends, strict=True)]
        return [job.outcome() for job in started]

    def start(self, job: dict, limits: Limits, calls: socket.socket | None = None) -> Job:
        """Begin a job.

        calls: where the calls of a program come from, or those of a judge go to
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
        with suppress(ConnectionError):  # `outcome` finds the other side gone
            send(here, {**job, **asdict(limits)})
        return Job(here, limits.wall_seconds + limits.load * limits.runs * limits.cpu_seconds)

    def close(self) -> None:
        """End it; programs that still run there are killed with their supervisors."""
        self.door.close()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def library_folders(path: str) -> str:
    """The absolute folders of a search path: a server starts in another folder than this."""
    return ":".join(folder for folder in path.split(":") if os.path.isabs(folder))


class Sandbox:
    """A pool of servers, as many as workers.

    best: strict or landlock, the best walls to put up; a test asks for the second best.
    """

    def __init__(self, workers: int = 0, best: str = "strict"):
        if sys.platform != "linux":
            raise SandboxBroken("programs are run on Linux only")
        self.workers = workers or cores_of_rank()
        self.best = best
        self.owner = os.getpid()
        self.idle = queue.SimpleQueue()
        self.servers = [Server(best) for _ in range(self.workers)]
        for server in self.servers:
            self.idle.put(server)
        self.threads = ThreadPoolExecutor(self.workers, thread_name_prefix="sandbox")

    def map(self, function: Callable, *columns: list) -> list:
        """function(*row) of each row, as many at a time as there are workers; in order."""
        return list(self.threads.map(function, *columns))

    @contextmanager
    def server(self):
        """A server that nobody else uses now."""
        server = self.idle.get()
        try:
            if server.process.poll() is not None:  # somebody killed it
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
    """The cores that this process may use, its share where torchrun started several here."""
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    return max(1, len(os.sched_getaffinity(0)) // ranks)


SHARED: list[Sandbox] = []  # the sandbox of this process, once there is one


def shared() -> Sandbox:
    """The sandbox of this process, started at the first call."""
    if SHARED and SHARED[0].owner != os.getpid():
        SHARED.clear()  # this process was forked from the one whose servers they are
    if not SHARED:
        SHARED.append(Sandbox())
    return SHARED[0]


# What a program can do, by the walls that stand: values of --code-sandbox, the best first.
LEFT = {
    "strict": "use its time and memory",
    "landlock": "use its time and memory, and see files' names and which processes there are",
}


def start_sandbox(mode: str) -> str:
    """Start this process's sandbox; a line that tells what programs can do there.

    mode: of LEFT. Raises ProgramsError where only worse walls stand.
    """
    sandbox = shared()
    server = sandbox.servers[0]
    if mode == "strict" and server.walls != mode:
        raise ProgramsError(
            f"programs cannot be run here as --code-sandbox strict asks ({server.missing}): allow "
            "user namespaces here, or let programs see files' names by --code-sandbox landlock"
        )
    return (
        f"programs   run {sandbox.workers} at a time, behind walls ({server.walls}): all that they "
        f"can do is to {LEFT[server.walls]}"
    )
