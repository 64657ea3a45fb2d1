"""The gold answers of data/answers.jsonl, labelled by hand in data/golds.jsonl.

form: the kind of gold, such as "number", "list" or "interval".
value: shared by all golds that are the same answer.
open: shared by golds whose equality is a matter of opinion: 30 and 30°, 40 and 40\\%, or the list
13, 169 and the number 13,169.
"""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

FILE = Path(__file__).parent / "data" / "golds.jsonl"
GOLDS = [json.loads(line) for line in FILE.read_text().splitlines()]


def representatives() -> list[dict]:
    """The first gold of each value."""
    first = {}
    for entry in GOLDS:
        if entry["form"] != "undefined":
            first.setdefault(entry.get("value", entry["gold"]), entry)
    return list(first.values())


def pairs_of_golds() -> Iterator[tuple[str, str]]:
    """All pairs of golds with different values, in both directions."""
    for a, b in itertools.combinations(representatives(), 2):
        if "open" in a and a.get("open") == b.get("open"):
            continue
        yield a["gold"], b["gold"]
        yield b["gold"], a["gold"]
