"""Step by step: DAPO, DelTA and the oracle over the same eight seeds (`curves`).

Twenty-four steps of half the responses of the study of methods. Five minutes on two cores.
"""

from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from tqdm import tqdm

from benchmarks.statistics import mean_interval
from benchmarks.study_runs import ORACLE, Setting, run_row
from benchmarks.tables import write_csv

SEEDS = 8
SETTING = Setting(size="--prompts 8 --group-size 8 --mini-batch 4 --steps 24")
RATES = {"dapo": 2.5e-5, "delta": 2.5e-5, ORACLE: 5e-5}
COLUMNS = ("reward", "response_length", "entropy", "lambda_std")


def curves(args) -> list[dict]:
    """Fill --csv and print each row's mean training reward."""
    jobs = []
    for seed in range(SEEDS):
        jobs += [(name, rate, seed) for name, rate in RATES.items()]
    with ProcessPoolExecutor(2) as pool:
        runs = list(tqdm(pool.map(curve, jobs), total=len(jobs), desc="runs"))

    lines = [line for run in runs for line in run]
    write_csv(Path(args.csv), lines)
    for name in RATES:
        means = [mean_reward(run) for run in runs if run[0]["row"] == name]
        print(name, mean_interval(means))
    return lines


def curve(job: tuple[str, float, int]) -> list[dict]:
    """One run, (row, learning rate, seed), as lines of results/curves.csv."""
    name, rate, seed = job
    lines = []
    for step in run_row(name, rate, seed, SETTING):
        line = {"row": name, "lr": rate, "seed": seed, "step": step["step"]}
        lines.append(line | {column: round(step[column], 4) for column in COLUMNS})
    return lines


def mean_reward(run: list[dict]) -> float:
    """The mean training reward over the steps of a run."""
    return float(np.mean([line["reward"] for line in run]))
