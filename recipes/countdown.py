"""Countdown for a small model: an equation that uses three numbers once each and makes a target.

    python recipes/countdown.py FOLDER  # writes train.jsonl, test.jsonl and prompt.txt

The numbers are from 1 to 9, the operations + - *, and the target is from 10 to 99. The numbers of a
problem come in random order. No problem has the numbers and the target of another one, so those of
test.jsonl are new to a model that was trained on train.jsonl. docs/running.md trains on them, with
`--reward recipes/countdown.py:reward` and `--stop '\\n'`.
"""

import itertools
import json
import random
import re
import sys
from collections import Counter
from pathlib import Path

HELD_OUT = 200  # problems of test.jsonl
PROMPT = """\
3 5 2 make 16: (3+5)*2
7 1 4 make 27: 7*4-1
{problem}:"""


def reward(response: str, problem: dict) -> float:
    """1 for a right equation, 0.1 for a wrong one that uses each number once, else 0."""
    value = value_of(response, problem["numbers"])
    if value is None:
        return 0.0
    return 1.0 if value == problem["target"] else 0.1


def right(response: str, problem: dict) -> float:
    """1 for a right equation, else 0."""
    return float(value_of(response, problem["numbers"]) == problem["target"])


def value_of(response: str, numbers: list[int]) -> int | None:
    """The value of the first line if it is an equation with each number once, else None."""
    equation = response.strip().partition("\n")[0].strip()
    # One operation between two numbers: no //, no ** and no sign before a number.
    if not re.fullmatch(r"\(*\d+\)*( ?[-+*] ?\(*\d+\)*){2}", equation):
        return None
    if Counter(map(int, re.findall(r"\d+", equation))) != Counter(numbers):
        return None
    try:
        return eval(equation)
    except SyntaxError:  # brackets that do not match, or a number such as 07
        return None


def problems(seed: int) -> list[dict]:
    """A problem for each set of three numbers and each target that they make, in random order."""
    rng = random.Random(seed)
    found = []
    for numbers in itertools.combinations_with_replacement(range(1, 10), 3):
        for target in sorted(targets(numbers)):
            order = rng.sample(numbers, 3)
            text = f"{' '.join(map(str, order))} make {target}"
            found.append({"problem": text, "numbers": order, "target": target})
    rng.shuffle(found)
    return found


def targets(numbers: tuple[int, ...]) -> set[int]:
    """The values from 10 to 99 of all equations that use each number once."""
    values = set()
    for a, b, c in itertools.permutations(numbers):
        for first, second in itertools.product("+-*", repeat=2):
            values.add(eval(f"({a}{first}{b}){second}{c}"))
            values.add(eval(f"{a}{first}({b}{second}{c})"))
    return {value for value in values if 10 <= value <= 99}


def main(folder: Path) -> None:
    """Write the two sets of problems, and the prompt with two worked examples."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(problem) + "\n" for problem in problems(seed=0)]
    (folder / "test.jsonl").write_text("".join(lines[:HELD_OUT]))
    (folder / "train.jsonl").write_text("".join(lines[HELD_OUT:]))
    (folder / "prompt.txt").write_text(PROMPT)
    print(f"{folder}: {len(lines) - HELD_OUT} problems to train on, {HELD_OUT} held out")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
