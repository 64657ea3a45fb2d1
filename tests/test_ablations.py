"""ablations.py: each variant against the slow reference, the proxies against autograd."""

import math
from types import SimpleNamespace

import pytest
import torch
from references import SlowDelta, token_batch, token_outputs, two_sides

import ablations
import train
from ablations import (
    VARIANTS,
    centred_proxy,
    configured,
    fixed_temperatures,
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
    slow = SlowDelta(3 * v2, advantage2)
    alpha = slow.scores(slow.margins([1.0] * len(v2)), kept)
    alpha = torch.tensor(slow.scores(slow.margins(alpha), kept))
    lam = torch.where(advantage2 == 0, 0.8, 0.8 + 0.4 * alpha)
    torch.testing.assert_close(second.double(), (lam / lam.mean()).double(), rtol=1e-4, atol=1e-4)


# ---- flags and proxies ---------------------------------------------------------------------------

GROUPS = [7, 3, 5, 4, 6, 8, 2, 9, 5, 5, 4, 6]  # tokens of 12 responses; advantages 1, -1, 0.5, 0


COMBINED = [
    *((2, "lagged", variant) for variant in VARIANTS),
    *((2, "fresh", variant) for variant in VARIANTS if variant != "hard"),
    (0, "lagged", "within_side"),
]


@pytest.mark.parametrize("K, gamma, variant", COMBINED)
def test_variants_and_gamma_match_reference(K, gamma, variant):
    tokens = token_batch(GROUPS, seed=2)
    ours = delta_weights(tokens, "--K", K, "--gamma", gamma, "--delta-variant", variant)
    slow = SlowDelta(tokens.kept, tokens.advantage, variant, fresh=gamma == "fresh")
    expected = slow.coefficients(K, 0.8, 1.2)
    torch.testing.assert_close(ours.double(), expected, rtol=2e-4, atol=2e-4)


def test_top_k_hidden_gradient_is_exact_over_the_whole_vocabulary():
    """App. F: with k = V the proxy equals ∇_h log p(y) from autograd."""
    g = torch.Generator().manual_seed(0)
    W = torch.randn(9, 4, generator=g)
    h = torch.randn(5, 4, generator=g, requires_grad=True)
    y = torch.tensor([0, 3, 8, 3, 1])
    logprob = (h @ W.T).log_softmax(-1).gather(1, y[:, None])
    (gradient,) = torch.autograd.grad(logprob.sum(), h)
    rows = token_outputs(h.detach(), y)
    for k in (9, 100):
        torch.testing.assert_close(top_k_hidden_gradient(rows, lambda: W, k), gradient)


def test_top_k_hidden_gradient_restricts_the_softmax_to_likely_tokens():
    g = torch.Generator().manual_seed(0)
    W, h = torch.randn(9, 4, generator=g), torch.randn(5, 4, generator=g)
    y = torch.tensor([0, 3, 8, 3, 1])
    ours = top_k_hidden_gradient(token_outputs(h, y), lambda: W, k=3)
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
    ours = lm_head_gradient(token_outputs(h, y), lambda: W.detach())
    torch.testing.assert_close(ours, torch.stack(rows))


ZERO_MEAN = {"centred": centred_proxy, "surprise": surprise_proxy}


@pytest.mark.parametrize("name", ZERO_MEAN)
def test_zero_mean_proxies_have_their_formula_and_mean_zero_over_the_vocabulary(name):
    g = torch.Generator().manual_seed(0)
    h = torch.randn(4, generator=g)
    logp = (torch.randn(9, 4, generator=g) @ h).log_softmax(0)  # of one state, for each token
    p = logp.exp()
    entropy, mean_p = -(p * logp).sum().expand(9), (p * p).sum().expand(9)
    v = ZERO_MEAN[name](token_outputs(h.expand(9, 4), None, logp, entropy, mean_p), None)
    for y in range(9):
        s = mean_p[y] - p[y] if name == "centred" else logp[y] + entropy[y]
        torch.testing.assert_close(v[y], s * h)
    torch.testing.assert_close(p @ v, torch.zeros(4), rtol=0, atol=1e-6)


@pytest.mark.parametrize("proxy", ["lm_head", *ZERO_MEAN])
def test_no_centroids_weighs_tokens_by_a_signed_scalar(proxy):
    """The scalar is log p + entropy, or p - Σ p² with --proxy centred."""
    tokens = token_batch(GROUPS)
    flags = ("--delta-variant", "no_centroids", "--proxy", proxy, "--lam-max", 1.4)
    ours = delta_weights(tokens, *flags)
    s = (tokens.logprob + tokens.entropy).tolist()
    if proxy == "centred":
        pairs = zip(tokens.logprob.tolist(), tokens.mean_p.tolist(), strict=True)
        s = [math.exp(logprob) - mean_p for logprob, mean_p in pairs]
    mean = sum(s) / len(s)
    sd = math.sqrt(sum((x - mean) ** 2 for x in s) / len(s))
    expected = []
    for x, A in zip(s, tokens.advantage.tolist(), strict=True):
        alpha = 1 / (1 + math.exp(-2.7 * x * math.copysign(1, A) / sd))
        expected.append(0.8 + 0.6 * alpha if A else 0.8)
    expected = torch.tensor(expected)
    torch.testing.assert_close(ours, expected / expected.mean(), rtol=1e-5, atol=1e-5)


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
    assert 0.78 < lam.min() < 0.82 and 1.18 < lam.max() < 1.22
    assert abs(lam.median() - 1) < 0.02


def test_select_keeps_the_tokens_with_highest_or_lowest_coefficient():
    """Tokens with zero advantage have the lowest λ and do not count in the bottom share."""
    tokens = token_batch([20, 30, 11, 25])  # the fourth response has no advantage
    sides = tokens.advantage != 0
    lam = delta_weights(tokens)[sides]
    kept = {}
    for which in ("top", "bottom", "random"):
        weights = delta_weights(tokens, "--select", which, "--select-share", 0.3)
        assert torch.all(weights[~sides] == 1)
        assert weights[sides].mean() == pytest.approx(1)
        kept[which] = weights[sides] > 0
        assert kept[which].sum() == math.ceil(0.3 * 61)
    assert lam[kept["top"]].min() >= lam[~kept["top"]].max()
    assert lam[kept["bottom"]].max() <= lam[~kept["bottom"]].min()
    assert not torch.equal(kept["random"], kept["top"])


@pytest.mark.parametrize(
    "flags, message",
    [
        ("--proxy-topk 5", "--proxy-topk does nothing with --proxy lm_head"),
        ("--select-share 0.3", "--select-share does nothing with --select none"),
        ("--delta-variant no_range_map --lam-min 0.5", "--lam-min does nothing"),
        ("--delta-variant random --K 3", "--K does nothing with --delta-variant random"),
        ("--delta-variant random --proxy centred", "--proxy does nothing"),
        ("--delta-variant no_centroids --proxy topk", "needs --proxy centred or surprise"),
        ("--delta-variant hard --gamma fresh", "--gamma does nothing"),
        ("--select top --lam-min 0.5", "--lam-min does nothing with --select top"),
        ("--select random --K 2", "--K does nothing with --select random"),
        ("--K 0 --gamma fresh", "--gamma does nothing with --K 0"),
        ("--method sapo --clip-high 0.9", "--clip-high does nothing"),
        ("--method dapo --proxy topk", "--proxy does nothing with --method dapo"),
    ],
)
def test_flags_without_effect_are_refused(flags, message):
    with pytest.raises(UserError, match=message):
        train.parse_config(flags.split())


@pytest.mark.parametrize(
    "flags, is_matrix, vocabulary, message",
    [
        ({"method": "otb"}, False, 9, "--method otb assumes .* W h.*--method opo"),
        ({"proxy": "topk"}, False, 9, "--proxy topk assumes .* W h.*--proxy lm_head"),
        ({"proxy": "exact"}, True, 151_936, "--proxy exact .* only models as small as the toy"),
    ],
)
def test_check_model_refuses_what_the_model_cannot_do(flags, is_matrix, vocabulary, message):
    def policy(is_matrix, vocabulary):
        config = SimpleNamespace(vocab_size=vocabulary, hidden_size=4)
        return SimpleNamespace(lm=SimpleNamespace(config=config), head_is_matrix=is_matrix)

    flags = ablations.AblationFlags(**flags)
    ablations.check_model(flags, policy(True, 9))
    with pytest.raises(UserError, match=message):
        ablations.check_model(flags, policy(is_matrix, vocabulary))
