"""Compares verify.py with math_verify on the labelled answers in tests/answers/data/answers.jsonl.

The two graders alternate in one run; times are CPU times.

math_verify needs a separate environment: pip install math-verify==0.9.0 numpy tqdm mpmath==1.3.0
"""

import importlib.util
import json
import statistics
import time
from pathlib import Path

from verify import reward

TESTS = Path(__file__).parent.parent / "tests" / "answers"


def verify(args) -> None:
    """verify.py against math_verify on labelled answers."""
    lines = (TESTS / "data" / "answers.jsonl").read_text().splitlines()
    pairs = [json.loads(line) for line in lines]
    verdicts, milliseconds = measure(installed_graders(), pairs, args.repetitions)
    print_table(pairs, verdicts, milliseconds)
    print("\nmissed by verify.py:", "; ".join(missed(pairs, verdicts["verify.py"])) or "none")


def ours(response: str, gold: str) -> bool:
    return reward(response, gold) == 1.0


def theirs(response: str, gold: str) -> bool:
    import math_verify

    return math_verify.verify(math_verify.parse(f"${gold}$"), math_verify.parse(response))


def installed_graders() -> dict:
    """name -> function(response, gold) -> whether the answer is right."""
    if importlib.util.find_spec("math_verify") is None:
        print("math_verify is not installed: only verify.py is measured")
        return {"verify.py": ours}
    return {"verify.py": ours, "math_verify": theirs}


def measure(graders: dict, pairs: list[dict], repetitions: int) -> tuple[dict, dict]:
    """name -> verdict on each pair, and name -> milliseconds per pair in each repetition."""
    verdicts = {}
    milliseconds = {name: [] for name in graders}
    for _ in range(repetitions):
        for name, grader in graders.items():
            start = time.process_time()
            verdicts[name] = [bool(grader(pair["response"], pair["gold"])) for pair in pairs]
            seconds = time.process_time() - start
            milliseconds[name].append(seconds / len(pairs) * 1e3)
    return verdicts, milliseconds


def print_table(pairs: list[dict], verdicts: dict, milliseconds: dict) -> None:
    """Print one line per grader, from the output of `measure`."""
    print("| grader | right | false credits | missed credits | ms a pair, median (min to max) |")
    print("|---|---|---|---|---|")
    for name, given in verdicts.items():
        false_credits = sum(not x["truth"] and y for x, y in zip(pairs, given, strict=True))
        missed_credits = len(missed(pairs, given))
        right = 1 - (false_credits + missed_credits) / len(pairs)
        times = milliseconds[name]
        spread = f"{statistics.median(times):.3f} ({min(times):.3f} to {max(times):.3f})"
        print(f"| {name} | {right:.1%} | {false_credits} | {missed_credits} | {spread} |")


def missed(pairs: list[dict], verdicts: list[bool]) -> list[str]:
    """The right answers without credit."""
    both = zip(pairs, verdicts, strict=True)
    return [f"{x['response']} for {x['gold']}" for x, y in both if x["truth"] and not y]
