"""Markdown tables, and CSV files with readable diffs in git."""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

from infra.errors import UserError


def table_line(cells: Iterable) -> str:
    """`| a | b | c |`."""
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def read_csv(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    """The lines of a CSV; [] if it is missing or empty. Raises UserError for wrong columns."""
    if not path.exists() or not path.stat().st_size:
        return []
    with open(path, newline="") as file:
        reader = csv.DictReader(file)
        lines = list(reader)
    if reader.fieldnames != list(columns):
        raise UserError(f"{path} does not have the columns {', '.join(columns)}: move it away")
    return lines


def print_table(header: Iterable, lines: Iterable[Iterable]) -> None:
    """Print a Markdown table and an empty line. Each line has one cell per column."""
    header = list(header)
    print(table_line(header))
    print("|---" * len(header) + "|")
    for cells in lines:
        print(table_line(cells), flush=True)
    print()


def append_csv(path: Path, columns: Sequence[str], lines: list[dict]) -> None:
    """Append lines to a CSV. A new file gets a header first."""
    path.parent.mkdir(exist_ok=True)
    with open(path, "a", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        if file.tell() == 0:
            writer.writeheader()
        writer.writerows(lines)
