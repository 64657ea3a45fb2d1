"""Reads local tables of problems as lists of rows, and checks their cells.

.jsonl, .json and .csv are read with the standard library, so numbers keep all their digits and
errors name the line. .parquet is read with the datasets library.
"""

import csv
import io
import json
import re
from collections import Counter
from decimal import Decimal, InvalidOperation
from pathlib import Path

from datasets import load_dataset
from datasets.exceptions import DatasetsError

from infra.errors import UserError, first_line

INNERMOST_BRACKETS = re.compile(r"[(\[{][^()\[\]{}]*[)\]}]")

# ---- rows ----------------------------------------------------------------------------------------


def read_table(name: str) -> list[dict]:
    """The rows of a local file. Raises UserError if it is missing or does not match its suffix."""
    path = Path(name)
    if not path.is_file():
        raise UserError(f"there is no file {name}")
    if path.suffix == ".parquet":
        rows = read_parquet(path)
    else:
        try:
            text = path.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as error:
            raise UserError(f"{name} is not UTF-8 (byte {error.start}): save as UTF-8") from error
        rows = READERS[path.suffix](name, text)
    if not rows:
        raise UserError(f"{name} has no rows")
    return rows


def read_json_lines(name: str, text: str) -> list[dict]:
    """A dictionary on each line; empty lines are skipped."""
    rows = []
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            where = f"{name}, line {number},"
            rows.append(checked_dictionary(where, parsed(where, line)))
    return rows


def read_json_array(name: str, text: str) -> list[dict]:
    """One array of dictionaries."""
    array = parsed(name, text) if text else []
    if not isinstance(array, list):
        raise UserError(f'{name} is not an array: write [{{"problem": ..., "answer": ...}}, ...]')
    return [checked_dictionary(f"{name}, entry {i},", row) for i, row in enumerate(array, start=1)]


class Number(float):
    """A decimal number from JSON, with all its digits in `exact`, a Decimal."""

    def __new__(cls, text):
        number = super().__new__(cls, text)
        number.exact = Decimal(text)
        return number


def parsed(where: str, text: str):
    """The value of a JSON text. Raises UserError."""
    try:
        return json.loads(text, parse_float=Number)
    except (ValueError, RecursionError, InvalidOperation) as error:
        raise UserError(f"{where} is not JSON ({error})") from error


def checked_dictionary(where: str, row) -> dict:
    """The unchanged row. Raises UserError unless it is a dictionary."""
    if not isinstance(row, dict):
        raise UserError(f'{where} is not a dictionary: write {{"problem": ..., "answer": ...}}')
    return row


def read_csv(name: str, text: str) -> list[dict]:
    """A header and rows; every cell is a string."""
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    rows = []
    try:
        count = Counter(reader.fieldnames)
        repeated = [column for column in count if column and count[column] > 1]
        if repeated:
            raise UserError(f"{name}, line 1, repeats the column {', '.join(repeated)}: rename one")
        for row in reader:
            if None in row:
                raise UserError(f"{name}, line {reader.line_num}, has more cells than the header")
            rows.append(row)
    except csv.Error as error:
        raise UserError(f"{name}, line {reader.line_num}, is not CSV ({error})") from error
    return rows


def read_parquet(path: Path) -> list[dict]:
    """The rows of a .parquet file. Raises UserError."""
    try:
        return load_dataset("parquet", data_files=str(path), split="train").to_list()
    except (OSError, ValueError, DatasetsError) as error:
        raise UserError(f"{path} is not a parquet file ({first_line(error)})") from error


READERS = {".jsonl": read_json_lines, ".json": read_json_array, ".csv": read_csv}
LOCAL = (*READERS, ".parquet")  # file suffixes


# ---- cells ---------------------------------------------------------------------------------------


def cell_text(value) -> str:
    """A cell as text, with all digits of a Decimal or a JSON number.

    A column with gaps stores integers as floats; these become integers again.
    """
    value = getattr(value, "exact", value)
    if value is None or value != value:  # a gap, which is NaN in a column of numbers
        return ""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    if isinstance(value, Decimal) and value.is_finite() and abs(value.adjusted()) < 30:
        text = f"{value:f}"
        whole, _, fraction = text.partition(".")
        return text if fraction.strip("0") else whole
    return str(value).strip()


def checked_text(value, where: str) -> str:
    """cell_text of a string or a number. Raises UserError for anything else.

    Also refuses text with a NUL or half of a surrogate pair, which no tokenizer accepts.
    """
    is_number = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
    if not (value is None or isinstance(value, str) or is_number):
        raise UserError(f"{where}, holds a {type(value).__name__}: write a string or a number")
    text = cell_text(value)
    if "\0" in text:
        raise UserError(f"{where}, holds a NUL character: repair the file")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise UserError(f"{where}, holds half of a surrogate pair: repair the file")
    return text


def joined_members(members: list[str], where: str) -> str:
    """The members of a list answer as one text, which verify.py splits at commas.

    Raises UserError for a member with a comma outside brackets, where verify.py would split it.
    """
    if len(members) == 1:
        return members[0]
    for member in members:
        if "," in without_brackets(member):
            raise UserError(
                f"{where}, holds the member {member}: a comma separates members, so write it "
                "without one, or in brackets"
            )
    return ", ".join(members)


def without_brackets(text: str) -> str:
    """The text outside all brackets."""
    while INNERMOST_BRACKETS.search(text):
        text = INNERMOST_BRACKETS.sub("", text)
    return text
