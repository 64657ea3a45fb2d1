"""Markdown tables."""

from collections.abc import Iterable


def print_table(header: Iterable, lines: Iterable[Iterable]) -> None:
    """Print a Markdown table and an empty line. Each line has one cell per column."""
    header = list(header)
    print(f"| {' | '.join(map(str, header))} |")
    print("|---" * len(header) + "|")
    for cells in lines:
        print(f"| {' | '.join(map(str, cells))} |", flush=True)
    print()
