"""infra/sandbox/: no hostile program earns credit, survives, exceeds its limits or leaves anything."""

import os
import re
import secrets
import socket
import threading
import time
from pathlib import Path

import pytest
from conftest import ROOT
from hostile_programs import MARK, hostile

from infra.errors import UserError
from infra.sandbox import client, probe
from infra.sandbox.client import Limits, Sandbox, SandboxBroken
from verify_code import Result, rewards, run_tests

HOSTILE = hostile()
WALLED = [name for name, each in HOSTILE.items() if each.walls]
LIMITS = Limits(cpu_seconds=0.5, wall_seconds=30, memory_mb=512)
ASLEEP = Limits(cpu_seconds=0.5, wall_seconds=1.5, memory_mb=512)  # where the wall clock decides


def sandbox_with(namespaces: bool, call_filter: bool):
    try:
        return Sandbox(1, namespaces, call_filter)
    except SandboxBroken as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def whole():
    sandbox = Sandbox(1)
    if sandbox.walls["namespaces"] is not True:
        print(sandbox.walls)
    yield sandbox
    sandbox.close()


@pytest.fixture(scope="module")
def namespaces_alone():
    sandbox = sandbox_with(True, False)
    yield sandbox
    sandbox.close()


@pytest.fixture(scope="module")
def filter_alone():
    sandbox = sandbox_with(False, True)
    yield sandbox
    sandbox.close()


@pytest.fixture
def outcomes(monkeypatch):
    """All that supervisors answer, as it comes."""
    seen = []
    outcome = client.Job.outcome

    def recorded(job):
        seen.append(outcome(job))
        return seen[-1]

    monkeypatch.setattr(client.Job, "outcome", recorded)
    return seen


@pytest.fixture(scope="module")
def door():
    """A server on this machine, and who came to it."""
    guests = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def welcome():
            while True:
                try:
                    guests.append(listener.accept()[1])
                except OSError:
                    return

        threading.Thread(target=welcome, daemon=True).start()
        yield listener.getsockname()[1], guests
        listener.shutdown(socket.SHUT_RDWR)


def asked(kind: str, gold: str) -> list[dict]:
    if kind == "run":
        return [{"input": "3 4\n", "output": gold}]
    if kind == "calls":
        return [{"function": "f", "args": [3], "expected": gold}]
    return [{"script": f"assert f(3) == '{gold}'"}]


def sandbox_processes() -> set[int]:
    """Processes that run server.py or were forked from it, our servers left out."""
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and b"sandbox/server.py" in (entry / "cmdline").read_bytes():
                found.add(int(entry.name))
        except OSError:  # it has ended
            continue
    return found


def traces() -> list[str]:
    """What a program has left: files, System V IPC."""
    places = ["/", "/tmp", "/var/tmp", "/dev/shm", "/run", "/etc", "/usr", "/work", "/root", ROOT]
    places += [Path.home(), Path.cwd(), Path(client.SERVER).parent]
    found = [str(place) for place in places if os.path.exists(os.path.join(place, MARK))]
    for kind in ("shm", "msg", "sem"):
        found += Path(f"/proc/sysvipc/{kind}").read_text().splitlines()[1:]
    return found


def check_hostile(name: str, sandbox: Sandbox, outcomes: list, door) -> None:
    each = HOSTILE[name]
    port, guests = door
    before, traces_before = sandbox_processes(), traces()
    folder = set(os.listdir("/tmp"))
    limits = ASLEEP if each.sleeps else LIMITS
    gold = "gold-" + secrets.token_hex(16)

    text = each.text.replace("PORT", str(port))
    result = run_tests(text, asked(each.kind, gold), limits, sandbox)

    assert result.passed == 0 and result.total == 1
    assert re.search(each.ends, result.stopped.partition("test 1 of 1: ")[2]), result.stopped
    assert guests == []
    for outcome in outcomes:
        assert outcome.cpu_seconds < limits.cpu_seconds + 1
        assert outcome.seconds < limits.wall_seconds + 1 + 5  # for a busy machine

    # A supervisor that has answered takes a moment to end.
    deadline = time.monotonic() + 20
    while sandbox_processes() - before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not sandbox_processes() - before
    assert traces() == traces_before
    ours = {entry for entry in set(os.listdir("/tmp")) - folder if entry.startswith("program-")}
    assert not ours


def test_there_are_many_hostile_programs():
    assert len(HOSTILE) >= 60
    assert len(WALLED) >= 30


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_program(name, whole, outcomes, door):
    check_hostile(name, whole, outcomes, door)


@pytest.mark.parametrize("name", WALLED)
def test_hostile_program_with_namespaces_alone(name, namespaces_alone, outcomes, door):
    check_hostile(name, namespaces_alone, outcomes, door)


@pytest.mark.parametrize("name", WALLED)
def test_hostile_program_with_the_filter_alone(name, filter_alone, outcomes, door):
    check_hostile(name, filter_alone, outcomes, door)
