"""grpo.py against loops over the paper's formulas, and Eqs. 2-4 against autograd on the toy model."""
import copy
import math

import pytest
import torch

from grpo import (METHODS, TokenBatch, clipped_surrogate, clipped_tokens, discriminator_scores, group_advantages, reinforce_surrogate,
                  sapo_surrogate, selected, side_centroids)
from policy import Policy


def test_group_advantages_match_formula():
    rewards = torch.tensor([1.0, 0, 0, 1, 0, 0, 0.5, -0.5, 1])
    expected = []
    for group in rewards.view(3, 3).tolist():
        mean = sum(group) / 3
        std = math.sqrt(sum((r - mean) ** 2 for r in group) / 2)
        expected += [(r - mean) / (std + 1e-6) for r in group]
    torch.testing.assert_close(group_advantages(rewards, 3), torch.tensor(expected))


def test_group_advantages_equal_rewards_give_exact_zeros():
    assert torch.equal(group_advantages(torch.tensor([0.1, 0.1, 0.1, 0.7, 0.7, 0.7]), 3), torch.zeros(6))


@pytest.mark.parametrize("rewards, size, match", [([1.0, 0.0], 1, "at least 2"), ([1.0, 0, 1], 2, "groups of 2"),
                                                  ([1.0, float("nan")], 2, "NaN")])
def test_group_advantages_reject(rewards, size, match):
    with pytest.raises(ValueError, match=match):
        group_advantages(torch.tensor(rewards), size)


def test_clipped_surrogate_both_sides_and_dual_clip():
    ratios = [0.3, 0.79, 0.81, 1.0, 1.27, 1.29, 3.0, 12.0]
    for A in (1.5, -0.5):
        expected = []
        for r in ratios:
            u = min(r * A, min(max(r, 0.8), 1.28) * A)
            expected.append(max(u, 10 * A) if A < 0 else u)
        ours = clipped_surrogate(torch.tensor(ratios).log(), torch.zeros(8), torch.full((8,), A))
        torch.testing.assert_close(ours, torch.tensor(expected))
    assert clipped_surrogate(torch.tensor([12.0]).log(), torch.zeros(1), -torch.ones(1), dual_clip=None).item() == pytest.approx(-12)


def test_clipped_tokens_are_those_without_gradient():
    logprob = torch.linspace(-1, 1, 41, requires_grad=True)
    for A in (1.0, -1.0):
        advantage = torch.full((41,), A)
        gradient, = torch.autograd.grad(clipped_surrogate(logprob, torch.zeros(41), advantage).sum(), logprob)
        assert torch.equal(clipped_tokens(logprob.detach(), torch.zeros(41), advantage), gradient == 0)


def test_clipped_surrogate_survives_extreme_ratios():
    logprob = torch.tensor([-1e4, 1e4], requires_grad=True)
    clipped_surrogate(logprob, torch.zeros(2), torch.tensor([1.0, -1.0])).sum().backward()
    assert logprob.grad.isfinite().all()


@pytest.mark.parametrize("weighted", [False, True])
def test_side_centroids_match_loops(weighted):
    g = torch.Generator().manual_seed(0)
    v, advantage = torch.randn(50, 4, generator=g), torch.randn(50, generator=g)
    advantage[::7] = 0
    weight = torch.rand(50, generator=g) if weighted else None
    mass, total = [0.0, 0.0], [[0.0] * 4, [0.0] * 4]
    for i in range(50):
        side, share = int(advantage[i] < 0), abs(float(advantage[i])) * (float(weight[i]) if weighted else 1.0)
        mass[side] += share
        total[side] = [t + share * float(x) for t, x in zip(total[side], v[i])]
    mu_pos, mu_neg, mass_pos, mass_neg = side_centroids(v, advantage, weight)
    torch.testing.assert_close(mu_pos, torch.tensor(total[0]) / mass[0])
    torch.testing.assert_close(mu_neg, torch.tensor(total[1]) / mass[1])
    assert (float(mass_pos), float(mass_neg)) == pytest.approx(mass)


def test_side_centroids_empty_side_is_zero():
    mu_pos, mu_neg, mass_pos, mass_neg = side_centroids(torch.ones(3, 2), torch.ones(3))
    assert mass_neg == 0 and torch.equal(mu_neg, torch.zeros(2)) and torch.equal(mu_pos, torch.ones(2)) and mass_pos == 3


def token_gradients(policy, batch, index):
    """[N, P] v_{i,t} = ∇_θ log π(o_{i,t} | ...) over all parameters, one backward pass per token."""
    logprob = policy.rows(batch, index).logprob
    parameters = list(policy.parameters())
    rows = [torch.autograd.grad(x, parameters, retain_graph=True) for x in logprob]
    return torch.stack([torch.cat([g.flatten() for g in row]) for row in rows])


@pytest.fixture(scope="module")
def gradients(base, batch):
    policy = Policy(copy.deepcopy(base[0]))  # a test below moves its parameters
    index = torch.tensor([0, 1, 12, 13])
    length = batch.response_length[index]
    advantage = torch.tensor([1.2, -0.7, -0.3, 0.5]).repeat_interleave(length)
    return policy, index, advantage, token_gradients(policy, batch, index)


@pytest.mark.parametrize("weighted", [False, True])
def test_surrogate_gradient_is_the_mass_weighted_centroid_difference(gradients, batch, weighted):
    """Eqs. 2-3 (and Eqs. 9-11 with weights): ∇ of Σ ρ min(rA, clip(r)A) at θ_old is M₊μ̄₊ - M₋μ̄₋, exactly."""
    policy, index, advantage, v = gradients
    weight = torch.rand(len(v), generator=torch.Generator().manual_seed(1)) if weighted else None
    logprob = policy.rows(batch, index).logprob
    surrogate = clipped_surrogate(logprob, logprob.detach(), advantage)
    gradient = torch.autograd.grad((surrogate if weight is None else weight * surrogate).sum(), list(policy.parameters()))
    gradient = torch.cat([g.flatten() for g in gradient])
    mu_pos, mu_neg, mass_pos, mass_neg = side_centroids(v, advantage, weight)
    predicted = (mass_pos * mu_pos - mass_neg * mu_neg).float()
    assert (gradient - predicted).norm() / gradient.norm() < 1e-5


def test_discriminator_scores_predict_the_change_of_log_probability(gradients, base, batch):
    """Eq. 4: after a small plain-SGD step, Δ log π of tokens in other contexts follows the linear score."""
    policy, index, advantage, v = gradients
    others = torch.tensor([5, 18])
    u, before = token_gradients(policy, batch, others), policy.rows(batch, others).logprob.detach()
    centroids = side_centroids(v, advantage)
    predicted = discriminator_scores(u, *centroids)
    step = centroids[2] * centroids[0] - centroids[3] * centroids[1]
    with torch.no_grad():
        for p, change in zip(policy.parameters(), step.split([p.numel() for p in policy.parameters()])):
            p += 1e-5 * change.view_as(p)
        after = policy.rows(batch, others).logprob
    actual = (after - before).double() / 1e-5
    assert torch.corrcoef(torch.stack([actual, predicted.double()]))[0, 1] > 0.99
    assert (actual - predicted).norm() / actual.norm() < 0.1  # the scale too, not only the direction


def token_batch(length, seed=0, **changes):
    """A TokenBatch of random numbers; advantages 1, -1, 0.5, 0 in turn."""
    g, N = torch.Generator().manual_seed(seed), int(length.sum())
    advantage = torch.tensor([1.0, -1, 0.5, 0])[torch.arange(len(length)) % 4].repeat_interleave(length)
    batch = dict(advantage=advantage, logprob=-torch.rand(N, generator=g), entropy=torch.rand(N, generator=g), hidden=torch.randn(N, 4, generator=g),
                 length=length, token=torch.randint(6, (N,), generator=g), mine=torch.arange(N))
    head = torch.randn(6, 4, generator=g)
    return TokenBatch(**(batch | {"head": lambda: head, "current": batch["logprob"]} | changes))


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"delta"}))
def test_methods_have_mean_one(name):
    assert METHODS[name](token_batch(torch.tensor([2, 5, 3]))).mean() == pytest.approx(1)


def test_grpo_and_dapo_weights_match_their_formulas():
    tokens = token_batch(torch.tensor([2, 5, 3]))
    assert torch.equal(METHODS["dapo"](tokens), torch.ones(10))
    u = torch.arange(10.0)  # Eq. 12: the weighted token average is the mean over responses of the mean inside each
    expected = torch.stack([part.mean() for part in u.split([2, 5, 3])]).mean()
    for name in ("grpo", "sapo"):
        torch.testing.assert_close((METHODS[name](tokens) * u).mean(), expected)


def test_forking_tokens_keep_the_top_fifth_by_entropy():
    tokens = token_batch(torch.tensor([4, 6, 13]))
    weights = METHODS["forking_tokens"](tokens)
    kept = weights > 0
    assert kept.sum() == 5 and tokens.entropy[kept].min() > tokens.entropy[~kept].max() and torch.all(weights[kept] == 23 / 5)


def test_fipo_weights_match_an_explicit_double_sum():
    """Eq. 15: F_t = Σ_{k>=t} γ^(k-t) z_k inside each response, z = log r but 0 where r > 10, then clip(exp F, 1, 1.2)."""
    length = torch.tensor([3, 40, 7])
    g = torch.Generator().manual_seed(3)
    current = token_batch(length).logprob + 0.06 * torch.randn(50, generator=g)
    current[5] += 4.0  # a ratio above 10
    tokens = token_batch(length, current=current)
    expected, start = [], 0
    for n in length.tolist():
        z = [float(x) if math.exp(float(x)) <= 10 else 0.0 for x in (current - tokens.logprob)[start:start + n]]
        for t in range(n):
            F = sum(2 ** (-(k - t) / 32) * z[k] for k in range(t, n))
            expected.append(min(max(math.exp(F), 1.0), 1.2))
        start += n
    ours = METHODS["fipo"](tokens)
    torch.testing.assert_close(ours, torch.tensor(expected), rtol=1e-5, atol=1e-5)
    assert ((ours > 1) & (ours < 1.2)).any() and (ours == 1).any()


def test_fipo_equals_dapo_where_the_ratio_is_one():
    assert torch.equal(METHODS["fipo"](token_batch(torch.tensor([3, 4]))), torch.ones(7))


def test_sapo_surrogate_slope_is_the_formulas_and_one_at_ratio_one():
    """Its gradient weight is A r sech²(τ (r-1) / 2), τ = 1 or 1.05."""
    log_ratio = torch.linspace(-1, 1, 21, requires_grad=True)
    for A, tau in ((1.5, 1.0), (-0.5, 1.05)):
        advantage = torch.full((21,), A)
        gradient, = torch.autograd.grad(sapo_surrogate(log_ratio, torch.zeros(21), advantage).sum(), log_ratio)
        r = log_ratio.detach().exp()
        torch.testing.assert_close(gradient, A * r / torch.cosh(tau * (r - 1) / 2) ** 2)
        assert gradient[10].item() == pytest.approx(A)


def test_reinforce_surrogate_has_no_ratio_and_no_clip():
    logprob = torch.tensor([-3.0, -0.1], requires_grad=True)
    gradient, = torch.autograd.grad(reinforce_surrogate(logprob, torch.tensor([-9.0, -9.0]), torch.tensor([2.0, -1.0])).sum(), logprob)
    assert gradient.tolist() == [2.0, -1.0]


def test_selected_keeps_the_share_with_mean_one():
    weights = selected(torch.tensor([0.1, 0.9, 0.5, 0.3, 0.7]), 0.5)
    assert weights.tolist() == pytest.approx([0, 5 / 3, 5 / 3, 0, 5 / 3])
