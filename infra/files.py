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


def complete_lines(path: Path) -> list[str]:
    """The lines of a .jsonl file; not the last one if a kill cut it off; none without a file."""
    if not path.exists():
        return []
    text = path.read_text(errors="surrogateescape")  # damage is for `read_lines` to name
    lines = text.splitlines(keepends=True)
    return [line for line in lines if line.endswith("\n")]


def read_json(path: Path) -> dict:
    """The dictionary in a .json file. Raises UserError where it holds something else."""
    try:
        content = json.loads(path.read_text())
    except ValueError as error:  # no JSON, or no UTF-8
        raise UserError(
            f"{path} is damaged ({error}): delete it, or choose another folder"
        ) from error
    if not isinstance(content, dict):
        raise UserError(f"{path} is damaged (no dictionary): delete it, or choose another folder")
    return content


def read_lines(path: Path) -> list[dict]:
    """The rows of a .jsonl file, but a last line that a kill cut off.

    Raises UserError, with the line's number, where a line is no dictionary.
    """
    rows = []
    for number, line in enumerate(complete_lines(path), start=1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise UserError(
                f"{path}, line {number}, is damaged ({error}): mend or delete it"
            ) from error
        if not isinstance(row, dict):
            raise UserError(f"{path}, line {number}, is damaged (no dictionary): mend or delete it")
        rows.append(row)
    return rows
