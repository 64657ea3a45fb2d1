"""Countdown for a small model: an equation that uses three numbers once each and makes a target.

    python recipes/countdown.py FOLDER  # writes train.jsonl, test.jsonl and prompt.txt

The numbers are from 1 to 20, the operations + and -, and the target is above 0. The numbers of a
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
8 3 12 make 17: 8+12-3
5 9 2 make 16: 5+9+2
{problem}:"""


def reward(response: str, problem: dict) -> float:
    """1 if the first line is an equation with each number once that makes the target, else 0."""
    equation = response.strip().partition("\n")[0].strip()
    # One operation between two numbers, so no sign before a number; * is allowed, / and ** are not.
    if not re.fullmatch(r"\(*\d+\)*( ?[-+*] ?\(*\d+\)*){2}", equation):
        return 0.0
    if Counter(map(int, re.findall(r"\d+", equation))) != Counter(problem["numbers"]):
        return 0.0
    try:
        return float(eval(equation) == problem["target"])
    except SyntaxError:  # brackets that do not match, or a number such as 07
        return 0.0


def problems(seed: int) -> list[dict]:
    """A problem for each set of three numbers and each target that they make, in random order."""
    rng = random.Random(seed)
    found = []
    for a, b, c in itertools.combinations(range(1, 21), 3):
        for target in sorted({a + b + c, a + b - c, a - b + c, b + c - a}):
            if target > 0:
                order = rng.sample((a, b, c), 3)
                text = f"{order[0]} {order[1]} {order[2]} make {target}"
                found.append({"problem": text, "numbers": order, "target": target})
    rng.shuffle(found)
    return found


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
