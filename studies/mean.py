"""Compares DelTA's row proxy without its mean over the drawn token to the proxy with it (`mean`).

The row proxy is (1 - p) h; `--proxy centred` subtracts its mean in each state. Protocol and
results: docs/results/mean.md.
"""

from pathlib import Path

import numpy as np

from studies.comparisons import (
    OUTCOMES,
    Counted,
    counted,
    draw_differences,
    over_places,
    paired,
    print_differences,
    print_gains,
    print_rows,
)
from studies.places import places
from studies.rows import IN_RANGE
from studies.running import complete
from studies.runs import Job, Trained, finished_runs, running_mean

RATE = 2e-4  # for all rows: on the pilot seed of `surprise`, better than 1.4e-4 at every place
SEEDS = 16
SAMPLES = 8  # responses to each held-out problem

CONTROL = "centred, no centroids"
UNREFINED = "centred, K = 0"
RESULTS = "results"
EVERY_SEED = ("dapo", "delta", "centred", "surprise", CONTROL)
EVERY_OTHER = (UNREFINED, IN_RANGE, RESULTS)  # on the first seed, the third, ...
ALL_ROWS = (*EVERY_SEED, *EVERY_OTHER)
PRIMARY = (("centred", "dapo"), ("centred", "delta"))
SECONDARY = (("centred", "surprise"), ("centred", CONTROL), (UNREFINED, "centred"))
DESCRIBED = (
    ("delta", "dapo"),
    ("surprise", "dapo"),
    (CONTROL, "dapo"),
    (UNREFINED, "dapo"),
    (IN_RANGE, "dapo"),
    (RESULTS, "dapo"),
)
COSTS = (("centred", "dapo"), (CONTROL, "dapo"), ("centred", CONTROL))  # in other outcomes

PLACES = places("mean")
LONG = "learn, long"  # every other seed only, because its runs cost twice as much
[LONGER] = places("mean, longer")  # 110 steps; every other seed
LONGER_ROWS = ("dapo", "centred", CONTROL)
LONGER_RATE = 1.4e-4  # as in `longer`
FIRST = PLACES | places("mean, longer")


def mean(args) -> dict[str, dict[str, np.ndarray]]:
    """DelTA with and without its proxy's mean, where training learns and sharpens (five hours).

    --seeds limits the seeds.
    """
    path = Path(args.csv)
    runs = finished_runs(path)
    jobs = counted_jobs(args.seeds or SEEDS)
    complete(jobs, runs, path, "runs", SAMPLES)

    everywhere = counted(runs, jobs)
    print_gains(everywhere)
    print_rows(everywhere, {place: dict.fromkeys(ALL_ROWS, rate_at(place)) for place in FIRST})
    of = counted(runs, [job for job in jobs if job.setting != LONGER])
    pairs = (*PRIMARY, *SECONDARY, *DESCRIBED)
    tested = {f"{a} minus {b}": over_places(of, a, b) for a, b in pairs}
    for a, b in COSTS:
        for name, what in OUTCOMES.items():
            tested[f"{name}: {a} minus {b}"] = over_places(of, a, b, what)
        tested[f"entropy at equal reward: {a} minus {b}"] = entropies_at_equal_reward(of, a, b)
    tested |= {f"110 steps: {a} minus {b}": longer_outcomes(everywhere, a, b) for a, b in COSTS}
    print_differences(tested, ranks=True)
    minutes = sum(run.seconds for run in runs.values()) / 60
    print(f"{len(runs)} runs, {minutes:.0f} minutes of one core")

    groups = {row: over_places(of, row, "dapo") for row in ALL_ROWS if row != "dapo"}
    title = "Toy: DelTA with its proxy's mean and without it"
    draw_differences(groups, title, path.with_suffix(".png"))
    return tested


# ---- runs ----------------------------------------------------------------------------------------


def counted_jobs(count: int) -> list[Job]:
    """The jobs, seed by seed, so that an interrupted study has complete seeds for all rows."""
    jobs = []
    for number in range(count):
        for place, first in FIRST.items():
            rows = rows_at(place, number)
            jobs += [Job(place, row, rate_at(place), first + number) for row in rows]
    return jobs


def rate_at(place: str) -> float:
    return LONGER_RATE if place == LONGER else RATE


def rows_at(place: str, number: int) -> tuple[str, ...]:
    """The rows that run at a place on its seed with index `number`, from 0."""
    if number % 2:
        return () if place in (LONG, LONGER) else EVERY_SEED
    return LONGER_ROWS if place == LONGER else ALL_ROWS


# ---- output --------------------------------------------------------------------------------------


def longer_outcomes(of: Counted, a: str, b: str) -> dict[str, np.ndarray]:
    """Every outcome of the longer runs, row `a` minus row `b`: [seeds]."""
    outcomes = {"mean training reward": "reward", "last 5 steps": "last", **OUTCOMES}
    return {name: paired(of, LONGER, a, b, what) for name, what in outcomes.items()}


def entropies_at_equal_reward(of: Counted, a: str, b: str) -> dict[str, np.ndarray]:
    """Place -> `entropy_at_equal_reward` of rows `a` and `b` on their common seeds: [seeds]."""
    found = {}
    for place in PLACES:
        one, other = of[place, a], of[place, b]
        pairs = [(one[seed], other[seed]) for seed in sorted(one.keys() & other.keys())]
        found[place] = np.array([entropy_at_equal_reward(*pair) for pair in pairs])
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
