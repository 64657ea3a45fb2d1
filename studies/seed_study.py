"""README's three methods on the toy, over several seeds (`seeds`).

Runs of train.py, two at a time, one thread each; their curves go to --csv, and a run that it holds
is not run again. 20 minutes on two cores.
"""

import csv
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from tqdm import tqdm

import train
from studies.statistics import mean_interval
from studies.tables import table_line, write_csv

COMPARED = ("grpo", "dapo", "delta")
COLUMNS = ("step", "reward", "entropy", "response_length", "lambda_std", "eval_accuracy")

Job = tuple[str, int]  # method, seed


def seeds(args) -> None:
    """Fill --csv and print the table of README.md."""
    path = Path(args.csv)
    done = finished_runs(path)
    jobs = []
    for seed in range(args.seeds):
        jobs += [(method, seed) for method in COMPARED]

    missing = [job for job in jobs if job not in done]
    run = partial(run_in_process, Path(args.output_dir))
    with ThreadPoolExecutor(2) as pool:
        curves = list(tqdm(pool.map(run, missing), total=len(missing), desc="runs"))
    done |= dict(zip(missing, curves, strict=True))

    write(path, done)
    print_table(done, args.seeds)


def finished_runs(path: Path) -> dict[Job, list[dict]]:
    """The curves in the CSV, by run: a list of steps each, without the empty cells."""
    if not path.exists():
        return {}
    done = {}
    with open(path) as file:
        for cells in csv.DictReader(file):
            job = (cells["method"], int(cells["seed"]))
            step = {name: json.loads(cells[name]) for name in COLUMNS if cells[name]}
            done.setdefault(job, []).append(step)
    return done


def run_in_process(parent: Path, job: Job) -> list[dict]:
    """Run train.py in a process of its own; its metrics, step by step."""
    method, seed = job
    folder = parent / f"{method}-{seed}"
    command = [sys.executable, train.__file__, "--method", method, "--seed", str(seed)]
    command += ["--output-dir", str(folder)]
    process = subprocess.run(
        command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True
    )
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{process.stderr}")
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def write(path: Path, done: dict[Job, list[dict]]) -> None:
    """All curves as a CSV; a cell stays empty where a step has no such number."""
    rows = []
    for (method, seed), steps in done.items():
        for step in steps:
            cells = {name: round(step[name], 4) if name in step else "" for name in COLUMNS}
            rows.append({"method": method, "seed": seed, **cells})
    write_csv(path, rows)


def print_table(done: dict[Job, list[dict]], count: int) -> None:
    """The table of README.md over `count` seeds, and the accuracy of the base model below it."""
    steps = done[COMPARED[0], 0][-1]["step"]
    print(
        f"| method | held-out accuracy after | mean training reward over all {steps} steps "
        "| seeds |\n|---|---|---|---|"
    )
    for method in COMPARED:
        runs = [done[method, seed] for seed in range(count)]
        after = mean_interval([run[-1]["eval_accuracy"] for run in runs])
        reward = mean_interval([mean_reward(run) for run in runs])
        print(table_line([method, after, reward, len(runs)]))

    before = mean_interval([done["delta", seed][0]["eval_accuracy"] for seed in range(count)])
    print(f"held-out accuracy before: {before} (one base model, {count} sampling seeds)")


def mean_reward(run: list[dict]) -> float:
    """The mean training reward over the steps of a run; step 0 has none."""
    return float(np.mean([step["reward"] for step in run if "reward" in step]))
