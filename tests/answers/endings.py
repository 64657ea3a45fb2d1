r"""Grades endings of GSM8K's solutions, and prints the verdicts that contradict the labels.

    PYTHONPATH=. .venv/bin/python tests/answers/endings.py FOLDER

FOLDER holds the files of openai/grade-school-math: gsm8k_{train,test}.jsonl (there train.jsonl and
test.jsonl) and example_model_solutions.jsonl. Each solution is graded with three endings: its own
line ("#### 18", "A: 18"); "The answer is \boxed{18}." instead of this line; and no such line, but a
box around the number of the last sentence, so that real prose stands beside the box. The labels
come from the files; a solution of the data set is also graded against another gold, for which it is
wrong.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from tables import Case, boxed, errors

MODELS = ("6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification")
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?|-?\.\d+")
CALCULATION = re.compile(r"<<[^<>]*>>")


def value(number: str) -> float:
    return float(number.replace(",", ""))


def endings(solution: str, sign: str) -> Iterator[str]:
    """Each ending of a solution whose last line is `sign` and the answer."""
    body, _, answer = solution.rpartition(sign)
    answer = answer.strip()
    yield solution
    yield f"{body}The answer is {boxed(answer)}."
    body = CALCULATION.sub("", body).strip()
    start = body.rfind("\n") + 1
    found = [x for x in NUMBER.finditer(body, start) if x[0].rstrip(",") == answer]
    if found:
        at = found[-1].start()
        yield f"{body[:at]}{boxed(answer)}{body[at + len(answer) :]}"


def cases(folder: Path) -> Iterator[Case]:
    for line in (folder / "example_model_solutions.jsonl").read_text().splitlines():
        row = json.loads(line)
        gold = row["ground_truth"].rpartition("A: ")[2]
        for model in MODELS:
            for response in endings(row[model]["solution"], "A: "):
                yield response, gold, row[model]["is_correct"]

    for name in ("train", "test"):
        for line in (folder / f"gsm8k_{name}.jsonl").read_text().splitlines():
            solution = json.loads(line)["answer"]
            gold = solution.rpartition("####")[2].strip()
            for response in endings(solution, "####"):
                yield response, gold, True
                yield response, str(value(gold) + 1), False


def main(folder: str) -> None:
    graded = list(cases(Path(folder)))
    false, missed = errors(graded)
    print(f"{len(graded):,} endings, {len(missed)} missed, {len(false)} credited though not right")
    print(*missed, *false, sep="\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
