"""Compares methods: trains rows x rates x seeds with train.py, and prints paired differences.

    python -m benchmarks compare OUT --rows dapo "delta --proxy scalar" --rates 5e-7 6e-7
        --seeds 1-8 FLAGS ...           # trains what OUT lacks, in folders of OUT, then prints
    python -m benchmarks compare OUT    # prints the finished runs in OUT
    python -m benchmarks compare FILE.csv --contrasts "delta 5e-7 - dapo 6e-7" ...

A row is a method and its flags; FLAGS are train.py's, for all runs. The first row is the reference.
With --tune, every rate is trained on the tuning seeds alone. On --seeds a row is trained at the
rate with the best mean reward there, or at the rates that --contrasts name. A stopped command goes
on where it was. Choose the seeds and the contrasts before the first run.
"""

import shlex
import shutil
import subprocess
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd

import benchmarks.known_credit  # noqa: F401  a method and a proxy of the toy
import train
from benchmarks.statistics import holm, jackknife, p_of, with_interval
from benchmarks.tables import print_table
from config import Config, parse_config
from infra.errors import UserError
from infra.flags import function_of, spelled
from infra.folder import read_json, read_lines, write_json

LAST = 5  # steps at the end of a run
RECORD = "compare.json"  # of a finished run, in its folder: curves, what was measured, the commit
OWN = "at its rates"
# The mean reward of all steps and of the last ones, the last evaluation's accuracy, that of the
# likeliest responses, and the last step's entropy
OUTCOMES = ["reward", "last", "accuracy", "greedy", "entropy", "kl"]
short = partial(np.format_float_scientific, trim="-", exp_digits=1)  # 5e-7
OF_A_RUN = {"method", "lr", "seed"}  # never part of a row's flags
OF_A_LINE = ("rate", "seed", "rewards", "entropies", "seconds")  # columns that are no outcomes
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
    parser.add_argument(
        "--climb", action="store_true", help="tune the middle --rates, and go on from an edge"
    )
    parser.add_argument("--contrasts", nargs="+", default=[], help='"ROW RATE - ROW RATE"')
    parser.add_argument(
        "--share", nargs=3, metavar="CELL", help="A B C: the share of C's lead over B that A has"
    )
    parser.add_argument(
        "--line",
        nargs=4,
        metavar=("OUTCOME", "CELL", "CELL", "CELL"),
        help="x A B C: A's reward minus that of the line through B and C at A's x",
    )
    parser.add_argument("--measure", help="FILE.py:FUNCTION or module:FUNCTION, of a run's flags")
    parser.add_argument("--light", action="store_true", help="delete each run's weights at its end")
    parser.add_argument("--csv", help="write the finished runs to this file")
    args, shared = parser.parse_known_args(args.flags)
    if args.source.suffix == ".csv":
        runs = from_csv(args.source, args.rows)
    else:
        Training(args, shared).run()
        runs = from_folders(args.source)
    if args.csv:
        runs.to_csv(args.csv, index=False)
    first = args.rows[0] if args.rows and args.rows[0] in set(runs["row"]) else "dapo"
    print_tables(runs, args.tune, args.contrasts, first, args.share, args.line)


def numbers(text: str) -> list[int]:
    """[1, 3, 4, 5] for 1,3-5."""
    ends = [part.partition("-") for part in text.split(",")]
    return [n for first, _, last in ends for n in range(int(first), int(last or first) + 1)]


# ---- runs ----------------------------------------------------------------------------------------


class Training:
    """What a command trains, seed by seed: first the tuning seeds, then those that count."""

    def __init__(self, args, shared: list[str]):
        """All flags are read before the first run. Raises UserError."""
        self.args, self.shared = args, shared
        self.measure = function_of("measure", args.measure) if args.measure else None
        self.rates = sorted(args.rates, key=float) or [""]
        self.commit = commit()  # of the code that was loaded
        for row, rate in product(args.rows, self.rates):
            self.flags(row, rate, 0)

    def run(self) -> None:
        """Train what is missing. Raises UserError."""
        args = self.args
        cells = list(product(args.rows, self.rates))
        if args.tune:
            best = {row: self.best_rate(row) for row in args.rows}
            named = [x.strip() for pair in args.contrasts for x in pair.split(" - ")]
            cells = [*best.items()]
            if named:  # "ROW at its rates" or "ROW RATE"
                own = {f"{row} {OWN}": (row, rate) for row, rate in best.items()}
                cells = [own.get(x) or tuple(x.rsplit(maxsplit=1)) for x in dict.fromkeys(named)]
        for seed, (row, rate) in product(args.seeds, dict.fromkeys(cells)):
            self.train(row, rate, seed)

    def best_rate(self, row: str) -> str:
        """The rate with the highest mean reward over the tuning seeds, the lowest of equal ones.

        With --climb the three middle rates are tried first, then the next one while the best is at
        the edge of those tried.
        """
        rates = self.rates
        middle = max(0, len(rates) // 2 - 1)
        tried = range(middle, min(middle + 3, len(rates))) if self.args.climb else range(len(rates))
        low, high = tried[0], tried[-1]
        while True:
            rewards = {}
            for rate in rates[low : high + 1]:
                runs = [self.train(row, rate, seed) for seed in self.args.tune]
                rewards[rate] = np.mean([np.mean(run["rewards"]) for run in runs])
            best = max(rewards, key=rewards.get)
            if best == rates[low] and low > 0:
                low -= 1
            elif best == rates[high] and high < len(rates) - 1:
                high += 1
            else:
                print(f"{row}: {best} of {', '.join(f'{x} {y:.4f}' for x, y in rewards.items())}")
                return best

    def flags(self, row: str, rate: str, seed: int) -> list[str]:
        """The flags of train.py of one run, whose folder in OUT is named after them."""
        words = [*row.split(), *(["--lr", rate] if rate else [])]
        name = "-".join(word.strip("-").replace("/", "-") for word in words if word != "--lr")
        own = ["--seed", str(seed), "--output-dir", str(self.args.source / f"{name}-{seed}")]
        flags = ["--method", *words, *self.shared, *own]
        parse_config(flags)  # raises
        return flags

    def train(self, row: str, rate: str, seed: int) -> dict:
        """Train one run to its end, unless it has been. Returns its record. Raises UserError."""
        flags = self.flags(row, rate, seed)
        cfg = parse_config(flags)
        folder = Path(cfg.output_dir)
        if (folder / "config.json").exists():
            config = read_json(folder / "config.json")
            names = {*flags_read()} - {"dtype"}  # which may be auto
            changed = sorted(x for x in names if config[x] != getattr(cfg, x))
            if changed:
                what = spelled(changed[0])
                raise UserError(f"{folder} was run with another {what}: use another OUT")
        if (folder / RECORD).exists():
            return read_json(folder / RECORD)
        begun = time.monotonic()
        train.train(cfg)
        steps = [line for line in read_lines(folder / "metrics.jsonl") if line["step"] > 0]
        record = {
            "rewards": [line["reward"] for line in steps],
            "entropies": [line["entropy"] for line in steps],
            "measured": self.measure(cfg) if self.measure else {},
            "seconds": round(time.monotonic() - begun, 1),
            "commit": self.commit,
            "flags": shlex.join(flags[:-2]),  # without --output-dir
        }
        write_json(folder / RECORD, record)  # from here on the run is finished
        if self.args.light:
            for path in filter(Path.is_dir, [*folder.iterdir()]):
                shutil.rmtree(path)  # checkpoints and models
        return record


def commit() -> str:
    """The commit of the code that runs, with `+` if files differ from it; "" without git."""
    said = subprocess.run(
        ["git", "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
    )
    return said.stdout.strip()


def flags_read() -> list[str]:
    """The flags that make two runs different."""
    return [x.name for x in fields(Config) if x.name in COMPARED or not x.metadata["free"]]


def from_folders(out: Path) -> pd.DataFrame:
    """A line for each finished run in `out`. Raises UserError if there is none.

    A row's name has the flags that differ between the runs, unless its method's are the same.
    """
    found = [path.parent for path in sorted(out.glob("*/config.json"))]
    finished = [x for x in found if (x / RECORD).exists()]
    if not finished:
        raise UserError(f"{out} has no finished run")
    print(f"{len(finished)} finished runs, {len(found) - len(finished)} unfinished")
    runs = [(read_json(x / "config.json"), read_json(x / RECORD), x) for x in finished]
    names = {x for x in flags_read() if len({str(cfg[x]) for cfg, _, _ in runs}) > 1} - OF_A_RUN
    lines = []
    for config, record, folder in runs:
        usual = parse_config(["--method", config["method"]])
        own = [x for x in sorted(names) if x in COMPARED or config[x] != getattr(usual, x)]
        name = " ".join([config["method"], *(f"{spelled(x)} {config[x]}" for x in own)])
        rewards, entropies = record["rewards"], record["entropies"]
        end = read_lines(folder / "metrics.jsonl")[-1]
        line = {"row": name, "rate": config["lr"], "seed": config["seed"]}
        line |= {"reward": np.mean(rewards), "last": np.mean(rewards[-LAST:])}
        line |= {"accuracy": end.get("eval_accuracy", end.get("eval_reward"))}
        line |= {"greedy": end.get("eval_greedy"), "entropy": entropies[-1]} | record["measured"]
        curves = {"rewards": rewards, "entropies": entropies}
        line |= {x: " ".join(f"{y:.6g}" for y in values) for x, values in curves.items()}
        lines.append(line | {x: record[x] for x in ("seconds", "commit", "flags")})
    return pd.DataFrame(lines).sort_values(["seed", "row", "rate"])


def from_csv(path: Path, rows: list[str]) -> pd.DataFrame:
    """The lines of a CSV of --csv, of results/training.csv or of results/races.csv."""
    runs = pd.read_csv(path, dtype={"commit": str})
    if "rewards" in runs and "reward" not in runs:  # training.csv has the reward of every step
        curves = [[float(x) for x in text.split()] for text in runs["rewards"]]
        runs["reward"], runs["last"] = zip(*[(np.mean(x), x[-1]) for x in curves], strict=True)
    if "rate" not in runs:  # in races.csv it is the last word of a row
        runs[["row", "rate"]] = runs["row"].str.rsplit(n=1, expand=True)
        runs["rate"] = runs["rate"].astype(float)
    return runs[runs["row"].isin(rows)] if rows else runs


# ---- tables --------------------------------------------------------------------------------------


def print_tables(
    runs: pd.DataFrame,
    tune: list[int],
    contrasts: list[str],
    first: str,
    share: list[str] | None = None,
    line: list[str] | None = None,
) -> None:
    """Print every row at every rate and at the best of its rates, and the paired differences."""
    if runs.duplicated(["row", "rate", "seed"]).any():
        raise UserError("two runs have the same row, rate and seed")
    numeric = [x for x in runs.select_dtypes("number") if x not in OF_A_LINE]
    shown = [x for x in dict.fromkeys(OUTCOMES + numeric) if x in runs and runs[x].notna().all()]
    lacking: set[int] = set()
    if not tune:  # only the seeds count that all rows and rates have
        table = runs.pivot(index="seed", columns=["row", "rate"], values="reward")
        lacking = {*table.index} - {*table.dropna().index}
    cells = cells_of(runs[~runs["seed"].isin(lacking)], tune, shown)
    means = [[name, len(x), *map("{:.3f}".format, x.mean())] for name, x in cells.items()]
    print_table(["row and rate", "seeds", *shown], means)
    families = [contrasts] if contrasts else [[], []]  # at one rate, each row at its own
    for name in cells if not contrasts else ():
        rate = OWN if name.endswith(f" {OWN}") else name.rpartition(" ")[2]
        reference = f"{first} {rate}"
        if name != reference and reference in cells:
            families[rate == OWN].append(f"{name} - {reference}")
    for family in filter(None, families):
        print_differences(cells, family, shown, lacking)
    if share:
        print_jackknife("share", share_of_lead, cells, share)
    if line:
        print_jackknife("line", partial(above_line, line[0]), cells, line[1:])


def share_of_lead(table: pd.DataFrame) -> float:
    """(A - B) / (C - B) of mean rewards."""
    a, b, c = (table[x, "reward"].mean() for x in "ABC")
    return (a - b) / (c - b)


def above_line(outcome: str, table: pd.DataFrame) -> float:
    """A's mean reward, minus that at A's outcome of the line through the means of B and C."""
    (a, b, c), (at_a, at_b, at_c) = (
        [table[x, y].mean() for x in "ABC"] for y in ("reward", outcome)
    )
    return a - (b + (c - b) * (at_a - at_b) / (at_c - at_b))


def print_jackknife(name: str, number: Callable, cells: dict, names: list[str]) -> None:
    """Print a number of three cells, A, B and C, with its interval over the seeds of all three."""
    if not {*names} <= {*cells}:
        raise UserError(f"--{name} {names}: a row is one of {', '.join(cells)}")
    table = pd.concat([cells[x] for x in names], axis=1, keys=list("ABC")).dropna()
    value, half = jackknife(number, table)
    print(f"{name} of {', '.join(names)}: {value:.3f} ± {half:.3f} ({len(table)} seeds)\n")


def cells_of(runs: pd.DataFrame, tune: list[int], shown: list[str]) -> dict[str, pd.DataFrame]:
    """ "ROW RATE" -> the outcomes of its counted seeds, and "ROW at its rates" for several rates.

    The rate with the best mean reward on the tuning seeds is a row's own, or without such seeds the
    best on the other seeds, so that no run chooses its own rate.
    """
    by_rate, own = {}, {}
    for row, its in runs.groupby("row"):
        table = its.pivot(index="seed", columns="rate", values=shown)
        is_tuned = table.index.isin(tune)
        counted, reward = table[~is_tuned], table["reward"]
        for rate in reward.columns:
            outcomes = counted.xs(rate, axis=1, level=1).dropna()
            if len(outcomes):
                by_rate[f"{row} {short(rate)}"] = outcomes
        if tune and is_tuned.any():
            tuned = reward[is_tuned].dropna(axis=1)  # the rates that all tuning seeds have
            print(f"{row}: {', '.join(f'{short(x)} {y:.4f}' for x, y in tuned.mean().items())}\n")
            own[f"{row} {OWN}"] = by_rate.get(f"{row} {short(tuned.mean().idxmax())}")
        elif not tune and len(reward.columns) > 1:
            own[f"{row} {OWN}"] = at_its_rates(row, counted, shown)
    return by_rate | {name: outcomes for name, outcomes in own.items() if outcomes is not None}


def at_its_rates(row: str, table: pd.DataFrame, shown: list[str]) -> pd.DataFrame:
    """A row's outcomes, for each seed at the rate with the best reward on the other seeds."""
    rates = {x: table.drop(index=x)["reward"].mean().idxmax() for x in table.index}
    print(f"{row}: its rates by seed are {' '.join(map(short, rates.values()))}\n")
    chosen = [[table[x, rate][seed] for x in shown] for seed, rate in rates.items()]
    return pd.DataFrame(chosen, index=table.index, columns=shown)


def print_differences(cells: dict, names: list[str], shown: list[str], lacking: set) -> None:
    """Print the mean and the t-interval of each "a - b", and p with Holm's correction.

    Only the seeds count that all cells of these names have. lacking: seeds left out before.
    """
    pairs = {name: [x.strip() for x in name.split(" - ")] for name in names}
    for name, pair in pairs.items():
        if len(pair) != 2 or not {*pair} <= {*cells}:
            raise UserError(f"--contrasts {name!r}: a row is one of {', '.join(cells)}")
    seeds = [{*cells[x].index} for pair in pairs.values() for x in pair]
    whole = sorted(set.intersection(*seeds))
    print(f"seeds: {whole}; incomplete: {sorted(lacking | set.union(*seeds) - {*whole})}\n")
    if len(whole) < 2:
        raise UserError("an interval needs two seeds that all rows and rates have")
    lines = {name: cells[a].loc[whole] - cells[b].loc[whole] for name, (a, b) in pairs.items()}
    p = holm({name: p_of(x["reward"]) for name, x in lines.items()})
    table = [[name, *map(with_interval, x.T.values), f"{p[name]:.2g}"] for name, x in lines.items()]
    print_table(["difference, 95 %", *shown, "p of reward after Holm"], table)
