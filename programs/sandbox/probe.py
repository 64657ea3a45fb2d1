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
    "no message to other processes": "socket.socketpair(1, 2)[0].connect(facts['mailbox'])",
    "no look into other processes": "open('/proc/%d/environ' % facts['neighbour'], 'rb').read()",
    "no signals to others": "os.kill(facts['process'], 0)",
    "no file read but Python's": "open(facts['file']).read()",
    "no terminal": "os.open('/dev/ptmx', os.O_RDONLY | os.O_NOCTTY)",
    "no file written outside its folder": "open(facts['file'] + '-', 'w')",
    "no process of its own": "os.fork() or os._exit(0)",
    "no sight of files' names and other processes": "os.stat(facts['file'])",
}
# A value of --code-sandbox -> the protections that one does without who asks for it.
DONE_WITHOUT = {
    "strict": [],
    "landlock": ["no sight of files' names and other processes"],
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
    mailbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    door = socket.create_server(("127.0.0.1", 0))
    with tempfile.TemporaryDirectory() as folder, mailbox, door, sandbox.server() as server:
        os.chmod(folder, 0o777)  # so that only the sandbox stands between it and a program
        file = Path(folder) / "file"
        file.write_text("x")
        mailbox.bind(f"{folder}/mailbox")
        os.chmod(f"{folder}/mailbox", 0o777)
        facts = {
            "port": door.getsockname()[1],
            "mailbox": f"{folder}/mailbox",
            "process": os.getpid(),
            "neighbour": server.process.pid,  # of the same user as the program
            "file": str(file),
            "attempts": ATTEMPTS,
        }
        job = {"kind": "run", "text": PROBE, "contest": False, "input": json.dumps(facts)}
        try:
            return json.loads(server.start(job, Limits()).outcome().output)
        except (EOFError, ValueError) as error:
            raise SandboxBroken("the sandbox for programs cannot run a program") from error


def start_sandbox(mode: str) -> list[str]:
    """Start this process's sandbox; lines that tell what protects the machine from programs.

    mode: of DONE_WITHOUT. Raises ProgramsError where more is missing than that does without.
    """
    sandbox = client.shared()
    held = protections(sandbox)
    missing = [name for name, holds in held.items() if not holds]
    reason = sandbox.servers[0].missing
    if not set(missing) <= set(DONE_WITHOUT[mode]):
        advice = "run on another machine"
        if set(missing) <= set(DONE_WITHOUT["landlock"]):
            advice = "allow user namespaces here, or do without by --code-sandbox landlock"
        raise ProgramsError(
            f"programs cannot be run here as --code-sandbox {mode} asks: this machine lacks "
            f"{', '.join(missing)} ({reason}): {advice}"
        )
    there = ", ".join(name for name, holds in held.items() if holds)
    workers = f"{sandbox.workers} at a time" if sandbox.workers > 1 else "one at a time"
    lines = [f"programs   run {workers}, with limits of time and memory, and {there}"]
    if missing:
        lines.append(f"           missing: {', '.join(missing)} ({reason})")
    return lines
