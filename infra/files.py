"""Files that survive a kill: replaced whole, or appended line by line."""

import json
import os
from pathlib import Path

from infra.errors import UserError


def write_aside(path: Path, text: str) -> None:
    """Write under a temporary name, then rename.

    Whoever reads `path` finds the old content or the new, never half of it.
    """
    aside = path.with_name(path.name + ".tmp")
    aside.write_text(text)
    os.replace(aside, path)


def append_line(path: Path, row: dict) -> None:
    """Append `row` as one line of JSON."""
    with open(path, "a") as file:
        file.write(json.dumps(row) + "\n")


def write_lines(path: Path, rows: list[dict]) -> None:
    """Replace a .jsonl file by these rows."""
    write_aside(path, "".join(json.dumps(row) + "\n" for row in rows))


def read_json(path: Path, *keys: str) -> dict:
    """The dictionary in a .json file. Raises UserError where it is none or lacks one of `keys`."""
    return parsed(path.read_bytes(), str(path), keys)


def read_lines(path: Path, *keys: str) -> list[dict]:
    """The rows of a .jsonl file, none without a file; a last line that a kill cut off is no row.

    Raises UserError, with the line's number, where one is no dictionary or lacks one of `keys`.
    """
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]
    return [parsed(line, f"{path}, line {i},", keys) for i, line in enumerate(lines, start=1)]


def parsed(content: bytes, where: str, keys: tuple[str, ...]) -> dict:
    """The dictionary that `content` spells. Raises UserError."""
    try:
        row = json.loads(content.decode())
    except ValueError as error:  # no JSON, or no UTF-8
        raise UserError(damaged(where, str(error))) from error
    if not isinstance(row, dict):
        raise UserError(damaged(where, "no dictionary"))
    missing = [key for key in keys if key not in row]
    if missing:
        raise UserError(damaged(where, f"no {missing[0]}"))
    return row


def damaged(where: str, reason: str) -> str:
    return f"{where} is damaged ({reason}): mend it, or choose another folder"
