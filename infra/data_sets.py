"""Without this file only local .jsonl files could be read.

A data set is a local file, a set in SOURCES by name, or a hub id.
SOURCES lists the sets of Sec. 5 and Table 1, and GSM8K and MATH for small models.
"""

import csv
import io
import json
import random
import re
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from datasets import DatasetDict, Features, load_dataset
from datasets.exceptions import DatasetsError
from pyarrow import parquet

from infra.dropped import EATEN
from infra.errors import UserError, first_line
from infra.ranks import is_first_rank


@dataclass(frozen=True)
class Source:
    """A data set on the hub. The columns do not matter if infra/problems.py lists its layout."""

    hub: str  # owner/set:config:split@revision, where only owner/set is needed
    problem_column: str = "problem"
    answer_column: str = "answer"
    options: dict = field(default_factory=dict)  # for load_dataset
    only: tuple[str, str] | None = None  # only the records with this (column, value)
    sample: int | None = None  # a fixed random sample of this many records
    whole: bool = False  # whether a problem keeps its record, for a user's own reward


LIVECODEBENCH = [  # release_v6, because the paper names none; datasets runs no loading script
    f"hf://datasets/livecodebench/code_generation_lite/test{number}.jsonl"
    for number in ("", 2, 3, 4, 5, 6)
]
SOURCES = {
    "deepmath": Source("zwhe99/DeepMath-103K", "question", "final_answer"),
    "aime24": Source("HuggingFaceH4/aime_2024"),
    "aime25": Source("MathArena/aime_2025"),
    "aime26": Source("MathArena/aime_2026"),
    "hmmt25_feb": Source("MathArena/hmmt_feb_2025"),
    "hmmt25_nov": Source("MathArena/hmmt_nov_2025"),
    "hmmt26_feb": Source("MathArena/hmmt_feb_2026"),
    "brumo25": Source("MathArena/brumo_2025"),
    "gpqa_diamond": Source("Idavidrein/gpqa:gpqa_diamond"),
    "mmlu_pro": Source("TIGER-Lab/MMLU-Pro::test", sample=600),  # the paper's 600 of 12,032
    "eurus2_rl_code": Source("PRIME-RL/Eurus-2-RL-Data", only=("ability", "code")),
    "humaneval_plus": Source("evalplus/humanevalplus::test"),
    "mbpp_plus": Source("evalplus/mbppplus::test"),
    "livecodebench": Source("json", options={"data_files": LIVECODEBENCH}),
    "gsm8k": Source("openai/gsm8k:main", "question"),
    "gsm8k-test": Source("openai/gsm8k:main:test", "question"),
    "math": Source("rasbt/math_full_minus_math500"),  # 12,000 of MATH's 12,500 problems
    "math500": Source("HuggingFaceH4/MATH-500::test"),  # the others
}
FILES = (".jsonl", ".json", ".csv", ".parquet")
EXAMPLE = '{"problem": "1+1?", "answer": "2"}'
# Columns with the options of a multiple-choice problem: all of them, or one each
OPTIONS = re.compile(
    r"(?i)options?|choices?|endings?|(?-i:[A-J])"
    r"|(?:options?|choices?|opt?|answer|ending|sol)[ _]?(?:[a-j]|\d)"
)
MEDIA = re.compile(r"(?i)(.*[_ ])?(image|img|picture|figure|video|audio)s?([_ ]?\d*|[_ ].*)")


def read_table(name: str, source: Source, flag: str) -> tuple[list[dict], list[str]]:
    """(records, the names of all columns) of the local file `name`, else of `source`.

    A record may lack columns that are not needed. Raises UserError, which names `flag`, if the
    records cannot be read, or there are none.
    """
    local = Path(name).suffix in FILES
    try:
        if local:
            table, columns = read_file(Path(name), source)
        else:
            table, columns = read_hub(name, source, flag)
    except (OSError, ValueError, RuntimeError, csv.Error, DatasetsError) as error:
        tried = f", on the hub {source.hub}" if name in SOURCES else ""
        message = f"cannot load {flag} {name!r}{tried} ({first_line(error)})"
        if not local:
            message += (
                f": pass one of {', '.join(SOURCES)}, a hub id (owner/set:config:split@revision) "
                f"or, which needs no network, a local file ({', '.join(FILES)})"
            )
        raise UserError(message) from error
    if not table or not all(isinstance(record, dict) for record in table):
        raise UserError(f"{flag} {name} is empty, or a record is not like {EXAMPLE}")
    columns = columns or list(dict.fromkeys(column for record in table for column in record))
    return table, columns


def needed_columns(names: list[str], source: Source) -> list[str]:
    """The columns to read: only the source's, if `names` has them, since others may be long."""
    columns = (source.problem_column, source.answer_column, "tests")
    present = [column for column in columns if column in names]
    if source.whole or source.problem_column not in present or len(present) == 1:
        return names
    return present + [name for name in names if MEDIA.fullmatch(name) and name not in present]


def read_hub(name: str, source: Source, flag: str) -> tuple[list[dict], list[str]]:
    """Like read_table, for a set on the hub or a folder. Raises the errors that it expects.

    Training takes the split `train`, and evaluation takes `test` where there is one.
    """
    path, given = hub_arguments(source.hub)
    if not path:
        raise ValueError("an empty name")
    if flag == "--data":
        given = {"split": "train"} | given
    table = load_dataset(path, **given, **source.options)
    if isinstance(table, DatasetDict):
        splits = list(table)
        split = next((x for x in ("test", "validation", "train") if x in splits), splits[0])
        if is_first_rank():
            print(f"{name}: evaluated on the split {split}, of {', '.join(splits)}")
        table = table[split]
    if source.only:
        column, value = source.only
        table = table.filter(value.__eq__, input_columns=column)
    if source.sample and source.sample < len(table):
        table = table.select(random.Random(0).sample(range(len(table)), source.sample))
    needed = table.select_columns(needed_columns(table.column_names, source))
    records = records_of(needed.with_format("arrow")[:])
    # `datasets` stores a column of mixed types, such as texts and numbers, as JSON.
    mixed = Features({x: kind for x, kind in needed.features.items() if "Json(" in str(kind)})
    if mixed:
        records = [x | mixed.decode_example({key: x[key] for key in mixed}) for x in records]
    return records, table.column_names


def hub_arguments(hub: str) -> tuple[str, dict[str, str]]:
    """(owner/set, load_dataset's other arguments) of Source.hub."""
    hub, _, revision = hub.partition("@")
    path, config, split, *_ = [*hub.split(":", 2), "", ""]  # a split may be train[:100]
    given = {"name": config, "split": split, "revision": revision}
    return path, {key: value for key, value in given.items() if value}


def read_file(path: Path, source: Source) -> tuple[list[dict], list[str]]:
    """Like read_table, for a local file; [] for the names if the records have them all.

    load_dataset would return a cached copy of a file that was replaced, turn the text 2024-01-02
    into a date and 007 into a number, and round integers above 2^53.
    """
    if path.suffix == ".parquet":
        file = parquet.ParquetFile(path)
        names = file.schema_arrow.names
        return records_of(file.read(needed_columns(names, source))), names
    text = path.read_text(encoding="utf-8-sig")
    if path.suffix == ".csv":
        return read_csv(text), []
    if not text.lstrip().startswith("["):  # JSON lines
        lines = [line for line in text.split("\n") if line.strip()]
        text = "[" + ",\n".join(lines) + "]"  # an error then names the line
    return json.loads(text), []


def records_of(table: pa.Table) -> list[dict]:
    """The rows. A float32 cell becomes the shortest number it can be: 0.1, not 0.10000000149."""
    for i, name in enumerate(table.column_names):
        if table[i].type == pa.float32():
            shortest = table[i].cast(pa.string()).cast(pa.float64())
            table = table.set_column(i, name, shortest)
    return table.to_pylist()


def read_csv(text: str) -> list[dict]:
    """The row on each line below the header; every cell is a text. Raises ValueError, csv.Error."""
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    records = list(reader)
    names = reader.fieldnames or []
    if len(set(names)) < len(names):
        raise ValueError(f"two columns have the same name: {', '.join(names)}")
    for number, record in enumerate(records, start=1):
        if None in record:
            raise ValueError(f"record {number} has more cells than the header")
    return records


def cell_text(cell, column: str) -> str:
    """A text, or a number with all its digits; empty for a gap. Raises ValueError."""
    if cell is None or cell != cell:  # a gap, which is NaN in a column of numbers
        return ""
    if isinstance(cell, bool) or not isinstance(cell, str | int | float):
        kind = type(cell).__name__
        raise ValueError(f"column {column}, holds a {kind}: write a string or a number")
    if isinstance(cell, float) and abs(cell) >= 2**53:
        raise ValueError(f"column {column}, holds {cell}, which has lost digits: write a string")
    if isinstance(cell, float) and cell == int(cell):
        cell = int(cell)  # a column of integers with gaps holds floats
    text = str(cell)
    text.encode()  # raises for half of a character, such as \ud800, which no tokenizer reads
    return text.rstrip() if EATEN.match(text) else text.strip()  # \f of \frac{1}{2} is no blank
