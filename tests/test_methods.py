"""methods.py: each method's weights and surrogate against the formula it cites."""

import math
from types import SimpleNamespace

import pytest
import torch
from references import token_batch, token_outputs

import train
from grpo import group_advantages
from infra.errors import UserError
from methods import (
    METHODS,
    Method,
    clipped,
    logit_energy,
    reinforce_surrogate,
    sapo_surrogate,
    token_weights,
)

FLAGS = train.parse_config(["--group-size", "4"])


def weights(name, tokens, *flags):
    cfg = train.parse_config(["--method", name, "--group-size", "4", *flags])
    return METHODS[name].weights(tokens, cfg)


@pytest.mark.parametrize("name", METHODS)
def test_methods_have_mean_one(name):
    tokens = token_batch([2, 5, 3, 4])
    if name == "otb":
        tokens.kept = tokens.kept[:, :1].abs()
    assert weights(name, tokens).mean() == pytest.approx(1, abs=1e-6)


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
    current = token_batch(lengths).logprob + 0.06 * torch.randn(50, generator=g)
    current[49] += 4.0  # a ratio above the safety threshold, in the last token
    tokens = token_batch(lengths, current=current)
    expected = fipo_by_double_sum((current - tokens.logprob).tolist(), lengths)

    ours = weights("fipo", tokens)
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)
    assert ours[49] == 1
    assert ((ours > 1) & (ours < 1.2)).any()
    assert (ours == 1).any()


@pytest.mark.parametrize("A, tau", [(1.5, 1.0), (-0.5, 1.05)])
def test_sapo_surrogate_slope_matches_the_formula_and_is_one_at_ratio_one(A, tau):
    """The slope in log π is A r sech²(τ (r-1) / 2); τ is 1 where A > 0, else 1.05."""
    log_ratio = torch.linspace(-1, 1, 21, requires_grad=True)
    advantage = torch.full((21,), A)
    surrogate = sapo_surrogate(log_ratio, torch.zeros(21), advantage, FLAGS)
    (gradient,) = torch.autograd.grad(surrogate.sum(), log_ratio)
    r = log_ratio.detach().exp()
    torch.testing.assert_close(gradient, A * r / torch.cosh(tau * (r - 1) / 2) ** 2)
    assert gradient[10].item() == pytest.approx(A)


def test_reinforce_surrogate_has_no_ratio_and_no_clip():
    logprob = torch.tensor([-3.0, -0.1], requires_grad=True)
    advantage = torch.tensor([2.0, -1.0])
    surrogate = reinforce_surrogate(logprob, torch.tensor([-9.0, -9.0]), advantage, FLAGS)
    (gradient,) = torch.autograd.grad(surrogate.sum(), logprob)
    assert gradient.tolist() == [2.0, -1.0]


def test_clipped_surrogate_uses_the_clip_flags():
    narrow = SimpleNamespace(clip_low=0.1, clip_high=0.05)
    ratios = torch.tensor([0.5, 2.0]).log()
    out = clipped(ratios, torch.zeros(2), torch.tensor([-1.0, 1.0]), narrow)
    assert out.tolist() == pytest.approx([-0.9, 1.05])


@pytest.mark.parametrize("name", METHODS)
def test_slope_of_every_surrogate_at_ratio_one_is_the_advantage(name):
    """Eq. 9: near θ_old every method is Σ ρ A v, so the surrogate itself has slope A."""
    logprob = torch.tensor([-0.3, -1.0, -2.0], requires_grad=True)
    advantage = torch.tensor([1.3, -0.7, 0.0])
    surrogate = METHODS[name].surrogate(logprob, logprob.detach(), advantage, FLAGS)
    (gradient,) = torch.autograd.grad(surrogate.sum(), logprob)
    torch.testing.assert_close(gradient, advantage)


def test_token_weights_names_a_method_whose_weights_are_invalid():
    tokens = token_batch([3, 4])
    wrong = {
        "gave weights of shape (6,)": torch.ones(6),
        "gave a weight that is NaN or infinite": torch.full((7,), math.nan),
        "gave a negative weight": tokens.logprob,
    }
    for message, weights in wrong.items():
        method = Method(weights=lambda tokens, flags, weights=weights: weights)
        with pytest.raises(UserError) as refused:
            token_weights(method, tokens, SimpleNamespace(method="mine"))
        assert str(refused.value).startswith(f"--method mine {message}")


# ---- other papers' advantages: ρ A is the cited paper's, up to a scale ---------------------------

LENGTHS = [4, 9, 2, 6, 5, 5, 1, 7]  # tokens per response, in two groups of 4
REWARDS = [1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0]


def graded_tokens(rewards=REWARDS, seed=0):
    """Tokens with the group advantages of these rewards, and energies between 0 and 2."""
    N = sum(LENGTHS)
    energy = 2 * torch.rand(N, 1, generator=torch.Generator().manual_seed(seed))
    advantage = group_advantages(torch.tensor(rewards), 4)
    return token_batch(
        LENGTHS,
        advantage=advantage.repeat_interleave(torch.tensor(LENGTHS)),
        kept=energy,
    )


def assert_proportional(ours, expected, groups_apart):
    """Proportional with one factor for the batch, or one factor for each of the two groups."""
    first = sum(LENGTHS[:4])
    parts = [slice(0, first), slice(first, None)] if groups_apart else [slice(None)]
    for part in parts:
        a, b = ours[part].double(), torch.tensor(expected[part], dtype=torch.float64)
        factor = (a * b).sum() / b.square().sum()
        assert factor > 0
        torch.testing.assert_close(a, factor * b, rtol=1e-4, atol=1e-5)


def test_w_reinforce_gives_w_to_correct_and_minus_one_to_wrong_responses():
    tokens = graded_tokens()
    expected = []
    for length, reward in zip(LENGTHS, REWARDS, strict=True):
        expected += [0.1 if reward else -1.0] * length
    assert_proportional(weights("w_reinforce", tokens) * tokens.advantage, expected, False)


def test_opo_subtracts_the_mean_reward_weighted_by_length():
    tokens = graded_tokens()
    expected = []
    for g in (0, 4):
        lengths, rewards = LENGTHS[g : g + 4], REWARDS[g : g + 4]
        pairs = list(zip(lengths, rewards, strict=True))
        baseline = sum(n * r for n, r in pairs) / sum(lengths)
        for n, r in pairs:
            expected += [r - baseline] * n
    assert_proportional(weights("opo", tokens) * tokens.advantage, expected, True)


def test_otb_subtracts_the_mean_reward_weighted_by_energy_so_far():
    tokens = graded_tokens()
    energy = [x.flatten().tolist() for x in tokens.kept.split(LENGTHS)]
    expected = []
    for i, (length, reward) in enumerate(zip(LENGTHS, REWARDS, strict=True)):
        group = range(i // 4 * 4, i // 4 * 4 + 4)
        for t in range(length):
            W = {j: sum(energy[j][: t + 1]) for j in group if LENGTHS[j] > t}
            expected.append(reward - sum(W[j] * REWARDS[j] for j in W) / sum(W.values()))
    ours = weights("otb", tokens) * tokens.advantage
    assert_proportional(ours, expected, True)
    alone = slice(4 + 6, 4 + 9)  # the second response continues after the others have ended
    assert torch.all(ours[alone] == 0)


def test_otb_equals_dapo_while_all_tokens_are_certain():
    """Certain tokens have no gradient; nothing is divided by 0."""
    tokens = graded_tokens()
    tokens.kept.zero_()
    torch.testing.assert_close(weights("otb", tokens), torch.ones(sum(LENGTHS)))


@pytest.mark.parametrize("name", ["w_reinforce", "opo", "otb"])
def test_a_group_of_equal_rewards_does_not_affect_the_scale(name):
    rewards = [*REWARDS[:4], 0.0, 0.0, 0.0, 0.0]
    tokens = graded_tokens(rewards)
    rho = weights(name, tokens)
    sides = tokens.advantage != 0
    assert torch.all(rho[~sides] == 1)
    assert rho[sides].mean() == pytest.approx(1)
    assert torch.all(weights(name, graded_tokens([1.0] * 8)) == 1)


def test_logit_energy_is_the_squared_norm_of_the_logit_gradient(monkeypatch):
    monkeypatch.setattr("methods.LOGITS_PER_BLOCK", 20)  # two tokens per block
    g = torch.Generator().manual_seed(0)
    W, h = torch.randn(9, 4, generator=g), torch.randn(5, 4, generator=g)
    y = torch.tensor([0, 3, 8, 3, 1])
    z = (h @ W.T).requires_grad_()
    logprob = z.log_softmax(dim=1).gather(1, y[:, None]).squeeze(1)
    (gradient,) = torch.autograd.grad(logprob.sum(), z)
    ours = logit_energy(token_outputs(h, y, logprob.detach()), lambda: W)
    torch.testing.assert_close(ours, gradient.square().sum(dim=1, keepdim=True))
