"""Shared fixtures: the repository on the path, and the toy's base model, built once and cached in .cache/."""
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import toy  # noqa: E402
from rollout import rollout  # noqa: E402


@pytest.fixture(scope="session")
def base():
    """(model, tokenizer) of the toy's base model; read-only: tests that train copy it."""
    model, tokenizer = toy.base_model()
    return model.eval(), tokenizer


@pytest.fixture(scope="session")
def batch(base):
    """Rollouts of 6 problems x 4 responses of unequal lengths (the base model, three of the prompts shorter)."""
    model, tokenizer = base
    texts = [p["problem"] for p in toy.problems(3, seed=5)] + [p["problem"] for p in toy.problems(3, seed=6, k=3)]
    return rollout(model, tokenizer, tokenizer(texts).input_ids, list(range(6)), 4, 48, seed=3, step=1)


@pytest.fixture(scope="session")
def generator():
    return torch.Generator().manual_seed(0)
