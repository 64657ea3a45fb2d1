"""Which protections hold on this machine: a program tries each of them, inside the sandbox."""

import json
import os
import socket
import tempfile
from pathlib import Path

from .. import ProgramsError
from . import client
from .client import Limits, Sandbox, SandboxBroken

# What is said of a protection, and what the probing program does to find out that it is missing.
ATTEMPTS = {
    "no network": "socket.create_connection(('127.0.0.1', facts['port']), timeout=2)",
    "no sight of other processes": "os.stat('/proc/%d' % facts['process'])",
    "no look into our memory": "open('/proc/%d/mem' % facts['process'], 'rb')",
    "no signals to others": "os.kill(facts['process'], 0)",
    "no file read but Python's": "open(facts['file']).read()",
    "no file written outside its folder": "open(facts['file'] + '-', 'w')",
    "no process of its own": "os.fork() or os._exit(0)",
}
PROBE = """
import json, os, socket
facts = json.loads(input())
held = {}
for name, attempt in facts['attempts'].items():
    try:
        exec(attempt)
        held[name] = False
    except OSError:
        held[name] = True
print(json.dumps(held))
"""


def protections(sandbox: Sandbox) -> dict[str, bool]:
    """Name -> whether it held against a program that tried."""
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as door:
        os.chmod(folder, 0o777)  # so that only the sandbox stands between it and a program
        file = Path(folder) / "file"
        file.write_text("x")
        facts = {
            "port": door.getsockname()[1],
            "process": os.getpid(),
            "file": str(file),
            "attempts": ATTEMPTS,
        }
        job = {"kind": "run", "text": PROBE, "input": json.dumps(facts), "prelude": False}
        try:
            with sandbox.server() as server:
                outcome = server.start(job, Limits()).outcome()
            return json.loads(outcome.output)
        except (EOFError, ValueError) as error:
            raise SandboxBroken("the sandbox for programs cannot run a program") from error


def start_sandbox(mode: str) -> list[str]:
    """Start this process's sandbox; lines that tell what protects the machine from programs.

    mode: `auto`, or `strict`, which takes no less than all of it. Raises ProgramsError.
    """
    sandbox = client.shared()
    held = protections(sandbox)
    missing = [name for name, holds in held.items() if not holds]
    reasons = [f"{name}: {why}" for name, why in sandbox.walls.items() if why is not True]
    if missing and mode == "strict":
        raise ProgramsError(
            f"--code-sandbox strict: this machine lacks {', '.join(missing)} "
            f"({'; '.join(reasons)}): allow user namespaces here, or run without strict"
        )
    there = ", ".join(name for name, holds in held.items() if holds)
    workers = f"{sandbox.workers} at a time" if sandbox.workers > 1 else "one at a time"
    lines = [f"programs   run {workers}, with limits of time and memory, and {there}"]
    if missing:
        lines.append(f"           missing: {', '.join(missing)} ({'; '.join(reasons)})")
    return lines
