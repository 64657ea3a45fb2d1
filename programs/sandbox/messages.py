"""Messages between client and supervisor: one line of JSON in each direction."""

import json
import socket


def send(channel: socket.socket, message: dict) -> None:
    channel.sendall(json.dumps(message).encode() + b"\n")


def receive(channel: socket.socket) -> dict:
    """The next message. Raises EOFError if the other side has closed the channel."""
    with channel.makefile("rb") as file:
        line = file.readline()
    if not line.endswith(b"\n"):
        raise EOFError
    return json.loads(line)


def excerpt(text: str) -> str:
    """The beginning of a text, short enough for a message."""
    line = " ".join(text[:1000].split())
    return line if len(line) <= 100 else line[:97] + "..."
