"""Files that survive a kill: replaced in one rename, or appended line by line."""

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
    """Turn a failure to write `path`, such as a full disk, into one line. Raises Stop."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise Stop(
            f"{path} could not be written ({first_line(error)}): free some disk space, then run "
            "the same command to resume",
            1,
        ) from error


def write_aside(path: Path, text: str) -> None:
    """Write `text` under a temporary name, then rename the file to `path`.

    A reader of `path` finds either the old or the new content, never part of it. Raises Stop.
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


def write_json(path: Path, row: dict) -> None:
    """Replace the content of a .json file with this dictionary."""
    write_aside(path, json.dumps(row, indent=1) + "\n")


def write_lines(path: Path, rows: list[dict]) -> None:
    """Replace the content of a .jsonl file with these rows."""
    write_aside(path, "".join(json.dumps(row) + "\n" for row in rows))


def read_json(path: Path, **kinds: type) -> dict:
    """The dictionary in a .json file. kinds: the required keys and their types.

    Raises UserError if the content is not a dictionary, or a key is missing or has the wrong type.
    """
    return parsed(path.read_bytes(), str(path), kinds)


def read_lines(path: Path, **kinds: type) -> list[dict]:
    """The rows of a .jsonl file; [] if there is no file. An incomplete last line is skipped.

    kinds: the required keys of each row and their types. Raises UserError like `read_json`, with
    the line number.
    """
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]
    return [parsed(line, f"{path}, line {i},", kinds) for i, line in enumerate(lines, start=1)]


def parsed(content: bytes, where: str, kinds: dict[str, type]) -> dict:
    """The dictionary in `content`. Raises UserError, like `read_json`."""
    try:
        row = json.loads(content.decode())
    except (ValueError, RecursionError) as error:  # not JSON, not UTF-8, or nested too deep
        raise UserError(damaged(where, str(error))) from error
    check_kinds(row, where, **kinds)
    return row


def check_kinds(row, where: str, **kinds: type) -> None:
    """Raise UserError unless `row` is a dictionary with these keys and types."""
    if not isinstance(row, dict):
        raise UserError(damaged(where, "not a dictionary"))
    for key, kind in kinds.items():
        if key not in row:
            raise UserError(damaged(where, f"no {key}"))
        if not isinstance(row[key], kind):
            found = type(row[key]).__name__
            raise UserError(damaged(where, f"{key} is of type {found}, not {kind.__name__}"))


def damaged(where: str, reason: str) -> str:
    return f"{where} is damaged ({reason}): repair it, or choose another folder"
