"""Which token weights help on the toy, each at its own best learning rate?

    python -m benchmarks weights                     # the tables of results/weights.csv
    python -m benchmarks weights --row delta --setting learn --rate 2e-4 --seeds tuning

The second trains a row's runs first, one after the other; those in the CSV are not repeated, and a
run's line is appended when it ends. A row of your own is a line in ROWS. Protocol and results:
docs/results/weights.md.
"""

import tempfile
from argparse import ArgumentParser
from pathlib import Path

import numpy as np
import pandas as pd
import torch

import toy
import train
from benchmarks.statistics import holm, mean_interval, p_value
from benchmarks.tables import append_csv, print_frame, print_table, read_csv
from config import Config, parse_config
from grading import grade_on_ranks
from infra.folder import read_lines
from loading import load_model
from rollout import Sampling, rollout

FLAGS = "--eval-data= --save-every 1000"
SETTINGS = {  # setting -> flags of train.py; `--model toy` has 16 prompts x 8 responses
    "learn": "--steps 28",
    "sharpen": "--steps 28 --toy-regime sharpen --toy-noise 0.2",
    "learn, 110 steps": "--steps 110",
}
FAMILIES = (("learn", "sharpen"), ("learn, 110 steps",))  # of tests, for Holm's correction

ROWS = {  # row -> flags of train.py; the CSV has four more, which only the study needed
    "dapo": "--method dapo",
    "delta": "",
    "scalar": "--proxy scalar",
    "delta, K = 0": "--K 0",
    "sure, sure": "--method sure_sure",
    "unsure, unsure": "--method unsure_unsure",
    "unsure, sure": "--method unsure_sure",
    "sure, unsure": "--method sure_unsure",
    "AR": "--method reweighting",
    "grpo": "--method grpo",
    "forking tokens": "--method forking_tokens",
    "sapo": "--method sapo",
    "fipo": "--method fipo",
}
TESTED = [(row, "dapo") for row in ("delta", "tokens only", "sides only", "scalar")]
TESTED += [("scalar", "delta")]  # row, base

SEEDS = {  # the eight are for the paper's other rows, and 110 steps
    "tuning": range(2001, 2005),
    "counted": range(2101, 2113),
    "eight": range(2101, 2109),
}

PROBLEMS = 128  # held out
SAMPLES = 8  # responses to each at temperature 1; one more is greedy

RUN = ["setting", "row", "rate", "seed"]  # a run is known by these
COLUMNS = (*RUN, "accuracy", "pass8", "greedy", "entropy", "rewards")


def weights(args) -> None:
    """Train the runs that the flags name and the CSV lacks, if any, and print all tables."""
    parser = ArgumentParser("python -m benchmarks weights", allow_abbrev=False)
    parser.add_argument("--row", choices=ROWS)
    parser.add_argument("--setting", choices=SETTINGS, default="learn")
    parser.add_argument("--rate", type=float, default=4e-4)
    parser.add_argument("--seeds", choices=SEEDS, default="tuning")
    flags = parser.parse_args(args.flags)
    path = Path(args.csv)
    known = set(read_csv(path, COLUMNS)[RUN].itertuples(index=False, name=None))
    for seed in SEEDS[flags.seeds] if flags.row else ():
        run = (flags.setting, flags.row, flags.rate, seed)
        if run not in known:
            append_csv(path, COLUMNS, [trained(*run)])
    print_tables(read_runs(path))


# ---- a run ---------------------------------------------------------------------------------------


def trained(setting: str, row: str, rate: float, seed: int) -> dict:
    """Train and evaluate one run on one thread. Returns its line in the CSV."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        flags = f"{FLAGS} {SETTINGS[setting]} {ROWS[row]} --lr {rate} --seed {seed}"
        cfg = parse_config([*flags.split(), "--output-dir", folder])
        train.train(cfg)
        steps = [x for x in read_lines(Path(folder) / "metrics.jsonl") if "reward" in x]
        line = {"setting": setting, "row": row, "rate": rate, "seed": seed}
        line |= held_out(cfg, Path(folder) / "model")
    line["entropy"] = round(steps[-1]["entropy"], 4)
    line["rewards"] = " ".join(str(round(step["reward"], 4)) for step in steps)
    return line


def held_out(cfg: Config, folder: Path) -> dict[str, float]:
    """A run's model on held-out problems: avg@8 and pass@8 of samples, and greedy accuracy."""
    lm, tokenizer = load_model(folder)
    asked = toy.problems(PROBLEMS, seed=1, k=cfg.toy_k)  # odd: not in training
    prompts = tokenizer([each["problem"] for each in asked]).input_ids
    rewards = {}
    for temperature, samples in ((1.0, SAMPLES), (0.0, 1)):
        sampling = Sampling(cfg.max_new_tokens, temperature, seed=cfg.seed)
        found = rollout(lm, tokenizer, prompts, range(len(prompts)), samples, sampling)
        problems = [each for each in asked for _ in range(samples)]
        rewards[samples] = np.array(grade_on_ranks(found, problems)).reshape(len(asked), samples)
    return {
        "accuracy": round(float(rewards[SAMPLES].mean()), 4),
        "pass8": round(float(rewards[SAMPLES].max(axis=1).mean()), 4),
        "greedy": round(float(rewards[1].mean()), 4),
    }


# ---- tables --------------------------------------------------------------------------------------


def read_runs(path: Path) -> pd.DataFrame:
    """The CSV, and for each run its reward, that of the last five steps, and if it collapsed."""
    runs = read_csv(path, COLUMNS)
    steps = [np.array(rewards.split(), dtype=float) for rewards in runs["rewards"]]
    runs["reward"] = [rewards.mean() for rewards in steps]
    runs["last"] = [rewards[-5:].mean() for rewards in steps]
    runs["collapsed"] = [rewards[-5:].mean() < 0.5 * rewards.max() for rewards in steps]
    return runs


def print_tables(runs: pd.DataFrame) -> None:
    """Print the rates, then of the counted seeds the outcomes, tests and signs."""
    tuning = runs[runs["seed"].isin(SEEDS["tuning"])]
    count = tuning.groupby(RUN[:3])["seed"].transform("count")
    tuning = tuning[count == len(SEEDS["tuning"])].rename(columns={"row": "row: tuning seeds"})
    index = ["setting", "row: tuning seeds"]
    print_frame(tuning.pivot_table("reward", index, "rate", sort=False).sort_index(axis=1))

    counted = runs[runs["seed"].isin(SEEDS["counted"])]
    last = counted.groupby(["setting", "row"])["rate"].transform("last")
    counted = counted[counted["rate"] == last]  # a row run at two rates is not a mixture of both
    reward = counted.pivot(index="seed", columns=["setting", "row"], values="reward")
    rows = {*ROWS, *dict(TESTED), *counted["row"]}  # also those that ROWS no longer has
    reward = reward.reindex(columns=pd.MultiIndex.from_product([SETTINGS, rows]))
    print_outcomes(counted, reward)
    for row, base in TESTED:
        for settings in FAMILIES:
            of_settings = {x: (reward[x, row] - reward[x, base]).dropna() for x in settings}
            known = {x: values for x, values in of_settings.items() if len(values) > 1}
            if known:
                print_differences(f"{row} minus {base}", known)
    print_signs(reward)


def print_outcomes(counted: pd.DataFrame, reward: pd.DataFrame) -> None:
    """Print one line per setting and row with two seeds or more, over its seeds."""
    cells = []
    for (setting, row), own in counted.groupby(["setting", "row"], sort=False):
        difference = (reward[setting, row] - reward[setting, "dapo"]).dropna()
        if len(own) < 2:
            continue
        against = mean_interval(difference) if row != "dapo" and len(difference) > 1 else ""
        others = own[["accuracy", "pass8", "greedy", "entropy"]].mean()
        line = [setting, row, own["rate"].iloc[-1], len(own), mean_interval(own["reward"])]
        line += [against, mean_interval(own["last"]), *[f"{mean:.3f}" for mean in others]]
        cells.append([*line, own["collapsed"].sum()])
    header = ["setting", "row", "rate", "seeds", "mean reward", "minus dapo", "last 5 steps"]
    header += ["held out", "pass@8", "greedy", "entropy", "collapsed"]
    print_table(header, cells)


def print_differences(label: str, differences: dict[str, np.ndarray]) -> None:
    """Print a line per name: its paired differences over seeds [n], and whether their mean is 0.

    The p of the t-tests are Holm-corrected over the lines.
    """
    corrected = holm({name: p_value(values) for name, values in differences.items()})
    lines = []
    for name, values in differences.items():
        above = f"{(values > 1e-9).sum()} of {len(values)}"  # more than rounding error in the means
        lines.append([name, mean_interval(values), above, f"{corrected[name]:.2g}"])
    header = [label, "mean, 95 % interval", "seeds above 0", f"p (Holm, of {len(lines)})"]
    print_table(header, lines)


def print_signs(reward: pd.DataFrame) -> None:
    """Print what sure tokens bring on each side: the 2 x 2 of the rules with DAPO's masses."""
    cells = []
    for setting in FAMILIES[0]:
        own = reward[setting]
        equal = own["sure, sure"] - own["unsure, unsure"]  # of the same sign on both sides
        mixed = own["sure, unsure"] - own["unsure, sure"]
        for side, effect in (("A > 0", equal + mixed), ("A < 0", equal - mixed)):
            if effect.count() > 1:
                cells.append([setting, side, mean_interval(effect.dropna() / 2)])
    print_table(["setting", "side", "sure minus unsure"], cells)
