"""Tests grpo.py against loops over the formulas."""

import math

import pytest
import torch

from grpo import (
    clipped_surrogate,
    group_advantages,
    overlong_penalty,
)


def test_group_advantages_match_formula():
    rewards = torch.tensor([1.0, 0, 0, 1, 0, 0, 0.5, -0.5, 1])
    expected = []
    for group in rewards.view(3, 3).tolist():
        mean = sum(group) / 3
        std = math.sqrt(sum((r - mean) ** 2 for r in group) / 2)
        expected += [(r - mean) / (std + 1e-6) for r in group]
    torch.testing.assert_close(group_advantages(rewards, 3), torch.tensor(expected))


def test_group_advantages_equal_rewards_give_exact_zeros():
    rewards = torch.linspace(0.1, 0.9, 33).repeat_interleave(8)  # the means of some are rounded
    assert torch.equal(group_advantages(rewards, 8), torch.zeros(33 * 8))


@pytest.mark.parametrize("max_length, buffer", [(64, 40), (64, 64), (20480, 4096)])
def test_overlong_penalty_follows_the_formula(max_length, buffer):
    lengths = [1, max_length // 2, max_length - buffer, max_length - buffer // 3, max_length]
    expected = [min(0, -(L - (max_length - buffer)) / buffer) for L in lengths]
    penalty = overlong_penalty(torch.tensor(lengths), max_length, buffer)
    assert penalty.tolist() == pytest.approx(expected)
    assert overlong_penalty(torch.tensor(lengths), max_length, 0).tolist() == [0] * 5


@pytest.mark.parametrize("A", [1.5, -0.5])
def test_clipped_surrogate_both_sides_and_dual_clip(A):
    ratios = [0.3, 0.79, 0.81, 1.0, 1.27, 1.29, 3.0, 12.0]
    expected = []
    for r in ratios:
        u = min(r * A, min(max(r, 0.8), 1.28) * A)
        expected.append(max(u, 10 * A) if A < 0 else u)
    log_ratio = torch.tensor(ratios).log()
    ours = clipped_surrogate(log_ratio, torch.zeros(8), torch.full((8,), A), 0.2, 0.28)
    torch.testing.assert_close(ours, torch.tensor(expected))


def test_clipped_surrogate_survives_extreme_ratios():
    logprob = torch.tensor([-1e4, 1e4], requires_grad=True)
    surrogate = clipped_surrogate(logprob, torch.zeros(2), torch.tensor([1.0, -1.0]), 0.2, 0.28)
    surrogate.sum().backward()
    assert logprob.grad.isfinite().all()
