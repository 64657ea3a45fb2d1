"""The rows of the paper's tables on the toy, and one run of a row; method_study.py compares them.

Chains of 12 operations with rare errors, where credit matters most: a response of some 90 tokens is
wrong because of one of them.
"""

import contextlib
import io
import json
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

import torch

import train
from benchmarks.credit import decisive
from infra.packing import TokenBatch
from methods import METHODS, Method

TASK = (
    "--toy-k 12 --toy-noise 0.06 --max-prompt-tokens 40 --max-new-tokens 112 "
    "--prompts 8 --group-size 8 --mini-batch 4 --steps 24 --save-every 24"
)
NO_EVALUATION = ["--eval-data", ""]  # the study looks at training rewards


@dataclass(frozen=True)
class Row:
    """A row of the paper's tables."""

    flags: str  # of train.py
    paper: str = "-"  # its average for 8B, in percent


ORACLE = "oracle"

# Tables 1 to 3 and the analysis runs of Sec. 5.2, whose averages are over different benchmarks.
ROWS = {
    "dapo": Row("--method dapo", "22.95"),
    "grpo": Row("--method grpo"),
    "reinforce": Row("--method reinforce"),
    "forking_tokens": Row("--method forking_tokens", "24.80"),
    "sapo": Row("--method sapo", "25.14"),
    "fipo": Row("--method fipo", "23.89"),
    "delta": Row("--method delta", "28.40"),
    ORACLE: Row("--method dapo"),  # with the weights of `oracle`
    "within_side": Row("--delta-variant within_side", "17.94"),
    "fixed_gamma": Row("--delta-variant fixed_gamma", "21.19"),
    "hard": Row("--delta-variant hard", "20.93"),
    "no_norm": Row("--delta-variant no_norm", "21.39"),
    "no_range_map": Row("--delta-variant no_range_map", "20.78"),
    "K = 0": Row("--K 0", "19.97"),
    "K = 2": Row("--K 2", "22.15"),
    "K = 3": Row("--K 3", "22.20"),
    "lam_min 0.5": Row("--lam-min 0.5", "23.22"),
    "lam_max 1.5": Row("--lam-max 1.5", "22.77"),
    "both": Row("--lam-min 0.5 --lam-max 1.5", "23.07"),
    "topk proxy": Row("--proxy topk", "24.29"),
    "exact proxy": Row("--proxy exact"),
    "random": Row("--delta-variant random", "18.34"),
    "select top": Row("--select top"),
    "select random": Row("--select random"),
    "select bottom": Row("--select bottom"),
}


def oracle(tokens: TokenBatch, flags) -> torch.Tensor:
    """ρ [N] from what only the toys know: 1.1 on the tokens that decided the reward, else 0.1.

    Scaled to mean 1.
    """
    responses = tokens.token.split(tokens.length.tolist())
    marks = []
    for problem, ids in zip(tokens.problems, responses, strict=True):
        marks.append(decisive(problem, ids))
    weights = 0.1 + torch.cat(marks).float()
    return weights / weights.mean()


def run_row(name: str, rate: float, seed: int, task: str = TASK) -> list[dict]:
    """One run of a row, in this process and silent: its metrics, step by step.

    rate: learning rate; task: flags of train.py that all rows share.
    """
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        flags = f"{task} {ROWS[name].flags} --lr {rate} --seed {seed}".split()
        cfg = train.parse_config([*flags, *NO_EVALUATION, "--output-dir", folder])
        if name == ORACLE:
            cfg = replace(cfg, method=ORACLE)  # train.py's --method does not offer it

        known = {ORACLE: Method(weights=oracle)}
        with patch.dict(METHODS, known), contextlib.redirect_stdout(io.StringIO()):
            train.train(cfg)
        lines = (Path(folder) / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]
