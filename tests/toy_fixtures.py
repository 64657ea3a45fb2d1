"""Has the fixtures of all tests: the toy's base model, rollouts from it, and a finished run."""

import shutil

import pytest
from sampling import sampled
from toy_runs import EVALUATED, train_small
from transformers.utils import logging as hf_logging

import toy

hf_logging.disable_progress_bar()


@pytest.fixture(scope="session")
def base():
    """(model, tokenizer) of the toy's `sharpen` base. Read-only: tests that train copy it."""
    return toy.base_model()


@pytest.fixture
def base_copy(tmp_path):
    """A folder with the `sharpen` base, which a test may change."""
    return shutil.copytree(toy.BASES["sharpen"], tmp_path / "model")


@pytest.fixture(scope="session")
def first_model():
    """The model that a toy run starts from, in float32. Read-only."""
    return toy.base_model("learn")[0]


@pytest.fixture(scope="session")
def batch(base):
    """Rollouts of 6 problems x 4 responses: three problems with 3 operations, three with 5."""
    model, tokenizer = base
    problems = toy.problems(3, seed=5) + toy.problems(3, seed=6, k=3)
    prompts = tokenizer([problem["problem"] for problem in problems]).input_ids
    return sampled(model, tokenizer, prompts, list(range(6)), 4, max_new_tokens=48, step=1, seed=3)


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """The folder of an uninterrupted run of three steps. Read-only."""
    folder = tmp_path_factory.mktemp("runs") / "finished"
    train_small(folder, *EVALUATED, steps=3)
    return folder
