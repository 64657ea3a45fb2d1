"""ablations.py: each variant against the slow reference, the proxies against autograd."""

import math

import pytest
import torch
from references import SlowDelta, token_batch, token_rows, two_sides

import train
from ablations import (
    VARIANTS,
    configured,
    fixed_temperatures,
    halves,
    held_out,
    lm_head_gradient,
    surprise_proxy,
    top_k_hidden_gradient,
)
from delta import Pieces, delta_coefficients
from infra.errors import UserError
from methods import METHODS


def delta_weights(tokens, *flags):
    """The token weights from --method delta with these flags."""
    cfg = train.parse_config([str(flag) for flag in flags])
    return configured(METHODS["delta"], cfg).weights(tokens, cfg)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("K", [0, 1, 2, 3])
def test_delta_coefficients_match_reference(K, variant):
    v, advantage = two_sides(seed=K)
    expected = SlowDelta(v, advantage, variant).coefficients(K, 0.7, 1.3)
    ours = delta_coefficients(v, advantage, K, 0.7, 1.3, VARIANTS[variant])
    torch.testing.assert_close(ours, expected.float(), rtol=2e-5, atol=2e-5)
    in_float64 = delta_coefficients(v.double(), advantage.double(), K, 0.7, 1.3, VARIANTS[variant])
    torch.testing.assert_close(in_float64, expected, rtol=1e-9, atol=1e-9)


def test_variants_all_differ():
    v, advantage = two_sides(seed=4)
    results = [delta_coefficients(v, advantage, pieces=pieces) for pieces in VARIANTS.values()]
    for i, one in enumerate(results):
        for other in results[:i]:
            assert (one - other).abs().max() > 1e-3


def test_zero_advantage_rows_get_lam_min_or_no_weight():
    v, advantage = two_sides(seed=6)
    lam = delta_coefficients(v, advantage, lam_min=0.6, pieces=VARIANTS["no_norm"])
    assert torch.all(lam[advantage == 0] == 0.6)
    assert torch.all(lam[advantage != 0] > 0.6)
    raw = delta_coefficients(v, advantage, pieces=VARIANTS["no_range_map"])
    assert torch.all(raw[advantage == 0] == 0)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("K", [0, 1, 3])
@pytest.mark.parametrize("v", [torch.zeros(4, 3), torch.ones(4, 3), torch.full((4, 3), 1e15)])
def test_variants_are_finite_for_finite_input(v, K, variant):
    for lam_min, lam_max in ((0.0, 0.0), (0.0, 1.0), (0.8, 1.2)):
        advantage = torch.tensor([1.0, 2.0, -1.0, 0.0])
        lam = delta_coefficients(v, advantage, K, lam_min, lam_max, VARIANTS[variant])
        assert lam.isfinite().all()


def test_fixed_temperatures_come_from_the_first_batch():
    """The first batch gets the scores of `full`. The second is scored with the first batch's γ."""
    v1, advantage1 = two_sides(seed=1)
    v2, advantage2 = two_sides(seed=2)
    memory = {}
    pieces = Pieces(temperatures=fixed_temperatures(memory))
    first = delta_coefficients(v1, advantage1, pieces=pieces)
    torch.testing.assert_close(first, delta_coefficients(v1, advantage1))
    kept = list(memory["gamma"])

    pieces = Pieces(temperatures=fixed_temperatures(memory))  # as in the next step of a run
    second = delta_coefficients(3 * v2, advantage2, pieces=pieces)
    assert memory["gamma"] == kept
    assert (second - delta_coefficients(3 * v2, advantage2)).abs().max() > 1e-2

    slow = SlowDelta(3 * v2, advantage2)
    alpha = slow.scores(slow.margins([1.0] * len(v2)), kept)
    alpha = torch.tensor(slow.scores(slow.margins(alpha), kept))
    lam = torch.where(advantage2 == 0, 0.8, 0.8 + 0.4 * alpha)
    torch.testing.assert_close(second.double(), (lam / lam.mean()).double(), rtol=1e-4, atol=1e-4)


# ---- interventions -------------------------------------------------------------------------------

GROUPS = [7, 3, 5, 4, 6, 8, 2, 9, 5, 5, 4, 6]  # tokens of 12 responses; advantages 1, -1, 0.5, 0


def intervened(*flags):
    """(tokens, weights) in groups of 4: three prompts; the second prompt alone forms one half."""
    tokens = token_batch(GROUPS, seed=2)
    return tokens, delta_weights(tokens, "--group-size", 4, *flags)


@pytest.mark.parametrize("variant", ["full", "within_side", "no_range_map"])
@pytest.mark.parametrize("K", [0, 1, 3])
@pytest.mark.parametrize("gamma", ["lagged", "fresh"])
@pytest.mark.parametrize("normalised", ["batch", "side"])
@pytest.mark.parametrize("centroids", ["all", "held_out"])
def test_interventions_match_reference_in_every_combination(
    K, gamma, normalised, centroids, variant
):
    if K == 0 and gamma == "fresh":
        gamma = "lagged"  # `fresh` would give the same γ, and is refused
    tokens, ours = intervened(
        *("--K", K, "--gamma", gamma, "--normalise", normalised),
        *("--centroids", centroids, "--delta-variant", variant),
    )
    half = torch.tensor([0] * 4 + [1] * 4 + [0] * 4).repeat_interleave(tokens.length).tolist()
    slow = SlowDelta(
        tokens.kept.values,
        tokens.advantage,
        variant,
        half=half if centroids == "held_out" else None,
        fresh=gamma == "fresh",
        by_side=normalised == "side",
    )
    expected = slow.coefficients(K, 0.8, 1.2)
    torch.testing.assert_close(ours.double(), expected, rtol=2e-4, atol=2e-4)


def test_separately_normalised_sides_each_have_mean_1():
    tokens, weights = intervened("--normalise", "side")
    for side in (tokens.advantage > 0, tokens.advantage < 0):
        assert weights[side].mean() == pytest.approx(1, abs=1e-6)
    assert torch.all(weights[tokens.advantage == 0] == 1)


def test_held_out_centroids_do_not_depend_on_the_scored_half():
    tokens, _ = intervened()
    half = halves(tokens, 4)
    pieces = held_out(Pieces(), half)
    v, advantage = tokens.kept.values, tokens.advantage
    other = v.clone()
    other[0] += 100.0  # a token of half 0
    before, after = (pieces.centroids(x, advantage) for x in (v, other))
    for mu, moved in zip(before, after, strict=True):
        assert torch.equal(mu[1], moved[1])  # this centroid scores half 0
    assert not torch.equal(before[0][0], after[0][0])


def test_a_half_without_both_sides_gives_weights_of_one():
    tokens = token_batch([5, 6, 7, 8], advantage=torch.ones(26))
    tokens.advantage[:5] = -1.0  # only tokens of the first prompt
    weights = delta_weights(tokens, "--group-size", 2, "--centroids", "held_out")
    assert torch.equal(weights, torch.ones(26))
    assert not torch.equal(delta_weights(tokens, "--group-size", 2), torch.ones(26))


def test_top_k_hidden_gradient_is_exact_over_the_whole_vocabulary():
    """App. F: with k = V the proxy equals ∇_h log p(y) from autograd."""
    g = torch.Generator().manual_seed(0)
    W = torch.randn(9, 4, generator=g)
    h = torch.randn(5, 4, generator=g, requires_grad=True)
    y = torch.tensor([0, 3, 8, 3, 1])
    logprob = (h @ W.T).log_softmax(-1).gather(1, y[:, None])
    (gradient,) = torch.autograd.grad(logprob.sum(), h)
    rows = token_rows(h.detach(), y)
    for k in (9, 100):
        torch.testing.assert_close(top_k_hidden_gradient(rows, lambda: W, k), gradient)


def test_top_k_hidden_gradient_restricts_the_softmax_to_likely_tokens():
    g = torch.Generator().manual_seed(0)
    W, h = torch.randn(9, 4, generator=g), torch.randn(5, 4, generator=g)
    y = torch.tensor([0, 3, 8, 3, 1])
    ours = top_k_hidden_gradient(token_rows(h, y), lambda: W, k=3)
    for i in range(5):
        logits = [float(W[j] @ h[i]) for j in range(9)]
        top = sorted(range(9), key=lambda j: -logits[j])[:3]
        total = sum(math.exp(logits[j]) for j in top)
        expected = sum(math.exp(logits[j]) / total * W[j] for j in top)
        torch.testing.assert_close(ours[i], W[y[i]] - expected)


def test_lm_head_gradient_matches_autograd():
    g = torch.Generator().manual_seed(1)
    W = torch.randn(6, 3, generator=g, requires_grad=True)
    h, y = torch.randn(4, 3, generator=g), torch.tensor([5, 0, 2, 2])
    logprob = (h @ W.T).log_softmax(-1).gather(1, y[:, None]).squeeze(1)
    rows = [torch.autograd.grad(x, W, retain_graph=True)[0].flatten() for x in logprob]
    ours = lm_head_gradient(token_rows(h, y), lambda: W.detach())
    torch.testing.assert_close(ours, torch.stack(rows))


def all_words(seed=0, V=9, H=4):
    """(rows, p): one state h, with each word y in the vocabulary as its sampled token."""
    g = torch.Generator().manual_seed(seed)
    W = torch.randn(V, H, generator=g, dtype=torch.float64)
    h = torch.randn(H, generator=g, dtype=torch.float64)
    logp = (W @ h / 0.7).log_softmax(0)
    entropy = -(logp.exp() * logp).sum().repeat(V)
    return token_rows(h.repeat(V, 1), torch.arange(V), logp, entropy), logp.exp()


def test_surprise_proxy_is_log_p_plus_entropy_times_the_state():
    rows, p = all_words()
    H = -sum(float(x) * math.log(float(x)) for x in p)
    v = surprise_proxy(rows, None)
    for y in range(len(p)):
        torch.testing.assert_close(v[y], (math.log(float(p[y])) + H) * rows.hidden[y])


@pytest.mark.parametrize("seed", range(3))
def test_surprise_proxy_has_mean_zero_over_the_vocabulary_unlike_the_row_proxy(seed):
    rows, p = all_words(seed)
    mean = p @ surprise_proxy(rows, None)
    torch.testing.assert_close(mean, torch.zeros_like(mean))
    of_row_proxy = p @ METHODS["delta"].keep(rows, None)
    torch.testing.assert_close(of_row_proxy, (1 - p.square().sum()) * rows.hidden[0])
    assert of_row_proxy.norm() > 0.1 * rows.hidden[0].norm()


def test_surprise_proxy_keeps_the_states_dtype():
    rows = token_rows(torch.randn(3, 4).bfloat16(), None, -torch.rand(3), torch.rand(3))
    assert surprise_proxy(rows, None).dtype == torch.bfloat16


def test_no_centroids_weighs_tokens_by_signed_surprise():
    tokens = token_batch(GROUPS)
    ours = delta_weights(tokens, "--delta-variant", "no_centroids", "--lam-max", 1.4)
    s = (tokens.logprob + tokens.entropy).double()
    sd = math.sqrt(sum((float(x) - float(s.mean())) ** 2 for x in s) / len(s))
    expected = []
    for x, A in zip(s.tolist(), tokens.advantage.tolist(), strict=True):
        alpha = 1 / (1 + math.exp(-2.7 * x * math.copysign(1, A) / sd))
        expected.append(0.8 + 0.6 * alpha if A else 0.8)
    expected = torch.tensor(expected)
    torch.testing.assert_close(ours, expected / expected.mean(), rtol=1e-5, atol=1e-5)


def test_no_centroids_gives_equal_weights_if_all_tokens_are_alike():
    """This also holds if a side is empty."""
    one_side = token_batch([5, 4], advantage=torch.ones(9))
    assert torch.equal(delta_weights(one_side, "--delta-variant", "no_centroids"), torch.ones(9))
    sure = token_batch([5, 4], logprob=torch.zeros(9), entropy=torch.zeros(9))
    weights = delta_weights(sure, "--delta-variant", "no_centroids")
    torch.testing.assert_close(weights, torch.ones(9))


def test_random_coefficients_are_uniform_in_their_range_and_seeded():
    def draw(seed):
        generator = torch.Generator().manual_seed(seed)
        return delta_weights(
            token_batch([400, 600], generator=generator), "--delta-variant", "random"
        )

    lam = draw(0)
    assert torch.equal(lam, draw(0))
    assert not torch.equal(lam, draw(1))
    assert lam.mean() == pytest.approx(1, abs=1e-6)
    assert 0.78 < lam.min() < 0.82
    assert 1.18 < lam.max() < 1.22
    assert abs(lam.median() - 1) < 0.02


def test_select_keeps_the_tokens_with_highest_or_lowest_coefficient():
    tokens = token_batch([20, 30, 11])
    share = ("--select-share", 0.3)
    lam = delta_weights(tokens)
    top = delta_weights(tokens, "--select", "top", *share) > 0
    bottom = delta_weights(tokens, "--select", "bottom", *share) > 0
    assert top.sum() == bottom.sum() == math.ceil(0.3 * 61)
    assert not (top & bottom).any()
    assert lam[top].min() >= lam[~top].max()
    assert lam[bottom].max() <= lam[~bottom].min()
    chance = delta_weights(tokens, "--select", "random", *share) > 0
    assert chance.sum() == top.sum()
    assert not torch.equal(chance, top)


def test_select_counts_only_tokens_with_an_advantage():
    """Tokens with zero advantage have the lowest λ and must not count in the bottom share."""
    tokens = token_batch([20, 30, 11, 25])  # the fourth response has no advantage
    weights = delta_weights(tokens, "--select", "bottom", "--select-share", 0.3)
    sides = tokens.advantage != 0
    assert (weights[sides] > 0).sum() == math.ceil(0.3 * 61)
    assert weights[sides].mean() == pytest.approx(1)
    assert torch.all(weights[~sides] == 1)


def test_configured_keeps_what_the_proxy_needs():
    """The record's `keep` follows --proxy. The controls keep no hidden states."""
    rows = token_rows(torch.randn(3, 4), torch.tensor([1, 0, 5]), -torch.rand(3), torch.rand(3))
    head = torch.randn(6, 4)
    shapes = {}
    for proxy in ("lm_head", "topk", "exact", "surprise"):
        cfg = train.parse_config(["--proxy", proxy])
        shapes[proxy] = configured(METHODS["delta"], cfg).keep(rows, lambda: head).shape
    assert shapes == {"lm_head": (3, 4), "topk": (3, 4), "exact": (3, 24), "surprise": (3, 4)}
    for control in ("random", "no_centroids"):
        cfg = train.parse_config(["--delta-variant", control])
        assert configured(METHODS["delta"], cfg).keep is None


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--proxy-topk", "5"], "--proxy-topk does nothing"),
        (["--select-share", "0.3"], "--select-share does nothing"),
        (["--delta-variant", "no_range_map", "--lam-min", "0.5"], "--lam-min does nothing"),
        (["--delta-variant", "random", "--K", "3"], "--K does nothing"),
        (["--delta-variant", "random", "--centroids", "held_out"], "--centroids does nothing"),
        (["--delta-variant", "no_centroids", "--K", "3"], "--K does nothing"),
        (["--delta-variant", "no_centroids", "--proxy", "surprise"], "--proxy does nothing"),
        (["--delta-variant", "no_centroids", "--normalise", "side"], "--normalise does nothing"),
        (["--proxy", "surprise", "--proxy-topk", "5"], "--proxy-topk does nothing"),
        (["--delta-variant", "hard", "--gamma", "fresh"], "--gamma does nothing"),
        (["--delta-variant", "fixed_gamma", "--gamma", "fresh"], "--gamma does nothing"),
        (["--K", "0", "--gamma", "fresh"], "--gamma does nothing"),
        (["--delta-variant", "no_norm", "--normalise", "side"], "--normalise does nothing"),
        (["--method", "dapo", "--gamma", "fresh"], "--gamma does nothing with --method dapo"),
        (["--method", "sapo", "--clip-high", "0.9"], "--clip-high does nothing"),
        (["--method", "dapo", "--proxy", "topk"], "--proxy does nothing with --method dapo"),
    ],
)
def test_flags_without_effect_are_refused(flags, message):
    with pytest.raises(UserError, match=message):
        train.parse_config(flags)
