"""grpo.py against loops over the formulas, and Eqs. 2-4 against autograd on the toy model."""

import copy
import math

import pytest
import torch

import toy
from grpo import (
    clipped_surrogate,
    clipped_tokens,
    discriminator_scores,
    group_advantages,
    importance_weights,
    overlong_penalty,
    side_centroids,
)


def test_group_advantages_match_formula():
    rewards = torch.tensor([1.0, 0, 0, 1, 0, 0, 0.5, -0.5, 1])
    expected = []
    for group in rewards.view(3, 3).tolist():
        mean = sum(group) / 3
        std = math.sqrt(sum((r - mean) ** 2 for r in group) / 2)
        expected += [(r - mean) / (std + 1e-6) for r in group]
    torch.testing.assert_close(group_advantages(rewards, 3), torch.tensor(expected))


def test_group_advantages_equal_rewards_give_exact_zeros():
    rewards = torch.tensor([0.1, 0.1, 0.1, 0.7, 0.7, 0.7])
    assert torch.equal(group_advantages(rewards, 3), torch.zeros(6))


@pytest.mark.parametrize(
    "rewards, size, match",
    [
        ([1.0, 0.0], 1, "at least 2"),
        ([1.0, 0, 1], 2, "groups of 2"),
        ([1.0, float("nan")], 2, "NaN"),
    ],
)
def test_group_advantages_reject_bad_arguments(rewards, size, match):
    with pytest.raises(ValueError, match=match):
        group_advantages(torch.tensor(rewards), size)


@pytest.mark.parametrize("max_length, buffer", [(64, 40), (64, 64), (20480, 4096)])
def test_overlong_penalty_follows_the_formula(max_length, buffer):
    lengths = [1, max_length // 2, max_length - buffer, max_length - buffer // 3, max_length]
    expected = [min(0, -(L - (max_length - buffer)) / buffer) for L in lengths]
    penalty = overlong_penalty(torch.tensor(lengths), max_length, buffer)
    assert penalty.tolist() == pytest.approx(expected)
    assert overlong_penalty(torch.tensor(lengths), max_length, 0).tolist() == [0] * 5


@pytest.mark.parametrize("A", [1.5, -0.5])
def test_clipped_surrogate_both_sides_and_dual_clip(A):
    ratios = [0.3, 0.79, 0.81, 1.0, 1.27, 1.29, 3.0, 12.0]
    expected = []
    for r in ratios:
        u = min(r * A, min(max(r, 0.8), 1.28) * A)
        expected.append(max(u, 10 * A) if A < 0 else u)
    log_ratio = torch.tensor(ratios).log()
    ours = clipped_surrogate(log_ratio, torch.zeros(8), torch.full((8,), A))
    torch.testing.assert_close(ours, torch.tensor(expected))


@pytest.mark.parametrize("A", [1.0, -1.0])
def test_clipped_tokens_have_no_gradient_and_others_do(A):
    logprob = torch.linspace(-1, 1, 41, requires_grad=True)
    advantage = torch.full((41,), A)
    surrogate = clipped_surrogate(logprob, torch.zeros(41), advantage)
    (gradient,) = torch.autograd.grad(surrogate.sum(), logprob)
    silenced = clipped_tokens(logprob.detach(), torch.zeros(41), advantage)
    assert torch.equal(silenced, gradient == 0)
    assert silenced.any()


def test_importance_weights_are_the_ratio_up_to_the_cap():
    pi = torch.tensor([0.5, 0.3, 0.2])
    sampler = torch.tensor([0.25, 0.25, 0.5])
    weights = importance_weights(pi.log(), sampler.log(), 1.5)
    torch.testing.assert_close(weights, torch.tensor([1.5, 1.2, 0.4]))
    assert torch.equal(importance_weights(pi.log(), sampler.log(), 0), torch.ones(3))
    far = importance_weights(torch.tensor([0.0]), torch.tensor([-1e4]), 3.0)
    assert far.item() == 3


def test_importance_weights_refuse_a_sampler_without_log_probabilities():
    with pytest.raises(ValueError, match="no finite log-probability for 1 of 2 tokens"):
        importance_weights(torch.zeros(2), torch.tensor([0.0, float("nan")]), 2.0)


def test_clipped_surrogate_survives_extreme_ratios():
    logprob = torch.tensor([-1e4, 1e4], requires_grad=True)
    surrogate = clipped_surrogate(logprob, torch.zeros(2), torch.tensor([1.0, -1.0]))
    surrogate.sum().backward()
    assert logprob.grad.isfinite().all()


@pytest.mark.parametrize("weighted", [False, True])
def test_side_centroids_match_loops(weighted):
    g = torch.Generator().manual_seed(0)
    v = torch.randn(50, 4, generator=g)
    advantage = torch.randn(50, generator=g)
    advantage[::7] = 0
    weight = torch.rand(50, generator=g) if weighted else None

    mass = [0.0, 0.0]
    total = [torch.zeros(4), torch.zeros(4)]
    for i in range(50):
        side = int(advantage[i] < 0)
        share = abs(float(advantage[i]))
        if weighted:
            share *= float(weight[i])
        mass[side] += share
        total[side] = total[side] + share * v[i]

    mu_pos, mu_neg, mass_pos, mass_neg = side_centroids(v, advantage, weight)
    torch.testing.assert_close(mu_pos, total[0] / mass[0])
    torch.testing.assert_close(mu_neg, total[1] / mass[1])
    assert (float(mass_pos), float(mass_neg)) == pytest.approx(mass)


def test_side_centroids_empty_side_is_zero():
    mu_pos, mu_neg, mass_pos, mass_neg = side_centroids(torch.ones(3, 2), torch.ones(3))
    assert mass_neg == 0
    assert torch.equal(mu_neg, torch.zeros(2))
    assert torch.equal(mu_pos, torch.ones(2))
    assert mass_pos == 3


# ---- Eqs. 2-4, on all parameters of the toy's base model, in float64 -----------------------------

RESPONSES = [
    ("7*6+1-4=?", "So 7*6=2\nThen 2+1=3\nNow 3-4=9\nanswer \\boxed{9}<eos>", 1.2),
    ("7*6+1-4=?", "Thus 7*6=2\nSo 2+1=5\nHere 5-4=1\nanswer \\boxed{1}<eos>", -0.7),
    ("3+4*2-9=?", "Next 3+4=7\nSo 7*2=1\nAlso 1-9=2\nanswer \\boxed{2}<eos>", -0.3),
    ("3+4*2-9=?", "Now 3+4=7\nSo 7*2=4\nHence 4-9=5\nanswer \\boxed{5}<eos>", 0.5),
]
OTHERS = [
    ("5-8*3+6=?", "So 5-8=7\nThen 7*3=1\nAlso 1+6=7\nanswer \\boxed{7}<eos>", 0.0),
    ("2*2+9-1=?", "Hence 2*2=4\nNow 4+9=0\nSo 0-1=9\nanswer \\boxed{9}<eos>", 0.0),
]


class Float64Model:
    """The toy's base model in float64: log π of given responses, and its gradients."""

    def __init__(self):
        model, self.tokenizer = toy.base_model()
        self.model = copy.deepcopy(model).double()
        self.parameters = list(self.model.parameters())

    def logprobs(self, responses) -> torch.Tensor:
        """log π of the packed tokens of several responses: [N]."""
        rows = []
        for problem, response, _ in responses:
            prompt = self.tokenizer(problem).input_ids
            ids = torch.tensor([prompt + self.tokenizer(response).input_ids])
            logp = self.model(ids).logits[0].log_softmax(-1)
            token = ids[0, len(prompt) :, None]
            rows.append(logp[len(prompt) - 1 : -1].gather(1, token).squeeze(1))
        return torch.cat(rows)

    def gradients(self, responses) -> torch.Tensor:
        """v = ∇_θ log π of every token, with one backward pass per token: [N, P]."""
        rows = []
        for logprob in self.logprobs(responses):
            gradient = torch.autograd.grad(logprob, self.parameters, retain_graph=True)
            rows.append(torch.cat([g.flatten() for g in gradient]))
        return torch.stack(rows)

    def advantages(self, responses) -> torch.Tensor:
        """[N]."""
        tokens = [len(self.tokenizer(response).input_ids) for _, response, _ in responses]
        advantage = torch.tensor([A for _, _, A in responses], dtype=torch.float64)
        return advantage.repeat_interleave(torch.tensor(tokens))


@pytest.fixture(scope="module")
def float64_model():
    return Float64Model()


def test_surrogate_gradient_is_the_mass_weighted_centroid_difference(float64_model):
    """Eqs. 2-3, and Eqs. 9-11 with weights: ∇ of Σ ρ min(rA, clip(r)A) at θ_old, exactly."""
    v = float64_model.gradients(RESPONSES)
    advantage = float64_model.advantages(RESPONSES)
    random = torch.rand(len(v), generator=torch.Generator().manual_seed(1)).double()
    for weight in (torch.ones_like(random), random):
        logprob = float64_model.logprobs(RESPONSES)
        surrogate = clipped_surrogate(logprob, logprob.detach(), advantage)
        gradient = torch.autograd.grad((weight * surrogate).sum(), float64_model.parameters)
        gradient = torch.cat([g.flatten() for g in gradient])

        mu_pos, mu_neg, mass_pos, mass_neg = side_centroids(v, advantage, weight)
        predicted = mass_pos * mu_pos - mass_neg * mu_neg  # Eq. 2
        assert (gradient - predicted).norm() / gradient.norm() < 1e-5


def test_discriminator_scores_predict_the_change_of_log_probability(float64_model):
    """Eq. 4: a small step moves log π in other contexts at the rate of the linear score."""
    v = float64_model.gradients(RESPONSES)
    u = float64_model.gradients(OTHERS)
    centroids = side_centroids(v, float64_model.advantages(RESPONSES))
    predicted = discriminator_scores(u, *centroids)

    mu_pos, mu_neg, mass_pos, mass_neg = centroids
    step = mass_pos * mu_pos - mass_neg * mu_neg
    step = step.split([p.numel() for p in float64_model.parameters])
    size = 5e-7  # a smaller step is lost in the float32 norms, a larger one adds curvature
    after = []
    with torch.no_grad():
        for sign in (1, -1):
            for p, change in zip(float64_model.parameters, step, strict=True):
                p += sign * size * change.view_as(p)
            after.append(float64_model.logprobs(OTHERS))
            for p, change in zip(float64_model.parameters, step, strict=True):
                p -= sign * size * change.view_as(p)
    rate = (after[0] - after[1]) / (2 * size)
    assert (rate - predicted).norm() / rate.norm() < 0.01
