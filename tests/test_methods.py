"""methods.py: each method's weights and surrogate against the formula it cites.

Tests over METHODS include those of extensions.py.
"""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from references import SlowDelta, token_batch

import train
from config import METHODS
from infra.errors import UserError
from methods import (
    Method,
    dapo_surrogate,
    fipo_weights,
    sapo_surrogate,
    token_weights,
    weight_metrics,
)

FLAGS = train.parse_config(["--group-size", "4"])


def weights(name, tokens, *flags):
    cfg = train.parse_config(["--method", name, "--group-size", "4", *flags])
    return METHODS[name].weights(tokens, cfg)


def tokens_of(logprob, advantage):
    """One response, as a surrogate sees it."""
    length = torch.tensor([len(logprob)])
    return SimpleNamespace(logprob=logprob, advantage=advantage, length=length)


@pytest.mark.parametrize("name", METHODS)
def test_methods_have_mean_one(name):
    tokens = token_batch([2, 5, 3, 4])
    assert weights(name, tokens, "--group-size", "2").mean() == pytest.approx(1, abs=1e-6)


def test_dapo_weighs_every_token_the_same():
    assert torch.equal(weights("dapo", token_batch([2, 5, 3])), torch.ones(10))


@pytest.mark.parametrize("name", ["grpo", "sapo"])
def test_grpo_weights_average_inside_each_response_first(name):
    """Eq. 12: the weighted mean over tokens equals the mean of the responses' own means."""
    u = torch.arange(10.0)
    expected = torch.stack([part.mean() for part in u.split([2, 5, 3])]).mean()
    torch.testing.assert_close((weights(name, token_batch([2, 5, 3])) * u).mean(), expected)


def test_forking_tokens_keep_the_top_fifth_by_entropy():
    tokens = token_batch([4, 6, 13])
    rho = weights("forking_tokens", tokens)
    kept = rho > 0
    assert kept.sum() == 5
    assert tokens.entropy[kept].min() > tokens.entropy[~kept].max()
    assert torch.all(rho[kept] == 23 / 5)


def fipo_by_double_sum(log_ratio, lengths):
    """Eq. 15 term by term."""
    expected = []
    start = 0
    for n in lengths:
        z = [x if math.exp(x) <= 10 else 0.0 for x in log_ratio[start : start + n]]
        for t in range(n):
            future = sum(2 ** (-(k - t) / 32) * z[k] for k in range(t, n))
            expected.append(min(max(math.exp(future), 1.0), 1.2))
        start += n
    return torch.tensor(expected)


def test_fipo_weights_match_an_explicit_double_sum():
    lengths = [3, 40, 7]
    g = torch.Generator().manual_seed(3)
    tokens = token_batch(lengths)
    logprob = tokens.logprob + 0.06 * torch.randn(50, generator=g)
    logprob[49] += 4.0  # a ratio above the safety threshold, in the last token
    expected = fipo_by_double_sum((logprob - tokens.logprob).tolist(), lengths)

    ours = fipo_weights(logprob, tokens.logprob, tokens.length)
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)
    assert ours[49] == 1
    assert ((ours > 1) & (ours < 1.2)).any()
    assert (ours == 1).any()
    surrogate = METHODS["fipo"].surrogate(logprob, tokens, FLAGS)
    assert torch.equal(surrogate, ours * dapo_surrogate(logprob, tokens, FLAGS))


@pytest.mark.parametrize("A, tau", [(1.5, 1.0), (-0.5, 1.05)])
def test_sapo_surrogate_slope_matches_the_formula_and_is_one_at_ratio_one(A, tau):
    """The slope in log π is A r sech²(τ (r-1) / 2); τ is 1 where A > 0, else 1.05."""
    log_ratio = torch.linspace(-1, 1, 21, requires_grad=True)
    tokens = tokens_of(torch.zeros(21), torch.full((21,), A))
    surrogate = sapo_surrogate(log_ratio, tokens, FLAGS)
    (gradient,) = torch.autograd.grad(surrogate.sum(), log_ratio)
    r = log_ratio.detach().exp()
    torch.testing.assert_close(gradient, A * r / torch.cosh(tau * (r - 1) / 2) ** 2)
    assert gradient[10].item() == pytest.approx(A)


def test_clipped_surrogate_uses_the_clip_flags():
    narrow = SimpleNamespace(clip_low=0.1, clip_high=0.05)
    ratios = torch.tensor([0.5, 2.0]).log()
    out = dapo_surrogate(ratios, tokens_of(torch.zeros(2), torch.tensor([-1.0, 1.0])), narrow)
    assert out.tolist() == pytest.approx([-0.9, 1.05])


@pytest.mark.parametrize("name", METHODS)
def test_slope_of_every_surrogate_at_ratio_one_is_the_advantage(name):
    """Eq. 9: near θ_old every method is Σ ρ A v, so the surrogate itself has slope A."""
    logprob = torch.tensor([-0.3, -1.0, -2.0], requires_grad=True)
    tokens = tokens_of(logprob.detach(), torch.tensor([1.3, -0.7, 0.0]))
    surrogate = METHODS[name].surrogate(logprob, tokens, FLAGS)
    (gradient,) = torch.autograd.grad(surrogate.sum(), logprob)
    torch.testing.assert_close(gradient, tokens.advantage)


def test_token_weights_names_a_method_whose_weights_are_invalid():
    tokens = token_batch([3, 4])
    for weights in (torch.ones(6), torch.full((7,), math.nan), tokens.logprob):
        method = Method(weights=lambda tokens, flags, weights=weights: weights)
        with pytest.raises(UserError) as refused:
            token_weights(method, tokens, SimpleNamespace(method="mine"))
        assert str(refused.value).startswith("--method mine must give one finite weight")


# ---- the metrics of weights ----------------------------------------------------------------------


def with_advantages(lengths, advantage):
    """A token batch with the advantages of its responses."""
    repeated = torch.tensor(advantage).repeat_interleave(torch.tensor(lengths))
    return token_batch(lengths, advantage=repeated)


def test_weight_metrics_are_means_and_correlations_by_side():
    tokens = with_advantages([40, 25, 30, 20], [1.5, -0.5, 0.0, -1.0])
    cfg = train.parse_config(["--K", "0", "--lam-min", "0.5"])
    surprise = 1 - tokens.logprob.double().exp()
    rho = (0.7 + 0.4 * torch.rand(115, generator=torch.Generator().manual_seed(1))).double()
    rho[:10] = 1.2  # λ_max: λ̄ = λ / 0.9 from here on
    rho[65:95] = 0.5  # λ_min
    rho = rho / 0.9
    metrics = weight_metrics(tokens, rho.float(), cfg)

    A = tokens.advantage.double()
    total = A.abs().sum()
    expected = {"lambda_mean": rho.mean(), "lambda_std": rho.std()}
    expected["lambda_above_one"] = (rho > 1).double().mean()
    for name, side in (("pos", A > 0), ("neg", A < 0)):
        expected[f"surprise_{name}"] = surprise[side].mean()
        expected[f"lambda_{name}"] = rho[side].mean()
        expected[f"mass_{name}"] = (rho * A.abs())[side].sum() / total
        pair = np.stack([rho[side].numpy(), surprise[side].numpy()])
        expected[f"lambda_corr_{name}"] = np.corrcoef(pair)[0, 1]
    scalar = SlowDelta(surprise[:, None], A).coefficients(0, 0.5, 1.2)
    expected["lambda_scalar"] = np.corrcoef(rho[A != 0].numpy(), scalar[A != 0].numpy())[0, 1]
    expected["lambda_saturated"] = 10 / 85
    assert metrics == pytest.approx({k: float(x) for k, x in expected.items()}, rel=1e-4)


NEGATIVE = {"surprise_neg", "lambda_neg", "mass_neg", "lambda_corr_neg"}
POSITIVE = {"surprise_pos", "lambda_pos", "mass_pos", "lambda_corr_pos"}


@pytest.mark.parametrize(
    ("advantage", "method", "missing"),
    [
        ([1.5, -0.5], "delta", set()),
        ([1.5, 0.0], "delta", NEGATIVE),
        ([0.0, 0.0], "delta", NEGATIVE | POSITIVE | {"lambda_saturated"}),
        ([1.5, -0.5], "grpo", {"lambda_saturated"}),
    ],
)
def test_weight_metrics_leave_out_what_is_not_defined(advantage, method, missing):
    tokens = with_advantages([9, 7], advantage)
    metrics = weight_metrics(tokens, torch.rand(16) + 0.5, train.parse_config(["--method", method]))
    missing = missing | ({"lambda_scalar"} if "lambda_neg" in missing else set())
    every = [
        "mean",
        "std",
        "above_one",
        "pos",
        "neg",
        "corr_pos",
        "corr_neg",
        "scalar",
        "saturated",
    ]
    every = {f"lambda_{name}" for name in every}
    every |= {f"{name}_{side}" for name in ("surprise", "mass") for side in ("pos", "neg")}
    assert metrics.keys() == every - missing


def test_equal_weights_have_no_correlation():
    metrics = weight_metrics(token_batch([9, 7]), torch.ones(16), FLAGS)
    assert not [name for name in metrics if "corr" in name or "scalar" in name]
