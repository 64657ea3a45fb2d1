"""The rows of the studies of training on the toy, the settings they run in, and one run of a row.

Chains of 12 operations with rare errors, where credit matters most: a response of some 90 tokens is
wrong because of one of them. method_study.py compares all rows there; confirm_study.py and
noise_study.py take a few of them elsewhere.

The oracles know which tokens decided (`toy.decisive`). The advantage Q - V of studies/truth.py
would be the better truth, but takes thousands of continuations of every response, and a run samples
thousands of responses.
"""

import contextlib
import io
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch

import toy
import train
from infra.grading import grades
from infra.packing import TokenBatch
from methods import METHODS, Method
from studies.credit import decisive

NO_EVALUATION = ["--eval-data", ""]  # the studies look at training rewards

# ---- oracles -------------------------------------------------------------------------------------


def oracle_weights(tokens: TokenBatch, flags, low: float, high: float) -> torch.Tensor:
    """ρ [N] by what only the toy knows: `high` on the tokens that decided the reward, else `low`.

    Scaled to mean 1.
    """
    responses = tokens.token.split(tokens.length.tolist())
    marks = []
    for problem, ids in zip(tokens.problems, responses, strict=True):
        marks.append(decisive(problem, ids))
    weights = low + (high - low) * torch.cat(marks).float()
    return weights / weights.mean()


# ---- rows ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A method and its flags."""

    flags: str  # of train.py
    paper: str = "-"  # its average for 8B in the paper's tables, in percent
    weights: Callable | None = None  # in the place of the method's, as Method.weights

    @property
    def spelled(self) -> str:
        """The flags as a table shows them."""
        return "toy only" if self.weights else f"`{self.flags}`"


ORACLE = "oracle"
IN_RANGE = "oracle in range"  # of the coefficients: λ_min and λ_max

MAIN = {
    "dapo": Row("--method dapo", "22.95"),
    "delta": Row("--method delta", "28.40"),
    "delta, fresh": Row("--gamma fresh"),
    "delta, K = 0": Row("--K 0", "19.97"),
    "delta, side": Row("--normalise side"),
    "delta, held out": Row("--centroids held_out"),
    "topk": Row("--proxy topk", "24.29"),
    "topk, fresh": Row("--proxy topk --gamma fresh"),
    "topk, K = 0": Row("--proxy topk --K 0"),
    "exact": Row("--proxy exact"),
    "exact, fresh": Row("--proxy exact --gamma fresh"),
    "random": Row("--delta-variant random", "18.34"),
    IN_RANGE: Row("--method dapo", weights=partial(oracle_weights, low=0.8, high=1.2)),
    ORACLE: Row("--method dapo", weights=partial(oracle_weights, low=0.1, high=1.1)),
}

# The rest of Tables 1 to 3 and of the analysis runs of Sec. 5.2. (The paper's averages in the two
# kinds of tables are over different benchmarks.)
SECONDARY = {
    "grpo": Row("--method grpo"),
    "reinforce": Row("--method reinforce"),
    "forking_tokens": Row("--method forking_tokens", "24.80"),
    "sapo": Row("--method sapo", "25.14"),
    "fipo": Row("--method fipo", "23.89"),
    "within_side": Row("--delta-variant within_side", "17.94"),
    "fixed_gamma": Row("--delta-variant fixed_gamma", "21.19"),
    "hard": Row("--delta-variant hard", "20.93"),
    "no_norm": Row("--delta-variant no_norm", "21.39"),
    "no_range_map": Row("--delta-variant no_range_map", "20.78"),
    "K = 2": Row("--K 2", "22.15"),
    "K = 3": Row("--K 3", "22.20"),
    "lam_min 0.5": Row("--lam-min 0.5", "23.22"),
    "lam_max 1.5": Row("--lam-max 1.5", "22.77"),
    "both": Row("--lam-min 0.5 --lam-max 1.5", "23.07"),
    "select top": Row("--select top"),
    "select random": Row("--select random"),
    "select bottom": Row("--select bottom"),
}
ROWS = MAIN | SECONDARY

# ---- settings ------------------------------------------------------------------------------------

SIZE = "--prompts 16 --group-size 8 --mini-batch 4 --steps 28"


@dataclass(frozen=True)
class Setting:
    """A task, its base model, and how long a run is."""

    k: int = 12  # operations
    noise: float = 0.06  # share of wrong results in the base model's demonstrations
    filler: int = 1  # connectives that open a step
    build: int = 0  # seed of the base model
    flip: float = 0.0  # share of the training rewards that are turned over
    tokens: int = 112  # longest response
    size: str = SIZE

    @property
    def flags(self) -> str:
        """Of train.py; it knows neither `build` nor `flip`."""
        return (
            f"--toy-k {self.k} --toy-noise {self.noise} --toy-filler {self.filler} "
            f"--max-prompt-tokens 40 --max-new-tokens {self.tokens} {self.size} --save-every 1000"
        )

    def base(self) -> Path:
        """The folder of the base model; it is built where it is neither committed nor cached."""
        return toy.base_folder(self.k, self.noise, self.filler, self.build)


STUDY = "k12"
SETTINGS = {
    STUDY: Setting(),
    "k12, another base": Setting(build=1),
    "k16": Setting(k=16, noise=0.05, tokens=148),  # right about as often
    "k5, filler 4": Setting(k=5, noise=0.2, filler=4, tokens=58),
    "k5, filler 0": Setting(k=5, noise=0.2, filler=0, tokens=38),
    "flipped 10 %": Setting(flip=0.1),
    "flipped 20 %": Setting(flip=0.2),
    "often wrong": Setting(noise=0.4),  # demonstrations of which a fifth is right
    "often right": Setting(noise=0.01),  # nine in ten
}

# ---- a run ---------------------------------------------------------------------------------------


class FlippedRewards:
    """Grades of which a share is turned over at random; called as train.training_rewards.

    The n-th grade of a run is turned over in every row or in none. `deserved` keeps them as they
    were.
    """

    def __init__(self, share: float, seed: int):
        self.share = share
        self.random = np.random.default_rng([seed, 17])
        self.deserved = []

    def __call__(self, responses: list[str], problems: list[dict]) -> list[float]:
        deserved = np.array(grades(responses, problems))
        self.deserved += deserved.tolist()
        flipped = self.random.random(len(deserved)) < self.share
        return np.where(flipped, 1 - deserved, deserved).tolist()


def run_row(name: str, rate: float, seed: int, setting: Setting = SETTINGS[STUDY]) -> list[dict]:
    """One run of a row, in this process and silent: its metrics, step by step.

    rate: learning rate. `reward` is what the responses deserved, also where training saw flipped
    rewards.
    """
    torch.set_num_threads(1)  # also: a base model that is built depends on their number
    row = ROWS[name]
    rewards = FlippedRewards(setting.flip, seed)
    known = {}
    if row.weights:
        known[name] = Method(weights=row.weights)

    with tempfile.TemporaryDirectory() as folder:
        flags = f"{setting.flags} {row.flags} --lr {rate} --seed {seed}".split()
        cfg = train.parse_config([*flags, *NO_EVALUATION, "--output-dir", folder])
        if row.weights:
            cfg = replace(cfg, method=name)  # train.py's --method does not offer it
        with (
            patch.dict(METHODS, known),
            patch.object(train, "model_folder", return_value=setting.base()),
            patch.object(train, "training_rewards", rewards),
            patch.object(train, "report"),  # curves that nobody looks at
            contextlib.redirect_stdout(io.StringIO()),
        ):
            train.train(cfg)
        lines = (Path(folder) / "metrics.jsonl").read_text().splitlines()

    steps = [json.loads(line) for line in lines]
    deserved = np.array(rewards.deserved).reshape(len(steps), -1)  # [steps, B]
    for step, of_step in zip(steps, deserved, strict=True):
        step["reward"] = float(of_step.mean())
    return steps
