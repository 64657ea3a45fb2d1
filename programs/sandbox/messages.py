"""Messages between this process and a supervisor: a length, and as many bytes of JSON."""

import json
import socket

LENGTH = 8  # bytes that say how long a message is


def send(channel: socket.socket, message: dict) -> None:
    content = json.dumps(message).encode()
    channel.sendall(len(content).to_bytes(LENGTH, "big") + content)


def receive(channel: socket.socket) -> dict:
    """Raises EOFError where the other side has gone."""
    return json.loads(received(channel, int.from_bytes(received(channel, LENGTH), "big")))


def received(channel: socket.socket, count: int) -> bytes:
    content = bytearray()
    while len(content) < count:
        part = channel.recv(min(count - len(content), 2**20))
        if not part:
            raise EOFError
        content += part
    return bytes(content)


def excerpt(text: str) -> str:
    """As much of a text as fits in a line of ours."""
    line = " ".join(text[:1000].split())
    return line if len(line) <= 100 else line[:97] + "..."
