"""The supervisor of one program: forks its process, feeds and measures it from outside, answers.

The supervisor is never in reach of the program, which is in other namespaces or may send no
signals, and the program's process holds none of the supervisor's connections.
"""

import os
import select
import shutil
import signal
import socket
import tempfile
import time
from contextlib import suppress

import seccomp
import walls
from messages import receive, send

ERRORS_KEPT = 4000  # bytes from the end of what a program writes to standard error
TICK = 0.05  # seconds between two looks at a program's clock, at most


def supervise(settings: dict, channel: socket.socket, calls: socket.socket | None = None):
    """Run the job that comes through `channel`, answer there, and end.

    calls: where the calls of a `calls` or `script` job come from or go to, when another process
    makes or answers them. Returns in the process of the program alone, as `serve`.
    """
    try:
        job = receive(channel)
        if settings["namespaces"]:
            walls.separate()
        folder = walls.HOME if settings["namespaces"] else tempfile.mkdtemp(prefix="program-")
        watch = Watch(job, calls)
        supervisor = os.getpid()
        problem, report = os.pipe()
        watch.pid = os.fork()
        if watch.pid == 0:
            channel.close()
            return become_program(settings, job, watch, folder, supervisor, report)
        os.close(report)
        with open(problem) as file:
            text = file.read()  # until all walls stand
        if text:
            raise RuntimeError(text)
        outcome = watch.until_end(channel)
        if not settings["namespaces"]:
            shutil.rmtree(folder, ignore_errors=True)
        send(channel, outcome)
    except (EOFError, ConnectionError):
        pass  # nobody waits for the answer any more
    except Exception as error:
        send(channel, {"broken": f"{type(error).__name__}: {error}"})
    os._exit(0)


def become_program(
    settings: dict, job: dict, watch: "Watch", folder: str, supervisor: int, report: int
) -> tuple[dict, socket.socket | None]:
    """In the new process: put up the walls, and return what is to run behind them.

    Where one cannot be put up, the process ends and the reason goes to `report`.
    """
    try:
        to_run = {name: job[name] for name in ("kind", "text", "prelude")}
        enclose(settings, job, watch, folder, supervisor, report)
        os.close(report)
        return to_run, watch.theirs
    except BaseException as error:
        os.write(report, f"{type(error).__name__}: {error}".encode())
        os._exit(1)


def enclose(
    settings: dict, job: dict, watch: "Watch", folder: str, supervisor: int, report: int
) -> None:
    """The program's own session, streams, folder and limits; then no way back."""
    os.setsid()
    if watch.ours:
        watch.ours.close()
    for descriptor, own in ((watch.stdin, 0), (watch.stdout[1], 1), (watch.stderr[1], 2)):
        os.dup2(descriptor, own)
    kept = {0, 1, 2, report}
    if watch.theirs:
        kept.add(watch.theirs.fileno())
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor not in kept:
            with suppress(OSError):  # the one that listed them is closed already
                os.close(descriptor)

    processes = walls.PROCESSES
    if not settings["counts_own"]:
        processes += walls.processes_of_user()
    if settings["namespaces"]:
        walls.furnish()
    os.chdir(folder)
    runs = max(1, len(job.get("calls", ())))
    walls.limit(job["cpu_seconds"] * runs, job["memory_mb"], processes)
    walls.stay_on_this_core()
    walls.give_up_rights()
    if not settings["namespaces"] and os.getppid() != supervisor:
        raise RuntimeError("the supervisor has gone")  # before its end could be the program's
    if settings["filter"]:
        seccomp.install(walls.libc, strict=not settings["namespaces"])


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

        self.theirs = calls
        self.ours = None
        if job["kind"] == "calls" and calls is None:
            self.ours, self.theirs = socket.socketpair()
        self.waiting = list(job.get("calls", []))  # calls that are still to be made, as texts
        self.replies = []
        self.reply = bytearray()  # as far as it has come
        self.unsent = b""  # of the present call
        self.asked = False  # whether a reply is due
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
        for descriptor in (*readers, ended, channel.fileno()):
            poll.register(descriptor, select.POLLIN)
        if self.ours:
            self.ours.setblocking(False)
            readers[self.ours.fileno()] = self.read_reply
            poll.register(self.ours, select.POLLIN)
            self.next_call()

        alive = True
        while alive and not self.stopped:
            self.send_call()
            pause = self.look_at_clocks()
            for descriptor, _ in poll.poll(1000 * pause):
                if descriptor == ended:
                    alive = False
                elif descriptor == channel.fileno():
                    self.stopped = "cancelled"
                elif not readers[descriptor]():
                    poll.unregister(descriptor)
        return self.finish(list(readers))

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
        while self.ours and self.read_reply():
            pass
        if len(self.output) > self.job["output_bytes"]:
            self.stopped = self.stopped or "output"
        return {
            "stopped": self.stopped,
            "code": os.waitstatus_to_exitcode(status),
            "output": self.output[: self.job["output_bytes"]].decode("utf-8", "replace"),
            "errors": self.errors.decode("utf-8", "replace"),
            "replies": self.replies,
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
        """Part of the reply to the present call; a whole one lets the next call go."""
        part = read(self.ours.fileno())
        self.reply += part
        while b"\n" in self.reply and self.asked:
            line, _, rest = self.reply.partition(b"\n")
            self.replies.append(line.decode("utf-8", "replace"))
            self.reply = rest
            self.next_call()
        if len(self.reply) > self.job["output_bytes"]:
            self.stopped = "output"
        return bool(part)

    def next_call(self) -> None:
        """Ask for the next call; after the last the program is of no more use."""
        self.cpu_before = self.cpu_seconds()
        self.asked = bool(self.waiting)
        if not self.waiting:
            self.stopped = "answered"
            return
        self.unsent = self.waiting.pop(0).encode() + b"\n"
        self.send_call()

    def send_call(self) -> None:
        """As much of the present call as the program takes; it may never read."""
        if not self.unsent:
            return
        try:
            sent = self.ours.send(self.unsent)
        except (BlockingIOError, ConnectionError):
            sent = 0
        self.unsent = self.unsent[sent:]

    def look_at_clocks(self) -> float:
        """Stop the program if it is over a limit; seconds until it may be, at the earliest."""
        cpu = self.cpu_seconds()
        cpu_left = self.job["cpu_seconds"] - (cpu - self.cpu_before)
        wall = self.job["wall_seconds"] + self.job["load"] * cpu
        wall_left = wall - (time.monotonic() - self.started)
        if cpu_left < 0:
            self.stopped = "cpu"
        elif wall_left < 0:
            self.stopped = "wall"
        longest = 0.002 if self.unsent else TICK
        return min(max(cpu_left, 0.005), max(wall_left, 0.005), longest)

    def cpu_seconds(self) -> float:
        """CPU time that the program has used, all threads together."""
        try:
            return time.clock_gettime(~self.pid << 3 | 2)  # the clock of another process
        except OSError:  # it has ended
            return self.cpu_before


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
