"""Picks the learning rate of each row on pilot seeds, which are not used in the comparisons."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from studies.running import complete
from studies.runs import Job, Runs

PILOT_SEEDS = range(2)  # used only to pick learning rates


def pilot(
    place: str,
    rows: Iterable[str],
    rates: tuple[float, ...],
    seeds: Sequence[int],
    runs: Runs,
    path: Path,
    widens: bool = False,
) -> dict[str, float]:
    """Row -> the rate at which its mean training reward is highest. Trains missing runs.

    widens: if a row's best rate is at an edge of the grid, also try the next rate beyond the edge
    (a factor of 2), until the best rate is inside the grid.
    """
    grids = dict.fromkeys(rows, rates)
    while True:
        jobs = []
        for seed in seeds:
            for row, grid in grids.items():
                jobs += [Job(place, row, rate, seed) for rate in grid]
        complete(jobs, runs, path, f"pilot, {place}")

        best = {row: best_rate(runs, place, row, grid, seeds) for row, grid in grids.items()}
        wider = {row: widened(grid, best[row]) for row, grid in grids.items()}
        if not widens or wider == grids:
            return best
        grids = wider


def best_rate(
    runs: Runs, place: str, row: str, rates: Iterable[float], seeds: Sequence[int]
) -> float:
    """The learning rate at which a row's mean training reward on these seeds is highest."""

    def reward(rate: float) -> float:
        return float(np.mean([runs[Job(place, row, rate, seed)].reward for seed in seeds]))

    return max(rates, key=reward)


def widened(grid: tuple[float, ...], best: float) -> tuple[float, ...]:
    """The grid, extended by one rate beyond its edge if the best rate is at an edge."""
    if best == grid[0]:
        return (best / 2, *grid)
    if best == grid[-1]:
        return (*grid, best * 2)
    return grid
