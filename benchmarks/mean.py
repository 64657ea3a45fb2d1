"""Compares DelTA's row proxy without its mean over the drawn token to the proxy with it (`mean`).

The row proxy is (1 - p) h; `--proxy centred` subtracts its mean in each state. Protocol and
results: docs/results/mean.md.
"""

from pathlib import Path

import numpy as np

from benchmarks.comparisons import (
    OUTCOMES,
    Counted,
    Tested,
    counted,
    draw_differences,
    over_settings,
    paired,
    print_differences,
    print_rows,
)
from benchmarks.rows import CONTROL, IN_RANGE
from benchmarks.runs import Job, Trained, complete, running_mean
from benchmarks.settings import LONG, LONGER, STUDY

RATE = 2e-4
SEEDS = 16
SAMPLES = 8  # responses to each held-out problem
FIRST = {  # setting -> first seed
    STUDY: 501,
    "learn, k12": 501,
    "learn minus": 501,
    "learn, filler 4": 501,
    "learn, Zipf": 501,
    LONG: 501,  # every other seed only, because its runs cost twice as much
    LONGER: 521,  # every other seed
}
LONGER_RATE = 1.4e-4

UNREFINED = "centred, K = 0"
EVERY_SEED = ("dapo", "delta", "centred", "surprise", CONTROL)
ALL_ROWS = (*EVERY_SEED, UNREFINED, IN_RANGE, "results")  # on the first seed, the third, ...
LONGER_ROWS = ("dapo", "centred", CONTROL)

PRIMARY = (("centred", "dapo"), ("centred", "delta"))
SECONDARY = (("centred", "surprise"), ("centred", CONTROL), (UNREFINED, "centred"))
COSTS = (("centred", "dapo"), (CONTROL, "dapo"), ("centred", CONTROL))  # in other outcomes


def mean(args) -> Tested:
    """DelTA with and without its proxy's mean, where training learns and sharpens."""
    path = Path(args.csv)
    runs = complete(counted_jobs(args.seeds or SEEDS), path, SAMPLES)
    everywhere = counted(runs)
    print_rows(everywhere)
    tested = tests(everywhere)
    print_differences(tested)
    minutes = sum(run.seconds for run in runs.values()) / 60
    print(f"{len(runs)} runs, {minutes:.0f} minutes of one core")

    groups = {row: tested[f"{row} minus dapo"] for row in ALL_ROWS if row != "dapo"}
    draw_differences(
        groups, "Toy: DelTA with its proxy's mean and without", path.with_suffix(".png")
    )
    return tested


def counted_jobs(count: int) -> list[Job]:
    """The jobs, seed by seed, so that an interrupted study has complete seeds for all rows."""
    jobs = []
    for number in range(count):
        for setting, first in FIRST.items():
            rate = LONGER_RATE if setting == LONGER else RATE
            rows = rows_at(setting, number)
            jobs += [Job(setting, row, rate, first + number) for row in rows]
    return jobs


def rows_at(setting: str, number: int) -> tuple[str, ...]:
    """The rows that run in a setting on its seed with index `number`, from 0."""
    if number % 2:
        return () if setting in (LONG, LONGER) else EVERY_SEED
    return LONGER_ROWS if setting == LONGER else ALL_ROWS


def tests(everywhere: Counted) -> Tested:
    """The protocol's differences: those of the six settings, then those of the longer runs."""
    of = {name: runs for name, runs in everywhere.items() if name[0] != LONGER}
    found = {}
    described = [(row, "dapo") for row in ALL_ROWS if row not in ("dapo", "centred")]
    for a, b in (*PRIMARY, *SECONDARY, *described):
        found[f"{a} minus {b}"] = over_settings(of, a, b)
    for a, b in COSTS:
        for name, what in OUTCOMES.items():
            found[f"{name}: {a} minus {b}"] = over_settings(of, a, b, what)
        found[f"entropy at equal reward: {a} minus {b}"] = entropies_at_equal_reward(of, a, b)
    outcomes = {"mean training reward": "reward", "last 5 steps": "last", **OUTCOMES}
    for a, b in COSTS:
        longer = {name: paired(everywhere, LONGER, a, b, what) for name, what in outcomes.items()}
        found[f"110 steps: {a} minus {b}"] = longer
    return found


def entropies_at_equal_reward(of: Counted, a: str, b: str) -> dict[str, np.ndarray]:
    """Setting -> `entropy_at_equal_reward` of rows `a` and `b` on their common seeds: [seeds]."""
    found = {}
    for setting in dict.fromkeys(setting for setting, _ in of):
        one, other = of[setting, a], of[setting, b]
        seeds = sorted(one.keys() & other.keys())
        found[setting] = np.array([entropy_at_equal_reward(one[s], other[s]) for s in seeds])
    return found


def entropy_at_equal_reward(one: Trained, other: Trained) -> float:
    """The entropy of `one` minus that of `other`, when both first reach the same reward.

    The reward is the highest that both reach, as a mean over consecutive steps. Each run's
    entropy is the mean over the first consecutive steps whose mean reward is at least that high.
    """
    runs = (one, other)
    reward = min(running_mean(run.rewards).max() for run in runs)
    entropies = []
    for run in runs:
        reached = np.flatnonzero(running_mean(run.rewards) >= reward - 1e-9)  # rounding
        entropies.append(running_mean(run.entropies)[reached[0]])
    return float(entropies[0] - entropies[1])
