"""Prints the tables of `gain` and draws its picture, from the stored results of policies.

A line of the results has a row, a statistic, and its values: the estimate, and then the estimates
without each block of batches, from which the error follows. A line without a row has a fact about
the measurement instead.

Shapes: C blocks.
"""

import math
from pathlib import Path

import pandas as pd
import torch
from matplotlib.figure import Figure

from benchmarks.estimators import jackknife_error, sampling_variance
from benchmarks.statistics import critical_t, holm, two_sided_p
from benchmarks.tables import print_table

ADAM = "rate, with Adam"
PRIMARY = ("tokens only", "two constants", "delta")  # each against dapo, with Adam
UPDATES = 24  # updates in the run whose distance is held equal
SEEN = 2  # standard errors by which dapo's own gain must be above 0


def print_tables(policy: str, lines: pd.DataFrame) -> None:
    """Print one policy's tables."""
    is_fact = lines["row"].isna()
    facts = zip(lines["values"][is_fact], lines["statistic"][is_fact], strict=True)
    print(f"**{policy}**: {', '.join(map(' '.join, facts))}\n")
    values = values_of(lines)
    if not is_seen(values):
        print("dapo's own gain is not above 0 by two errors: take more batches or easier data\n")
        return

    columns = held_equal(values)
    cells = []
    for row in values["gain"]:
        line = [row, *(compared(column, values, row) for column in columns.items())]
        for name in ("noise", "bias"):
            x = values[name][row]
            line.append(f"{x[0]:.3f} ± {reach(x):.3f}")
        cells.append(line)
    print_table(["held equal", *columns, "noise / signal", "cosine"], cells)

    tests = {}  # t-tests over blocks
    for row in PRIMARY:
        difference, half = above_dapo((ADAM, columns[ADAM]), values, row)
        degrees = len(values["adam"][row]) - 2
        tests[row] = two_sided_p(difference / half * critical_t(0.05, degrees), degrees)
    corrected = [f"{row} {p:.2g}" for row, p in holm(tests).items()]
    print(f"p with Adam, Holm over {len(tests)}: {', '.join(corrected)}\n")


def held_equal(values: dict) -> dict[str, dict[str, torch.Tensor]]:
    """What is held equal -> row -> its gain [1 + C], in units of which only the ratios count.

    A gain is the rise of expected reward, to first order, by a step along g. The mean g of k
    batches has 1/k of the noise, so its cosine with J is `bias` / sqrt(1 + noise / k). In a run of
    UPDATES steps at one policy the gradients add up, and the length of their sum is the way.
    """
    gain, noise, bias = values["gain"], values["noise"], values["bias"]

    def of_batch(k: int) -> dict[str, torch.Tensor]:
        return {row: bias[row] / (1 + noise[row] / k).sqrt() for row in gain}

    columns = {
        "length of a step": gain,
        ADAM: values["adam"],
        "length, 1 times the batch": of_batch(1),  # the first column again, computed from the noise
        "length, 8 times the batch": of_batch(8),
        f"way of {UPDATES} steps": of_batch(UPDATES),
    }
    if "kl" in values:  # the KL of a step grows with the square of its length
        columns["KL"] = {row: gain[row] / values["kl"][row].sqrt() for row in gain}
    columns["entropy lost"] = {row: gain[row] / values["entropy"][row] for row in gain}
    return columns


def is_seen(values: dict) -> bool:
    """Whether dapo's own gain is clearly above 0; percentages of a smaller one mean nothing."""
    base = values["gain"]["dapo"]
    return bool(base[0] >= SEEN * jackknife_error(base))


def values_of(lines: pd.DataFrame) -> dict[str, dict[str, torch.Tensor]]:
    """Statistic -> row -> values, of one policy's lines."""
    values = {}
    of_rows = lines[~lines["row"].isna()]
    for row, statistic, text in of_rows[["row", "statistic", "values"]].itertuples(index=False):
        numbers = torch.tensor([float(x) for x in text.split()], dtype=torch.float64)
        values.setdefault(statistic, {})[row] = numbers
    return values


def reach(values: torch.Tensor) -> float:
    """Half the width of the 95 % interval of values[0], from values[1:], without each block."""
    return critical_t(0.05, len(values) - 2) * float(jackknife_error(values))


def above_dapo(column: tuple[str, dict], values: dict, row: str) -> tuple[float, float]:
    """(a row's gain above dapo's in a column of held_equal, half its 95 % interval), in %."""
    name, gains = column
    ratio = gains[row] / gains["dapo"]
    half = reach(ratio)
    if name == ADAM and "adam by coordinates" in values:
        groups = values["adam by coordinates"]
        variance = sampling_variance(groups[row], groups["dapo"])
        half = math.hypot(half, critical_t(0.05, len(ratio) - 2) * float(variance.sqrt()))
    return 100 * float(ratio[0] - 1), 100 * half


def compared(column: tuple[str, dict], values: dict, row: str) -> str:
    """A cell of a table; empty for dapo itself."""
    if row == "dapo":
        return ""
    return "{:+.1f} ± {:.1f}".format(*above_dapo(column, values, row))


def draw(policies: dict[str, pd.DataFrame], path: Path) -> None:
    """Draw DelTA's gain above DAPO's at each policy, at the same rate and for the same entropy."""
    of_policies = {name: values_of(lines) for name, lines in policies.items()}
    policies = {name: values for name, values in of_policies.items() if is_seen(values)}
    figure = Figure(figsize=(7, 0.8 + 0.3 * len(policies)), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    shown = {ADAM: "at the same learning rate", "entropy lost": "for the same loss of entropy"}
    for axes, (name, title) in zip(panels, shown.items(), strict=True):
        for y, values in enumerate(policies.values()):
            gain, half = above_dapo((name, held_equal(values)[name]), values, "delta")
            inside = "black" if abs(gain) > half else "white"  # white: the interval contains 0
            axes.errorbar(gain, y, xerr=half, fmt="o", ms=5, capsize=3, color="black", mfc=inside)
        axes.axvline(0, color="black", lw=0.8)
        axes.set_title(title, size=10)
        axes.set_xlim(-30, 30)
        axes.grid(axis="x", alpha=0.3)
    panels[0].set_yticks(range(len(policies)), policies)
    panels[0].invert_yaxis()
    figure.supxlabel(
        "rise of expected reward by DelTA, % above DAPO's, with 95 % intervals", size=9.5
    )
    figure.savefig(path, dpi=200)
    print(f"saved as {path}")
