"""Which token weights help on the toy, each at its own best learning rate?

    python -m benchmarks weights

prints the tables of the runs in results/weights.csv, trains those it lacks, one after the other in
this process, and prints them again. A run's line is appended when it ends. Protocol and results:
docs/results/weights.md.
"""

import io
import tempfile
from collections import defaultdict
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

import toy
import train
from batch import TokenBatch
from benchmarks.statistics import holm, mean_interval, p_value
from benchmarks.tables import append_csv, print_table, read_csv
from config import Config, parse_config, selected_method
from extensions import SPREAD, masses_of_dapo
from grading import grade_on_ranks
from infra.folder import read_lines
from loading import load_model
from methods import Method
from rollout import Sampling, rollout

FLAGS = "--eval-data= --save-every 1000"
SETTINGS = {  # setting -> flags of train.py; `--model toy` has 16 prompts x 8 responses
    "learn": "--steps 28",
    "sharpen": "--steps 28 --toy-regime sharpen --toy-noise 0.2",
    "learn, 110 steps": "--steps 110",
}
MAIN = ("learn", "sharpen")
LONG = "learn, 110 steps"

TUNED = {  # row -> flags of train.py
    "dapo": "--method dapo",
    "delta": "",
    "tokens only": "",
    "sides only": "",
    "scalar": "--proxy scalar",
    "delta, K = 0": "--K 0",
    "two constants": "--method dapo",
    "sure, sure": "--method sure_sure",
    "unsure, unsure": "--method unsure_unsure",
    "unsure, sure": "--method unsure_sure",
    "sure, unsure": "--method sure_unsure",
    "AR": "--method reweighting",
    "oracle": "--method dapo",
}
OF_PAPER = {  # at dapo's best rate
    "grpo": "--method grpo",
    "forking tokens": "--method forking_tokens",
    "sapo": "--method sapo",
    "fipo": "--method fipo",
}
ROWS = TUNED | OF_PAPER
PRIMARY = ("delta", "tokens only", "sides only", "scalar")  # each minus dapo

RATES = (1e-4, 1.4e-4, 2e-4, 2.8e-4, 4e-4, 5.6e-4, 8e-4, 1.1e-3)  # a factor of about sqrt(2)
GRID = RATES[1:5]
TUNING = range(2001, 2005)  # seeds
COUNTED = range(2101, 2113)
EIGHT = COUNTED[:8]  # for OF_PAPER, and 110 steps

PROBLEMS = 128  # held out
SAMPLES = 8  # responses to each at temperature 1; one more is greedy


class Job(NamedTuple):
    """One run."""

    setting: str
    row: str
    rate: float
    seed: int


COLUMNS = (*Job._fields, "accuracy", "pass8", "greedy", "entropy", "rewards")


def weights(args) -> None:
    """Print the tables of the rows that are complete, train the others, and print all."""
    path = Path(args.csv)
    known = runs(path)
    print_tables(known)
    for setting in MAIN:
        for row in TUNED:
            complete(path, setting, row, best_rate(path, setting, row), COUNTED)
        for row in OF_PAPER:
            complete(path, setting, row, best_rate(path, setting, "dapo"), EIGHT)
    for row in ("dapo", *PRIMARY):
        complete(path, LONG, row, best_rate(path, "learn", row), EIGHT)
    if len(runs(path)) > len(known):
        print_tables(runs(path))


def runs(path: Path) -> dict[Job, dict]:
    """The lines of the CSV."""
    found = {}
    for x in read_csv(path, COLUMNS):
        job = Job(x["setting"], x["row"], float(x["rate"]), int(x["seed"]))
        found[job] = x | {"rewards": [float(number) for number in x["rewards"].split()]}
    return found


def complete(path: Path, setting: str, row: str, rate: float, seeds: range) -> list[dict]:
    """The lines of these runs; those that the CSV lacks are trained."""
    done = runs(path)
    jobs = [Job(setting, row, rate, seed) for seed in seeds]
    for job in jobs:
        if job not in done:
            append_csv(path, COLUMNS, [trained(job)])
    done = runs(path)
    return [done[job] for job in jobs]


def best_rate(path: Path, setting: str, row: str) -> float:
    """The rate with the highest mean training reward on the tuning seeds.

    The four rates of GRID are tried first. While the best one is an edge of those tried, the next
    of RATES is tried too.
    """
    tried = {}  # rate -> mean reward
    rates = list(GRID)
    while rates:
        for rate in rates:
            tried[rate] = mean_reward(complete(path, setting, row, rate, TUNING))
        best = RATES.index(max(tried, key=tried.get))
        rates = [rate for rate in RATES[max(0, best - 1) : best + 2] if rate not in tried]
    return RATES[best]


def mean_reward(lines: list[dict]) -> float:
    """The mean training reward of these runs, over all steps."""
    return float(np.mean([np.mean(line["rewards"]) for line in lines]))


# ---- rows that no flag selects -------------------------------------------------------------------


def tokens_only(tokens: TokenBatch, weight: torch.Tensor) -> torch.Tensor:
    """DelTA's weights with each side's mass kept: [N]."""
    return masses_of_dapo(weight, tokens.advantage)


def sides_only(tokens: TokenBatch, weight: torch.Tensor) -> torch.Tensor:
    """DelTA's mass of each side, shared equally by its tokens: [N]."""
    return weight / masses_of_dapo(weight, tokens.advantage)


def two_constants(tokens: TokenBatch, weight: torch.Tensor) -> torch.Tensor:
    """1.1 where A > 0 and 0.9 where A < 0: [N]. Their ratio is that of DelTA's side means."""
    return 1 + 0.1 * tokens.advantage.sign()


def oracle(tokens: TokenBatch, weight: torch.Tensor) -> torch.Tensor:
    """1.2 for the tokens that decided the reward (toy.decisive), else 0.8, with DAPO's masses."""
    responses = tokens.token.split(tokens.length.tolist())
    asked = [each["problem"] for each in tokens.problems]
    decided = torch.cat([toy.decisive(*pair) for pair in zip(asked, responses, strict=True)])
    return masses_of_dapo(1 - SPREAD + 2 * SPREAD * decided.to(weight), tokens.advantage)


OURS = {  # row -> (tokens, the weights [N] that its flags select) -> its weights [N]
    "tokens only": tokens_only,
    "sides only": sides_only,
    "two constants": two_constants,
    "oracle": oracle,
}


def method_of(row: str, method: Method) -> Method:
    """The method of a row. method: what its flags select."""
    if row not in OURS:
        return method

    def own_weights(tokens: TokenBatch, flags) -> torch.Tensor:
        return OURS[row](tokens, method.weights(tokens, flags))

    return replace(method, weights=own_weights)


# ---- a run ---------------------------------------------------------------------------------------


def trained(job: Job) -> dict:
    """Train and evaluate one run on one thread. Returns its line in the CSV."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        flags = f"{ROWS[job.row]} {SETTINGS[job.setting]} {FLAGS} --lr {job.rate}"
        cfg = parse_config(f"{flags} --seed {job.seed} --output-dir {folder}".split())
        with redirect_stdout(io.StringIO()):
            train.train(cfg, method_of(job.row, selected_method(cfg)))
        steps = [x for x in read_lines(Path(folder) / "metrics.jsonl") if "reward" in x]
        line = job._asdict() | held_out(cfg, Path(folder) / "model")
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


def print_tables(done: dict[Job, dict]) -> None:
    """Print the rates, and of the rows with all their seeds the outcomes, tests and signs."""
    counted = defaultdict(dict)  # (setting, row) -> seed -> line
    tuned = defaultdict(dict)  # (setting, row) -> rate -> mean reward on the tuning seeds
    for job, line in done.items():
        if job.seed in COUNTED:
            counted[job.setting, job.row][job.seed] = line
        of_rate = [done.get(job._replace(seed=seed)) for seed in TUNING]
        if all(of_rate):
            tuned[job.setting, job.row][job.rate] = mean_reward(of_rate)
    for (setting, row), lines in list(counted.items()):
        if len(lines) < len(EIGHT if setting == LONG or row in OF_PAPER else COUNTED):
            del counted[setting, row]

    cells = [
        [setting, row, *[f"{found[rate]:.3f}" if rate in found else "" for rate in RATES]]
        for (setting, row), found in tuned.items()
    ]
    print_table(["setting", "row: tuning seeds", *[f"{rate:g}" for rate in RATES]], cells)
    print_outcomes(counted)
    pairs = [(row, "dapo") for row in PRIMARY] + [("scalar", "delta")]
    for row, base in pairs:
        for settings in (MAIN, (LONG,)):  # Holm over the settings of a family
            known = [x for x in settings if {(x, row), (x, base)} <= counted.keys()]
            of_row = {setting: differences(counted, setting, row, base) for setting in known}
            if of_row:
                print_differences(f"{row} minus {base}", of_row)
    print_signs(counted)


def print_outcomes(counted: dict) -> None:
    """Print one line per setting and row, over its seeds."""
    cells = []
    for (setting, row), lines in counted.items():
        own = list(lines.values())
        rewards = np.array([line["rewards"] for line in own])  # [seeds, steps]
        against = "" if row == "dapo" else mean_interval(differences(counted, setting, row))
        others = [
            f"{np.mean([float(line[name]) for line in own]):.3f}"
            for name in ("accuracy", "pass8", "greedy", "entropy")
        ]
        last = mean_interval(rewards[:, -5:].mean(axis=1))
        fallen = rewards[:, -5:].mean(axis=1) < 0.5 * rewards.max(axis=1)
        rate = f"{float(own[0]['rate']):g}"
        reward = mean_interval(rewards.mean(axis=1))
        cells.append([setting, row, rate, len(own), reward, against, last, *others, fallen.sum()])
    header = ["setting", "row", "rate", "seeds", "mean reward", "minus dapo", "last 5 steps"]
    header += ["held out", "pass@8", "greedy", "entropy", "collapsed"]
    print_table(header, cells)


def differences(counted: dict, setting: str, row: str, base: str = "dapo") -> np.ndarray:
    """Mean training reward of `row` minus that of `base`, for each seed that both have."""
    ours, theirs = counted[setting, row], counted[setting, base]
    both = [seed for seed in ours if seed in theirs]
    return np.array([mean_reward([ours[seed]]) - mean_reward([theirs[seed]]) for seed in both])


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


def print_signs(counted: dict) -> None:
    """Print what sure tokens bring on each side: the 2 x 2 of the rules with DAPO's masses."""
    pairs = {  # side -> pairs of rows that differ only in that side's sign
        "A > 0": [("sure, sure", "unsure, sure"), ("sure, unsure", "unsure, unsure")],
        "A < 0": [("sure, sure", "sure, unsure"), ("unsure, sure", "unsure, unsure")],
    }
    cells = []
    for setting in MAIN:
        for side, (one, other) in pairs.items():
            effects = differences(counted, setting, *one), differences(counted, setting, *other)
            if len(effects[0]) == len(effects[1]) > 1:
                cells.append([setting, side, mean_interval((effects[0] + effects[1]) / 2)])
    print_table(["setting", "side", "sure minus unsure"], cells)
