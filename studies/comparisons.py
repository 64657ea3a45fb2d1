"""Differences between rows on the same seeds: a table with intervals and corrected p, a picture."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

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
        above = int((values > 0).sum())
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
