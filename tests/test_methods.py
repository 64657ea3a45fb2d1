"""Tests methods.py and metrics.py: each method's weights and surrogate against the cited formula.

Tests over all methods include those of extensions.py, not those that only benchmarks/ knows.
"""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from references import SlowDelta, method_weights, token_batch

from config import METHODS, parse_config
from extensions import OTHER_METHODS
from infra.errors import UserError
from infra.metrics import weight_metrics
from methods import PAPER_METHODS, Method, dapo_surrogate, fipo_weights, sapo_surrogate

CFG = parse_config(["--group-size", "4"])


@pytest.mark.parametrize("name", PAPER_METHODS | OTHER_METHODS)
def test_methods_have_mean_one(name):
    tokens = token_batch([2, 5, 3, 4])
    rho = method_weights(tokens, "--method", name, "--group-size", "2")
    assert rho.mean() == pytest.approx(1, abs=1e-6)


def test_tokens_beyond_a_clip_or_the_dual_clip_are_clipped():
    """r goes from 0.7 to 11, for A > 0 and then for A < 0. --clip-high is 0.28."""
    ratio = torch.tensor([0.7, 0.9, 1.25, 1.3, 9.0, 11.0]).repeat(2)
    tokens = SimpleNamespace(
        old_logprob=torch.zeros(12), advantage=torch.tensor([2.0, -0.5]).repeat_interleave(6)
    )
    pos, neg = [False] * 3 + [True] * 3, [True] + [False] * 4 + [True]
    assert METHODS["dapo"].is_clipped(ratio.log(), tokens, CFG).tolist() == pos + neg


@pytest.mark.parametrize("name", ["grpo", "sapo"])
def test_grpo_weights_average_inside_each_response_first(name):
    """Eq. 12: the weighted mean over tokens equals the mean of the responses' own means."""
    u = torch.arange(10.0)
    expected = torch.stack([part.mean() for part in u.split([2, 5, 3])]).mean()
    rho = method_weights(token_batch([2, 5, 3]), "--method", name)
    torch.testing.assert_close((rho * u).mean(), expected)


def test_forking_tokens_keep_the_top_fifth_by_entropy():
    tokens = token_batch([4, 6, 13])
    rho = method_weights(tokens, "--method", "forking_tokens")
    kept = rho > 0
    assert kept.sum() == 5
    assert tokens.entropy[kept].min() > tokens.entropy[~kept].max()
    assert torch.all(rho[kept] == 23 / 5)


def test_fipo_weights_match_an_explicit_double_sum():
    """The sum is Eq. 15, term by term."""
    lengths = [3, 40, 7]
    tokens = token_batch(lengths)
    log_ratio = 0.06 * torch.randn(50, generator=torch.Generator().manual_seed(3))
    log_ratio[49] += 4.0  # a ratio above the safety threshold, in the last token
    expected = []
    for part in log_ratio.split(lengths):
        z = [x if math.exp(x) <= 10 else 0.0 for x in part.tolist()]
        for t in range(len(z)):
            future = sum(2 ** (-(k - t) / 32) * z[k] for k in range(t, len(z)))
            expected.append(min(max(math.exp(future), 1.0), 1.2))

    logprob = tokens.old_logprob + log_ratio
    ours = fipo_weights(logprob, tokens.old_logprob, tokens.length)
    torch.testing.assert_close(ours, torch.tensor(expected), rtol=1e-5, atol=1e-5)
    assert ours[49] == 1
    assert ((ours > 1) & (ours < 1.2)).any()
    surrogate = METHODS["fipo"].surrogate(logprob, tokens, CFG)
    assert torch.equal(surrogate, ours * dapo_surrogate(logprob, tokens, CFG))


@pytest.mark.parametrize("A, tau", [(1.5, 1.0), (-0.5, 1.05)])
def test_sapo_surrogate_slope_matches_the_formula(A, tau):
    """The slope in log π is A r sech²(τ (r-1) / 2); τ is 1 where A > 0, else 1.05."""
    log_ratio = torch.linspace(-1, 1, 21, requires_grad=True)
    tokens = token_batch([21], of_response=[A], old_logprob=torch.zeros(21))
    surrogate = sapo_surrogate(log_ratio, tokens, CFG)
    (gradient,) = torch.autograd.grad(surrogate.sum(), log_ratio)
    r = log_ratio.detach().exp()
    torch.testing.assert_close(gradient, A * r / torch.cosh(tau * (r - 1) / 2) ** 2)


def test_clipped_surrogate_uses_the_clip_flags():
    narrow = SimpleNamespace(clip_low=0.1, clip_high=0.05)
    tokens = token_batch([1, 1], of_response=[-1.0, 1.0], old_logprob=torch.zeros(2))
    out = dapo_surrogate(torch.tensor([0.5, 2.0]).log(), tokens, narrow)
    assert out.tolist() == pytest.approx([-0.9, 1.05])


@pytest.mark.parametrize("name", PAPER_METHODS | OTHER_METHODS)
def test_slope_of_every_surrogate_at_ratio_one_is_the_advantage(name):
    """Eq. 9: near θ_old every method is Σ ρ A v, so the surrogate itself has slope A."""
    logprob = torch.tensor([-0.3, -1.0, -2.0], requires_grad=True)
    tokens = token_batch(
        [3], old_logprob=logprob.detach(), advantage=torch.tensor([1.3, -0.7, 0.0])
    )
    surrogate = METHODS[name].surrogate(logprob, tokens, CFG)
    (gradient,) = torch.autograd.grad(surrogate.sum(), logprob)
    torch.testing.assert_close(gradient, tokens.advantage)


def test_checked_weights_names_a_method_whose_weights_are_invalid():
    tokens = token_batch([3, 4])
    for weights in (torch.ones(6), torch.full((7,), math.nan), tokens.old_logprob):
        method = Method(weights=lambda *_, weights=weights: weights)
        with pytest.raises(UserError, match="--method mine must give one finite weight"):
            method.checked_weights(tokens, None, SimpleNamespace(method="mine"))


def test_weight_metrics_are_means_and_correlations_by_side():
    tokens = token_batch([40, 25, 30, 20], of_response=[1.5, -0.5, 0.0, -1.0])
    cfg = parse_config(["--K", "0", "--lam-min", "0.5"])
    surprise = 1 - tokens.old_logprob.double().exp()
    rho = (0.7 + 0.4 * torch.rand(115, generator=torch.Generator().manual_seed(1))).double()
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
    assert metrics == pytest.approx({k: float(x) for k, x in expected.items()}, rel=1e-4)


def test_weight_metrics_leave_out_what_is_not_defined():
    def names(rho=None, sides=(1.5, -0.5)):
        tokens = token_batch([9, 7], of_response=list(sides))
        rho = torch.rand(16) + 0.5 if rho is None else rho
        return set(weight_metrics(tokens, rho, parse_config([])))

    every = names()
    of_neg = {name for name in every if name.endswith("neg")}
    assert every - names(sides=(1.5, 0.0)) == of_neg | {"lambda_scalar"}
    assert names(sides=(0.0, 0.0)) == {"lambda_mean", "lambda_std", "lambda_above_one"}
    correlations = {"lambda_corr_pos", "lambda_corr_neg", "lambda_scalar"}
    assert every - names(rho=torch.ones(16)) == correlations
