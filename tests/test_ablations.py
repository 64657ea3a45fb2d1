"""Tests ablations.py: each variant against the slow reference, the proxies against autograd."""

import math

import pytest
import torch
from references import (
    SlowDelta,
    method_weights,
    token_batch,
    token_outputs,
    token_rows,
    two_sides,
)

from ablations import VARIANTS, fixed_gamma, top_k_hidden_gradient
from config import parse_config, selected_method
from delta import delta_coefficients


def test_fixed_temperatures_come_from_the_first_batch():
    """The first batch gets the scores of `full`. The second is scored with the first batch's γ."""
    v1, advantage1 = two_sides(seed=1)
    v2, advantage2 = two_sides(seed=2)
    memory = {}
    formulas = fixed_gamma(memory)
    first = delta_coefficients(v1, advantage1, formulas=formulas)
    torch.testing.assert_close(first, delta_coefficients(v1, advantage1))
    kept = list(memory["gamma"])

    formulas = fixed_gamma(memory)  # as in the next step of a run
    second = delta_coefficients(3 * v2, advantage2, formulas=formulas)
    assert memory["gamma"] == kept
    slow = SlowDelta(3 * v2, advantage2)
    alpha = slow.scores(slow.margins([1.0] * len(v2)), kept)
    alpha = torch.tensor(slow.scores(slow.margins(alpha), kept))
    lam = torch.where(advantage2 == 0, 0.8, 0.8 + 0.4 * alpha)
    torch.testing.assert_close(second.double(), (lam / lam.mean()).double(), rtol=1e-4, atol=1e-4)


GROUPS = [7, 3, 5, 4, 6, 8, 2, 9, 5, 5, 4, 6]  # tokens of 12 responses; advantages 1, -1, 0.5, 0


@pytest.mark.parametrize(
    "K, variant", [*((2, variant) for variant in VARIANTS), (0, "within_side")]
)
def test_variants_match_reference(K, variant):
    tokens = token_batch(GROUPS)
    v = token_rows(tokens, seed=2)
    ours = method_weights(tokens, "--K", K, "--delta-variant", variant, v=v)
    slow = SlowDelta(v, tokens.advantage, variant)
    expected = slow.coefficients(K, 0.8, 1.2)
    torch.testing.assert_close(ours.double(), expected, rtol=2e-4, atol=2e-4)


def test_hard_scores_of_equal_tokens_leave_sides_without_mass():
    """All margins and scores are 0, so both centroids are 0 after one refinement."""
    A = torch.tensor([1.0, -1.0, 0.0, 2.0])
    lam = delta_coefficients(torch.ones(4, 3), A, K=1, formulas=VARIANTS["hard"])
    torch.testing.assert_close(lam, torch.ones(4))


W, H = torch.randn(2, 9, 4, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 3, 8, 3, 1, 5, 2, 2, 0])


def test_top_k_hidden_gradient_is_exact_over_the_whole_vocabulary():
    """App. F: with k = V the proxy equals ∇_h log p(y) from autograd."""
    h = H.clone().requires_grad_()
    logprob = (h @ W.T).log_softmax(-1).gather(1, Y[:, None])
    (gradient,) = torch.autograd.grad(logprob.sum(), h)
    for k in (9, 100):
        ours = top_k_hidden_gradient(token_outputs(H, Y), lambda: W, k)
        torch.testing.assert_close(ours, gradient)


def test_top_k_hidden_gradient_restricts_the_softmax_to_likely_tokens():
    ours = top_k_hidden_gradient(token_outputs(H, Y), lambda: W, k=3)
    for i in range(9):
        logits, top = (W @ H[i]).topk(3)
        torch.testing.assert_close(ours[i], W[Y[i]] - logits.softmax(0) @ W[top])


def test_random_coefficients_are_uniform_in_their_range_and_seeded():
    def draw(seed):
        tokens = token_batch([400, 600])
        return method_weights(tokens, "--delta-variant", "random", "--seed", seed)

    lam = draw(0)
    assert torch.equal(lam, draw(0))
    assert not torch.equal(lam, draw(1))
    assert lam.mean() == pytest.approx(1, abs=1e-6)
    assert 0.78 < lam.min() < 0.82 and 1.18 < lam.max() < 1.22
    assert abs(lam.median() - 1) < 0.02


def test_equal_tokens_are_selected_from_the_whole_batch():
    """Selection is not by position: each quarter of the batch keeps about half of its tokens."""
    same = torch.ones(4096, 3)  # Δ = 0
    equal = token_batch([512] * 8, of_response=[1.0, -1.0])

    def kept(which, seed):
        return method_weights(equal, "--select", which, "--seed", seed, v=same) > 0

    for which in ("top", "bottom", "random"):
        count = kept(which, 3).view(4, 1024).sum(dim=1)
        assert count.sum() == 2048
        assert ((count > 430) & (count < 594)).all()
        assert torch.equal(kept(which, 3), kept(which, 3))
        assert not torch.equal(kept(which, 3), kept(which, 4))


def test_selection_ranks_tokens_whose_coefficients_have_saturated():
    """From a margin of 17 γ on, λ is λ_max. The farthest tokens have the largest margins."""
    A = torch.tensor([1.0, -1.0]).repeat_interleave(300)
    v = (A * torch.cat([torch.linspace(1, 1.1, 300), torch.linspace(1.1, 1, 300)]))[:, None]
    far = token_batch([300, 300], of_response=[1.0, -1.0])
    assert len(method_weights(far, v=v).unique()) == 1
    kept = method_weights(far, "--select", "top", "--select-share", 0.25, v=v) > 0
    assert kept[225:375].all() and kept.sum() == 150


def test_select_keeps_the_tokens_with_highest_or_lowest_coefficient():
    """Tokens with zero advantage have the lowest λ and do not count in the bottom share."""
    tokens = token_batch([20, 30, 11, 25])  # the fourth response has no advantage
    sides = tokens.advantage != 0
    spread = torch.where(tokens.advantage > 0, 3.0, 1.0)[:, None]  # γ differs between the sides
    v = spread * token_rows(tokens)
    lam = method_weights(tokens, v=v)[sides]
    kept = {}
    for which in ("top", "bottom", "random"):
        weights = method_weights(tokens, "--select", which, "--select-share", 0.3, v=v)
        assert torch.all(weights[~sides] == 1)
        assert weights[sides].mean() == pytest.approx(1)
        kept[which] = weights[sides] > 0
        assert kept[which].sum() == math.ceil(0.3 * 61)
    assert lam[kept["top"]].min() >= lam[~kept["top"]].max()
    assert lam[kept["bottom"]].max() <= lam[~kept["bottom"]].min()
    assert not torch.equal(kept["random"], kept["top"])
    cfg = parse_config(["--select", "random"])
    assert selected_method(cfg).features is None  # no hidden state is read
