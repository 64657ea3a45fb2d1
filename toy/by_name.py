"""Looks up the toys: a model or a problem set by its name, a chain by its text."""

import re
from pathlib import Path

from toy import task
from toy.base import BASES
from toy.tokenizer import VOCABULARY

SETS = ("toy", "toy-held-out", "toy-code", "toy-code-held-out")


def model_folder(name: str, regime: str = "learn") -> str | Path:
    """The location of --model: a toy's base, or the folder or hub id given."""
    if name == "toy":
        return BASES[regime]
    if name == "toy-code":
        return BASES["code"]
    return name


def problem_set(name: str, seed: int = 0) -> list[dict]:
    """The problems in one of SETS. The held-out problems do not depend on `seed`."""
    if name == "toy":
        return task.problems(8192, seed=2 * seed)
    if name == "toy-held-out":
        return task.problems(512, seed=1)  # training sets have even seeds
    from toy import code_task

    if name == "toy-code":
        return code_task.problems(2048, seed=2 * seed)
    return code_task.problems(256, seed=1)


def decisive_tokens(problem: str, tokens: list[str]) -> list[int] | None:
    """The positions of the tokens that decided the reward; None unless the problem is a chain."""
    if not re.match(r"\d([-+*]\d)+=\?", problem) or not set(tokens) <= set(VOCABULARY):
        return None
    return task.decisive_places(problem, tokens)
