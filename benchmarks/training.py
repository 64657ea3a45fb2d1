"""Training runs of several rows, rates and seeds: each row at its own best rate, beside dapo.

    python -m benchmarks training                        # results/training.csv
    python -m benchmarks training --csv own.csv RUN ...  # adds finished runs to a CSV first

RUN is an --output-dir of train.py; one row must be dapo. A run's outcome is its mean training
reward over all steps. A row's rate is the best on the other seeds, so no run chooses its own.
"""

from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.statistics import half_width, holm, two_sided_p
from benchmarks.tables import append_csv, print_table, read_csv
from infra.errors import UserError
from infra.folder import hash_of, read_json, read_lines

COLUMNS = ("flags", "row", "rate", "seed", "accuracy", "rewards")
OF_A_ROW = {"proxy": "row", "delta_variant": "full", "K": 1, "select": "none"}  # DelTA's own values


def training(args) -> None:
    """Add the runs in args.flags to the CSV, and print its tables. Raises UserError."""
    path = Path(args.csv)
    new = pd.DataFrame([line_of(Path(run)) for run in args.flags], columns=COLUMNS)
    runs = pd.concat([x for x in (read_csv(path, COLUMNS), new) if len(x)] or [new])
    if runs.duplicated(["flags", "row", "rate", "seed"]).any():
        raise UserError(f"{path} has one of these runs already: name each run once")
    if len(new):
        append_csv(path, COLUMNS, new.to_dict("records"))
    for _, comparable in runs.groupby("flags", sort=False):
        print_tables(comparable)


def line_of(run: Path) -> dict:
    """A finished run's line of the CSV. Raises UserError.

    flags: a hash of all that does not name a row, a rate or a seed, and of the model and the data.
    """
    config, lines = read_json(run / "config.json"), read_lines(run / "metrics.jsonl")
    if not lines or lines[-1]["step"] < config["steps"]:
        raise UserError(f"{run} is not finished: run its command again")
    own = ("method", "lr", "seed", "output_dir", *OF_A_ROW)
    row = [f"{config[name]}" for name, value in OF_A_ROW.items() if config[name] != value]
    return {
        "flags": hash_of({name: value for name, value in config.items() if name not in own}),
        "row": " ".join([config["method"], *row]),
        "rate": config["lr"],
        "seed": config["seed"],
        "accuracy": lines[-1].get("eval_accuracy"),
        "rewards": " ".join(f"{line['reward']:.4f}" for line in lines if line["step"] > 0),
    }


def print_tables(runs: pd.DataFrame) -> None:
    """One line for every row and rate, then one for every row at its own rates."""
    curves = np.array([[float(x) for x in text.split()] for text in runs["rewards"]])  # [runs, T]
    runs = runs.assign(outcome=curves.mean(axis=1), earlier=curves[:, :-1].mean(axis=1))
    table = runs.pivot(index=["row", "rate"], columns="seed")
    seeds = table["outcome"].dropna(axis=1).columns
    if len(seeds) < 3 or "dapo" not in table.index:
        raise UserError("too few runs yet: dapo's, and 3 seeds that all rows and rates have")
    outcome, earlier, accuracy = (table[x][seeds] for x in ("outcome", "earlier", "accuracy"))
    print(f"seeds {', '.join(map(str, seeds))}; mean training reward\n")
    cells = []
    for row, rate in outcome.index:
        numbers = outcome.loc[row, rate].mean(), accuracy.loc[row, rate].mean()
        cells.append([row, rate, *[f"{x:.3f}" for x in numbers], ""])
        if row != "dapo" and ("dapo", rate) in outcome.index:
            x = outcome.loc[row, rate] - outcome.loc["dapo", rate]
            cells[-1][-1] = f"{x.mean():.3f} ± {half_width(x):.3f}"
    print_table(["row", "rate", "outcome", "accuracy", "minus dapo at this rate"], cells)

    def at_own_rate(row: str, values: pd.DataFrame) -> np.ndarray:
        """`values` of a row's run with each seed: [seeds]."""
        best = [outcome.loc[row].drop(columns=seed).mean(axis=1).idxmax() for seed in seeds]
        return np.array(
            [values.loc[row, rate][seed] for rate, seed in zip(best, seeds, strict=True)]
        )

    dapo = at_own_rate("dapo", outcome)
    slope = (dapo - at_own_rate("dapo", earlier)).mean()  # of the outcome, by the last step
    steps = curves.shape[1]
    rows = [row for row in outcome.index.unique("row") if row != "dapo"]
    difference = {row: at_own_rate(row, outcome) - dapo for row in rows}
    t = {row: x.mean() / (x.std(ddof=1) / len(x) ** 0.5) for row, x in difference.items()}
    p = holm({row: two_sided_p(t[row], len(seeds) - 1) for row in rows})
    cells = [["dapo", f"{dapo.mean():.3f}", "", "", ""]]
    for row, x in difference.items():
        mean, half = x.mean(), half_width(x)
        in_steps = [f"{100 * y / slope / steps:.0f}" for y in (mean, half)]
        numbers = f"{(dapo + x).mean():.3f}", f"{mean:.3f} ± {half:.3f}", f"{p[row]:.2g}"
        cells.append([row, *numbers, " ± ".join(in_steps)])
    header = ["row, at its own rate", "outcome", "minus dapo, 95 %", "p after Holm"]
    print_table([*header, "in steps, % of dapo's"], cells)
