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
    print_differences,
    print_gains,
    print_rows,
)
from studies.places import places
from studies.rows import IN_RANGE
from studies.running import complete
from studies.runs import Job, Runs, Trained, finished_runs, running_mean
from studies.tables import print_table

RATES = (1.4e-4, 2e-4)
PILOT_SEED = 500
PILOT_ROWS = ("dapo", "delta", "centred")
SEEDS = 16
SAMPLES = 8  # responses to each held-out problem

CONTROL = "centred, no centroids"
UNREFINED = "centred, K = 0"
RESULTS = "results"
EVERY_SEED = ("dapo", "delta", "centred", "surprise", CONTROL, UNREFINED)
EVERY_OTHER = (IN_RANGE, RESULTS)  # the first seed, the third, ...
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

LONG = "mean, longer"
LONG_ROWS = ("dapo", "centred", CONTROL)
LONG_RATE = 1.4e-4
LONG_SEEDS = 8

PLACES = places("mean")


def mean(args) -> dict[str, dict[str, np.ndarray]]:
    """DelTA with and without its proxy's mean, where training learns and sharpens (five hours).

    One pilot seed picks one learning rate for all rows at a place. --seeds limits the counted
    seeds, here and in the longer runs.
    """
    path = Path(args.csv)
    runs = finished_runs(path)
    complete(pilot_jobs(), runs, path, "pilot")
    rates = {place: best_rate(runs, place) for place in PLACES}
    jobs = counted_jobs(rates, args.seeds or SEEDS)
    longer = longer_jobs(min(args.seeds or LONG_SEEDS, LONG_SEEDS))
    complete(jobs + longer, runs, path, "counted seeds", SAMPLES)

    of, of_longer = counted(runs, jobs), counted(runs, longer)
    print_pilot(runs, rates)
    print_gains(of | of_longer)
    print_rows(of, {place: dict.fromkeys(ALL_ROWS, rate) for place, rate in rates.items()})
    print_rows(of_longer, dict.fromkeys(places(LONG), dict.fromkeys(LONG_ROWS, LONG_RATE)))
    pairs = (*PRIMARY, *SECONDARY, *DESCRIBED)
    tested = {f"{a} minus {b}": over_places(of, a, b) for a, b in pairs}
    for a, b in COSTS:
        for name, what in OUTCOMES.items():
            tested[f"{name}: {a} minus {b}"] = over_places(of, a, b, what)
        tested[f"entropy at equal reward: {a} minus {b}"] = entropies_at_equal_reward(of, a, b)
    tested |= {f"110 steps: {a} minus {b}": longer_outcomes(of_longer, a, b) for a, b in COSTS}
    print_differences(tested, ranks=True)
    minutes = sum(run.seconds for run in runs.values()) / 60
    print(f"{len(runs)} runs, {minutes:.0f} minutes of one core")

    groups = {row: over_places(of, row, "dapo") for row in ALL_ROWS if row != "dapo"}
    title = "Toy: DelTA with its proxy's mean and without it"
    draw_differences(groups, title, path.with_suffix(".png"))
    return tested


ALL_ROWS = (*EVERY_SEED, *EVERY_OTHER)

# ---- runs ----------------------------------------------------------------------------------------


def pilot_jobs() -> list[Job]:
    """The jobs on the pilot seed, which is not counted."""
    jobs = []
    for place in PLACES:
        for row in PILOT_ROWS:
            jobs += [Job(place, row, rate, PILOT_SEED) for rate in RATES]
    return jobs


def pilot_reward(runs: Runs, place: str, rate: float) -> float:
    """The pilot rows' mean training reward at a rate."""
    return float(np.mean([runs[Job(place, row, rate, PILOT_SEED)].reward for row in PILOT_ROWS]))


def best_rate(runs: Runs, place: str) -> float:
    """The learning rate for every row at a place: the best for the mean of the pilot rows."""
    return max(RATES, key=lambda rate: pilot_reward(runs, place, rate))


def counted_jobs(rates: dict[str, float], count: int) -> list[Job]:
    """The jobs, seed by seed, so that an interrupted study has complete seeds for all rows."""
    jobs = []
    for number in range(count):
        rows = EVERY_SEED if number % 2 else ALL_ROWS
        for place, first in PLACES.items():
            jobs += [Job(place, row, rates[place], first + number) for row in rows]
    return jobs


def longer_jobs(count: int) -> list[Job]:
    """The jobs over 110 steps, seed by seed."""
    jobs = []
    for place, first in places(LONG).items():
        for seed in range(first, first + count):
            jobs += [Job(place, row, LONG_RATE, seed) for row in LONG_ROWS]
    return jobs


# ---- output --------------------------------------------------------------------------------------


def print_pilot(runs: Runs, rates: dict[str, float]) -> None:
    """Print each row's mean training reward at each rate on the pilot seed."""
    lines = []
    for place in PLACES:
        for row in PILOT_ROWS:
            tried = [runs[Job(place, row, rate, PILOT_SEED)] for rate in RATES]
            lines.append([place, row, *(f"{run.reward:.3f}" for run in tried)])
        means = [f"{pilot_reward(runs, place, rate):.3f}" for rate in RATES]
        lines.append([place, f"mean: {rates[place]:g}", *means])
    print_table(["pilot: setting", "row", *(f"{rate:g}" for rate in RATES)], lines)


def longer_outcomes(of: Counted, a: str, b: str) -> dict[str, np.ndarray]:
    """Every outcome of the longer runs, row `a` minus row `b`: [seeds]."""
    outcomes = {"mean training reward": "reward", "last 5 steps": "last", **OUTCOMES}
    [place] = places(LONG)
    return {name: over_places(of, a, b, what)[place] for name, what in outcomes.items()}


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
