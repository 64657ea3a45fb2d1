"""The studies of training on the toy: which rows beat DAPO, and does it hold elsewhere?

All rows share problems and random numbers, so that differences are taken seed by seed. What --csv
holds is not run again; fewer --seeds are a shorter version. Protocol: docs/results/protocol.md.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from infra.errors import UserError
from studies.comparisons import draw_differences, print_differences
from studies.rows import IN_RANGE, MAIN, ORACLE, ROWS, SECONDARY
from studies.runs import (
    PILOT_SEEDS,
    SETTINGS,
    STUDY,
    Done,
    Job,
    complete,
    finished_runs,
    place_rewards,
    places,
    rewards_of,
)
from studies.statistics import mean_interval
from studies.tables import table_line

GRID = (1e-4, 2e-4, 4e-4)
FIRST_SEED = SETTINGS[STUDY].seeds["methods"]
SECONDARY_SEEDS = 6
CONFIRMED = places("confirm")
NOISY = places("noise")
STUDY_CSV = Path("results/methods.csv")  # from which the other studies take the best row, and rates

# One thing at a time: what is changed, the row with it, the row without it.
CONTRASTS = {
    "row proxy: γ fresh, not lagged": ("delta, fresh", "delta"),
    "top-K proxy: γ fresh, not lagged": ("topk, fresh", "topk"),
    "exact proxy: γ fresh, not lagged": ("exact, fresh", "exact"),
    "row proxy: no refinement": ("delta, K = 0", "delta"),
    "top-K proxy: no refinement": ("topk, K = 0", "topk"),
    "row proxy: each side of mean 1": ("delta, side", "delta"),
    "row proxy: centroids held out": ("delta, held out", "delta"),
    "lagged: top-K, not row proxy": ("topk", "delta"),
    "lagged: exact, not row proxy": ("exact", "delta"),
    "fresh: top-K, not row proxy": ("topk, fresh", "delta, fresh"),
    "fresh: exact, not row proxy": ("exact, fresh", "delta, fresh"),
}

# What the best is picked from for the confirmation: DelTA otherwise than by default, in forms that
# a large model can run.
CANDIDATES = [name for name in MAIN if name.startswith(("delta, ", "topk"))]


# ---- the studies ---------------------------------------------------------------------------------


def methods(args) -> dict:
    """DelTA, its interventions, two oracles and the paper's rows on the toy (an hour and a half).

    Pilot seeds pick each row's learning rate. The main rows then run on the counted seeds, and
    after them the other rows of the paper's tables on fewer.
    """
    path = Path(args.csv)
    done = finished_runs(path)
    seeds = range(FIRST_SEED, FIRST_SEED + (args.seeds or 16))
    rates = pilot(list(MAIN), PILOT_SEEDS, done, path)
    complete(counted_jobs(rates, seeds), done, path, "main rows")
    print_gain(done, rates["dapo"], seeds)
    main = print_rows(done, rates, seeds)
    picture = path.with_name(f"{path.stem}_main.png")
    of_main = {f"{len(seeds)} seeds": against_dapo(done, rates, seeds)}
    draw_differences(of_main, "Toy, 12 operations: the main rows against DAPO", picture)
    print()
    contrasts = print_differences(contrasts_of(done, rates, seeds), "one thing at a time")

    few = seeds[:SECONDARY_SEEDS]
    others = pilot(list(SECONDARY), PILOT_SEEDS[:1], done, path)
    complete(counted_jobs(others, few), done, path, "other rows")
    print()
    others = {"dapo": rates["dapo"]} | others
    secondary = print_rows(done, others, few)
    print_cost(done)

    groups = of_main | {f"{len(few)} seeds": against_dapo(done, others, few)}
    title = "Toy, 12 operations: every row against DAPO"
    draw_differences(groups, title, path.with_suffix(".png"))
    return {"main": main, "contrasts": contrasts, "secondary": secondary}


def confirm(args) -> dict:
    """The best of these rows on fresh seeds, another base model and other settings (an hour).

    The best of DelTA's other forms in results/methods.csv beside DelTA, DAPO and the oracle in
    DelTA's range, each at the rate it had there.
    """
    path = Path(args.csv)
    best, rates, count = chosen(STUDY_CSV)
    print(f"to be confirmed: {best}, at {rates[best]:g}, the best on {count} seeds\n")

    measured = {"best": best}
    rows = ("dapo", "delta", best, IN_RANGE)
    for place, jobs, done in completed("confirm", rows, rates, args.seeds or 16, path):
        rewards = place_rewards(done, jobs)
        tested = {
            f"{best} minus dapo": rewards[best] - rewards["dapo"],
            f"{best} minus delta": rewards[best] - rewards["delta"],
        }
        beside = {
            "delta minus dapo": rewards["delta"] - rewards["dapo"],
            f"{IN_RANGE} minus dapo": rewards[IN_RANGE] - rewards["dapo"],
        }
        lines = print_differences(tested, f"{place}: tested")
        print()
        lines += print_differences(beside, f"{place}: beside it")
        print()
        measured[place] = lines
    return measured


def noise(args) -> list[dict]:
    """A few rows under flipped, rare or plentiful rewards, and with idle tokens (half an hour).

    Each row at the rate it had in results/methods.csv. The rewards compared are the deserved ones.
    """
    path = Path(args.csv)
    best, rates, _ = chosen(STUDY_CSV)
    rows = ("dapo", "delta", best, IN_RANGE, ORACLE)

    all_differences = {}
    groups = {name: {} for name in rows[1:]}
    for place, jobs, done in completed("noise", rows, rates, args.seeds or 6, path):
        print_dapo(done, [job for job in jobs if job.row == "dapo"])
        rewards = place_rewards(done, jobs)
        for name in rows[1:]:
            groups[name][place] = rewards[name] - rewards["dapo"]
            all_differences[f"{place}: {name}"] = groups[name][place]

    print()
    lines = print_differences(all_differences, "minus dapo")
    draw_differences(groups, "Toy: noise and sparsity", path.with_suffix(".png"))
    return lines


def completed(
    study: str, rows: tuple[str, ...], rates: dict[str, float], count: int, path: Path
) -> Iterator[tuple[str, list[Job], Done]]:
    """(place, its jobs, all finished runs) of each place of a study, once its jobs have run."""
    done = finished_runs(path)
    for place, first in places(study).items():
        seeds = range(first, first + count)
        jobs = counted_jobs({name: rates[name] for name in rows}, seeds, place)
        complete(jobs, done, path, place)
        yield place, jobs, done


# ---- learning rates ------------------------------------------------------------------------------


def pilot(
    names: list[str], seeds: range, done: Done, path: Path, setting: str = STUDY
) -> dict[str, float]:
    """The best learning rate of each row by its mean training reward on seeds that do not count.

    Runs what is missing. Where the best stands at an edge of the grid, the row's is widened.
    """
    grids = dict.fromkeys(names, GRID)
    while True:
        jobs = []
        for seed in seeds:
            for name in names:
                jobs += [Job(setting, name, rate, seed) for rate in grids[name]]
        complete(jobs, done, path, "pilot")

        best = {name: best_rate(name, grids[name], seeds, done, setting) for name in names}
        wider = {name: widened(grids[name], best[name]) for name in names}
        if wider == grids:
            return best
        grids = wider


def best_rate(
    name: str, grid: tuple[float, ...], seeds: range, done: Done, setting: str = STUDY
) -> float:
    """The learning rate at which a row had the highest mean training reward."""

    def pilot_reward(rate: float) -> float:
        return rewards_of(done, setting, name, rate, seeds).mean()

    return max(grid, key=pilot_reward)


def widened(grid: tuple[float, ...], best: float) -> tuple[float, ...]:
    """The grid with a further rate beyond the edge at which the best one stands, if it does."""
    if best == grid[0]:
        return (best / 2, *grid)
    if best == grid[-1]:
        return (*grid, best * 2)
    return grid


# ---- counted seeds -------------------------------------------------------------------------------


def counted_jobs(rates: dict[str, float], seeds: range, setting: str = STUDY) -> list[Job]:
    """Seed by seed, so that a study that was stopped has whole seeds."""
    jobs = []
    for seed in seeds:
        jobs += [Job(setting, name, rate, seed) for name, rate in rates.items()]
    return jobs


def difference(done: Done, rates: dict[str, float], a: str, b: str, seeds: range) -> np.ndarray:
    """[seeds] mean training reward of row `a` minus that of `b`."""
    reward = partial(rewards_of, done, STUDY, seeds=seeds)
    return reward(a, rates[a]) - reward(b, rates[b])


def against_dapo(done: Done, rates: dict[str, float], seeds: range) -> dict[str, np.ndarray]:
    """Every other row's difference from DAPO, [seeds] each."""
    names = [name for name in rates if name != "dapo"]
    return {name: difference(done, rates, name, "dapo", seeds) for name in names}


def contrasts_of(done: Done, rates: dict[str, float], seeds: range) -> dict[str, np.ndarray]:
    """The differences of CONTRASTS, [seeds] each."""
    return {label: difference(done, rates, a, b, seeds) for label, (a, b) in CONTRASTS.items()}


# ---- what is printed -----------------------------------------------------------------------------


def print_gain(done: Done, rate: float, seeds: range) -> None:
    """How much DAPO learns: where it is little, there is nothing to compare."""
    runs = [done[Job(STUDY, "dapo", rate, seed)] for seed in seeds]
    first = np.array([run.first for run in runs])
    last = np.array([run.last for run in runs])
    print(
        f"DAPO: reward {mean_interval(first)} in the first 5 steps, {mean_interval(last)} in the "
        f"last 5, gained {mean_interval(last - first)}\n"
    )


def print_rows(done: Done, rates: dict[str, float], seeds: range) -> list[dict]:
    """A table of each row's rewards, and one of their differences from DAPO's."""
    print(
        "| row | flags | paper, 8B | learning rate | mean training reward | last 5 steps |\n"
        "|---|---|---|---|---|---|"
    )
    for name, rate in rates.items():
        row = ROWS[name]
        rewards = rewards_of(done, STUDY, name, rate, seeds)
        last = [done[Job(STUDY, name, rate, seed)].last for seed in seeds]
        cells = [name, row.spelled, row.paper, rate_cell(done, name, rate)]
        print(table_line([*cells, mean_interval(rewards), mean_interval(last)]))
    print()
    return print_differences(against_dapo(done, rates, seeds), "minus dapo")


def rate_cell(done: Done, name: str, rate: float) -> str:
    """The rate, and the edges of the row's grid where that had to be widened."""
    tried = sorted({job.rate for job in done if job.setting == STUDY and job.row == name})
    if set(tried) <= set(GRID):
        return f"{rate:g}"
    return f"{rate:g} (of {tried[0]:g} to {tried[-1]:g})"


def print_cost(done: Done) -> None:
    """How long the runs took, all together."""
    minutes = sum(run.seconds for run in done.values()) / 60
    print(f"\n{len(done)} runs, {minutes:.0f} minutes of one core, {minutes / 2:.0f} of two")


def print_dapo(done: Done, jobs: list[Job]) -> None:
    """DAPO's mean reward in a setting, and how it begins and ends."""
    runs = [done[job] for job in jobs]
    first = np.mean([run.first for run in runs])
    last = np.mean([run.last for run in runs])
    print(
        f"{jobs[0].setting}: DAPO {mean_interval([run.reward for run in runs])}, "
        f"first 5 steps {first:.3f}, last 5 {last:.3f}"
    )


# ---- what other studies take from this one -------------------------------------------------------


class Choice(NamedTuple):
    """What the study found, for others."""

    best: str  # of CANDIDATES
    rates: dict[str, float]  # main row -> learning rate
    seeds: int  # that are behind it


def chosen(path: Path) -> Choice:
    """What the study's CSV says; raises UserError where it does not hold enough."""
    done = finished_runs(path)
    rates = {}
    for name in MAIN:
        grid = piloted(done, name)
        if not grid:
            raise UserError(f"{path} has no pilot of {name}: first run `python bench.py methods`")
        rates[name] = best_rate(name, grid, PILOT_SEEDS, done)

    seeds = range(FIRST_SEED, first_missing(done, rates))
    if len(seeds) < 2:
        raise UserError(f"{path} lacks counted seeds: first run `python bench.py methods`")
    means = {name: difference(done, rates, name, "dapo", seeds).mean() for name in CANDIDATES}
    return Choice(max(means, key=means.get), rates, len(seeds))


def piloted(done: Done, name: str) -> tuple[float, ...]:
    """The learning rates at which a row has run on every pilot seed, in order."""
    tried = sorted({job.rate for job in done if job.row == name})
    return tuple(r for r in tried if all(Job(STUDY, name, r, seed) in done for seed in PILOT_SEEDS))


def first_missing(done: Done, rates: dict[str, float]) -> int:
    """The first counted seed on which some main row has not run."""
    seed = FIRST_SEED
    while all(Job(STUDY, name, rates[name], seed) in done for name in MAIN):
        seed += 1
    return seed
