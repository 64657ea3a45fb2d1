"""train.clip_and_step: the optimiser step, and gradients that are not finite."""

import math
import signal
from types import SimpleNamespace

import pytest
import torch
from infra.checkpoints import RunState
from toy_runs import read_lines, same_weights, small_config, train_steps

import train
from methods import METHODS, Method
from train import clip_and_step

NOT_FINITE = [math.inf, -math.inf, math.nan]


@pytest.fixture
def update():
    """Plain gradient descent on a vector of two numbers, with learning rate 1."""
    vector = torch.nn.Parameter(torch.tensor([5.0, 7.0]))
    policy = torch.nn.ParameterList([vector])
    optimizer = torch.optim.SGD([vector], lr=1.0)
    run = SimpleNamespace(policy=policy, optimizer=optimizer, state=RunState())

    def step(gradient, max_grad_norm=1.0):
        vector.grad = torch.tensor(gradient)
        return clip_and_step(run, max_grad_norm)

    return SimpleNamespace(step=step, vector=vector, state=run.state)


def test_clip_and_step_returns_the_norm_and_clips_to_the_limit(update):
    assert update.step([3.0, 4.0], max_grad_norm=0.5) == pytest.approx(5)
    moved = torch.tensor([5.0, 7.0]) - update.vector.detach()
    torch.testing.assert_close(moved, torch.tensor([0.3, 0.4]))


def test_clip_and_step_leaves_a_short_gradient_unclipped_then_clears_it(update):
    assert update.step([0.03, 0.04]) == pytest.approx(0.05)
    torch.testing.assert_close(update.vector.detach(), torch.tensor([4.97, 6.96]))
    assert update.vector.grad is None


@pytest.mark.parametrize("bad", NOT_FINITE)
def test_clip_and_step_skips_a_gradient_that_is_not_finite(update, bad):
    norm = update.step([0.1, bad])
    assert not math.isfinite(norm)
    assert update.vector.tolist() == [5, 7]
    assert update.vector.grad is None
    assert update.state.streak == 1


def test_clip_and_step_counts_consecutive_skips(update):
    update.step([math.nan, 0.0])
    update.step([math.inf, 0.0])
    assert update.state.streak == 2
    update.step([0.1, 0.0])
    assert update.state.streak == 0


@pytest.mark.parametrize("bad", NOT_FINITE)
def test_clip_and_step_raises_at_the_third_consecutive_skip(update, bad):
    update.state.streak = 2  # two skips before
    with pytest.raises(FloatingPointError, match="not finite in 3 updates in a row"):
        update.step([bad, 0.0])
    assert update.vector.tolist() == [5, 7]


# ---- in a run ----------------------------------------------------------------------------------


@pytest.fixture
def exploding(monkeypatch):
    """A method whose objective is infinite in the steps of the returned set."""
    bad = set()
    done = []

    def weights(tokens, flags):
        done.append("a step")
        return torch.ones_like(tokens.advantage)

    def surrogate(logprob, old_logprob, advantage, flags):
        return logprob * (math.inf if len(done) in bad else 1.0)

    monkeypatch.setitem(METHODS, "exploding", Method(weights=weights, surrogate=surrogate))
    return bad


def exploding_config(folder, steps):
    """A configuration with one update per step."""
    cfg = small_config(folder, "--mini-batch", "8", steps=steps)
    cfg.method = "exploding"
    return cfg


def test_a_skipped_update_is_counted_and_changes_nothing(exploding, tmp_path, first_model):
    exploding.add(1)
    run = train_steps(exploding_config(tmp_path, steps=1))
    (row,) = read_lines(tmp_path / "metrics.jsonl")
    assert row["skipped_updates"] == 1
    assert row["grad_norm"] == 0
    assert same_weights(run.policy, first_model)


def test_three_skipped_updates_in_a_row_stop_the_run(exploding, tmp_path, monkeypatch, capsys):
    """The step after the last good step writes no checkpoint, although one is due."""
    exploding |= {4, 5, 6}
    cfg = exploding_config(tmp_path, steps=9)
    monkeypatch.setattr(train, "parse_config", lambda argv: cfg)
    with pytest.raises(SystemExit) as stopped:
        train.main([])
    assert stopped.value.code == 1
    said = capsys.readouterr().err
    assert "not finite in 3 updates in a row" in said
    assert "lower --lr" in said
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-000002"]
    steps = [row["step"] for row in read_lines(tmp_path / "metrics.jsonl")]
    assert steps == [1, 2, 3, 4, 5]


def test_a_run_stopped_while_diverging_keeps_its_good_checkpoints(
    exploding, tmp_path, monkeypatch, capsys
):
    """A signal stops the run in step 4, whose update is skipped. It continues after step 2."""
    exploding.add(4)
    cfg = exploding_config(tmp_path, steps=5)
    monkeypatch.setattr(train, "parse_config", lambda argv: cfg)

    update = train.update
    calls = []

    def told_to_stop_in_step_4(*arguments):
        calls.append("an update")
        if len(calls) == 4:
            signal.raise_signal(signal.SIGTERM)
        return update(*arguments)

    monkeypatch.setattr(train, "update", told_to_stop_in_step_4)
    with pytest.raises(SystemExit) as stopped:
        train.main([])
    assert stopped.value.code == 128 + signal.SIGTERM
    said = capsys.readouterr().err
    assert "after step 4, without a checkpoint" in said
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-000002"]

    train.main([])  # the objective is finite from here on
    assert [row["step"] for row in read_lines(tmp_path / "metrics.jsonl")] == [1, 2, 3, 4, 5]
