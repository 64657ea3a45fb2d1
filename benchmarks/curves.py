"""Plots one run of train.py, or several together.

    python -m benchmarks.curves RUN                        # RUN/curves.png
    python -m benchmarks.curves RUN RUN ...                # compared.png in the first RUN

RUN is an --output-dir. Runs that differ only in their seed share one line: their mean, with the
95 % t-interval over seeds as a band. A line's label shows its method and the settings in which it
differs from the other lines.
"""

import argparse
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

import train
from benchmarks.statistics import half_width
from config import METHODS
from infra.errors import UserError, one_line_endings
from infra.flags import defining_flags, spelled
from infra.folder import read_json, read_lines

SHARE = "share right"
PANELS = (
    ("reward", SHARE, "training reward"),
    ("eval_accuracy", SHARE, "held-out accuracy"),
    ("eval_greedy", SHARE, "held-out accuracy, greedy"),
    ("response_length", "tokens", "response length"),
    ("entropy", "nats per token", "entropy"),
)

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLES = ("-", "--", "-.", ":")  # legible in grey


def read_run(folder: Path) -> tuple[dict, list[dict]]:
    """The settings that define the run, and its metrics. Raises UserError if there is no run.

    A clip range that is the method's default counts as not set.
    """
    config = read_json(folder / "config.json")
    metrics = read_lines(folder / "metrics.jsonl")
    if not metrics:
        raise UserError(f"{folder} has no metrics yet: wait for its first step")
    settings = defining_flags(train.Config, config)
    method = METHODS.get(settings["method"])
    clip = (settings.get("clip_low"), settings.get("clip_high"))
    if method and method.default_clip in (None, clip):
        settings |= {"clip_low": None, "clip_high": None}
    return settings, metrics


def group_runs(runs: list[tuple[dict, list[dict]]]) -> dict[str, list[list[dict]]]:
    """The runs' metrics by label; runs with the same label differ only in their seeds.

    A label shows the flags in which runs that have them differ. Raises UserError if two runs have
    the same label and seed.
    """
    values = {}  # flag -> its values
    for settings, _ in runs:
        for name in sorted(settings.keys() - {"seed", "method"}):
            values.setdefault(name, set()).add(settings[name])
    differing = [name for name in sorted(values) if len(values[name]) > 1]

    groups, seen = {}, set()
    for settings, metrics in runs:
        label = settings["method"]
        for name in differing:
            if settings.get(name) is not None:
                label += f", {spelled(name)} {settings[name]}"
        if (label, settings["seed"]) in seen:
            raise UserError(f"two runs are {label} with --seed {settings['seed']}: give only one")
        seen.add((label, settings["seed"]))
        groups.setdefault(label, []).append(metrics)
    return groups


def curve(runs: list[list[dict]], name: str) -> tuple[list[int], np.ndarray, np.ndarray]:
    """A metric's steps, mean and interval half-width over runs, at the steps they all have.

    With a single run the half-widths are 0.
    """
    values = [{row["step"]: row[name] for row in run if row.get(name) is not None} for run in runs]
    steps = sorted(set.intersection(*(set(run) for run in values)))
    table = np.array([[run[step] for step in steps] for run in values])  # [runs, steps]
    widths = np.zeros(len(steps))
    if len(runs) > 1:
        widths = np.array([half_width(column) for column in table.T])
    return steps, table.mean(axis=0), widths


def draw(groups: dict[str, list[list[dict]]], path: Path) -> None:
    """Draw one panel per metric that all runs have, with one line per group."""
    runs = [run for of_label in groups.values() for run in of_label]
    panels = [x for x in PANELS if all(any(x[0] in row for row in run) for run in runs)]
    figure = Figure(figsize=(4.2 * len(panels), 4), layout="constrained")
    all_axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (name, unit, title) in zip(all_axes, panels, strict=True):
        for i, (label, runs) in enumerate(groups.items()):
            steps, mean, width = curve(runs, name)
            colour = COLOURS[i % len(COLOURS)]
            seeds = "1 seed" if len(runs) == 1 else f"{len(runs)} seeds"
            style = STYLES[i % len(STYLES)]
            axes.plot(steps, mean, style, color=colour, label=f"{label} ({seeds})")
            axes.fill_between(steps, mean - width, mean + width, color=colour, alpha=0.2, lw=0)
        axes.set(title=title, xlabel="step", ylabel=unit)
        low, high = axes.dataLim.intervaly
        if low >= 0:  # custom rewards may be negative or exceed 1
            axes.set_ylim(0, 1 if unit == SHARE and high <= 1 else None)
    lines, labels = axes.get_legend_handles_labels()
    figure.legend(lines, labels, loc="outside lower center", ncols=min(4, len(labels)))
    figure.savefig(path, dpi=120)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.curves",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--output", type=Path, help="another file for the picture")
    args = parser.parse_args(argv)
    name = "curves.png" if len(args.runs) == 1 else "compared.png"
    output = args.output or args.runs[0] / name
    with one_line_endings("benchmarks.curves"):
        groups = group_runs([read_run(folder) for folder in args.runs])

    draw(groups, output)
    for label, runs in groups.items():
        _, mean, width = curve(runs, "reward")
        interval = f" ± {width[-1]:.3f}" if len(runs) > 1 else ""
        print(f"{label}: {len(runs)} run(s), reward {mean[-1]:.3f}{interval} at the last step")
    print(f"saved as {output}")


if __name__ == "__main__":
    main()
