"""Messages between this process and a supervisor: a line of JSON, one each way."""

import json
import socket


def send(channel: socket.socket, message: dict) -> None:
    channel.sendall(json.dumps(message).encode() + b"\n")


def receive(channel: socket.socket) -> dict:
    """Raises EOFError where the other side has gone."""
    with channel.makefile("rb") as file:
        line = file.readline()
    if not line.endswith(b"\n"):
        raise EOFError
    return json.loads(line)


def excerpt(text: str) -> str:
    """As much of a text as fits in a line of ours."""
    line = " ".join(text[:1000].split())
    return line if len(line) <= 100 else line[:97] + "..."
