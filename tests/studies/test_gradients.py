"""studies/gradients.py, compared with gradients of single sequences."""

import math

import pytest
import torch

import toy
from studies.credit import batch
from studies.gradients import (
    cosine,
    direction,
    directions,
    parts_of,
    reliability,
    side_directions,
    side_means,
)


@pytest.fixture(scope="module")
def graded(base):
    """6 problems x 4 responses from the base model."""
    return batch(*base, toy.problems(6, seed=5), 4, seed=3)


def test_direction_is_the_gradient_of_the_weighted_log_probabilities(base, graded):
    """Compared with single sequences, unpadded and with a plain log-softmax."""
    lm = base[0]
    N = len(graded.tokens.logprob)
    coefficient = torch.linspace(-1, 2, N)

    total = 0.0
    packed = iter(coefficient)
    for i in range(len(graded.rollouts)):
        start = int(graded.rollouts.prompt_length[i])
        end = start + int(graded.rollouts.response_length[i])
        ids = graded.rollouts.ids[i, :end]
        logp = lm(ids[None]).logits[0].log_softmax(dim=-1)
        for t in range(start, end):
            total = total + next(packed) * logp[t - 1, ids[t]]
    gradients = torch.autograd.grad(total, list(lm.parameters()))
    expected = torch.cat([g.flatten() for g in gradients])

    found = direction(lm, graded.rollouts, coefficient)
    assert torch.allclose(found, expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))
    assert all(p.grad is None or not p.grad.any() for p in lm.parameters())


def test_directions_match_single_directions_on_selected_responses(base, graded):
    lm, rollouts = base[0], graded.rollouts
    N = len(graded.tokens.logprob)
    coefficients = torch.stack([torch.linspace(-1, 2, N), torch.ones(N)])
    index = torch.tensor([7, 2, 20])
    of_response = torch.arange(len(rollouts)).repeat_interleave(rollouts.response_length)
    found = directions(lm, rollouts, coefficients, index)
    for row, coefficient in zip(found, coefficients, strict=True):
        expected = direction(lm, rollouts, coefficient * torch.isin(of_response, index))
        torch.testing.assert_close(row, expected, rtol=1e-3, atol=1e-3)


def test_side_directions_add_up_to_the_update(base, graded):
    lm, rollouts = base[0], graded.rollouts
    advantage = graded.tokens.advantage
    weights = torch.linspace(0.5, 1.5, len(advantage))
    ((pos, neg),) = side_directions(lm, rollouts, graded.advantages, weights[None])
    expected = direction(lm, rollouts, weights * advantage.clamp(min=0))
    torch.testing.assert_close(pos, expected, rtol=1e-3, atol=1e-3)
    whole = direction(lm, rollouts, weights * advantage)
    torch.testing.assert_close(pos + neg, whole, rtol=1e-3, atol=2e-3)


def test_parts_match_a_hand_calculation():
    sides = torch.tensor([[2.0, 4.0], [-3.0, 6.0]])
    dapo = torch.tensor([[1.0, 1.0], [5.0, 0.0]])
    full, shape, means = parts_of(sides, dapo, torch.tensor([2.0, 3.0]))
    assert full.tolist() == [-1, 10]
    assert shape.tolist() == [0, 4]
    assert means.tolist() == [17, 2]


def test_equal_weights_on_each_side_change_only_the_means(base, graded):
    """Weights that differ only between the sides have DAPO's shape."""
    lm = base[0]
    advantage = graded.tokens.advantage
    weights = torch.where(advantage > 0, 0.7, 1.4)
    plain = torch.ones_like(weights)
    of_rows = side_directions(lm, graded.rollouts, graded.advantages, torch.stack([plain, weights]))
    means = side_means(weights, advantage)
    torch.testing.assert_close(means, torch.tensor([0.7, 1.4]))
    full, shape, only_means = parts_of(of_rows[1], of_rows[0], means)
    torch.testing.assert_close(full, only_means, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(shape, of_rows[0].sum(dim=0), rtol=1e-3, atol=1e-3)


def test_reliability_corrects_for_estimation_noise():
    """Divided by the root of the reliability, a noisy estimate's cosine is the true cosine."""
    generator = torch.Generator().manual_seed(0)
    truth = torch.randn(20_000, generator=generator)
    update = truth + torch.randn(20_000, generator=generator)
    halves = [truth + 2 * torch.randn(20_000, generator=generator) for _ in range(2)]
    known = reliability(cosine(*halves))
    assert known == pytest.approx(1 / 3, abs=0.03)  # signal variance 1, noise variance 4 / 2
    measured = cosine(update, halves[0] + halves[1])
    assert measured < 0.45
    assert measured / math.sqrt(known) == pytest.approx(cosine(update, truth), abs=0.03)


def test_reliability_is_nan_if_the_halves_disagree():
    assert math.isnan(reliability(0.0)) and math.isnan(reliability(-0.1))
    assert reliability(1.0) == 1
