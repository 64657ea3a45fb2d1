r"""Reads the labelled answers of tests/answers/data, and finds verdicts that contradict them.

    PYTHONPATH=. .venv/bin/python tests/answers/tables.py [--sealed | --golds]

prints the false and the missed credits of each table. --sealed counts the sealed third of
contest.jsonl and the sealed half of words.jsonl, which were graded when the grader was finished.
--golds prints the credits among one in seven pairs of different golds.

answers, responses, examination, contest, words (beside an answer): labelled by hand.
classes: generated; § stands for each gold of the `forms` listed, from golds ("table") or outside.
golds: the gold answers of answers.jsonl. form: the gold's kind, such as "number" or "interval".
    value: golds that are the same answer share it. open: golds whose equality is a matter of
    opinion share it: 30 and 30°, 40 and 40\%, or the list 13, 169 and the number 13,169.
outside: golds like those of other data sets.
rules, pairs, values, expressions, extracted, letters: used by tests, which allow no wrong verdict.
reports: 307 inputs of public bug reports, and others like them.
"""

import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from verify import is_equivalent, reward

DATA = Path(__file__).parent / "data"
LABELLED = ("answers", "responses", "examination", "contest", "words", "classes")
EVERY = 5  # § stands for one in so many golds of answers.jsonl

Case = tuple[str, str, bool]  # response, gold, whether it is right


def rows(table: str) -> list[dict]:
    lines = (DATA / f"{table}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


GOLDS = rows("golds")


def boxed(answer) -> str:
    return f"\\boxed{{{answer}}}"


def tables(sealed: bool = False, every: int = 1) -> dict[str, list[Case]]:
    """The pairs of each table that are sealed, or those that are not.

    every: § stands for only one in so many of a row's golds.
    """
    found = {}
    for name in LABELLED:
        chosen = [row for row in rows(name) if row.get("sealed", False) == sealed]
        if chosen:
            found[name] = [case for row in chosen for case in cases(row, every)]
    if not sealed:
        found["golds"] = list(equal_golds())
        found["outside"] = [(boxed(row["gold"]), row["gold"], True) for row in rows("outside")]
    return found


def cases(row: dict, every: int) -> list[Case]:
    """A row's cases: one for each gold that § stands for in the row."""
    golds = golds_of(row)[::every] if "golds" in row else [""]
    texts = [(row["response"].replace("§", x), row["gold"].replace("§", x)) for x in golds]
    return [(response, gold, row["truth"]) for response, gold in texts]


def golds_of(row: dict) -> list[str]:
    chosen = []
    for entry in GOLDS[::EVERY] if row["golds"] == "table" else rows("outside"):
        is_negative = entry["form"] == "integer" and entry["gold"].startswith("-")
        form = "negative" if is_negative else entry["form"]
        if form in row.get("forms", [form]) and entry["gold"] != "0":  # 0 equals -0 and 2(0)
            chosen.append(entry["gold"])
    return chosen[: row.get("first")]


def equal_golds() -> Iterator[Case]:
    """Pairs each gold with itself, and with the first of the same value. Undefined is wrong."""
    for entry in GOLDS:
        gold, other = entry["gold"], entry.get("value", entry["gold"])
        yield boxed(gold), gold, entry["form"] != "undefined"
        if other != gold:
            yield boxed(gold), other, True
            yield boxed(other), gold, True


def pairs_of_golds() -> Iterator[tuple[str, str]]:
    """All pairs of golds with different values, in both directions."""
    first = {}
    for entry in GOLDS:
        if entry["form"] != "undefined":
            first.setdefault(entry.get("value", entry["gold"]), entry)
    for a, b in itertools.combinations(first.values(), 2):
        if "open" not in a or a["open"] != b.get("open"):
            yield a["gold"], b["gold"]
            yield b["gold"], a["gold"]


def errors(cases: list[Case]) -> tuple[list[str], list[str]]:
    """(the false credits, the missed credits) among labelled cases."""
    false = []
    missed = []
    for response, gold, right in cases:
        credited = reward(response, gold) == 1.0
        if credited != right:
            (missed if right else false).append(f"{response} for {gold}")
    return false, missed


def main() -> None:
    if "--golds" in sys.argv:
        pairs = list(pairs_of_golds())[::7]
        credited = [f"{a} for {b}" for a, b in pairs if is_equivalent(a, b)]
        print(f"{len(pairs):,} pairs of different golds, credited: {credited}")
        return

    print("table: wrong answers, credited; right answers, missed")
    for name, cases in tables("--sealed" in sys.argv).items():
        false, missed = errors(cases)
        right = sum(case[2] for case in cases)
        print(f"{name}: {len(cases) - right:,}, {len(false)}; {right:,}, {len(missed)}")


if __name__ == "__main__":
    main()
