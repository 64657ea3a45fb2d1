"""Markdown tables, and CSV files with readable diffs in git."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from infra.errors import UserError


def print_table(header: Iterable, lines: Iterable[Iterable]) -> None:
    """Print a Markdown table and an empty line. Each line has one cell per column."""
    header = list(header)
    print(f"| {' | '.join(map(str, header))} |")
    print("|---" * len(header) + "|")
    for cells in lines:
        print(f"| {' | '.join(map(str, cells))} |", flush=True)
    print()


def print_frame(frame: pd.DataFrame) -> None:
    """Print numbers with three decimals behind the labels of their line; NaN is an empty cell."""
    cells = []
    for labels, values in zip(frame.index, frame.to_numpy(), strict=True):
        cells.append([*labels, *["" if np.isnan(x) else f"{x:.3f}" for x in values]])
    print_table([*frame.index.names, *frame.columns], cells)


def read_csv(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    """The lines of a CSV; none if it is missing. Raises UserError for wrong columns."""
    if not path.exists():
        return pd.DataFrame(columns=list(columns))
    lines = pd.read_csv(path)
    if list(lines) != list(columns):
        raise UserError(f"{path} does not have the columns {', '.join(columns)}: move it away")
    return lines


def append_csv(path: Path, columns: Sequence[str], lines: list) -> None:
    """Append lines, a dictionary or a tuple each, to a CSV. A new file gets a header first."""
    path.parent.mkdir(exist_ok=True)
    new = not path.exists()
    pd.DataFrame(lines, columns=list(columns)).to_csv(path, mode="a", header=new, index=False)
