"""Markdown tables, and CSV files with readable diffs in git."""

import errno
import os
from collections.abc import Iterable, Sequence
from io import StringIO
from pathlib import Path

import numpy as np
import pandas as pd

from infra.errors import UserError
from infra.folder import hash_of, writing


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


def whole_lines(path: Path) -> str:
    """The text of a CSV up to its last line break, behind which a kill cut a line off."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    lines, end, _ = text.rpartition("\n")
    return lines + end or text  # a single line is no table of ours, so it stays


def read_csv(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    """The whole lines of a CSV; none if it is missing. Raises UserError for wrong columns.

    The first column holds text, also where it looks like a number.
    """
    text = whole_lines(path) or ",".join(columns)
    gaps = {name: [""] for name in columns[1:]}
    lines = pd.read_csv(
        StringIO(text), dtype={columns[0]: str}, keep_default_na=False, na_values=gaps
    )
    if list(lines) != list(columns):
        raise UserError(f"{path} does not have the columns {', '.join(columns)}: move it away")
    return lines


def claim_csv(path: Path, columns: Sequence[str], identity: dict) -> tuple[str, pd.DataFrame]:
    """(key, lines): the `hash_of` an identity of infra.folder, and the CSV's lines that have it.

    To be called before anything is sampled. A line belongs to what was measured: its first column
    is the key. Cuts off a line that a kill did not end. Raises UserError if the CSV cannot be
    written, or has other columns.
    """
    try:
        lines = read_csv(path, columns)
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "ab") as file:
            file.truncate(len(whole_lines(path).encode()))
    except OSError as error:
        raise UserError(f"--csv {path} cannot be written ({error.strerror})") from error
    key = hash_of(identity)
    return key, lines[lines[columns[0]] == key]


def append_csv(path: Path, columns: Sequence[str], lines: list) -> None:
    """Append lines, a dictionary or a tuple each, to a CSV. A new file gets a header first.

    All lines are appended or, if the disk is full, none. Raises Stop.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with writing(path), open(path, "ab", buffering=0) as file:
        size = file.tell()
        table = pd.DataFrame(lines, columns=list(columns))
        text = table.to_csv(header=size == 0, index=False).encode()
        if file.write(text) < len(text):
            file.truncate(size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
