"""Rows compared on the same seeds: their outcomes, differences with corrected p, a picture."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from studies.running import complete
from studies.runs import ENDS, Job, Runs, Trained, finished_runs, seed_by_seed
from studies.statistics import (
    half_width,
    holm,
    mean_interval,
    p_value,
    signed_rank_p,
    smallest_seen,
)
from studies.tables import table_line

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")
MARKS = ("o", "X", "s", "^", "D")
REWARD = "mean training reward minus DAPO's, same seeds (95 % interval)"
OUTCOMES = {  # beside the mean training reward
    "held-out accuracy": "accuracy",
    "held-out, greedy": "greedy",
    "entropy": "entropy",
}

Counted = dict[tuple[str, str], dict[int, Trained]]  # (place, row) -> seed -> run


# ---- runs that count -----------------------------------------------------------------------------


def counted(runs: Runs, jobs: Iterable[Job]) -> Counted:
    """The runs of these jobs, none of which differ in their rate alone."""
    found = {}
    for job in jobs:
        found.setdefault((job.setting, job.row), {})[job.seed] = runs[job]
    return found


def completed(
    args, first_seeds: dict[str, int], rows: Iterable[str], rate: float, count: int
) -> Counted:
    """The runs of the rows at each place, at one learning rate; what --csv lacks is run.

    first_seeds: place -> the first of its seeds, of which there are `count`, or --seeds.
    """
    path = Path(args.csv)
    runs = finished_runs(path)
    jobs = []
    for place, first in first_seeds.items():
        seeds = range(first, first + (args.seeds or count))
        jobs += seed_by_seed(place, dict.fromkeys(rows, rate), seeds)
    complete(jobs, runs, path, "runs")
    return counted(runs, jobs)


def over_seeds(of: Counted, place: str, row: str, what: str = "reward") -> np.ndarray:
    """[seeds] an outcome of the runs of a row."""
    return np.array([getattr(run, what) for run in of[place, row].values()])


def paired(of: Counted, place: str, a: str, b: str, what: str = "reward") -> np.ndarray:
    """[seeds] an outcome of row `a` minus that of `b`, on the seeds that both have."""
    one, other = of[place, a], of[place, b]
    seeds = sorted(one.keys() & other.keys())
    return np.array([getattr(one[seed], what) - getattr(other[seed], what) for seed in seeds])


def over_places(of: Counted, a: str, b: str, what: str = "reward") -> dict[str, np.ndarray]:
    """Place -> `paired`, where both rows ran."""
    all_places = dict.fromkeys(place for place, _ in of)
    both = [place for place in all_places if (place, a) in of and (place, b) in of]
    return {place: paired(of, place, a, b, what) for place in both}


def against_dapo(
    of: Counted, place: str, rows: Iterable[str], what: str = "reward"
) -> dict[str, np.ndarray]:
    """Row -> `paired` with DAPO, of those rows that are not DAPO itself."""
    return {row: paired(of, place, row, "dapo", what) for row in rows if row != "dapo"}


# ---- tables --------------------------------------------------------------------------------------


def print_gains(of: Counted) -> None:
    """How much DAPO gains at each place: where it is little, there is nothing to compare."""
    print(
        "| DAPO at | seeds | first 5 steps | last 5 steps | gained | least gained "
        "| held-out accuracy after | greedy after |\n|---|---|---|---|---|---|---|---|"
    )
    for place in [place for place, row in of if row == "dapo"]:
        gained = over_seeds(of, place, "dapo", "gained")
        first, last, accuracy, greedy = (
            mean_interval(over_seeds(of, place, "dapo", what))
            for what in ("first", "last", "accuracy", "greedy")
        )
        cells = [first, last, mean_interval(gained), f"{gained.min():.3f}", accuracy, greedy]
        print(table_line([place, len(gained), *cells]))
    print()


def print_rows(of: Counted, rates: dict[str, dict[str, float]]) -> None:
    """A line for each place and row, with every outcome."""
    print(
        f"| place | row | rate | seeds | mean training reward | last {ENDS} steps "
        "| held-out accuracy | greedy | entropy | tokens | collapsed |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for place, row in of:
        cells = [place, row, f"{rates[place][row]:g}", len(of[place, row])]
        for what in ("reward", "last", "accuracy", "greedy", "entropy"):
            cells.append(mean_interval(over_seeds(of, place, row, what)))
        cells.append(f"{over_seeds(of, place, row, 'length').mean():.0f}")
        cells.append(over_seeds(of, place, row, "collapsed").sum())
        print(table_line(cells))
    print()


def print_differences(
    differences: dict[str, np.ndarray], label: str, ranks: bool = False
) -> list[dict]:
    """Print a table with a line for each difference, [seeds]; p is Holm-corrected over the lines.

    The column behind p states the power: the true difference that such a study detects with
    probability 0.8, at the level of Holm's first step. ranks: one more column, the uncorrected p of
    the signed-rank test. Returns the numbers of each line.
    """
    corrected = holm({name: p_value(values) for name, values in differences.items()})
    level = 0.05 / len(differences)
    print(
        f"| {label} | difference, 95 % interval | seeds above 0 | p (Holm, of {len(differences)}) "
        f"| 80 % power from |{' signed ranks p |' * ranks}\n|---|---|---|---|---|{'---|' * ranks}"
    )
    lines = []
    for name, values in differences.items():
        seen = smallest_seen(values, level)
        above = int((values > 1e-9).sum())  # beyond the rounding of means
        cells = [
            name,
            mean_interval(values),
            f"{above} of {len(values)}",
            f"{corrected[name]:.2g}",
            f"{seen:.3f}",
        ]
        if ranks:
            cells.append(f"{signed_rank_p(values):.2g}")
        print(table_line(cells))
        lines.append(
            {
                "name": name,
                "difference": float(values.mean()),
                "half_width": half_width(values),
                "above_0": above,
                "seeds": len(values),
                "p_holm": corrected[name],
                "smallest_seen": seen,
            }
        )
    return lines


def draw_differences(
    groups: dict[str, dict[str, np.ndarray]], title: str, path: Path, what: str = REWARD
) -> None:
    """Draw means with 95 % intervals: a line for each name, a colour and a marker for each group.

    groups: label -> name -> [n] differences, over seeds or base models. what: the axis label.
    """
    names = list({name: None for group in groups.values() for name in group})
    points = sum(len(group) for group in groups.values())
    height = 1.3 + 0.1 * len(names) + 0.11 * points  # inches
    figure = Figure(figsize=(7, height), layout="constrained")
    axes = figure.subplots()
    for number, (label, group) in enumerate(groups.items()):
        shift = 0.15 * (number - (len(groups) - 1) / 2)
        axes.errorbar(
            [values.mean() for values in group.values()],
            [names.index(name) + shift for name in group],
            xerr=[half_width(values) for values in group.values()],
            fmt=MARKS[number % len(MARKS)],
            markersize=5,
            capsize=2,
            color=COLOURS[number % len(COLOURS)],
            label=label,
        )
    axes.axvline(0, color="0.3", linewidth=1)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)  # the first name on top
    axes.set_xlabel(what)
    figure.suptitle(title)
    figure.legend(loc="outside lower center", ncols=min(len(groups), 4))
    figure.savefig(path, dpi=120)
