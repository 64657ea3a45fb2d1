"""Compares verify.py with math_verify on the labelled answers in tests/answers/data/answers.jsonl.

The two graders alternate in one run. Then verify.py grades all pairs of different gold answers.
Times are CPU times for this process, so other work on the machine does not count.

math_verify needs a separate environment: pip install math-verify==0.9.0 numpy tqdm mpmath==1.3.0
"""

import importlib.util
import json
import platform
import runpy
import statistics
import time
from pathlib import Path

from tqdm import tqdm

from verify import is_equivalent, reward

TESTS = Path(__file__).parent.parent / "tests" / "answers"


def verify(args) -> None:
    """verify.py against math_verify on labelled answers, and verify.py on pairs of gold answers."""
    lines = (TESTS / "data" / "answers.jsonl").read_text().splitlines()
    pairs = [json.loads(line) for line in lines]
    print(
        f"{len(pairs)} pairs, {args.repetitions} repetitions, "
        f"Python {platform.python_version()}, {platform.machine()}\n"
    )

    graders = installed_graders()
    verdicts, milliseconds = measure(graders, pairs, args.repetitions)
    print_table(pairs, verdicts, milliseconds)
    if len(graders) == 2:
        our_times, their_times = milliseconds.values()
        ratios = [b / a for a, b in zip(our_times, their_times, strict=True)]
        ratio = statistics.median(ratios)
        print(f"\nverify.py is {ratio:.0f} times faster (median of the repetitions' ratios)")

    print_missed(pairs, verdicts["verify.py"])
    print_credited_golds()


# ---- the graders ---------------------------------------------------------------------------------


def ours(response: str, gold: str) -> bool:
    return reward(response, gold) == 1.0


def theirs(response: str, gold: str) -> bool:
    import math_verify

    parsed_gold = math_verify.parse(f"${gold}$")
    parsed_response = math_verify.parse(response)
    return math_verify.verify(parsed_gold, parsed_response)


def installed_graders() -> dict:
    """name -> function(response, gold) -> whether the answer is right."""
    if importlib.util.find_spec("math_verify") is None:
        print("math_verify is not installed: only verify.py is measured")
        return {"verify.py": ours}
    return {"verify.py": ours, "math_verify": theirs}


# ---- measuring -----------------------------------------------------------------------------------


def measure(graders: dict, pairs: list[dict], repetitions: int) -> tuple[dict, dict]:
    """name -> verdict on each pair, and name -> milliseconds per pair in each repetition."""
    verdicts = {}
    milliseconds = {name: [] for name in graders}
    for _ in tqdm(range(repetitions), desc="repetitions", disable=None):
        for name, grader in graders.items():
            start = time.process_time()
            verdicts[name] = [grader(pair["response"], pair["gold"]) for pair in pairs]
            seconds = time.process_time() - start
            milliseconds[name].append(seconds / len(pairs) * 1e3)
    return verdicts, milliseconds


# ---- printing ------------------------------------------------------------------------------------


def print_table(pairs: list[dict], verdicts: dict, milliseconds: dict) -> None:
    print("| grader | right | false credits | missed credits | ms a pair, median (min to max) |")
    print("|---|---|---|---|---|")
    for name, given in verdicts.items():
        false_credits = 0
        missed_credits = 0
        for pair, verdict in zip(pairs, given, strict=True):
            false_credits += bool(verdict) and not pair["truth"]
            missed_credits += pair["truth"] and not verdict
        right = 1 - (false_credits + missed_credits) / len(pairs)

        times = milliseconds[name]
        print(
            f"| {name} | {right:.1%} | {false_credits} | {missed_credits} | "
            f"{statistics.median(times):.3f} ({min(times):.3f} to {max(times):.3f}) |"
        )


def print_missed(pairs: list[dict], verdicts: list[bool]) -> None:
    missed = []
    for pair, verdict in zip(pairs, verdicts, strict=True):
        if pair["truth"] and not verdict:
            missed.append(f"{pair['response']} for {pair['gold']}")
    print("\nmissed by verify.py:", "; ".join(missed) or "none")


def print_credited_golds() -> None:
    """Grade every gold answer against every other distinct one. No pair should get credit."""
    golds = runpy.run_path(str(TESTS / "golds.py"))
    pairs = list(golds["pairs_of_golds"]())
    credited = []
    for prediction, gold in tqdm(pairs, desc="pairs of gold answers", disable=None):
        if is_equivalent(prediction, gold):
            credited.append(f"{prediction} for {gold}")
    listed = "; ".join(credited) or "none"
    print(f"wrongly credited, out of {len(pairs):,} pairs of gold answers: {listed}")
