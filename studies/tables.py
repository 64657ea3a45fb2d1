"""Lines of a Markdown table, and CSV files that git can compare."""

import csv
from collections.abc import Iterable
from pathlib import Path


def table_line(cells: Iterable) -> str:
    """`| a | b | c |`."""
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def write_csv(path: Path, rows: list[dict]) -> None:
    """The rows, all with the same keys, under a line of these keys."""
    path.parent.mkdir(exist_ok=True)
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
