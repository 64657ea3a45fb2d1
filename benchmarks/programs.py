"""Programs that the sandbox runs in a second, and how long one takes at worst.

Three kinds of trivial programs, with one worker and with two, in alternating repetitions of one
run; and the programs of tests/programs/hostile_programs.py that take longest.
"""

import runpy
import statistics
import time
from dataclasses import replace
from pathlib import Path

from benchmarks.timing import spread
from programs.sandbox.client import Limits, Sandbox
from programs.verify_code import SCRIPT, run_tests

HOSTILE = Path(__file__).parent.parent / "tests" / "programs" / "hostile_programs.py"
COUNT = 100  # programs in a repetition
WORKERS = (1, 2)

CASES = {  # name -> program, tests
    "standard input and output": (
        "a, b = map(int, input().split())\nprint(a + b)",
        [{"input": "3 4\n", "output": "7\n"}],
    ),
    "six calls of a function": (
        "def add(a, b): return a + b",
        [{"function": "add", "args": [i, 4], "expected": i + 4} for i in range(6)],
    ),
    "an assertion script": (
        "def add(a, b): return a + b",
        [{"script": "assert add(3, 4) == 7"}],
    ),
}


def programs(args) -> list[dict]:
    """Print both tables; the rows that they have."""
    sandboxes = {workers: Sandbox(workers) for workers in WORKERS}
    print("| programs with | workers | programs a second | worst latency, ms |\n|---|---|---|---|")
    rows = []
    try:
        for name, (program, tests) in CASES.items():
            seconds = {workers: [] for workers in WORKERS}
            latencies = {workers: [] for workers in WORKERS}
            for _ in range(args.repetitions):
                for workers, sandbox in sandboxes.items():
                    total, each = batch(sandbox, program, tests)
                    seconds[workers].append(total)
                    latencies[workers].append(1000 * max(each))
            for workers in WORKERS:
                row = {
                    "programs": name,
                    "workers": workers,
                    "per_second": [COUNT / total for total in seconds[workers]],
                    "worst_ms": latencies[workers],
                }
                rows.append(row)
                rate, worst = spread(row["per_second"], 0), spread(row["worst_ms"], 0)
                print(f"| {name} | {workers} | {rate} | {worst} |", flush=True)
        print_hostile(sandboxes[1])
    finally:
        for sandbox in sandboxes.values():
            sandbox.close()
    return rows


def batch(sandbox: Sandbox, program: str, tests: list[dict]) -> tuple[float, list[float]]:
    """Seconds of COUNT runs of a right program, and those that each of them took."""

    def run(number: int) -> float:
        started = time.perf_counter()
        result = run_tests(program, tests, None, sandbox)
        if result.stopped:
            raise RuntimeError(f"a right program failed: {result.stopped}")
        return time.perf_counter() - started

    started = time.perf_counter()
    each = sandbox.map(run, list(range(COUNT)))
    return time.perf_counter() - started, each


def print_hostile(sandbox: Sandbox) -> None:
    """The hostile programs' limits, and by how much time the slowest exceeded them."""
    limits = Limits(cpu_seconds=1, wall_seconds=20)
    excesses = []
    for name, each in runpy.run_path(str(HOSTILE))["hostile"]().items():
        wall = 2 if each.sleeps else limits.wall_seconds
        allowed = wall if each.sleeps else limits.cpu_seconds
        if each.kind == "script":
            allowed = max(allowed, SCRIPT * limits.cpu_seconds)
        tests = {
            "run": [{"input": "", "output": "gold"}],
            "calls": [{"function": "f", "args": [3], "expected": "gold"}],
            "script": [{"script": "assert f(3) == 'gold'"}],
        }[each.kind]
        text = each.text.replace("PORT", "9")
        started = time.perf_counter()
        run_tests(text, tests, replace(limits, wall_seconds=wall), sandbox)
        excesses.append((time.perf_counter() - started - allowed, name))
    excesses.sort(reverse=True)
    slowest = ", ".join(f"{name} {excess:+.2f}" for excess, name in excesses[:3])
    median = statistics.median(excess for excess, _ in excesses)
    print(
        f"\n{len(excesses)} hostile programs, seconds beyond their limit of CPU time (1 s, a "
        f"script {SCRIPT} s) or, if they sleep, of the wall clock (2 s): "
        f"median {median:+.2f}, most {slowest}"
    )
