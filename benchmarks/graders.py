"""verify.py against math_verify on the labelled answers in tests/data/answers.jsonl, alternating in one run; then the slowest hostile inputs.

math_verify needs an environment of its own: pip install math-verify==0.9.0 numpy tqdm
"""
import json, platform, statistics, sys, time
from pathlib import Path

from tqdm import tqdm

TESTS = Path(__file__).parent.parent / "tests"


def graders() -> dict:
    """name -> function(response, gold) -> whether the answer is right."""
    from verify import reward
    found = {"verify.py": lambda response, gold: reward(response, gold) == 1.0}
    try:
        from math_verify import parse, verify
    except ImportError:
        print("math_verify is not installed here: our own figures only")
        return found
    return found | {"math_verify": lambda response, gold: verify(parse(f"${gold}$"), parse(response))}


def verify(args) -> None:
    """Agreement with the labels, and time per pair: medians over alternating repetitions."""
    rows = [json.loads(line) for line in open(TESTS / "data" / "answers.jsonl")]
    names, milliseconds, verdicts = graders(), {}, {}
    for _ in tqdm(range(args.repetitions), desc="repetitions", disable=None):
        for name, grade in names.items():
            start = time.perf_counter()
            verdicts[name] = [grade(row["response"], row["gold"]) for row in rows]
            milliseconds.setdefault(name, []).append((time.perf_counter() - start) / len(rows) * 1e3)
    print(f"{len(rows)} pairs, {args.repetitions} repetitions, Python {platform.python_version()}, {platform.machine()}\n")
    print("| grader | right | false credits | missed credits | ms a pair, median (min to max) |\n|---|---|---|---|---|")
    for name, given in verdicts.items():
        wrong = [row["truth"] for row, verdict in zip(rows, given) if bool(verdict) != row["truth"]]
        t = milliseconds[name]
        print(f"| {name} | {1 - len(wrong) / len(rows):.1%} | {wrong.count(False)} | {wrong.count(True)} | "
              f"{statistics.median(t):.3f} ({min(t):.3f} to {max(t):.3f}) |")
    if len(names) == 2:
        ratio = statistics.median(b / a for a, b in zip(*milliseconds.values()))
        print(f"\nverify.py is {ratio:.0f} times faster (median of the repetitions' ratios)")
    print("\nmissed by verify.py:", "; ".join(f"{row['response']} for {row['gold']}" for row, verdict in zip(rows, verdicts["verify.py"])
                                             if row["truth"] and not verdict) or "none")
    sys.path.insert(0, str(TESTS))
    from hostile import hostile
    slowest = {}
    for name, response in hostile().items():
        start = time.perf_counter()
        for gold in ("5", "x+1", "\\{1,2\\}"):
            names["verify.py"](response, gold)
        slowest[name] = (time.perf_counter() - start) / 3 * 1e3
    worst = sorted(slowest, key=slowest.get)[-3:]
    print(f"slowest of {len(slowest)} hostile inputs, ms: " + ", ".join(f"{name} {slowest[name]:.0f}" for name in reversed(worst)))
