"""Markdown tables, and CSV files with readable diffs in git."""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

from infra.errors import UserError


def print_table(header: Iterable, lines: Iterable[Iterable]) -> None:
    """Print a Markdown table and an empty line. Each line has one cell per column."""
    header = list(header)
    print(f"| {' | '.join(header)} |")
    print("|---" * len(header) + "|")
    for cells in lines:
        print(f"| {' | '.join(map(str, cells))} |", flush=True)
    print()


def read_csv(path: Path, columns: Sequence[str], **cells: str) -> list[dict[str, str]]:
    """The lines of a CSV that have these cells; [] if it is missing or empty.

    Raises UserError for wrong columns.
    """
    text = path.read_text() if path.exists() else ""
    reader = csv.DictReader(text.splitlines())
    lines = list(reader)
    if text and reader.fieldnames != list(columns):
        raise UserError(f"{path} does not have the columns {', '.join(columns)}: move it away")
    return [line for line in lines if cells.items() <= line.items()]


def append_csv(path: Path, columns: Sequence[str], lines: list[dict]) -> None:
    """Append lines to a CSV. A new file gets a header first."""
    path.parent.mkdir(exist_ok=True)
    with open(path, "a", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        if file.tell() == 0:
            writer.writeheader()
        writer.writerows(lines)
