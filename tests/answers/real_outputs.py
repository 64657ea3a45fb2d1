r"""Grades a model's recorded answers to GSM8K, and prints the verdicts that contradict the labels.

    PYTHONPATH=. .venv/bin/python tests/answers/real_outputs.py FILE RESPONSE GOLD [PREDICTION]

FILE is a jsonl file, the others are its fields; docs/results/grading.md names public files. The
labels do not come from the grader: an answer is right if the last number of PREDICTION, what the
authors of the file read in the response, is the last number of GOLD. Without PREDICTION it is the
last number of the last box, else of the text behind the last "####", else of the response.
"""

import json
import re
import sys
from pathlib import Path

from tables import errors

NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?|-?\.\d+")
BOX = re.compile(r"\\boxed\{((?:[^{}]|\{[^{}]*\})*)\}")


def text(field: str | list[str]) -> str:
    """A field, or its first entry if it lists samples."""
    return field if isinstance(field, str) else field[0]


def last_number(words: str) -> float | None:
    found = NUMBER.findall(words)
    return float(found[-1].replace(",", "")) if found else None


def stated(response: str) -> str:
    """The part of a response that states its answer."""
    boxes = BOX.findall(response)
    return boxes[-1] if boxes else response.rpartition("####")[2]


def main(file: str, response: str, gold: str, prediction: str = "") -> None:
    cases = []
    for line in Path(file).read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        answer = text(row[response])
        read = text(row[prediction]) if prediction else stated(answer)
        number = row[gold].rpartition("####")[2].strip().replace(",", "")
        cases.append((answer, number, last_number(read) == last_number(row[gold])))
    false, missed = errors(cases)
    right = sum(case[2] for case in cases)
    print(f"{right:,} right, {len(missed)} missed, {len(false)} credited though not right")
    print("missed:", *missed, "credited though not right:", *false, sep="\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
