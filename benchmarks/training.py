"""Compares training runs of several rows, rates and seeds: each row with dapo, at its best rate.

    python -m benchmarks training RUN ...  # finished runs; without RUN, results/training.csv

A row is a method with its own flags, and one row must be dapo. RUN is an --output-dir of train.py.
A run's outcome is its mean training reward over all steps. For each seed, a row has the rate that
is best on the other seeds, so no run chooses its own rate.
"""

from dataclasses import fields
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.statistics import half_width, holm, two_sided_p
from benchmarks.tables import print_table
from config import Config
from infra.errors import UserError
from infra.folder import hash_of, read_json, read_lines

OF_A_ROW = {"proxy": "row", "delta_variant": "full", "K": 1, "select": "none"}  # flag -> DelTA's


def training(args) -> None:
    """Print the tables of the runs in args.flags. Raises UserError."""
    runs = pd.DataFrame([line_of(Path(run)) for run in args.flags])
    if runs.empty:
        runs = pd.read_csv("results/training.csv")
    if runs.duplicated(["flags", "row", "rate", "seed"]).any():
        raise UserError("two runs have the same row, rate and seed: name each run once")
    for _, comparable in runs.groupby("flags", sort=False):
        print_tables(comparable)


def line_of(run: Path) -> dict:
    """What the tables need of a finished run. Raises UserError if the run is not finished.

    flags: a hash of the model, of the data, and of all flags that set no row, rate or seed.
    """
    config, lines = read_json(run / "config.json"), read_lines(run / "metrics.jsonl")
    if not lines or lines[-1]["step"] < config["steps"]:
        raise UserError(f"{run} is not finished: run its command again")
    free = [option.name for option in fields(Config) if option.metadata["free"]]
    own = {"method", "lr", "seed", *OF_A_ROW, *free} - {"steps"}
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
    """Print one line for every row and rate, then one for every row at its own rates."""
    curves = np.array([[float(x) for x in text.split()] for text in runs["rewards"]])  # [runs, T]
    runs = runs.assign(outcome=curves.mean(axis=1), earlier=curves[:, :-1].mean(axis=1))
    table = runs.pivot(index=["row", "rate"], columns="seed")
    whole = table["outcome"].notna().all()  # which seeds all rows and rates have
    outcome, earlier, accuracy = [
        table[name].loc[:, whole] for name in ("outcome", "earlier", "accuracy")
    ]
    print(f"seeds {list(outcome)}; not of all rows and rates: {list(whole[~whole].index)}\n")
    if sum(whole) < 3 or "dapo" not in table.index:
        raise UserError("too few runs: add runs of dapo, and 3 seeds that all rows and rates have")

    cells = []
    for row, rate in table.index:
        x = outcome.loc[row, rate]
        numbers = x.mean(), accuracy.loc[row, rate].mean(skipna=False)
        beside = ""
        if row != "dapo" and ("dapo", rate) in table.index:
            beside = with_interval(x - outcome.loc["dapo", rate])
        cells.append([row, rate, *[f"{x:.3f}" for x in numbers], beside])
    print_table(["row", "rate", "outcome", "accuracy", "minus dapo at this rate"], cells)

    rates, values = {}, {}  # row -> its rate for each seed; (outcome, earlier, accuracy) at these
    for row in table.index.unique("row"):
        others = [outcome.loc[row].drop(columns=seed).mean(axis=1) for seed in outcome]
        rates[row] = [means.idxmax() for means in others]
        chosen = list(zip(rates[row], outcome, strict=True))
        values[row] = [
            [x.loc[row].at[pair] for pair in chosen] for x in (outcome, earlier, accuracy)
        ]
    dapo, before_last, _ = np.array(values["dapo"])
    a_step = 100 / curves.shape[1] / (dapo - before_last).mean()  # % of the steps, per outcome
    differences = {row: np.array(x[0]) - dapo for row, x in values.items() if row != "dapo"}
    p = holm({row: p_of(x) for row, x in differences.items()})
    cells = []
    for row, (own, _, right) in values.items():
        beside = ["", "", ""]
        if row != "dapo":
            x = differences[row]
            in_steps = with_interval(a_step * x, ".0f") if a_step > 0 else ""
            beside = [with_interval(x), f"{p[row]:.2g}", in_steps]
        means = [f"{np.mean(x):.3f}" for x in (own, right)]
        cells.append([row, " ".join(map(str, rates[row])), *means, *beside])
    header = ["row", "its rates", "outcome", "accuracy", "minus dapo, 95 %", "p after Holm"]
    print_table([*header, "ahead of dapo, % of its steps"], cells)


def with_interval(values: np.ndarray, digits: str = ".3f") -> str:
    """The mean over seeds and half the width of its 95 % interval, as text."""
    return f"{values.mean():{digits}} ± {half_width(values):{digits}}"


def p_of(differences: np.ndarray) -> float:
    """p of a t-test of the differences against 0; 1 for a row that is dapo by another name."""
    if not differences.any():
        return 1.0
    t = differences.mean() / (differences.std(ddof=1) / len(differences) ** 0.5)
    return two_sided_p(t, len(differences) - 1)
