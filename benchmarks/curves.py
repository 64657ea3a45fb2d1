"""Plots one run of train.py, or several together, to be shown 700 pixels wide.

    python -m benchmarks.curves RUN                        # RUN/curves.png
    python -m benchmarks.curves RUN RUN ...                # compared.png in the first RUN
    python -m benchmarks.curves FILE.csv --metrics reward --output FILE.png

RUN is an --output-dir. A CSV has a line for each step of a run, with the columns `row` or `method`,
`step`, the metrics, and `seed` if there are several. Each run is a thin line. Runs that differ only
in their seed share one thick line: the running mean of their mean. Its label shows its method and
the settings in which it differs from the other lines.
"""

import argparse
import csv
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

import train
from config import METHODS
from infra.errors import UserError, one_line_endings
from infra.flags import defining_flags, spelled
from infra.folder import read_json, read_lines

PANELS = {  # metric -> its title
    "reward": "training reward",
    "eval_accuracy": "held-out accuracy",
    "eval_greedy": "held-out accuracy, greedy",
    "response_length": "tokens per response",
    "entropy": "entropy, nats per token",
}

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
    if method and method.clip_range in (None, clip):
        settings |= {"clip_low": None, "clip_high": None}
    return settings, metrics


def read_table(path: Path) -> list[tuple[dict, list[dict]]]:
    """The runs in a CSV, as those of `read_run`. Empty cells are left out."""
    runs = {}  # method and seed -> metrics
    with open(path, newline="", encoding="utf-8") as file:
        for line in csv.DictReader(file):
            method = line.get("row") or line.get("method")
            if not method or not line.get("step"):
                raise UserError(f"{path} needs the columns `row` or `method`, and `step`")
            metrics = {name: float(line[name]) for name in PANELS if line.get(name)}
            run = runs.setdefault((method, line.get("seed")), [])
            run.append({"step": int(line["step"])} | metrics)
    return [({"method": method, "seed": seed}, run) for (method, seed), run in runs.items()]


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


def curve(runs: list[list[dict]], name: str, window: int) -> tuple[list[int], np.ndarray]:
    """A metric's steps, those that all runs have, and its running mean there over the runs.

    The running mean covers the steps at most window // 2 away.
    """
    values = [{row["step"]: row[name] for row in run if row.get(name) is not None} for run in runs]
    steps = sorted(set.intersection(*(set(run) for run in values)))
    mean = np.mean([[run[step] for step in steps] for run in values], axis=0)  # [steps]
    near = np.abs(np.subtract.outer(steps, steps)) <= window // 2  # [steps, steps]
    return steps, near @ mean / near.sum(axis=1)


def draw(groups: dict[str, list], names: list[str], window: int, path: Path) -> None:
    """Draw one panel per metric that all runs have, with one thick line per group."""
    runs = [run for of_label in groups.values() for run in of_label]
    names = [name for name in names if all(any(name in row for row in run) for run in runs)]
    if not names:
        raise UserError("the runs share no metric that --metrics names")
    across = min(2, len(names))
    down = -(-len(names) // across)
    figure = Figure(figsize=(7, 0.6 + 2.8 * down), layout="constrained")
    for place, name in enumerate(names, start=1):
        axes = figure.add_subplot(down, across, place, title=PANELS[name], xlabel="step")
        for i, (label, runs) in enumerate(groups.items()):
            colour, style = COLOURS[i % len(COLOURS)], STYLES[i % len(STYLES)]
            for run in runs:
                points = [(row["step"], row[name]) for row in run if name in row]
                axes.plot(*zip(*points, strict=True), color=colour, lw=0.8, alpha=0.4)
            label += " (1 seed)" if len(runs) == 1 else f" ({len(runs)} seeds)"
            axes.plot(*curve(runs, name, window), style, color=colour, lw=2.2, label=label)
        axes.grid(alpha=0.3)
        if axes.dataLim.y0 >= 0:  # custom rewards may be negative
            axes.set_ylim(0, 1.08 * axes.dataLim.y1 or 1)
    lines, labels = axes.get_legend_handles_labels()
    title = f"thick: mean over {window} steps; thin: each run"
    figure.legend(lines, labels, loc="outside lower center", ncols=min(3, len(labels)), title=title)
    figure.savefig(path, dpi=200)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.curves",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--metrics", nargs="+", choices=PANELS, default=[*PANELS])
    parser.add_argument("--window", type=int, default=5, help="steps in a running mean")
    parser.add_argument("--output", type=Path, help="another file for the picture")
    args = parser.parse_args(argv)
    first = args.runs[0]
    folder = first if first.is_dir() else first.parent
    output = args.output or folder / ("curves.png" if len(args.runs) == 1 else "compared.png")
    with one_line_endings("benchmarks.curves"):
        runs = []
        for path in args.runs:
            runs += read_table(path) if path.is_file() else [read_run(path)]
        draw(group_runs(runs), args.metrics, args.window, output)
    print(f"saved as {output}")


if __name__ == "__main__":
    main()
