"""Files that survive a kill: replaced whole, or appended line by line."""

import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from infra.errors import Stop, UserError, first_line


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """While `path` is written, turn a full disk, for example, into one line. Raises Stop."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise Stop(
            f"{path} could not be written ({first_line(error)}): make room, then run the "
            "same command to continue",
            1,
        ) from error


def write_aside(path: Path, text: str) -> None:
    """Write under a temporary name that nothing has, then rename.

    Whoever reads `path` finds the old content or the new, never half of it. Raises Stop.
    """
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    with writing(path):
        try:
            aside.write_text(text, encoding="utf-8")
            os.replace(aside, path)
        finally:
            aside.unlink(missing_ok=True)


def append_line(path: Path, row: dict) -> None:
    """Append `row` as one line of JSON. Raises Stop."""
    with writing(path), open(path, "a") as file:
        file.write(json.dumps(row) + "\n")


def write_lines(path: Path, rows: list[dict]) -> None:
    """Replace a .jsonl file by these rows."""
    write_aside(path, "".join(json.dumps(row) + "\n" for row in rows))


def read_json(path: Path, **kinds: type) -> dict:
    """The dictionary in a .json file; `kinds` are the keys that it needs, and their types.

    Raises UserError where it is no dictionary, or lacks one of them, or has it of another type.
    """
    return parsed(path.read_bytes(), str(path), kinds)


def read_lines(path: Path, **kinds: type) -> list[dict]:
    """The rows of a .jsonl file, none without a file; a last line that a kill cut off is no row.

    kinds: the keys that each row needs, and their types. Raises UserError, with the line's number,
    as `read_json`.
    """
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]
    return [parsed(line, f"{path}, line {i},", kinds) for i, line in enumerate(lines, start=1)]


def parsed(content: bytes, where: str, kinds: dict[str, type]) -> dict:
    """The dictionary that `content` spells. Raises UserError."""
    try:
        row = json.loads(content.decode())
    except (ValueError, RecursionError) as error:  # no JSON, or no UTF-8, or nested without end
        raise UserError(damaged(where, str(error))) from error
    check_kinds(row, where, **kinds)
    return row


def check_kinds(row, where: str, **kinds: type) -> None:
    """Raise UserError where a row is no dictionary with these keys of these types."""
    if not isinstance(row, dict):
        raise UserError(damaged(where, "no dictionary"))
    for key, kind in kinds.items():
        if key not in row:
            raise UserError(damaged(where, f"no {key}"))
        if not isinstance(row[key], kind):
            found = type(row[key]).__name__
            raise UserError(damaged(where, f"{key} is of type {found}, not {kind.__name__}"))


def damaged(where: str, reason: str) -> str:
    return f"{where} is damaged ({reason}): repair it, or choose another folder"
