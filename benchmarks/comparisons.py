"""Compares rows on the same seeds: outcomes, differences with corrected p-values, a picture."""

from collections import defaultdict
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from benchmarks.runs import ENDS, Runs, Trained
from benchmarks.statistics import (
    half_width,
    holm,
    mean_interval,
    p_value,
    signed_rank_p,
)
from benchmarks.tables import print_table

PILOT_SEEDS = (0, 1)  # of the studies whose pilots picked learning rates
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKS = ("o", "X", "s", "^", "D", "v", "P")
OUTCOMES = {  # in addition to the mean training reward
    "held-out accuracy": "accuracy",
    "held-out, greedy": "greedy",
    "entropy": "entropy",
}

Counted = dict[tuple[str, str], dict[int, Trained]]  # (setting, row) -> seed -> run
Tested = dict[str, dict[str, np.ndarray]]  # a table's label -> its lines: [seeds] each


def counted(runs: Runs) -> Counted:
    """The runs by setting, row and seed, at the learning rate with the most seeds.

    Runs of a pilot are left out: a row's runs on PILOT_SEEDS, if it ran there at several rates.
    """
    rates = defaultdict(lambda: defaultdict(dict))  # (setting, row) -> rate -> seed -> run
    for job, run in runs.items():
        rates[job.setting, job.row][job.rate][job.seed] = run
    found = {}
    for name, by_rate in rates.items():
        tried = [seed for by_seed in by_rate.values() for seed in by_seed]
        pilot = [seed for seed in PILOT_SEEDS if tried.count(seed) > 1]
        for by_seed in by_rate.values():
            for seed in pilot:
                by_seed.pop(seed, None)
        found[name] = max(by_rate.values(), key=len)
    return found


def over_seeds(of: Counted, setting: str, row: str, what: str = "reward") -> np.ndarray:
    """One outcome for each of a row's runs: [seeds]."""
    return np.array([getattr(run, what) for run in of[setting, row].values()])


def paired(of: Counted, setting: str, a: str, b: str, what: str = "reward") -> np.ndarray:
    """An outcome for row `a` minus the one for row `b`, on their common seeds: [seeds]."""
    one, other = of[setting, a], of[setting, b]
    seeds = sorted(one.keys() & other.keys())
    return np.array([getattr(one[seed], what) - getattr(other[seed], what) for seed in seeds])


def over_settings(of: Counted, a: str, b: str, what: str = "reward") -> dict[str, np.ndarray]:
    """Setting -> `paired`, for the settings where both rows ran."""
    settings = dict.fromkeys(setting for setting, _ in of)
    both = [each for each in settings if (each, a) in of and (each, b) in of]
    return {setting: paired(of, setting, a, b, what) for setting in both}


def against(of: Counted, base: str) -> Tested:
    """`setting, n seeds` -> row -> mean training reward minus that of row `base`."""
    found = defaultdict(dict)
    for setting, row in of:
        if row == base or (setting, base) not in of:
            continue
        values = paired(of, setting, row, base)
        if len(values) > 1:
            found[f"{setting}, {len(values)} seeds: minus {base}"][row] = values
    return dict(found)


# ---- tables --------------------------------------------------------------------------------------


def print_rows(of: Counted) -> None:
    """Print one line per setting and row, with every outcome; `a → b`: before and after training.

    If DAPO gains little from its first steps to its last, there is nothing to compare.
    """
    lines = []
    for (setting, row), by_seed in of.items():
        cells = [setting, row, len(by_seed)]
        for what in ("reward", "first", "last", "gained", "accuracy", "greedy", "entropy"):
            cells.append(mean_interval(over_seeds(of, setting, row, what)))
        runs = by_seed.values()
        if all(len(run.accuracies) > 1 for run in runs):
            for column, what in ((7, "accuracies"), (8, "greedies")):
                before = np.mean([getattr(run, what)[0] for run in runs])
                cells[column] = f"{before:.3f} → {cells[column]}"
        lines.append([*cells, f"{over_seeds(of, setting, row, 'length').mean():.0f}"])
    header = ["setting", "row", "seeds", "mean training reward", f"first {ENDS} steps"]
    header += [f"last {ENDS} steps", "gained", "held-out accuracy", "greedy", "entropy", "tokens"]
    print_table(header, lines)


def print_differences(tested: Tested) -> None:
    """Print a table for each label in `tested`, with one line per difference: [seeds].

    p is Holm-corrected over the lines of a table; the signed-rank p is not corrected.
    """
    for label, differences in tested.items():
        corrected = holm({name: p_value(values) for name, values in differences.items()})
        lines = []
        for name, values in differences.items():
            above = (values > 1e-9).sum()  # more than rounding error in the means
            p = f"{corrected[name]:.2g}"
            cells = [name, mean_interval(values), f"{above} of {len(values)}", p]
            lines.append([*cells, f"{signed_rank_p(values):.2g}"])
        header = [label, "difference, 95 % interval", "seeds above 0"]
        print_table([*header, f"p (Holm, of {len(differences)})", "signed ranks p"], lines)


# ---- the picture ---------------------------------------------------------------------------------


def draw_differences(groups: Tested, title: str, path: Path) -> None:
    """Draw rewards' mean differences from DAPO: a line per name, a colour and marker per group.

    groups: label -> name -> [seeds] differences.
    """
    names = list({name: None for group in groups.values() for name in group})
    points = sum(len(group) for group in groups.values())
    height = 1.3 + 0.1 * len(names) + 0.11 * points  # inches
    figure = Figure(figsize=(7, height), layout="constrained")
    axes = figure.subplots()
    step = min(0.15, 0.75 / len(groups))  # lines of two names do not mix
    for number, (label, group) in enumerate(groups.items()):
        shift = step * (number - (len(groups) - 1) / 2)
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
    axes.set_xlabel("mean training reward minus DAPO's, same seeds (95 % interval)")
    figure.suptitle(title)
    figure.legend(loc="outside lower center", ncols=min(len(groups), 4))
    figure.savefig(path, dpi=120)
