"""Files that survive a kill: replaced whole, or appended line by line."""

import json
import os
from pathlib import Path


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
    lines = path.read_text().splitlines(keepends=True)
    return [line for line in lines if line.endswith("\n")]
