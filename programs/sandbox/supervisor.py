"""A program's supervisor: forks its process, sends its input, measures and kills it.

The program cannot reach its supervisor: the program is in other namespaces or may not send signals,
and has none of the supervisor's connections.
"""

import os
import select
import signal
import socket
import time
from contextlib import suppress

from . import seccomp, walls
from .messages import receive, send

ERRORS_KEPT = 4000  # last bytes of a program's standard error
TICK = 0.05  # longest time between two checks of a program's clocks, seconds
PATIENCE = 30.0  # seconds within which a waiting judge must accept an answer


def supervise(namespaces: bool, channel: socket.socket, calls: socket.socket | None = None):
    """Run the job received from `channel`, answer on `channel`, and exit.

    namespaces: whether the server is in namespaces; otherwise Landlock is used
    calls: the socket on which a `calls` job receives calls, or a judge sends them

    Returns only in the program's process, like `serve`.
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
            text = file.read()  # returns when all walls are set up
        if text:
            raise RuntimeError(text)
        send(channel, watch.until_end(channel))
    except (EOFError, ConnectionError):
        pass  # the client has closed the channel
    except Exception as error:
        send(channel, {"broken": f"{type(error).__name__}: {error}"})
    os._exit(0)


def become_program(
    namespaces: bool, job: dict, watch: "Watch", supervisor: int, report: int
) -> tuple[dict, socket.socket | None]:
    """In the new process: set up the walls, and return (job, socket for calls).

    If a wall cannot be set up, the process writes the reason to `report` and exits.
    """
    try:
        enclose(namespaces, job, watch, supervisor, report)
        os.close(report)
        return job, watch.theirs
    except BaseException as error:
        os.write(report, f"{type(error).__name__}: {error}".encode())
        os._exit(1)


def enclose(namespaces: bool, job: dict, watch: "Watch", supervisor: int, report: int) -> None:
    """Give the program a separate session, streams, folder and limits, permanently."""
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
            with suppress(OSError):  # listdir's own descriptor is already closed
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
            raise RuntimeError("the supervisor has ended")  # nothing would kill the program
        walls.close_other_files()
    seccomp.install(walls.libc, strict=not namespaces)


class Watch:
    """The supervisor's view of a program: streams and clocks."""

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

        self.theirs = calls  # a judge uses the socket directly
        self.judge = self.ours = None
        if job["kind"] == "calls":  # calls pass through here, so the clocks run only during calls
            self.judge = calls
            self.ours, self.theirs = socket.socketpair()
        self.question = b""  # the part of a call that the program has not read yet
        self.reply = bytearray()  # the received part of the reply to the current call
        self.asked = not self.judge  # whether it is the program's turn
        self.idle_since = self.started
        self.idle = 0.0  # seconds between earlier turns
        self.cpu_before = 0.0  # CPU seconds used before the current call

        self.output = bytearray()
        self.errors = bytearray()
        self.error_bytes = 0  # total length of standard error
        self.stopped = ""  # why the program was or will be killed

    def until_end(self, channel: socket.socket) -> dict:
        """Watch the program until it ends or is killed. Returns the answer for client.py."""
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
            if self.question:  # without blocking: the program may never read it
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
        """Kill the remaining processes, read the remaining output, and return the answer."""
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

    # Each reader returns whether more data may follow.

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
        """Read part of the reply to the current call."""
        part = read(self.ours.fileno())
        self.reply += part
        self.end_turn()
        if len(self.reply) > self.job["output_bytes"]:
            self.stopped = "output"
        return bool(part)

    def end_turn(self) -> None:
        """Pass a complete reply to the judge. This ends the program's turn."""
        if not self.asked or b"\n" not in self.reply:
            return
        line, _, rest = self.reply.partition(b"\n")
        with suppress(OSError):  # the judge has ended
            self.judge.sendall(line + b"\n")
        self.reply = rest
        self.asked = False
        self.idle_since = time.monotonic()
        if self.job["runs"] > 1:
            self.cpu_before = self.cpu_seconds()

    def read_question(self) -> bool:
        """Read part of a call, which begins the program's turn. Stop if the judge has ended."""
        part = read(self.judge.fileno())
        if not part:
            self.stopped = "answered"
        elif not self.asked:
            self.asked = True
            self.idle += time.monotonic() - self.idle_since
        self.question += part
        if b"\n" in part:
            self.end_turn()  # the program may have replied in advance
        return bool(part)

    def look_at_clocks(self) -> float:
        """Stop the program if it exceeds a limit. Returns the seconds until the next check.

        The wall clock is paused between the program's turns.
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
        """The CPU time that the program has used, summed over its threads."""
        try:
            return time.clock_gettime(~self.pid << 3 | 2)  # the clock of another process
        except OSError:  # the process has ended
            return self.cpu_before


def sent(channel: socket.socket, content: bytes) -> int:
    """Send without blocking. Returns the number of bytes sent."""
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
    """Kill the program together with its namespace or process group."""
    for kill in (os.killpg, os.kill):
        with suppress(ProcessLookupError):  # the process has ended or has no group yet
            kill(pid, signal.SIGKILL)
