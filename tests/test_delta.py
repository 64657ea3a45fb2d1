"""Tests delta.py against slow references: float64, explicit loops, explicit squared distances.

Eqs. 2-3 are compared with autograd, on all parameters of a model.
"""

import math

import pytest
import torch
from models import random_lm
from references import SlowDelta, two_sides
from torch.nn.utils import parameters_to_vector

from delta import centroids, delta_coefficients, token_gradient_proxy
from grpo import clipped_surrogate


@pytest.mark.parametrize("K", [0, 1, 2, 3])
def test_delta_coefficients_match_reference(K):
    v, advantage = two_sides(seed=K)
    expected = SlowDelta(v, advantage).coefficients(K, 0.7, 1.3)
    ours = delta_coefficients(v, advantage, K, 0.7, 1.3)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, expected.float(), rtol=2e-5, atol=2e-5)
    in_float64 = delta_coefficients(v.double(), advantage.double(), K, 0.7, 1.3)
    torch.testing.assert_close(in_float64, expected, rtol=1e-9, atol=1e-9)


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


DEGENERATE = [*(torch.full((4, 3), x) for x in (0.0, 1.0, 1e-44, 1e15))]
DEGENERATE += [torch.tensor([[5.0, 1], [5, 1], [-5, 1], [-5, 1]])]


@pytest.mark.parametrize("v", DEGENERATE)
def test_delta_coefficients_are_finite_for_finite_input(v):
    """Equal margins reach the floor of the temperatures."""
    for advantage in ([1.0, 2.0, -1.0, 0.0], [1e-30, 1e30, -1e-30, -1e30], [1.0, -1.0, 1.0, -1.0]):
        for lam_min, lam_max in ((0.0, 0.0), (0.0, 1.0), (0.8, 1.2)):
            lam = delta_coefficients(v, torch.tensor(advantage), 1, lam_min, lam_max)
            assert lam.isfinite().all()


V, A = two_sides(seed=7)
WITHOUT = int((A == 0).nonzero()[0])  # a token without an advantage
ROW = torch.tensor([3])
REFUSED = [  # v, advantage, other arguments, the reason
    (V.index_fill(0, ROW, math.nan), A, {}, "margin is not finite: v or A has NaN or inf"),
    (V.index_fill(0, torch.tensor([WITHOUT]), math.nan), A, {}, "margin is not finite"),
    (V, A.index_fill(0, ROW, math.nan), {}, "margin is not finite"),
    (V * 1e30, A, {}, "margin is not finite"),
    (V, A, {"K": -1}, "need K >= 0, 0 <= lam_min <= lam_max: got"),
    (V, A, {"lam_min": 1.3}, "need K >= 0, 0 <= lam_min <= lam_max: got"),
    (V, A[:4], {}, r"v must be \[N, H\] and advantage \[N\], got \(61, 5\)"),
]


@pytest.mark.parametrize("v, advantage, others, reason", REFUSED)
def test_delta_coefficients_reject_what_has_no_meaning(v, advantage, others, reason):
    with pytest.raises(ValueError, match=reason):
        delta_coefficients(v, advantage, **others)


def test_delta_coefficients_are_accurate_in_bfloat16():
    """Sums over 20,000 bfloat16 rows are as accurate as over the same rows in float64."""
    v, advantage = two_sides(N=20_000, H=8, seed=8, dtype=torch.bfloat16)
    expected = delta_coefficients(v.double(), advantage).float()
    torch.testing.assert_close(delta_coefficients(v, advantage), expected, rtol=1e-4, atol=1e-4)


def test_surrogate_gradient_is_the_mass_weighted_centroid_difference():
    """Eqs. 2-3, and Eqs. 9-11 with weights, give ∇ of Σ ρ min(rA, clip(r)A) at θ_old exactly."""
    lm = random_lm("gpt2").double()  # its norms do not compute in float32
    ids = torch.randint(3, 30, (4, 25), generator=torch.Generator().manual_seed(0))
    logp = lm(ids).logits[:, 4:-1].log_softmax(-1)  # the prompts have 5 tokens
    logprob = logp.gather(2, ids[:, 5:, None]).flatten()  # [N]
    advantage = torch.tensor([1.2, -0.7, -0.3, 0.5]).double().repeat_interleave(20)  # [N]
    parameters = list(lm.parameters())

    def gradient(scalar) -> torch.Tensor:
        """∇_θ, of all parameters: [P]."""
        return parameters_to_vector(torch.autograd.grad(scalar, parameters, retain_graph=True))

    v = torch.stack([gradient(each) for each in logprob])  # [N, P], a backward pass per token
    random = torch.rand(len(v), generator=torch.Generator().manual_seed(1)).double()
    surrogate = clipped_surrogate(logprob, logprob.detach(), advantage, 0.2, 0.28)
    for weight in (torch.ones_like(random), random):
        mu_pos, mu_neg = centroids(v, advantage, weight)
        mass = weight * advantage
        predicted = mass.clamp(min=0).sum() * mu_pos - (-mass).clamp(min=0).sum() * mu_neg  # Eq. 2
        torch.testing.assert_close(gradient((weight * surrogate).sum()), predicted)
