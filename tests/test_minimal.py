"""minimal.py is the specification of train.py: every step of both has the same numbers."""

import re
from pathlib import Path

import pytest
import torch
from references import two_sides
from toy_runs import HELD_OUT, read_lines

import grpo
import minimal
import toy
import train
from delta import delta_coefficients, token_gradient_proxy
from methods import DAPO_CLIP


def test_minimal_and_train_have_the_same_steps_and_accuracies(tmp_path, monkeypatch, capsys):
    """Loss and gradient norm differ by rounding: train.py passes over a mini-batch in parts."""
    flags = ["--K", "2", "--steps", "2", "--seed", "5"]
    own = ["--micro-batch-tokens", "700", "--eval-data", HELD_OUT, "--output-dir", str(tmp_path)]
    train.main([*flags, *own])
    before, *lines = read_lines(tmp_path / "metrics.jsonl")
    capsys.readouterr()
    problems = toy.problems

    def with_few_held_out(count, seed):
        return problems(48, seed)[:8] if seed == 1 else problems(count, seed)  # HELD_OUT has these

    monkeypatch.setattr(toy, "problems", with_few_held_out)
    steps = minimal.main(flags)

    for line, step in zip(lines, steps, strict=True):
        assert step["reward"] == line["reward"]
        assert step["loss"] == pytest.approx(line["loss"], abs=1e-6)
        assert step["grad_norm"] == pytest.approx(line["grad_norm"], rel=1e-3)
    printed = [line for line in capsys.readouterr().out.splitlines() if line[:8] == "accuracy"]
    assert printed == [
        f"accuracy {line['eval_accuracy']:.3f}, greedy {line['eval_greedy']:.3f}"
        for line in (before, lines[-1])
    ]


def test_the_page_imports_only_the_task_and_the_reward():
    """No formula is defined elsewhere."""
    imported = re.findall(
        r"^(?:from|import) (\S+)", Path(minimal.__file__).read_text(), re.MULTILINE
    )
    assert set(imported) == {"argparse", "typing", "numpy", "torch", "toy", "verify"}


@pytest.mark.parametrize("K", [0, 1, 2, 3])
def test_token_weights_are_delta_coefficients(K):
    hidden, A = two_sides()
    logprob = -torch.rand(len(A), generator=torch.Generator().manual_seed(0))
    v = token_gradient_proxy(hidden, logprob)
    for advantage in (A, A.abs(), -A.abs()):  # both sides, and one of them empty
        ours = minimal.token_weights("delta", hidden, logprob, advantage, K)
        torch.testing.assert_close(ours, delta_coefficients(v, advantage, K), rtol=0, atol=2e-6)
    assert torch.equal(minimal.token_weights("dapo", hidden, logprob, A, K), torch.ones(len(A)))


def test_advantages_and_surrogate_are_those_of_grpo():
    g = torch.Generator().manual_seed(0)
    rewards = (torch.rand(80, generator=g) < 0.2).float()  # some groups have equal rewards
    advantage = minimal.group_advantages(rewards, 8)
    assert torch.equal(advantage, grpo.group_advantages(rewards, 8))
    assert (advantage == 0).any() and (advantage != 0).any()

    assert not minimal.group_advantages(torch.full((8,), 0.7), 8).any()  # whose mean is not 0.7

    log_ratio = torch.linspace(-3, 3, 80)  # both clips and the dual clip
    old = torch.full((80,), -1.0)
    for A in (advantage, torch.ones(80), -torch.ones(80)):
        ours = minimal.clipped_surrogate(old + log_ratio, old, A)
        assert torch.equal(ours, grpo.clipped_surrogate(old + log_ratio, old, A, *DAPO_CLIP))


def test_a_step_without_an_advantage_changes_nothing_and_prints_no_nan(monkeypatch):
    monkeypatch.setattr(minimal, "MAX_NEW_TOKENS", 8)
    lm, tokenizer = toy.base_model("learn")
    before = [p.detach().clone() for p in lm.parameters()]
    rollouts = minimal.sample(lm, tokenizer, toy.problems(16, seed=1), range(16), 8, seed=0)
    optimizer = torch.optim.AdamW(lm.parameters())
    rollouts = rollouts._replace(rewards=torch.ones(128))
    metrics, A, weight = minimal.train_step(lm, optimizer, rollouts, "delta")
    logprob = metrics.pop("logprob")
    assert metrics == {"reward": 1.0, "mixed": 0.0, "loss": 0.0, "grad_norm": 0.0, "|r-1|": 0.0}
    assert -0.2 < logprob < 0
    assert not A.any() and torch.equal(weight, torch.ones_like(weight))
    assert all(torch.equal(a, b) for a, b in zip(before, lm.parameters(), strict=True))


def test_numbers_of_a_step_tell_equal_groups_and_a_policy_that_does_not_move(monkeypatch):
    monkeypatch.setattr(minimal, "MAX_NEW_TOKENS", 24)
    moved = {}
    for rate in (0.0, 1e-3):
        lm, tokenizer = toy.base_model("learn")
        rollouts = minimal.sample(lm, tokenizer, toy.problems(8, seed=1), range(8), 8, seed=0)
        rewards = torch.tensor([[1.0, 0] * 4, [1] * 8, [0] * 7 + [1], [0] * 8] * 2).flatten()
        optimizer = torch.optim.AdamW(lm.parameters(), lr=rate)
        with torch.no_grad():
            old, _ = minimal.token_outputs(lm, rollouts.ids, rollouts.is_token)
        rollouts = rollouts._replace(rewards=rewards)
        metrics, _, _ = minimal.train_step(lm, optimizer, rollouts, "dapo")
        assert metrics["mixed"] == 0.5
        assert metrics["logprob"] == pytest.approx(float(old.mean()), abs=1e-6)
        moved[rate] = metrics["|r-1|"]
    assert moved[0.0] < 1e-5 < 1e-3 < moved[1e-3]
