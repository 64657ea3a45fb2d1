"""Small measurements behind the README's numbers: python bench.py NAME.

seeds: trains the toy with grpo, dapo and delta on several seeds and prints mean and 95 % interval of what came out.
verify: grades the labelled answers in tests/data/answers.jsonl with verify.py and, where it is installed, with math_verify
    (pip install math-verify==0.9.0 in an environment of its own), alternating in one run; then the slowest hostile inputs.
"""
import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from tqdm import tqdm

T975 = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131]  # Student's t


def mean_interval(values) -> str:
    """`mean ± half-width` of the 95 % t-interval over independent runs (2 to 16 of them)."""
    values = np.asarray(values, dtype=float)
    return f"{values.mean():.3f} ± {T975[len(values) - 2] * values.std(ddof=1) / len(values) ** 0.5:.3f}"


def seeds(args: argparse.Namespace) -> None:
    """Runs of `train.py` for each method and seed, two at a time, one thread each; a finished run is not run again."""
    import toy
    toy.base_model()  # built once, before the runs share it

    def run(job):
        method, seed = job
        folder = Path(args.output_dir) / f"{method}-{seed}"
        command = [sys.executable, "train.py", "--method", method, "--seed", str(seed), "--output-dir", str(folder)]
        done = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
        return method, [json.loads(line) for line in open(folder / "metrics.jsonl")]

    jobs = [(method, seed) for seed in range(args.seeds) for method in ("grpo", "dapo", "delta")]
    with ThreadPoolExecutor(2) as pool:
        results = list(tqdm(pool.map(run, jobs), total=len(jobs), desc="runs"))
    print(f"| method | held-out accuracy after | mean training reward over all {results[0][1][-1]['step']} steps | seeds |\n|---|---|---|---|")
    for method in ("grpo", "dapo", "delta"):
        runs = [rows for name, rows in results if name == method]
        after = mean_interval([rows[-1]["eval_accuracy"] for rows in runs])
        reward = mean_interval([np.mean([row["reward"] for row in rows if "reward" in row]) for rows in runs])
        print(f"| {method} | {after} | {reward} | {len(runs)} |")
    before = mean_interval([rows[0]["eval_accuracy"] for name, rows in results if name == "delta"])
    print(f"held-out accuracy before: {before} (one base model, {args.seeds} sampling seeds)")


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


def verify(args: argparse.Namespace) -> None:
    """Agreement with the labels, and time per pair: medians over alternating repetitions."""
    rows = [json.loads(line) for line in open(Path(__file__).parent / "tests" / "data" / "answers.jsonl")]
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
    sys.path.insert(0, str(Path(__file__).parent / "tests"))
    from hostile import hostile
    slowest = {}
    for name, response in hostile().items():
        start = time.perf_counter()
        for gold in ("5", "x+1", "\\{1,2\\}"):
            names["verify.py"](response, gold)
        slowest[name] = (time.perf_counter() - start) / 3 * 1e3
    worst = sorted(slowest, key=slowest.get)[-3:]
    print(f"slowest of {len(slowest)} hostile inputs, ms: " + ", ".join(f"{name} {slowest[name]:.0f}" for name in reversed(worst)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = parser.add_subparsers(dest="name", required=True)
    seeds_parser = names.add_parser("seeds", help="grpo, dapo and delta on the toy over several seeds")
    seeds_parser.add_argument("--seeds", type=int, default=8, choices=range(2, 17), metavar="2..16")
    seeds_parser.add_argument("--output-dir", default="runs/seeds")
    seeds_parser.set_defaults(function=seeds)
    verify_parser = names.add_parser("verify", help="verify.py against math_verify on labelled answers")
    verify_parser.add_argument("--repetitions", type=int, default=3)
    verify_parser.set_defaults(function=verify)
    args = parser.parse_args()
    args.function(args)


if __name__ == "__main__":
    main()
