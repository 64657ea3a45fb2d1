"""Looks up the toys: a model or problem set by its name, and a problem's task by its text."""

import re
from pathlib import Path

import torch

from toy import code_task, code_tokenizer, task
from toy.base import base_folder
from toy.code_base import code_base_folder
from toy.tokenizer import LARGE_VOCABULARY

SETS = ("toy", "toy-held-out", "toy-code", "toy-code-held-out")
TASKS = (  # how a problem begins, vocabulary, which tokens decided
    (r"\d([-+*]\d)+=\?", LARGE_VOCABULARY, task.decisive),
    (r"f\(.*\): take ", code_tokenizer.VOCABULARY, code_task.decisive),
)


def model_folder(cfg) -> str | Path:
    """The location of --model: a toy's base, or the folder or hub id given."""
    if cfg.model == "toy":
        settings = (cfg.toy_k, cfg.toy_noise, cfg.toy_filler)
        return base_folder(*settings, regime=cfg.toy_regime, zipf=cfg.toy_zipf)
    if cfg.model == "toy-code":
        return code_base_folder()
    return cfg.model


def problem_set(name: str, k: int = 5, seed: int = 0) -> list[dict]:
    """The problems in one of SETS. The held-out problems do not depend on `seed`.

    k: operations in a toy problem.
    """
    if name == "toy":
        return task.problems(8192, seed=2 * seed, k=k)
    if name == "toy-held-out":
        return task.problems(512, seed=1, k=k)  # odd, so no training set has this seed
    if name == "toy-code":
        return code_task.problems(2048, seed=2 * seed)
    return code_task.problems(256, seed=1)


def decisive_tokens(problem: str, tokens: list[str]) -> list[int] | None:
    """The positions of the tokens that decided the reward; None unless the task is a toy."""
    for pattern, vocabulary, decisive in TASKS:
        known = {token: i for i, token in enumerate(vocabulary)}
        if re.match(pattern, problem) and known.keys() >= set(tokens):
            ids = torch.tensor([known[token] for token in tokens])
            return decisive(problem, ids).nonzero().flatten().tolist()
    return None
