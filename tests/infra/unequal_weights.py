"""Trains with a method that wrongly reads only its own rank's rows: torchrun ... FILE FOLDER."""

import sys
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).parent.parent.parent))
sys.path.insert(0, str(Path(__file__).parent.parent))

import torch
from hashed_rewards import rewarded
from toy_runs import SMALL

import config
import train
from methods import Method


def own_rows(tokens, v, cfg) -> torch.Tensor:
    """ρ from the rows of this rank alone."""
    weights = torch.ones_like(tokens.advantage)
    for index, rows in v:
        weights[index] = 1 + rows.norm(dim=1)
    return weights / weights.mean()


def hidden(outputs, head) -> torch.Tensor:
    return outputs.hidden


if __name__ == "__main__":
    method = Method(weights=own_rows, features=hidden)
    with rewarded(), mock.patch.dict(config.METHODS, dapo=method):
        train.main([*SMALL, "--method", "dapo", "--steps", "1", "--output-dir", sys.argv[1]])
