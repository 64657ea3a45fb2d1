"""Markdown tables, and CSV files with readable diffs in git."""

import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
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


@contextmanager
def appending(path: Path, columns: Sequence[str]) -> Iterator[Callable[[list[dict]], None]]:
    """Yield a function that appends lines to a CSV and flushes. A new file gets a header first."""
    path.parent.mkdir(exist_ok=True)
    with open(path, "a", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        if file.tell() == 0:
            writer.writeheader()

        def write(lines: list[dict]) -> None:
            writer.writerows(lines)
            file.flush()

        yield write
