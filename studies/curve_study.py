"""Step by step: DAPO, DelTA, its best other form and the oracles over the same seeds (`curves`).

The task of the study of methods, each row at the rate it had there. Seven minutes on two cores.
"""

from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from tqdm import tqdm

from studies.confirm_study import STUDY_CSV
from studies.method_study import chosen
from studies.statistics import mean_interval
from studies.study_runs import IN_RANGE, ORACLE, run_row
from studies.tables import write_csv

SEEDS = range(61, 69)  # none of the other studies'
COLUMNS = ("reward", "response_length", "entropy", "lambda_std")


def curves(args) -> list[dict]:
    """Fill --csv and print each row's mean training reward."""
    best, rates, _ = chosen(STUDY_CSV)
    rows = ("dapo", "delta", best, IN_RANGE, ORACLE)
    jobs = []
    for seed in SEEDS:
        jobs += [(name, rates[name], seed) for name in rows]
    with ProcessPoolExecutor(2) as pool:
        runs = list(tqdm(pool.map(curve, jobs), total=len(jobs), desc="runs"))

    lines = [line for run in runs for line in run]
    write_csv(Path(args.csv), lines)
    for name in rows:
        means = [mean_reward(run) for run in runs if run[0]["row"] == name]
        print(f"{name}: {mean_interval(means)}")
    return lines


def curve(job: tuple[str, float, int]) -> list[dict]:
    """One run, (row, learning rate, seed), as lines of results/curves.csv."""
    name, rate, seed = job
    lines = []
    for step in run_row(name, rate, seed):
        line = {"row": name, "lr": rate, "seed": seed, "step": step["step"]}
        lines.append(line | {column: round(step[column], 4) for column in COLUMNS})
    return lines


def mean_reward(run: list[dict]) -> float:
    """The mean training reward over the steps of a run."""
    return float(np.mean([line["reward"] for line in run]))
