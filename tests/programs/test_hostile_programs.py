"""Attacks the sandbox: the programs of hostile.txt earn nothing and leave nothing behind."""

import csv
import os
import re
import secrets
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import ROOT
from listed import listed

from programs.sandbox import client, seccomp
from programs.sandbox.client import Sandbox, SandboxBroken, Server
from programs.sandbox.watch import Limits
from programs.verify_code import Result, run_tests

SLOW = Limits(cpu_seconds=1.0, wall_seconds=30, memory_mb=512)
BUSY = Limits(cpu_seconds=0.1, wall_seconds=30, memory_mb=512)  # for programs that compute
ASLEEP = Limits(cpu_seconds=0.3, wall_seconds=0.5, load=2, memory_mb=512)
TROUBLE = 30  # seconds that a busy machine may add; a judge that hangs takes longer


LISTED = listed("hostile.txt")
HELPERS = {name: text for name, (kind, _, text) in LISTED.items() if kind == "helper"}
PROGRAMS = [name for name in LISTED if name not in HELPERS]


@pytest.fixture(scope="module")
def sandbox():
    return Sandbox(1)


def server_of(sandbox: Sandbox) -> Server:
    """The server of a sandbox with one worker."""
    server = sandbox.idle.get()
    sandbox.idle.put(server)
    return server


def children(number: int) -> list[int]:
    """The processes that a process has started."""
    found = Path(f"/proc/{number}/task/{number}/children").read_text().split()
    return [int(each) for each in found]


def asked(kind: str, gold: str) -> list[dict]:
    """Tests of this kind that no hostile program can pass unless it gets the expected value."""
    if kind == "run":
        return [{"input": "3 4\n", "output": gold}]
    if kind == "calls":
        return [{"function": "f", "args": [3], "expected": gold}]
    return [{"script": f"for got, wanted in zip(map(f, [3]), ['{gold}']): assert got == wanted"}]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_hostile_program_earns_nothing_and_leaves_nothing(name, sandbox, tmp_path):
    kind, pattern, text = LISTED[name]
    for word, helper in HELPERS.items():
        text = re.sub(rf"^{word}$", lambda _, helper=helper: helper, text, flags=re.MULTILINE)
    gold = "gold-" + secrets.token_hex(16)
    file = tmp_path / "gold"
    (tmp_path / "sub").mkdir()
    file.write_text(gold)
    before = file.stat()
    server = server_of(sandbox).process.pid
    places = {"FILE": file, "FOLDER": tmp_path, "ROOT": ROOT, "MAILBOX": tmp_path / "mailbox"}
    for word, value in (places | {"SERVER": server, "CLIENT": os.getpid(), "NUL": "\0"}).items():
        text = text.replace(word, str(value))
    limits = ASLEEP if "wall" in pattern else BUSY if "CPU" in pattern else SLOW
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as mailbox:
        mailbox.bind(str(tmp_path / "mailbox"))
        mailbox.setblocking(False)
        started = time.monotonic()
        result = run_tests(text, asked(kind, gold), limits, sandbox)
        seconds = time.monotonic() - started
        with pytest.raises(BlockingIOError):
            mailbox.recv(1)

    pattern = pattern.replace("wrong", f"printed, {gold}|printed, ")
    reason = result.stopped.removeprefix("test 1 of 1: ")
    assert result.passed == 0 and re.search(pattern, reason), result.stopped
    assert result.stopped.isprintable()
    busy = 12 * limits.cpu_seconds  # for the program, for its judge, and for a busy machine
    assert seconds < limits.wall_seconds + limits.load * busy + TROUBLE

    after = file.stat()
    assert children(server_of(sandbox).process.pid) == []
    assert sorted(os.listdir(tmp_path)) == ["gold", "mailbox", "sub"]
    assert (after.st_mode, after.st_mtime_ns) == (before.st_mode, before.st_mtime_ns)
    assert file.read_text() == gold


def test_every_call_that_is_not_listed_is_refused(sandbox):
    """Makes each call whose number is not in allowed.csv, with zeros as arguments.

    No filter sees 335 and 336 on x86-64: they serve debuggers, and end a program that has none.
    """
    with open(seccomp.ALLOWED, newline="") as file:
        allowed = {int(row[os.uname().machine] or -1) for row in csv.DictReader(file)}
    numbers = {*range(600), 2**30 + 39} - allowed - {335, 336}
    program = (
        "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "for number in map(int, input().split()):\n"
        "    result = libc.syscall(number, 0, 0, 0, 0, 0, 0)\n"
        "    if result != -1 or ctypes.get_errno() not in (1, 38): print(number)\n"
        "print('end')"
    )
    test = {"input": " ".join(map(str, numbers)), "output": "end"}
    assert run_tests(program, [test], None, sandbox) == Result(1, 1, "")


@pytest.fixture
def sandbox_after(tmp_path, monkeypatch):
    """sandbox_after(Python code) -> a sandbox whose server runs that code before it starts."""

    def started(code: str) -> Sandbox:
        script = tmp_path / "server.py"
        script.write_text(
            f"import runpy, sys\nsys.path.append({str(Path(client.SERVER).parent.parent)!r})\n"
            f"from sandbox import wall\n{code}\n"
            f"runpy.run_path({str(client.SERVER)!r}, run_name='__main__')\n"
        )
        monkeypatch.setattr(client, "SERVER", script)
        return Sandbox()

    monkeypatch.setenv("LOCAL_WORLD_SIZE", "99")  # more ranks than cores leave one worker
    return started


LACKING = {  # code that imitates a machine without a part of the wall -> the reason
    "wall.CREATE = 9999": "Landlock: Function not implemented",
    "import platform\nplatform.machine = lambda: 'riscv64'": "no system-call filter for riscv64",
    "wall.SYSTEM.append('/proc')": "files stay readable",
}


@pytest.mark.parametrize("code", LACKING)
def test_without_the_wall_no_program_runs(code, sandbox_after):
    reason = f"cannot be run safely here .*{LACKING[code]}"
    with pytest.raises(SandboxBroken, match=reason) as broken:
        sandbox_after(code)
    assert "\n" not in str(broken.value) and "Linux 5.13" in str(broken.value)


def test_a_project_on_sys_path_stays_closed(sandbox_after, tmp_path, monkeypatch):
    """An editable install adds the project's folder to sys.path; LD_LIBRARY_PATH may name it."""
    (tmp_path / ".env").write_text("secret")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{tmp_path}:.:/")
    program = (
        f"import os, sys\nprint({str(tmp_path)!r} in sys.path)\n"
        f"for act in (os.listdir, lambda folder: open(folder + '/.env').read()):\n"
        f"    try: print(act({str(tmp_path)!r}))\n    except PermissionError: print('refused')"
    )
    sandbox = sandbox_after(f"sys.path.append({str(tmp_path)!r})")
    test = {"input": "", "output": "True\nrefused\nrefused"}
    assert run_tests(program, [test], None, sandbox) == Result(1, 1, "")


def test_all_tests_of_a_program_share_one_wall_clock_budget(sandbox):
    program = "import time\ntime.sleep(0.3)\nprint(7)"
    limits = Limits(cpu_seconds=1, wall_seconds=1, load=1)
    result = run_tests(program, [{"input": "", "output": "7"}] * 9, limits, sandbox)
    assert result.passed in (1, 2, 3) and "wall-clock budget" in result.stopped


def test_a_program_that_breaks_two_servers_fails(sandbox, monkeypatch):
    run = Server.run

    def broken(server, wall, *jobs):
        if jobs[0][0]["text"] != client.KNOWN:
            server.process.kill()
        return run(server, wall, *jobs)

    monkeypatch.setattr(Server, "run", broken)
    result = run_tests("print(1)", [{"input": "", "output": "1"}], None, sandbox)
    assert result.passed == 0 and "broke the sandbox twice" in result.stopped


def test_no_process_survives_a_killed_run():
    script = (
        "from programs.sandbox.client import Limits, Sandbox\n"
        "sandbox = Sandbox(1)\n"
        "server = sandbox.idle.get()\n"
        "print(server.process.pid, flush=True)\n"
        "job = {'kind': 'run', 'text': 'while True: pass', 'contest': False}\n"
        "server.run(1000, (job, Limits(cpu_seconds=1000)))\n"
    )
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as run:
        try:
            server = int(run.stdout.readline())
            assert within_30_seconds(lambda: len(children(server)) == 1)
            (program,) = children(server)
            status = Path(f"/proc/{program}/status").read_text()
            assert "CapEff:\t0000000000000000" in status  # root's could raise the limits
        finally:
            run.kill()  # otherwise the end of the block would wait for the run
    for number in (server, program):
        assert within_30_seconds(lambda number=number: not Path(f"/proc/{number}").exists())


def within_30_seconds(condition) -> bool:
    """Whether the condition becomes true within 30 seconds."""
    deadline = time.monotonic() + 30
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()
