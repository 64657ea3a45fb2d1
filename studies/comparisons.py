"""Compares rows on the same seeds: outcomes, differences with corrected p-values, a plot."""

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
from studies.tables import print_table

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")
MARKS = ("o", "X", "s", "^", "D")
REWARD = "mean training reward minus DAPO's, same seeds (95 % interval)"
OUTCOMES = {  # in addition to the mean training reward
    "held-out accuracy": "accuracy",
    "held-out, greedy": "greedy",
    "entropy": "entropy",
}

Counted = dict[tuple[str, str], dict[int, Trained]]  # (place, row) -> seed -> run


# ---- counted runs --------------------------------------------------------------------------------


def counted(runs: Runs, jobs: Iterable[Job]) -> Counted:
    """The runs for these jobs. No two jobs may differ only in their learning rate."""
    found = {}
    for job in jobs:
        found.setdefault((job.setting, job.row), {})[job.seed] = runs[job]
    return found


def completed(
    args, first_seeds: dict[str, int], rows: Iterable[str], rate: float, count: int
) -> Counted:
    """The rows' runs at each place, at one learning rate. Trains the runs missing from --csv.

    first_seeds: place -> its first seed. count: seeds at each place; --seeds overrides it.
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
    """One outcome for each of a row's runs: [seeds]."""
    return np.array([getattr(run, what) for run in of[place, row].values()])


def paired(of: Counted, place: str, a: str, b: str, what: str = "reward") -> np.ndarray:
    """An outcome for row `a` minus the one for row `b`, on their common seeds: [seeds]."""
    one, other = of[place, a], of[place, b]
    seeds = sorted(one.keys() & other.keys())
    return np.array([getattr(one[seed], what) - getattr(other[seed], what) for seed in seeds])


def over_places(of: Counted, a: str, b: str, what: str = "reward") -> dict[str, np.ndarray]:
    """Place -> `paired`, for the places where both rows ran."""
    all_places = dict.fromkeys(place for place, _ in of)
    both = [place for place in all_places if (place, a) in of and (place, b) in of]
    return {place: paired(of, place, a, b, what) for place in both}


def against_dapo(
    of: Counted, place: str, rows: Iterable[str], what: str = "reward"
) -> dict[str, np.ndarray]:
    """Row -> `paired` with DAPO, for all rows except DAPO."""
    return {row: paired(of, place, row, "dapo", what) for row in rows if row != "dapo"}


# ---- tables --------------------------------------------------------------------------------------


def print_gains(of: Counted) -> None:
    """Print how much DAPO gains at each place. A small gain leaves nothing to compare."""
    lines = []
    for place in [place for place, row in of if row == "dapo"]:
        gained = over_seeds(of, place, "dapo", "gained")
        first, last, accuracy, greedy = (
            mean_interval(over_seeds(of, place, "dapo", what))
            for what in ("first", "last", "accuracy", "greedy")
        )
        cells = [first, last, mean_interval(gained), f"{gained.min():.3f}", accuracy, greedy]
        lines.append([place, len(gained), *cells])
    header = ["DAPO at", "seeds", f"first {ENDS} steps", f"last {ENDS} steps", "gained"]
    print_table([*header, "least gained", "held-out accuracy after", "greedy after"], lines)


def print_rows(of: Counted, rates: dict[str, dict[str, float]]) -> None:
    """Print one line per place and row, with every outcome."""
    lines = []
    for place, row in of:
        cells = [place, row, f"{rates[place][row]:g}", len(of[place, row])]
        for what in ("reward", "last", "accuracy", "greedy", "entropy"):
            cells.append(mean_interval(over_seeds(of, place, row, what)))
        cells.append(f"{over_seeds(of, place, row, 'length').mean():.0f}")
        cells.append(over_seeds(of, place, row, "collapsed").sum())
        lines.append(cells)
    header = ["setting", "row", "rate", "seeds", "mean training reward", f"last {ENDS} steps"]
    print_table([*header, "held-out accuracy", "greedy", "entropy", "tokens", "collapsed"], lines)


def print_ends(of: Counted) -> None:
    """Print each row's accuracies before and after training. Greedy accuracies may be missing."""
    lines = []
    for (_, row), by_seed in of.items():
        runs = by_seed.values()
        ends = {"held out, temperature 1": [(run.accuracies[0], run.accuracy) for run in runs]}
        if all(run.greedies for run in runs):
            ends["held out, greedy"] = [(run.greedies[0], run.greedy) for run in runs]
        ends[f"training, first and last {ENDS} steps"] = [(run.first, run.last) for run in runs]
        for name, pairs in ends.items():
            before, after = zip(*pairs, strict=True)
            cells = [mean_interval(before), mean_interval(after), f"{min(after):.3f}", len(after)]
            lines.append([name, row, *cells])
    print_table(["accuracy", "row", "before", "after", "least after", "seeds"], lines)


def print_differences(tested: dict[str, dict[str, np.ndarray]], ranks: bool = False) -> None:
    """Print a table for each label in `tested`, with one line per difference: [seeds].

    p is Holm-corrected over the lines of a table. The next column gives the true difference
    that a study of this size detects with probability 0.8, at the level in Holm's first step.
    ranks: add a column with the uncorrected p of the signed-rank test.
    """
    for label, differences in tested.items():
        corrected = holm({name: p_value(values) for name, values in differences.items()})
        lines = []
        for name, values in differences.items():
            above = (values > 1e-9).sum()  # more than rounding error in the means
            power = smallest_seen(values, level=0.05 / len(differences))
            cells = [name, mean_interval(values), f"{above} of {len(values)}"]
            cells += [f"{corrected[name]:.2g}", f"{power:.3f}"]
            if ranks:
                cells.append(f"{signed_rank_p(values):.2g}")
            lines.append(cells)
        header = [label, "difference, 95 % interval", "seeds above 0"]
        header += [f"p (Holm, of {len(differences)})", "80 % power from"]
        print_table([*header, "signed ranks p"] if ranks else header, lines)


def draw_differences(
    groups: dict[str, dict[str, np.ndarray]], title: str, path: Path, what: str = REWARD
) -> None:
    """Draw means with 95 % intervals: one line per name, one colour and marker per group.

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
