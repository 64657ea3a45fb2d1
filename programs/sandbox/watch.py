"""Watches programs from outside: their output, their clocks and their threads."""

import errno
import fcntl
import os
import select
import struct
import time
from contextlib import suppress
from dataclasses import dataclass, field

from .values import excerpt

ERRORS_KEPT = 4000  # last bytes of a program's standard error
TICK = 0.05  # longest time between two looks at the clocks, seconds
THREADS = 128  # threads of a program at a time
STARTS = 10_000  # threads that a program may start in all: each one costs this process time

# ioctl(2) on a filter's listener, from linux/seccomp.h
RECEIVE, ANSWER, CONTINUE = 0xC0502100, 0xC0182101, 1


@dataclass(frozen=True)
class Limits:
    """A program's limits. Only programs that sleep reach the limit of the wall clock."""

    cpu_seconds: float = 6.0  # per run or function call, as in LiveCodeBench; all threads together
    wall_seconds: float = 60.0  # for all tests together, plus `load` times the CPU time used
    load: float = 10.0
    memory_mb: int = 1024  # of address space
    output_bytes: int = 1_000_000  # raised if a test expects more


@dataclass
class Process:
    """A program's process: its streams, its clocks, and how it ended."""

    limits: Limits
    number: int
    out: int  # pipe
    err: int
    handle: int  # pidfd
    listener: int  # readable when a thread wants to start
    output: bytearray = field(default_factory=bytearray)
    errors: bytes = b""  # the end of its standard error
    error_bytes: int = 0
    starts: int = 0  # of threads
    used: float = 0.0  # CPU seconds
    before: float = 0.0  # CPU seconds before the current call
    stopped: str = ""  # why it must be killed: cpu, wall, output, threads
    code: int = 0  # exit code, or minus the signal that killed it

    def text(self) -> str:
        """Its standard output."""
        return self.output[: self.limits.output_bytes].decode("utf-8", "replace")

    def last_error(self) -> str:
        """The last line of its standard error."""
        return excerpt(self.errors.decode("utf-8", "replace").strip().split("\n")[-1], 300)

    def read(self, descriptor: int) -> bool:
        """Read from a stream. Returns whether more may follow."""
        try:
            part = os.read(descriptor, 2**16)
        except BlockingIOError:
            return False
        if descriptor == self.out:
            self.output += part
        else:
            self.errors = (self.errors + part)[-ERRORS_KEPT:]
            self.error_bytes += len(part)
        room = self.limits.output_bytes
        if len(self.output) > room or self.error_bytes > 10 * room:
            self.stopped = self.stopped or "output"
            return False
        return bool(part)

    def finish(self, code: int) -> None:
        """Note the exit code, and read what is left in the streams."""
        self.code = code
        for descriptor in (self.out, self.err):
            while self.read(descriptor):
                pass

    def admit_thread(self) -> None:
        """Let a waiting thread start, unless THREADS are running."""
        self.starts += 1
        if self.starts > STARTS:
            self.stopped = self.stopped or "threads"
            return
        request = bytearray(80)  # struct seccomp_notif, which begins with an id
        with suppress(FileNotFoundError, ProcessLookupError):  # it was interrupted or killed
            fcntl.ioctl(self.listener, RECEIVE, request)
            full = len(os.listdir(f"/proc/{self.number}/task")) >= THREADS
            verdict = (-errno.EAGAIN, 0) if full else (0, CONTINUE)
            answer = struct.pack("QqiI", *struct.unpack_from("Q", request), 0, *verdict)
            fcntl.ioctl(self.listener, ANSWER, answer)

    def look_at_clock(self, new_call: bool) -> None:
        """Read the CPU clock, and stop the process if its current call has used up its time."""
        with suppress(OSError):  # the process may have ended
            self.used = time.clock_gettime(~self.number << 3 | 2)  # another process's clock
        if new_call:
            self.before = self.used
        if self.used - self.before > self.limits.cpu_seconds:
            self.stopped = self.stopped or "cpu"


def watch(processes: list[Process], wall: float, each_call: bool) -> float:
    """Wait until the first process ends, or one of them must be killed.

    processes: a program, or a judge and the program that it calls
    wall: idle seconds after which the last process is stopped
    each_call: whether the CPU limit holds for each call; after a line of the judge the next begins

    Returns the idle seconds: wall-clock time beyond Limits.load times the CPU time.
    """
    first, last = processes[0], processes[-1]
    poll = select.poll()
    owners = {}
    for each in processes:
        for descriptor in (each.handle, each.listener, each.out, each.err):
            owners[descriptor] = each
            poll.register(descriptor, select.POLLIN)

    started, idle, seen = time.monotonic(), 0.0, 0
    while first.handle in owners and not any(each.stopped for each in processes):
        for descriptor, events in poll.poll(1000 * TICK):
            each = owners[descriptor]
            if descriptor == each.listener and events & select.POLLIN:
                each.admit_thread()
            elif descriptor in (each.handle, each.listener) or not each.read(descriptor):
                poll.unregister(descriptor)
                del owners[descriptor]

        new_call = each_call and first.output.find(b"\n", seen) >= 0
        seen = len(first.output)
        for each in processes:
            each.look_at_clock(new_call)
        credit = last.limits.load * sum(each.used for each in processes)
        idle = max(0.0, time.monotonic() - started - credit)
        if idle > wall and first.handle in owners:
            last.stopped = last.stopped or "wall"
    return idle
