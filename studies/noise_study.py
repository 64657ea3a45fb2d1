"""Noise and sparsity: the rows that matter where rewards lie, are rare, or tokens idle (`noise`).

Rewards turned over for a tenth or a fifth of the responses; a base model that is nearly always
wrong, and one that is nearly always right; steps opened by no connective or by four. Each row at
the rate it had in results/methods.csv. The rewards compared are the deserved ones.
"""

from pathlib import Path

import numpy as np

from studies.comparisons import draw_differences, print_differences
from studies.confirm_study import STUDY_CSV, place_rewards
from studies.method_study import chosen
from studies.statistics import mean_interval
from studies.study_jobs import Done, Job, complete, finished_runs
from studies.study_runs import IN_RANGE, ORACLE

FIRST_SEED = 41  # none of the other studies'
PLACES = (
    "flipped 10 %",
    "flipped 20 %",
    "often wrong",
    "often right",
    "k5, filler 0",
    "k5, filler 4",
)


def noise(args) -> list[dict]:
    """Fill --csv, print how DAPO fares and the others against it, and draw the latter."""
    path = Path(args.csv)
    done = finished_runs(path)
    best, rates, _ = chosen(STUDY_CSV)
    rows = ("dapo", "delta", best, IN_RANGE, ORACLE)
    seeds = range(FIRST_SEED, FIRST_SEED + args.seeds)

    all_differences = {}
    groups = {name: {} for name in rows[1:]}
    for place in PLACES:
        jobs = [Job(place, name, rates[name], seed) for seed in seeds for name in rows]
        complete(jobs, done, path, place)
        print_dapo(done, [job for job in jobs if job.row == "dapo"])
        rewards = place_rewards(done, jobs)
        for name in rows[1:]:
            groups[name][place] = rewards[name] - rewards["dapo"]
            all_differences[f"{place}: {name}"] = groups[name][place]

    print()
    lines = print_differences(all_differences, "minus dapo")
    draw_differences(groups, "Toy: noise and sparsity", path.with_suffix(".png"))
    return lines


def print_dapo(done: Done, jobs: list[Job]) -> None:
    """DAPO's mean reward in a setting, and how it begins and ends."""
    runs = [done[job] for job in jobs]
    first = np.mean([run.first for run in runs])
    last = np.mean([run.last for run in runs])
    print(
        f"{jobs[0].setting}: DAPO {mean_interval([run.reward for run in runs])}, "
        f"first 5 steps {first:.3f}, last 5 {last:.3f}"
    )
