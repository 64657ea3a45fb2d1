"""programs/sandbox/: hostile programs earn nothing and leave nothing behind; harmless ones run."""

import os
import re
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from conftest import ROOT
from hostile_programs import MARK, hostile

from programs import ProgramsError
from programs.sandbox import client, syscalls
from programs.sandbox.client import Limits, Sandbox, SandboxBroken
from programs.verify_code import SCRIPT, Result, rewards, run_tests

HOSTILE = hostile()
WALLED = [name for name, each in HOSTILE.items() if each.walls]
LIMITS = Limits(cpu_seconds=0.5, wall_seconds=30, memory_mb=512)
BUSY = Limits(cpu_seconds=0.2, wall_seconds=30, memory_mb=512)  # for programs that compute
ASLEEP = Limits(cpu_seconds=0.5, wall_seconds=1, load=2, memory_mb=512)  # for programs that sleep


@pytest.fixture(scope="module")
def whole():
    sandbox = Sandbox(1)
    yield sandbox
    sandbox.close()


@pytest.fixture(scope="module")
def landlock():
    """A sandbox with the filter and Landlock, as on a machine without namespaces."""
    try:
        sandbox = Sandbox(1, "landlock")
    except SandboxBroken as error:
        pytest.skip(str(error))
    yield sandbox
    sandbox.close()


@pytest.fixture
def outcomes(monkeypatch):
    """The supervisors' answers, in order."""
    seen = []
    outcome = client.Job.outcome

    def recorded(job):
        seen.append(outcome(job))
        return seen[-1]

    monkeypatch.setattr(client.Job, "outcome", recorded)
    return seen


@pytest.fixture(scope="module")
def around():
    """Targets on this machine for the programs to attack, and the connections that they made.

    ({"PORT": the port of a local server, "MAILBOX": a datagram socket, "FILE": a file with the
    secret}, connections). Every user may read and write these targets.
    """
    guests = []

    def welcome(listener):
        while True:
            try:
                guests.append(listener.accept()[1])
            except OSError:
                return

    mailbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listener = socket.create_server(("127.0.0.1", 0))
    with tempfile.TemporaryDirectory() as folder, mailbox, listener:
        threading.Thread(target=welcome, args=(listener,), daemon=True).start()
        places = {"MAILBOX": f"{folder}/mailbox", "FILE": f"{folder}/gold"}
        mailbox.bind(places["MAILBOX"])
        Path(places["FILE"]).touch()
        for place in (folder, *places.values()):
            os.chmod(place, 0o777)
        yield {"PORT": str(listener.getsockname()[1]), **places}, guests
        mailbox.setblocking(False)
        with pytest.raises(BlockingIOError):  # no message arrived
            mailbox.recv(1)
        listener.shutdown(socket.SHUT_RDWR)


def asked(kind: str, gold: str) -> list[dict]:
    if kind == "run":
        return [{"input": "3 4\n", "output": gold}]
    if kind == "calls":
        return [{"function": "f", "args": [3], "expected": gold}]
    return [{"script": f"assert f(3) == '{gold}'"}]


def sandbox_processes(run: int | None = None) -> set[int]:
    """A run's servers and their descendants; by default those started by this process."""
    found = set()
    mark = f'"run": {run or os.getpid()}}}'.encode()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark in (entry / "cmdline").read_bytes():
                found.add(int(entry.name))
        except OSError:  # the process has ended
            continue
    return found


def traces() -> list[str]:
    """What programs left behind: files and System V IPC objects."""
    places = ["/", "/tmp", "/var/tmp", "/dev/shm", "/run", "/etc", "/usr", ROOT]
    places += [Path.home(), Path.cwd(), Path(client.SERVER).parent]
    found = [str(place) for place in places if os.path.exists(os.path.join(place, MARK))]
    for kind in ("shm", "msg", "sem"):
        found += Path(f"/proc/sysvipc/{kind}").read_text().splitlines()[1:]
    return found


def check_hostile(name: str, sandbox: Sandbox, outcomes: list, around) -> None:
    each = HOSTILE[name]
    places, guests = around
    before, traces_before = sandbox_processes(), traces()
    limits = BUSY if "CPU time" in each.ends else LIMITS
    limits = ASLEEP if each.sleeps else limits
    gold = "gold-" + secrets.token_hex(16)

    text = each.text.replace("SERVER", str(sandbox.servers[0].process.pid))
    for place, value in places.items():
        text = text.replace(place, value)
    Path(places["FILE"]).write_text(gold)
    result = run_tests(text, asked(each.kind, gold), limits, sandbox)

    assert result.passed == 0 and result.total == 1
    assert re.search(each.ends, result.stopped.partition("test 1 of 1: ")[2]), result.stopped
    assert guests == []
    cpu_seconds = limits.cpu_seconds * (SCRIPT if each.kind == "script" else 1)
    for outcome in outcomes:
        assert outcome.cpu_seconds < cpu_seconds + 1
        longest = limits.wall_seconds + limits.load * cpu_seconds
        # The sandbox allows one extra second. The other five allow for a busy machine.
        assert outcome.seconds < longest + 1 + 5

    # A supervisor exits shortly after it answers.
    deadline = time.monotonic() + 20
    while sandbox_processes() - before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not sandbox_processes() - before
    assert traces() == traces_before


def test_there_are_many_hostile_programs():
    assert len(HOSTILE) >= 60
    assert len(WALLED) >= 30


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_program(name, whole, outcomes, around):
    check_hostile(name, whole, outcomes, around)


@pytest.mark.parametrize("name", WALLED)
def test_hostile_program_with_landlock(name, landlock, outcomes, around):
    check_hostile(name, landlock, outcomes, around)


# ---- the filter without namespaces ---------------------------------------------------------------

REFUSED = {  # operations, most on a permitted descriptor, that reach outside the program
    "file flags": "fcntl.ioctl(FILE, 0x40086602, b'\\x40' + bytes(7))",
    "file flags, read": "fcntl.ioctl(FILE, 0x80086601, bytes(8))",
    "a terminal's input": "fcntl.ioctl(FILE, 0x5412, b'x')",
    "a lease": "fcntl.fcntl(FILE, 1024, 0)",
    "folder change notifications": "fcntl.fcntl(FILE, 1026, 1)",
    "a lock": "fcntl.lockf(FILE, fcntl.LOCK_SH)",
    "an owner": "fcntl.fcntl(FILE, 8, os.getppid())",
    "a datagram": "socket.socketpair(1, 2)",
    "packets": "socket.socketpair(1, 5)",
    "a name for a socket": "socket.socketpair()[0].bind('\\0name')",
    "another process's queue": "call(NUMBERS['msgrcv'], 0, None, 0, 0, 0)",
    "another process's queue, removed": "call(NUMBERS['msgctl'], 0, 0, None)",
    "another process's memory, removed": "call(NUMBERS['shmctl'], 0, 0, None)",
    "file access notifications": "call(NUMBERS['inotify_init1'], 0)",
    "a call newer than the filter": "call(469, -100, b'x', None, 0, 0)",
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_filter_refuses(name, landlock):
    numbers = {**syscalls.MEMORY, **syscalls.OTHERS}
    column = 0 if os.uname().machine == "x86_64" else 1
    program = (
        "import ctypes, fcntl, os, socket\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        f"NUMBERS = { ({name: both[column] for name, both in numbers.items()}) }\n"
        "FILE = os.open(os.__file__, os.O_RDONLY)\n"
        "def call(*arguments):\n    if libc.syscall(*arguments) < 0:\n"
        "        raise OSError(ctypes.get_errno(), '')\n"
        f"try: {REFUSED[name]}\nexcept OSError as error: print(error.errno)"
    )
    refused = "38" if "newer" in name else "1"  # ENOSYS, EPERM
    result = run_tests(program, [{"input": "", "output": refused}], None, landlock)
    assert result == Result(1, 1, "")


# ---- harmless programs ---------------------------------------------------------------------------

HARMLESS = {
    "input": "print(input())",
    "input by descriptor": "print(open(0).read())",
    "input by name": "print(open('/dev/stdin').read())",
    "input by bytes": "import sys\nsys.stdout.buffer.write(sys.stdin.buffer.read())",
    "input of many lines": "import sys\nprint(*[line.strip() for line in sys.stdin])",
    "main": "if __name__ == '__main__': print(input())",
    "exit": "print(input())\nexit()",
    "names without import": "print(Counter([input()]).most_common()[0][0])",
    "annotations": "def f(x: List[int]) -> Optional[str]: return x\nprint(f(input()))",
    "threads": "import threading\nt = threading.Thread(target=lambda: print(input()))\nt.start()",
    "deep recursion": "import sys, threading\nsys.setrecursionlimit(10**6)\n"
    "threading.stack_size(2**26)\ndef f(n): return n and f(n - 1)\n"
    "t = threading.Thread(target=f, args=(50000,))\nt.start()\nt.join()\nprint(input())",
    "numpy": "import numpy\nprint(input(), end='' if numpy.ones((50, 50)).sum() == 2500 else 'x')",
    "asyncio": "import asyncio\nasync def f(): print(input())\nasyncio.run(f())",
    "much memory": "x = bytes(500 * 2**20)\nprint(input())",
    "deep recursion in main": "import sys\nsys.setrecursionlimit(10**6)\n"
    "def f(n): return n and 1 + f(n - 1)\nprint(input() if f(90000) == 90000 else 0)",
    "half a gigabyte of stack": "import threading\nthreading.stack_size(2**29)\n"
    "t = threading.Thread(target=lambda: print(input()))\nt.start()\nt.join()",
    "immediate exit": "import os\nprint(input(), flush=True)\nos._exit(0)",
    "redefined names": "def sum(x): return x\ndef gcd(x): return sum(x)\nprint(gcd(input()))",
    "errors written": "import sys\nprint('x', file=sys.stderr)\nprint(input())",
    "annotations of types": "from __future__ import annotations\nimport dataclasses\n"
    "@dataclasses.dataclass(order=True)\nclass P:\n    x: str\nprint(max(P(''), P(input())).x)",
    "exit handlers": "import atexit\natexit.register(lambda: print(input()))",
}


@pytest.mark.parametrize("name", HARMLESS)
@pytest.mark.parametrize("walls", ["whole", "landlock"])
def test_harmless_program(name, walls, request):
    sandbox = request.getfixturevalue(walls)
    result = run_tests(HARMLESS[name], [{"input": "ä 7\n", "output": "ä 7"}], None, sandbox)
    assert result == Result(1, 1, "")


def test_a_program_may_write_in_its_folder_and_the_next_one_finds_it_empty(whole):
    program = "import os\nopen('a', 'w').write('7')\nprint(os.listdir('.'), open('a').read())"
    if whole.servers[0].walls != "strict":
        pytest.skip("without namespaces, programs cannot write files")
    assert run_tests(program, 2 * [{"input": "", "output": "['a'] 7"}], None, whole).passed == 2


def test_the_environment_is_empty_and_python_is_isolated(whole):
    program = "import os, sys\nprint(dict(os.environ), sys.argv, sys.flags.no_user_site)"
    test = {"input": "", "output": "{} ['program.py'] 1"}
    assert run_tests(program, [test], None, whole).passed == 1


def test_relative_library_folders_are_not_passed_on(monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", ".")
    sandbox = Sandbox(1)
    try:
        assert run_tests("print(7)", [{"input": "", "output": "7"}], None, sandbox).passed == 1
    finally:
        sandbox.close()
    assert client.library_folders("/a:.::b/c:/d") == "/a:/d"


def test_a_program_finds_no_trace_of_the_previous_one(whole):
    """The shared server never reads a program's text, input or modules."""
    trace = "trace-" + secrets.token_hex(16)
    first = f"import sys, values_of_mine\nsys.path = ['{trace}']"
    run_tests(first, [{"input": trace, "output": ""}], None, whole)
    second = (
        "import re\nfound = []\nfor line in open('/proc/self/maps'):\n"
        "    start, end = (int(x, 16) for x in line.split()[0].split('-'))\n"
        "    with open('/proc/self/mem', 'rb') as file:\n        try:\n"
        "            file.seek(start)\n"
        "            found += re.findall(b'trace-[0-9a-f]{32}', file.read(end - start))\n"
        "        except (OSError, ValueError, OverflowError): pass\nprint(found)"
    )
    assert run_tests(second, [{"input": "", "output": "[]"}], None, whole).stopped == ""


# ---- limits --------------------------------------------------------------------------------------


def test_sleeping_does_not_count_as_cpu_time(whole):
    """A program may sleep longer than its CPU limit."""
    program = "import time\ntime.sleep(1)\nprint(1)"
    limits = Limits(cpu_seconds=0.5, wall_seconds=60)
    assert run_tests(program, [{"input": "", "output": "1"}], limits, whole).passed == 1


def test_the_cpu_limit_applies_to_each_call(whole):
    program = "import time\ndef f(x):\n    end = time.process_time() + 0.3\n"
    program += "    while time.process_time() < end: pass\n    return x"
    limits = Limits(cpu_seconds=0.6)
    calls = [{"function": "f", "args": [x], "expected": x} for x in range(4)]
    assert run_tests(program, calls, limits, whole) == Result(4, 4, "")


def test_the_output_limit_grows_with_the_expected_output(whole):
    expected = "x" * 3000
    limits = Limits(output_bytes=1000)
    program = "print(input() * 3000)"
    assert run_tests(program, [{"input": "x", "output": expected}], limits, whole).passed == 1
    assert (
        "too much output"
        in run_tests(program, [{"input": "x", "output": "x"}], limits, whole).stopped
    )


# ---- the pool ------------------------------------------------------------------------------------


def test_results_do_not_depend_on_the_number_of_workers(monkeypatch):
    """This includes `random` and the order of string sets: both are identical in all servers."""
    program = "import random\nprint({'a', 'b', 'c', 'd', 'e'}, random.random())"
    seen = set()
    for workers in (1, 2):
        sandbox = Sandbox(workers)
        try:
            asked = [(program, [{"input": "", "output": "x"}])] * 6

            def run(program, tests, sandbox=sandbox):
                return run_tests(program, tests, None, sandbox)

            seen |= {result.stopped for result in sandbox.map(run, *zip(*asked, strict=True))}
        finally:
            sandbox.close()
    assert len(seen) == 1


def test_a_batch_under_load_returns_its_rewards_in_order(monkeypatch, whole):
    """Correct programs pass even with four times as many workers as cores."""
    sandbox = Sandbox(4 * len(os.sched_getaffinity(0)))
    monkeypatch.setattr(client, "SHARED", [sandbox])
    try:
        tests = [{"function": "f", "args": [x], "expected": x * x} for x in range(5)]
        responses = []
        for i in range(40):
            body = "x * x" if i % 2 else "x + x"
            responses.append(f"```python\n# {i}\ndef f(x): return {body}\n```")
        limits = Limits(cpu_seconds=1, wall_seconds=120)
        found = rewards(responses, [tests] * 40, limits)
        assert found == [float(i % 2) for i in range(40)]
    finally:
        sandbox.close()


def test_closing_a_sandbox_ends_its_servers():
    before = sandbox_processes()
    sandbox = Sandbox(2)
    assert len(sandbox_processes() - before) == 2
    sandbox.close()
    assert not sandbox_processes() - before


SERVER_AND_PROGRAM = 3  # processes: server, supervisor, program


def test_no_process_survives_a_killed_run():
    script = (
        "from programs.sandbox.client import Limits, Sandbox\n"
        "sandbox = Sandbox(1)\n"
        "with sandbox.server() as server:\n"
        "    job = {'kind': 'run', 'text': 'while True: pass', 'contest': False}\n"
        "    job = server.start(job, Limits(cpu_seconds=1000, wall_seconds=1000))\n"
        "    print('started', flush=True)\n"
        "    job.outcome()\n"
    )
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as run:
        try:
            assert run.stdout.readline() == "started\n"
            assert within_30_seconds(lambda: len(sandbox_processes(run.pid)) == SERVER_AND_PROGRAM)
        finally:
            run.kill()  # otherwise the end of the block would wait for the run
    assert within_30_seconds(lambda: not sandbox_processes(run.pid))


def within_30_seconds(condition) -> bool:
    """Whether the condition becomes true within 30 seconds."""
    deadline = time.monotonic() + 30
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


# ---- when the sandbox breaks ---------------------------------------------------------------------


def test_a_killed_server_is_replaced(whole):
    whole.servers[0].process.kill()
    whole.servers[0].process.wait()
    assert run_tests("print(1)", [{"input": "", "output": "1"}], None, whole).passed == 1


def test_a_broken_sandbox_stops_the_run(whole, monkeypatch):
    """No reward is given, neither 1.0 nor 0.0."""

    def gone(job):
        raise EOFError

    monkeypatch.setattr(client.Job, "outcome", gone)
    with pytest.raises(SandboxBroken, match="broke"):
        run_tests("print(1)", [{"input": "", "output": "1"}], None, whole)


def test_a_program_whose_supervisor_is_killed_twice_fails(whole, monkeypatch):
    """The sandbox still runs a known program, so the tested program broke it."""
    outcome = client.Job.outcome
    asked = []

    def killed_twice(job):
        asked.append(job)
        if len(asked) < 3:
            job.channel.close()
            raise EOFError
        return outcome(job)

    monkeypatch.setattr(client.Job, "outcome", killed_twice)
    result = run_tests("print(1)", [{"input": "", "output": "1"}], None, whole)
    said = "test 1 of 1: broke the sandbox twice: its processes were killed"
    assert result == Result(0, 1, said)


def test_an_error_in_the_supervisor_stops_the_run(whole):
    with whole.server() as server, pytest.raises(SandboxBroken, match="broke .*AttributeError"):
        server.start({"kind": "run", "input": 7}, Limits()).outcome()


LACKING = {  # Python code that imitates a machine without a feature -> the message
    "import platform\nplatform.machine = lambda: 'x'": "system-call filter: not available for x",
    "from sandbox import walls\nwalls.leave_root = int\n"
    "walls.enter_namespaces = walls.close_other_files = refuse": (
        "namespaces: there are none; there are none"
    ),
}


@pytest.mark.parametrize("change", LACKING)
def test_without_walls_no_program_runs(change, tmp_path, monkeypatch):
    folder = Path(client.SERVER).parent.parent
    server = tmp_path / "server.py"
    server.write_text(
        f"import runpy, sys\nsys.path.append({str(folder)!r})\n"
        "def refuse():\n    raise OSError('there are none')\n"
        f"{change}\nrunpy.run_path({str(client.SERVER)!r}, run_name='__main__')\n"
    )
    monkeypatch.setattr(client, "SERVER", server)
    with pytest.raises(SandboxBroken, match=f"cannot be run safely here .*{LACKING[change]}"):
        Sandbox(1)


# ---- this machine's protections ------------------------------------------------------------------


def test_landlock_requires_an_explicit_flag(landlock, monkeypatch):
    program = "import os\nprint(os.stat(os.__file__).st_size > 0, os.path.exists('/proc/1'))"
    test = {"input": "", "output": "True True"}
    assert run_tests(program, [test], None, landlock) == Result(1, 1, "")

    monkeypatch.setattr(client, "SHARED", [landlock])
    said = "namespaces: switched off.: allow user .* with --code-sandbox landlock$"
    with pytest.raises(ProgramsError, match=said):
        client.start_sandbox("strict")
    printed = client.start_sandbox("landlock")
    assert "run 1 at a time" in printed and "landlock" in printed and "file names" in printed


def test_namespaces_hide_files_and_processes(whole, monkeypatch):
    monkeypatch.setattr(client, "SHARED", [whole])
    printed = client.start_sandbox("landlock")  # still uses the strongest walls
    if whole.servers[0].walls != "strict":
        pytest.skip("without namespaces, file and process names are visible")
    assert printed.endswith("(strict): a program can only use its time and memory")
    names = [str(ROOT / "grading.py"), f"/proc/{os.getpid()}"]
    program = f"import os\nprint(*map(os.path.exists, {names}))"
    test = {"input": "", "output": "False False"}
    assert run_tests(program, [test], None, whole) == Result(1, 1, "")
