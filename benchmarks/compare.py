"""Compares methods: trains rows x rates x seeds with train.py, and prints paired differences.

    python -m benchmarks compare OUT --rows dapo "delta --proxy scalar" --rates 5e-7 6e-7
        --seeds 1-8 FLAGS ...           # trains what OUT lacks, in folders of OUT, then prints
    python -m benchmarks compare OUT    # prints the finished runs in OUT
    python -m benchmarks compare FILE.csv --contrasts "delta 5e-7 - dapo 6e-7" ...

A row is a method and its flags; FLAGS are train.py's, for all runs. The first row is the reference.
Only seeds that all rows have are compared. A stopped command goes on where it was. Choose the seeds
and the contrasts before the first run.
"""

import shutil
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from dataclasses import fields
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd

import train
from benchmarks.statistics import holm, p_of, with_interval
from benchmarks.tables import print_table
from config import Config, parse_config
from infra.errors import UserError
from infra.flags import spelled
from infra.folder import read_json, read_lines

# The mean reward of the steps, the last step's, the last evaluation's accuracy, that of the
# likeliest responses, and the last step's entropy
OUTCOMES = ["reward", "last", "accuracy", "greedy", "entropy"]
short = partial(np.format_float_scientific, trim="-", exp_digits=1)  # 5e-7
OF_A_RUN = {"method", "lr", "seed"}  # never part of a row's flags
COMPARED = {"steps", "model", "data", "eval_data"}  # free flags, which may tell rows apart


def compare(args) -> None:
    """Train what is missing, if args.flags name rows, and print the tables. Raises UserError."""
    form = {"description": __doc__, "formatter_class": RawDescriptionHelpFormatter}
    parser = ArgumentParser("python -m benchmarks compare", allow_abbrev=False, **form)
    parser.add_argument("source", type=Path, metavar="OUT", help="a folder of runs, or a CSV")
    parser.add_argument("--rows", nargs="+", default=[], help="of a CSV: only these")
    parser.add_argument("--rates", nargs="+", default=[], help="of every row; default: train.py's")
    parser.add_argument("--seeds", type=numbers, default=[0], help="such as 1-8 or 1,2,5-7")
    parser.add_argument("--tune", type=numbers, default=[], help="seeds that only choose rates")
    parser.add_argument("--contrasts", nargs="+", default=[], help='"ROW RATE - ROW RATE"')
    parser.add_argument("--light", action="store_true", help="delete each run's weights at its end")
    parser.add_argument("--csv", help="write the finished runs to this file")
    args, shared = parser.parse_known_args(args.flags)
    if args.source.suffix == ".csv":
        runs = from_csv(args.source, args.rows)
    else:
        rows = product((*args.tune, *args.seeds), args.rows, args.rates or [""])
        for cfg in [flags_of_run(args.source, *row, shared) for row in rows]:  # all are read first
            train_run(cfg, args.light)
        runs = from_folders(args.source)
    if args.csv:
        runs.to_csv(args.csv, index=False)
    first = args.rows[0] if args.rows and args.rows[0] in set(runs["row"]) else "dapo"
    print_tables(runs, args.tune, args.contrasts, first)


def numbers(text: str) -> list[int]:
    """[1, 3, 4, 5] for 1,3-5."""
    ends = [part.partition("-") for part in text.split(",")]
    return [n for first, _, last in ends for n in range(int(first), int(last or first) + 1)]


# ---- runs ----------------------------------------------------------------------------------------


def flags_of_run(out: Path, seed: int, row: str, rate: str, shared: list[str]) -> Config:
    """The flags of one run, whose folder in `out` is named after them. Raises UserError."""
    words = [*row.split(), *(["--lr", rate] if rate else [])]
    name = "-".join(word.strip("-").replace("/", "-") for word in words if word != "--lr")
    own = ["--seed", str(seed), "--output-dir", str(out / f"{name}-{seed}")]
    return parse_config(["--method", *words, *shared, *own])


def train_run(cfg: Config, light: bool) -> None:
    """Train one run to its end, unless its folder has all steps already. Raises UserError."""
    folder = Path(cfg.output_dir)
    if (folder / "config.json").exists():
        config = read_json(folder / "config.json")
        names = {*flags_read()} - {"dtype"}  # which may be auto
        changed = sorted(x for x in names if config[x] != getattr(cfg, x))
        if changed:
            raise UserError(f"{folder} was run with another {spelled(changed[0])}: use another OUT")
        if is_finished(config, read_lines(folder / "metrics.jsonl")):
            return
    train.train(cfg)
    for path in filter(Path.is_dir, [*folder.iterdir()] if light else []):
        shutil.rmtree(path)  # checkpoints and models


def flags_read() -> list[str]:
    """The flags that make two runs different."""
    return [x.name for x in fields(Config) if x.name in COMPARED or not x.metadata["free"]]


def is_finished(config: dict, metrics: list[dict]) -> bool:
    return bool(metrics) and metrics[-1]["step"] >= config["steps"]


def from_folders(out: Path) -> pd.DataFrame:
    """A line for each finished run in `out`. Raises UserError if there is none.

    A row's name has the flags that differ between the runs, unless its method's are the same.
    """
    found = [path.parent for path in out.glob("*/config.json")]
    read = [(read_json(x / "config.json"), read_lines(x / "metrics.jsonl")) for x in found]
    runs = [pair for pair in read if is_finished(*pair)]
    if not runs:
        raise UserError(f"{out} has no finished run")
    print(f"{len(runs)} finished runs, {len(read) - len(runs)} unfinished")
    names = {x for x in flags_read() if len({str(config[x]) for config, _ in runs}) > 1} - OF_A_RUN
    lines = []
    for config, metrics in runs:
        usual = parse_config(["--method", config["method"]])
        own = [x for x in sorted(names) if x in COMPARED or config[x] != getattr(usual, x)]
        steps, end = [line for line in metrics if line["step"] > 0], metrics[-1]
        rewards = [line["reward"] for line in steps]
        name = " ".join([config["method"], *(f"{spelled(x)} {config[x]}" for x in own)])
        accuracy = end.get("eval_accuracy", end.get("eval_reward"))
        outcomes = np.mean(rewards), rewards[-1], accuracy, end.get("eval_greedy")
        lines.append([name, config["lr"], config["seed"], *outcomes, steps[-1]["entropy"]])
    return pd.DataFrame(lines, columns=["row", "rate", "seed", *OUTCOMES])


def from_csv(path: Path, rows: list[str]) -> pd.DataFrame:
    """The lines of a CSV of --csv, of results/training.csv or of results/races.csv."""
    runs = pd.read_csv(path)
    if "rewards" in runs:  # training.csv has the reward of every step
        curves = [[float(x) for x in text.split()] for text in runs["rewards"]]
        runs["reward"], runs["last"] = zip(*[(np.mean(x), x[-1]) for x in curves], strict=True)
    if "rate" not in runs:  # in races.csv it is the last word of a row
        runs[["row", "rate"]] = runs["row"].str.rsplit(n=1, expand=True)
        runs["rate"] = runs["rate"].astype(float)
    return runs[runs["row"].isin(rows)] if rows else runs


# ---- tables --------------------------------------------------------------------------------------


def print_tables(runs: pd.DataFrame, tune: list[int], contrasts: list[str], first: str) -> None:
    """Print every row at every rate and at the best of its rates, and the paired differences."""
    if runs.duplicated(["row", "rate", "seed"]).any():
        raise UserError("two runs have the same row, rate and seed")
    shown = [x for x in (*OUTCOMES, "kl") if x in runs and runs[x].notna().all()]
    table = runs.pivot(index="seed", columns=["row", "rate"], values=shown)
    whole = table.dropna()  # the seeds that all rows and rates have
    tuned, counted = whole[whole.index.isin(tune)], whole[~whole.index.isin(tune)]
    print(f"seeds: {list(counted.index)}; incomplete: {sorted({*table.index} - {*whole.index})}\n")
    if len(counted) < 2 or (tune and tuned.empty):
        raise UserError("an interval needs two seeds that all rows and rates have")
    parts, at_one, at_own = {}, [], []  # name -> outcomes of the seeds; names of contrasts
    pairs = sorted(set(zip(runs["row"], runs["rate"], strict=True)))
    for row, rate in pairs:
        parts[f"{row} {short(rate)}"] = counted.xs((row, rate), axis=1, level=(1, 2))
        if row != first and (first, rate) in pairs:
            at_one.append(f"{row} {short(rate)} - {first} {short(rate)}")
    for row in sorted({row for row, _ in pairs if len(table["reward"][row].columns) > 1}):
        parts[f"{row} at its rates"] = at_its_rates(counted, tuned, row, shown)
        at_own.append(f"{row} at its rates - {first} at its rates")
    cells = [[name, *map("{:.3f}".format, x.mean())] for name, x in parts.items()]
    print_table(["row and rate", *shown], cells)
    own = f"{first} at its rates"
    families = [contrasts] if contrasts else [at_one, [x for x in at_own if own in parts]]
    for family in families:
        print_differences(parts, [x for x in family if not x.startswith(own)], shown)


def print_differences(parts: dict, names: list[str], shown: list[str]) -> None:
    """Print the mean and the t-interval of each "a - b", and p with Holm's correction."""
    lines = {}
    for name in names:
        a, _, b = (word.strip() for word in name.partition(" - "))
        if not {a, b} <= {*parts}:
            raise UserError(f"--contrasts {name!r}: a row is one of {', '.join(parts)}")
        lines[name] = parts[a] - parts[b]
    p = holm({name: p_of(x["reward"]) for name, x in lines.items()})
    cells = [[name, *map(with_interval, lines[name].T.values), f"{p[name]:.2g}"] for name in lines]
    if cells:
        print_table(["difference, 95 %", *shown, "p of reward after Holm"], cells)


def at_its_rates(counted: pd.DataFrame, tuned: pd.DataFrame, row: str, shown: list) -> pd.DataFrame:
    """A row's outcomes, for each seed at the rate with the best reward on the tuning seeds.

    Without tuning seeds, on the other seeds, so that no run chooses its own rate.
    """
    rates = {}
    for seed in counted.index:
        others = tuned if len(tuned) else counted.drop(index=seed)
        rates[seed] = others["reward"][row].mean().idxmax()
    print(f"{row}: its rates by seed are {' '.join(map(short, rates.values()))}\n")
    chosen = [[counted[x, row, rate][seed] for x in shown] for seed, rate in rates.items()]
    return pd.DataFrame(chosen, index=counted.index, columns=shown)
