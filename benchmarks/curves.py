"""Plots one run of train.py, or several together, to be shown 700 pixels wide.

    python -m benchmarks.curves RUN                        # RUN/curves.png
    python -m benchmarks.curves RUN RUN ...                # compared.png in the first RUN

RUN is an --output-dir. Each run is a thin line. Runs whose folder names differ only in the seed at
the end share one thick line: the running mean of the runs' mean.
"""

import os
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from benchmarks.samples import parser_of_runs
from infra.errors import UserError, one_line_endings
from infra.folder import read_json, read_lines

PANELS = {  # metric -> its title
    "reward": "training reward",
    "eval_accuracy": "held-out accuracy",
    "eval_reward": "held-out reward",
    "eval_greedy": "held-out accuracy, greedy",
    "response_length": "tokens per response",
    "entropy": "entropy, nats per token",
}
WINDOW = 5  # steps in a running mean
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLES = ("-", "--", "-.", ":")  # legible in grey


def read_runs(folders: list[Path]) -> dict[str, list[list[dict]]]:
    """Folder without -SEED -> its runs' metrics. Raises UserError if a run has no metrics yet."""
    groups = {}
    folders = [folder.absolute() for folder in folders]
    shared = os.path.commonpath([folder.parent for folder in folders])  # left out of the labels
    for folder in folders:
        seed = read_json(folder / "config.json")["seed"]
        metrics = read_lines(folder / "metrics.jsonl")
        if not metrics:
            raise UserError(f"{folder} has no metrics yet: wait until its first step is finished")
        label = os.path.relpath(folder, shared).removesuffix(f"-{seed}")
        groups.setdefault(label, []).append(metrics)
    return groups


def curve(runs: list[list[dict]], name: str) -> tuple[list[int], np.ndarray]:
    """(the steps at which all runs have the metric, the running mean of the runs' mean there).

    The running mean covers the steps at most WINDOW // 2 away.
    """
    values = [{row["step"]: row[name] for row in run if row.get(name) is not None} for run in runs]
    steps = sorted(set.intersection(*(set(run) for run in values)))
    mean = np.mean([[run[step] for step in steps] for run in values], axis=0)  # [steps]
    near = np.abs(np.subtract.outer(steps, steps)) <= WINDOW // 2  # [steps, steps]
    return steps, near @ mean / near.sum(axis=1)


def draw(groups: dict[str, list], names: list[str], path: Path) -> None:
    """Draw one panel per metric that all runs have, with one thick line per group."""
    runs = [run for of_label in groups.values() for run in of_label]
    names = [name for name in names if all(any(name in row for row in run) for run in runs)]
    if not names:
        raise UserError("the runs share no metric that --metrics names: choose other metrics")
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
            axes.plot(*curve(runs, name), style, color=colour, lw=2.2, label=label)
        axes.grid(alpha=0.3)
        if axes.dataLim.y0 >= 0:  # custom rewards may be negative
            axes.set_ylim(0, 1.08 * axes.dataLim.y1 or 1)
    lines, labels = axes.get_legend_handles_labels()
    title = f"thick: mean over {WINDOW} steps; thin: each run"
    figure.legend(lines, labels, loc="outside lower center", ncols=min(3, len(labels)), title=title)
    figure.savefig(path, dpi=200)


def main(argv: list[str] | None = None) -> None:
    parser = parser_of_runs("benchmarks.curves", __doc__)
    parser.add_argument("--metrics", nargs="+", choices=PANELS, default=[*PANELS])
    parser.add_argument("--output", type=Path, help="another file for the picture")
    args = parser.parse_args(argv)
    name = "curves.png" if len(args.runs) == 1 else "compared.png"
    output = args.output or args.runs[0] / name
    with one_line_endings("benchmarks.curves"):
        draw(read_runs(args.runs), args.metrics, output)
    print(f"saved as {output}")


if __name__ == "__main__":
    main()
