"""Tests extensions.py: other papers' methods against formulas, the proxies against autograd."""

import math

import torch
from references import method_weights, token_batch, token_outputs

from config import METHODS, PROXIES, parse_config, selected_method
from extensions import cispo_surrogate, lm_head_gradient, reinforce_surrogate
from grpo import group_advantages


def moved_tokens():
    """(tokens, log π_θ with a gradient): the responses' mean log-ratios are about those below."""
    tokens = token_batch([3, 5, 2, 4])  # A is 1, -1, 0.5 and 0
    moved = torch.tensor([0.2, -0.2, 0.01, 0.2]).repeat_interleave(tokens.length)
    moved[::2] += 0.3
    moved[1::2] -= 0.3
    return tokens, (tokens.old_logprob + moved).requires_grad_()


def test_reinforce_has_no_ratio_and_no_clip():
    tokens, logprob = moved_tokens()
    (gradient,) = torch.autograd.grad(reinforce_surrogate(logprob, tokens, None).sum(), logprob)
    assert torch.equal(gradient, tokens.advantage)


def test_cispo_caps_the_ratio_and_keeps_every_gradient():
    """Eq. 4 of MiniMax-M1: the gradient of a token is min(r, C) A, with no lower bound."""
    tokens, logprob = moved_tokens()
    cfg = parse_config(["--method", "cispo", "--cispo-cap", "1.1"])
    (gradient,) = torch.autograd.grad(cispo_surrogate(logprob, tokens, cfg).sum(), logprob)
    ratios = [math.exp(x) for x in (logprob - tokens.old_logprob).tolist()]
    expected = [min(r, 1.1) * A for r, A in zip(ratios, tokens.advantage.tolist(), strict=True)]
    torch.testing.assert_close(gradient, torch.tensor(expected))
    assert min(ratios) < 0.8 < 1.1 < max(ratios)


def test_gspo_is_the_clipped_surrogate_of_whole_responses():
    """Eq. 5 of GSPO, one response at a time, gives the objective, the gradient, and the clips."""
    tokens, logprob = moved_tokens()
    cfg = parse_config(["--method", "gspo", "--clip-low", "0.05", "--clip-high", "0.06"])
    objective = 0.0
    clips = []
    old, advantage = tokens.old_logprob.split([3, 5, 2, 4]), [1.0, -1.0, 0.5, 0.0]
    for new, before, A in zip(logprob.split([3, 5, 2, 4]), old, advantage, strict=True):
        s = ((new.sum() - before.sum()) / len(new)).exp()
        kept = min(max(s.item(), 0.95), 1.06)
        clipped = s.item() * A > kept * A
        clips += [clipped] * len(new)
        objective = objective + (kept if clipped else s) * A / 4

    method = METHODS["gspo"]
    rho = method.weights(tokens, None, cfg)
    ours = (rho * method.surrogate(logprob, tokens, cfg)).sum() / len(tokens)
    torch.testing.assert_close(ours, objective)
    gradients = [torch.autograd.grad(x, logprob)[0] for x in (ours, objective)]
    torch.testing.assert_close(*gradients)
    assert method.is_clipped(logprob, tokens, cfg).tolist() == clips
    assert clips == [True] * 8 + [False] * 6  # risen with A > 0, fallen with A < 0


# Other papers' advantages: ρ A is the advantage of the cited paper, up to a scale.
LENGTHS = [4, 9, 2, 6, 5, 5, 1, 7]  # tokens per response, in two groups of 4
REWARDS = [1.0, 0.0, 0.0, 1.0, -0.5, 1.0, 0.0, 0.0]


def graded_tokens(rewards=REWARDS):
    """Tokens with the group advantages of these rewards."""
    rewards = torch.tensor(rewards)
    advantage = group_advantages(rewards, 4).repeat_interleave(torch.tensor(LENGTHS))
    return token_batch(LENGTHS, advantage=advantage, reward=rewards)


def assert_proportional(ours, expected):
    b = torch.tensor(expected)
    factor = (ours * b).sum() / b.square().sum()
    assert factor > 0
    torch.testing.assert_close(ours, factor * b, rtol=1e-4, atol=1e-5)


def test_dr_grpo_subtracts_the_mean_reward_and_equals_rloo():
    tokens = graded_tokens()
    ours = method_weights(tokens, "--method", "dr_grpo") * tokens.advantage
    mean, rloo = [], []
    for i, (length, reward) in enumerate(zip(LENGTHS, REWARDS, strict=True)):
        group = REWARDS[i // 4 * 4 : i // 4 * 4 + 4]
        mean += [reward - sum(group) / 4] * length
        rloo += [reward - (sum(group) - reward) / 3] * length  # minus the mean of the other rewards
    assert_proportional(ours, mean)
    assert_proportional(ours, rloo)
    assert torch.all(method_weights(graded_tokens([1.0] * 8), "--method", "dr_grpo") == 1)


def test_lm_head_gradient_matches_autograd():
    g = torch.Generator().manual_seed(1)
    W = torch.randn(6, 3, generator=g, requires_grad=True)
    h, y = torch.randn(4, 3, generator=g), torch.tensor([5, 0, 2, 2])
    logprob = (h @ W.T).log_softmax(-1).gather(1, y[:, None]).squeeze(1)
    rows = [torch.autograd.grad(x, W, retain_graph=True)[0].flatten() for x in logprob]
    ours = lm_head_gradient(token_outputs(h, y), lambda: W.detach())
    torch.testing.assert_close(ours, torch.stack(rows))


def test_the_centred_proxy_has_mean_zero_over_the_vocabulary():
    g = torch.Generator().manual_seed(0)
    h = torch.randn(4, generator=g)
    W = torch.randn(9, 4, generator=g)
    logp = (W @ h).log_softmax(0)  # of one state, for each token
    p = logp.exp()
    v = PROXIES["centred"](token_outputs(h.expand(9, 4), None, logp), lambda: W)
    torch.testing.assert_close(v, torch.stack([((p * p).sum() - p[y]) * h for y in range(9)]))
    torch.testing.assert_close(p @ v, torch.zeros(4), rtol=0, atol=1e-6)


def test_the_scalar_proxy_is_1_minus_p():
    tokens = token_batch([7, 3, 5])
    features = selected_method(parse_config(["--proxy", "scalar"])).features
    v = features(token_outputs(None, tokens.token, tokens.old_logprob), None)
    torch.testing.assert_close(v, 1 - tokens.old_logprob.exp()[:, None])
