"""Tests train.update: what is counted as clipped, and which gradients make a step."""

from pathlib import Path

import pytest
import torch
from forked import finished, torchrun
from hashed_rewards import hashes
from toy_runs import small_config

import train
from infra import grading
from infra.progress import Stopwatch
from methods import Method

WORKER = str(Path(__file__).parent / "infra" / "unequal_weights.py")


def one_step(folder, surrogate, monkeypatch) -> tuple:
    """(the run, its metrics and tokens) after a step of two updates with this surrogate."""
    monkeypatch.setattr(grading, "grade_all", hashes)
    cfg = small_config(folder, "--method", "dapo", steps=1)
    run = train.prepare(cfg)
    watch = Stopwatch()
    rollouts = train.sample(run, 1, watch)
    method = Method(surrogate=surrogate)
    found, tokens, _ = train.train_step(run.policy, run.optimizer, method, rollouts, cfg, 1, watch)
    return run, found, tokens


def test_clip_fraction_is_a_share_of_tokens(tmp_path, monkeypatch):
    def odd_tokens(logprob, tokens, cfg):
        return logprob * tokens.advantage * (tokens.token % 2)

    _, found, tokens = one_step(tmp_path / "run", odd_tokens, monkeypatch)
    clipped = (tokens.token % 2 == 0) & (tokens.advantage != 0)
    assert found["clip_fraction"] == pytest.approx(float(clipped.float().mean()))
    assert 0.1 < found["clip_fraction"] < 0.9 and found["updates"] == 2


@pytest.mark.parametrize("factor", [1e38, float("nan")])
def test_a_gradient_whose_norm_is_not_finite_makes_no_step(factor, tmp_path, monkeypatch):
    def huge(logprob, tokens, cfg):
        return factor * logprob * tokens.advantage

    before = train.prepare(small_config(tmp_path / "other", steps=1)).policy
    run, found, _ = one_step(tmp_path / "run", huge, monkeypatch)
    assert (found["updates"], found["skipped_updates"]) == (0, 2)
    assert not run.optimizer.state
    pairs = zip(before.parameters(), run.policy.parameters(), strict=True)
    assert all(torch.equal(*pair) for pair in pairs)


def test_weights_that_differ_between_ranks_are_one_line(tmp_path):
    """Otherwise a method that reads only its rank's rows would train on wrong token weights."""
    process = finished(torchrun(2, WORKER, str(tmp_path / "run")), code=2)
    assert "gives different weights on different ranks: a rank holds only" in process.stderr
    assert "Traceback" not in process.stderr.split("train.py:")[0]
