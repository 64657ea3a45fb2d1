"""The supervisor of one program: forks its process, feeds and measures it from outside, answers.

The supervisor is never in reach of the program, which is in other namespaces or may send no
signals, and the program's process holds none of the supervisor's connections.
"""

import os
import select
import signal
import socket
import time
from contextlib import suppress

from . import seccomp, walls
from .messages import receive, send

ERRORS_KEPT = 4000  # bytes from the end of what a program writes to standard error
TICK = 0.05  # seconds between two looks at a program's clock, at most
PATIENCE = 30.0  # seconds in which a judge, who waits for it, takes an answer


def supervise(namespaces: bool, channel: socket.socket, calls: socket.socket | None = None):
    """Run the job that comes through `channel`, answer there, and end.

    namespaces: whether the server is in some; else Landlock stands for them
    calls: where the calls of a `calls` job come from, or those of a judge go to

    Returns in the process of the program alone, as `serve`.
    """
    try:
        job = receive(channel)
        if namespaces:
            walls.separate()
        watch = Watch(job, calls)
        supervisor = os.getpid()
        problem, report = os.pipe()
        watch.pid = os.fork()
        if watch.pid == 0:
            channel.close()
            return become_program(namespaces, job, watch, supervisor, report)
        os.close(report)
        with open(problem) as file:
            text = file.read()  # until all walls stand
        if text:
            raise RuntimeError(text)
        send(channel, watch.until_end(channel))
    except (EOFError, ConnectionError):
        pass  # nobody waits for the answer any more
    except Exception as error:
        send(channel, {"broken": f"{type(error).__name__}: {error}"})
    os._exit(0)


def become_program(
    namespaces: bool, job: dict, watch: "Watch", supervisor: int, report: int
) -> tuple[dict, socket.socket | None]:
    """In the new process: put up the walls, and return what is to run behind them.

    Where one cannot be put up, the process ends and the reason goes to `report`.
    """
    try:
        enclose(namespaces, job, watch, supervisor, report)
        os.close(report)
        return job, watch.theirs
    except BaseException as error:
        os.write(report, f"{type(error).__name__}: {error}".encode())
        os._exit(1)


def enclose(namespaces: bool, job: dict, watch: "Watch", supervisor: int, report: int) -> None:
    """The program's own session, streams, folder and limits; then no way back."""
    os.setsid()
    for channel in (watch.ours, watch.judge):
        if channel:
            channel.close()
    for descriptor, own in ((watch.stdin, 0), (watch.stdout[1], 1), (watch.stderr[1], 2)):
        os.dup2(descriptor, own)
    kept = {0, 1, 2, report}
    if watch.theirs:
        kept.add(watch.theirs.fileno())
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor not in kept:
            with suppress(OSError):  # the one that listed them is closed already
                os.close(descriptor)

    processes = walls.PROCESSES + walls.processes_of_user()
    if namespaces:
        walls.furnish()
    os.chdir(walls.HOME if namespaces else "/")
    walls.limit(job["cpu_seconds"] * job["runs"], job["memory_mb"], processes)
    walls.stay_on_this_core()
    walls.give_up_rights()
    if not namespaces:
        if os.getppid() != supervisor:
            raise RuntimeError("the supervisor has gone")  # before its end could be the program's
        walls.close_other_files()
    seccomp.install(walls.libc, strict=not namespaces)


class Watch:
    """A program's streams and clocks, seen from its supervisor."""

    def __init__(self, job: dict, calls: socket.socket | None):
        self.job = job
        self.pid = 0
        self.started = time.monotonic()
        self.stdin = os.memfd_create("stdin")
        with open(self.stdin, "wb", closefd=False) as file:
            file.write(job.get("input", "").encode("utf-8", "surrogateescape"))
        os.lseek(self.stdin, 0, os.SEEK_SET)
        self.stdout = os.pipe()
        self.stderr = os.pipe()

        self.theirs = calls  # of a judge, who calls by itself
        self.judge = self.ours = None
        if job["kind"] == "calls":  # they pass through here, so that the clocks run for them alone
            self.judge = calls
            self.ours, self.theirs = socket.socketpair()
        self.question = b""  # what the program has not taken yet
        self.reply = bytearray()  # to the present call, as far as it has come
        self.asked = not self.judge  # whether it is the program's turn
        self.idle_since = self.started
        self.idle = 0.0  # seconds in which it was not, before that
        self.cpu_before = 0.0  # seconds used before the present call

        self.output = bytearray()
        self.errors = bytearray()
        self.error_bytes = 0  # that there were of them
        self.stopped = ""  # why it was, or will be, killed

    def until_end(self, channel: socket.socket) -> dict:
        """Watch the program until it ends or is killed; the answer for client.py."""
        for descriptor in (self.stdin, self.stdout[1], self.stderr[1]):
            os.close(descriptor)
        if self.theirs:
            self.theirs.close()

        readers = {self.stdout[0]: self.read_output, self.stderr[0]: self.read_errors}
        ended = os.pidfd_open(self.pid)
        poll = select.poll()
        if self.judge:
            self.ours.setblocking(False)
            self.judge.settimeout(PATIENCE)
            readers[self.ours.fileno()] = self.read_reply
            readers[self.judge.fileno()] = self.read_question
        for descriptor in (*readers, ended, channel.fileno()):
            poll.register(descriptor, select.POLLIN)

        alive = True
        while alive and not self.stopped:
            if self.question:  # the program may never read it
                self.question = self.question[sent(self.ours, self.question) :]
            pause = self.look_at_clocks()
            for descriptor, _ in poll.poll(1000 * pause):
                if descriptor == ended:
                    alive = False
                elif descriptor == channel.fileno():
                    self.stopped = "cancelled"
                elif not readers[descriptor]():
                    poll.unregister(descriptor)
        return self.finish([self.stdout[0], self.stderr[0]])

    def finish(self, descriptors: list[int]) -> dict:
        """Kill what is left, read what is left, and say how it went."""
        kill_group(self.pid)
        _, status, usage = os.wait4(self.pid, 0)
        for descriptor in descriptors:
            os.set_blocking(descriptor, False)
        while self.read_output() and len(self.output) <= self.job["output_bytes"]:
            pass
        while self.read_errors() and not self.stopped:
            pass
        if self.judge:
            while self.read_reply():
                pass
            self.judge.close()
        if len(self.output) > self.job["output_bytes"]:
            self.stopped = self.stopped or "output"
        return {
            "stopped": self.stopped,
            "code": os.waitstatus_to_exitcode(status),
            "output": self.output[: self.job["output_bytes"]].decode("utf-8", "replace"),
            "errors": self.errors.decode("utf-8", "replace"),
            "cpu_seconds": usage.ru_utime + usage.ru_stime,
            "seconds": time.monotonic() - self.started,
        }

    # Each reader says whether there may be more to come.

    def read_output(self) -> bool:
        part = read(self.stdout[0])
        self.output += part
        if len(self.output) > self.job["output_bytes"]:
            self.stopped = "output"
        return bool(part)

    def read_errors(self) -> bool:
        part = read(self.stderr[0])
        self.errors = (self.errors + part)[-ERRORS_KEPT:]
        self.error_bytes += len(part)
        if self.error_bytes > 10 * self.job["output_bytes"]:
            self.stopped = "output"
        return bool(part)

    def read_reply(self) -> bool:
        """Part of the reply to the present call."""
        part = read(self.ours.fileno())
        self.reply += part
        self.end_turn()
        if len(self.reply) > self.job["output_bytes"]:
            self.stopped = "output"
        return bool(part)

    def end_turn(self) -> None:
        """Pass a whole reply to the judge; the program then has nothing to do."""
        if not self.asked or b"\n" not in self.reply:
            return
        line, _, rest = self.reply.partition(b"\n")
        with suppress(OSError):  # it has gone
            self.judge.sendall(line + b"\n")
        self.reply = rest
        self.asked = False
        self.idle_since = time.monotonic()
        if self.job["runs"] > 1:
            self.cpu_before = self.cpu_seconds()

    def read_question(self) -> bool:
        """Part of a call; the first one begins the program's turn. Without a judge it may end."""
        part = read(self.judge.fileno())
        if not part:
            self.stopped = "answered"
        elif not self.asked:
            self.asked = True
            self.idle += time.monotonic() - self.idle_since
        self.question += part
        if b"\n" in part:
            self.end_turn()  # it may have answered before it was asked
        return bool(part)

    def look_at_clocks(self) -> float:
        """Stop the program if it is over a limit; seconds until it may be, at the earliest.

        While it is not its turn, the wall clock stands.
        """
        cpu = self.cpu_seconds()
        cpu_left = self.job["cpu_seconds"] - (cpu - self.cpu_before)
        now = time.monotonic() if self.asked else self.idle_since
        wall = self.job["wall_seconds"] + self.job["load"] * cpu
        wall_left = wall - (now - self.started - self.idle)
        if cpu_left < 0:
            self.stopped = "cpu"
        elif wall_left < 0:
            self.stopped = "wall"
        longest = 0.002 if self.question else TICK
        return min(max(cpu_left, 0.005), max(wall_left, 0.005), longest)

    def cpu_seconds(self) -> float:
        """CPU time that the program has used, all threads together."""
        try:
            return time.clock_gettime(~self.pid << 3 | 2)  # the clock of another process
        except OSError:  # it has ended
            return self.cpu_before


def sent(channel: socket.socket, content: bytes) -> int:
    """How many bytes the other side takes now."""
    try:
        return channel.send(content)
    except (BlockingIOError, ConnectionError):
        return 0


def read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 2**16)
    except (BlockingIOError, ConnectionResetError):
        return b""


def kill_group(pid: int) -> None:
    """The program and, with it, all of its namespace or its process group."""
    for kill in (os.killpg, os.kill):
        with suppress(ProcessLookupError):  # it has ended, or has not made its group yet
            kill(pid, signal.SIGKILL)
