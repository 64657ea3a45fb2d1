"""delta.py against slow references: float64, explicit loops, explicit squared distances."""

import pytest
import torch
from references import SlowDelta, two_sides

from delta import (
    delta_coefficients,
    margins,
    normalise,
    scores,
    token_gradient_proxy,
)


@pytest.mark.parametrize("K", [0, 1, 2, 3])
def test_delta_coefficients_match_reference(K):
    v, advantage = two_sides(seed=K)
    expected = SlowDelta(v, advantage).coefficients(K, 0.7, 1.3)
    ours = delta_coefficients(v, advantage, K, 0.7, 1.3)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, expected.float(), rtol=2e-5, atol=2e-5)
    in_float64 = delta_coefficients(v.double(), advantage.double(), K, 0.7, 1.3)
    torch.testing.assert_close(in_float64, expected, rtol=1e-9, atol=1e-9)


def test_delta_coefficients_lagged_temperature():
    """K = 1 scores with the γ of Δ⁽⁰⁾ (App. H); the γ of Δ⁽¹⁾ would give other coefficients."""
    v, advantage = two_sides(seed=2)
    slow = SlowDelta(v, advantage)
    first = slow.margins([1.0] * len(v))
    second = slow.margins(slow.scores(first, slow.temperatures(first)))
    lagged = torch.tensor(slow.scores(second, slow.temperatures(first)))
    fresh = torch.tensor(slow.scores(second, slow.temperatures(second)))

    ours = delta_coefficients(v, advantage, K=1, lam_min=0, lam_max=1)
    sides = advantage != 0
    as_given = ours[sides] / ours[sides].mean()
    torch.testing.assert_close(as_given, lagged[sides] / lagged[sides].mean(), rtol=1e-4, atol=1e-4)
    assert (as_given - fresh[sides] / fresh[sides].mean()).abs().max() > 1e-2


def test_margins_linear_form_equals_squared_distances():
    """App. G: ‖v-μ₋‖² - ‖v-μ₊‖² on the positive side, its negative on the other, 0 where A = 0."""
    v, advantage = two_sides(seed=1, dtype=torch.float64)
    mu_pos = v[:10].mean(0)
    mu_neg = v[10:25].mean(0) + 1
    direct = (v - mu_neg).square().sum(1) - (v - mu_pos).square().sum(1)
    torch.testing.assert_close(
        margins(v, advantage, mu_pos, mu_neg), direct * advantage.sign().double()
    )


@pytest.mark.parametrize("delta, gamma", [(0.7, 0.5), (-1.2, 0.9), (0.0, 1.0), (0.2, 3.0)])
def test_scores_maximise_the_entropy_regularised_margin(delta, gamma):
    """Eqs. 5-6: no α on a fine grid of [0, 1] beats σ(Δ/γ) in α Δ + γ h(α)."""
    grid = torch.linspace(1e-4, 1 - 1e-4, 20001, dtype=torch.float64)
    h = -(grid * grid.log() + (1 - grid) * (1 - grid).log())
    best = grid[(grid * delta + gamma * h).argmax()]
    one = torch.ones(1, dtype=torch.float64)
    own, other = torch.tensor(gamma), torch.tensor(gamma + 5)
    on_positive = scores(delta * one, one, own, other)
    on_negative = scores(delta * one, -one, other, own)
    assert abs(on_positive - best) < 1e-4
    assert abs(on_negative - best) < 1e-4


def test_normalise_gives_mean_one_and_keeps_ratios():
    lam = normalise(torch.tensor([0.8, 1.2, 1.6]))
    assert lam.tolist() == pytest.approx([2 / 3, 1.0, 4 / 3])
    assert torch.equal(normalise(torch.zeros(3)), torch.ones(3))


def test_token_gradient_proxy_is_the_lm_head_row_gradient():
    """App. F: the gradient of log p(y) with respect to row y of the LM head, by autograd."""
    g = torch.Generator().manual_seed(0)
    W = torch.randn(7, 4, generator=g, requires_grad=True)
    h = torch.randn(3, 4, generator=g)
    y = torch.tensor([2, 0, 6])
    logprob = (h @ W.T).log_softmax(-1).gather(1, y[:, None]).squeeze(1)
    gradients = [torch.autograd.grad(logprob[i], W, retain_graph=True)[0] for i in range(3)]
    expected = torch.stack([gradients[i][y[i]] for i in range(3)])
    torch.testing.assert_close(token_gradient_proxy(h, logprob.detach()), expected)


def test_token_gradient_proxy_is_accurate_near_certainty():
    """1 - p keeps its digits for p near 1; computed as 1 - exp(log p), float32 would give 0."""
    v = token_gradient_proxy(torch.ones(1, 1), torch.tensor([-1e-9]))
    torch.testing.assert_close(v, torch.tensor([[1e-9]]), rtol=1e-5, atol=0)


@pytest.mark.parametrize("advantage", [[1.0, 2.0, 0.0], [-1.0, -2.0, 0.0], [0.0, 0.0], []])
def test_an_empty_side_gives_all_ones(advantage):
    N = len(advantage)
    lam = delta_coefficients(torch.randn(N, 4), torch.tensor(advantage), lam_min=0.0)
    assert torch.equal(lam, torch.ones(N))


DEGENERATE = [
    torch.zeros(4, 3),
    torch.ones(4, 3),
    torch.full((4, 3), 1e-44),
    torch.full((4, 3), 1e15),
    torch.randn(4, 3, dtype=torch.bfloat16),
    torch.tensor([[5.0, 1], [5, 1], [-5, 1], [-5, 1]]),
]


@pytest.mark.parametrize("v", DEGENERATE)
def test_delta_coefficients_are_finite_for_finite_input(v):
    """Equal margins reach the floor of the temperatures."""
    for advantage in ([1.0, 2.0, -1.0, 0.0], [1e-30, 1e30, -1e-30, -1e30], [1.0, -1.0, 1.0, -1.0]):
        for lam_min, lam_max in ((0.0, 0.0), (0.0, 1.0), (0.8, 1.2)):
            lam = delta_coefficients(v, torch.tensor(advantage), 1, lam_min, lam_max)
            assert lam.isfinite().all()


@pytest.mark.parametrize("bad", [float("nan"), float("-inf")])
def test_delta_coefficients_reject_values_that_are_not_finite(bad):
    v, advantage = two_sides(seed=7)
    v[17, 2] = bad
    with pytest.raises(ValueError, match="v contains NaN or inf"):
        delta_coefficients(v, advantage)
    with pytest.raises(ValueError, match="v contains NaN or inf"):
        delta_coefficients(v, advantage.abs())
    v, advantage = two_sides(seed=7)
    advantage[3] = bad
    with pytest.raises(ValueError, match="advantage contains"):
        delta_coefficients(v, advantage)


def test_delta_coefficients_reject_margins_that_overflow():
    v, advantage = two_sides(seed=7)
    with pytest.raises(ValueError, match="margin is not finite"):
        delta_coefficients(v * 1e30, advantage)


BAD_ARGUMENTS = [
    ({"K": -1}, "K is -1"),
    ({"K": 0.5}, "K is 0.5"),
    ({"lam_min": 1.3}, "lam_min"),
    ({"lam_max": float("inf")}, "lam_max"),
    ({"advantage": torch.ones(4)}, r"\(61, 5\) and \(4,\)"),
    ({"v": torch.ones(61)}, r"\(61,\)"),
]


@pytest.mark.parametrize("change, match", BAD_ARGUMENTS)
def test_delta_coefficients_reject_bad_arguments(change, match):
    v, advantage = two_sides()
    with pytest.raises(ValueError, match=match):
        delta_coefficients(**({"v": v, "advantage": advantage} | change))


def test_delta_coefficients_are_accurate_in_bfloat16():
    """Sums over 20,000 bfloat16 rows are as accurate as over the same rows in float64."""
    v, advantage = two_sides(N=20_000, H=8, seed=8, dtype=torch.bfloat16)
    torch.testing.assert_close(
        delta_coefficients(v, advantage),
        delta_coefficients(v.double(), advantage).float(),
        rtol=1e-4,
        atol=1e-4,
    )
