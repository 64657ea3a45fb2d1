"""delta.py against slow references: float64, explicit loops, explicit squared distances.

Eqs. 2-4 against autograd on the toy model.
"""

import copy

import pytest
import torch
from references import SlowDelta, two_sides

import toy
from delta import (
    delta_coefficients,
    margins,
    normalise,
    scores,
    side_centroids,
    temperatures,
    token_gradient_proxy,
)
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


def test_delta_coefficients_lagged_temperature():
    """K = 1 scores with the γ of Δ⁽⁰⁾ (App. H); the γ of Δ⁽¹⁾ would give other coefficients."""
    v, advantage = two_sides(seed=2)
    slow = SlowDelta(v, advantage)
    first = slow.margins([1.0] * len(v))
    second = slow.margins(slow.scores(first, slow.temperatures(first)))
    lagged = torch.tensor(slow.scores(second, slow.temperatures(first)))
    fresh = torch.tensor(slow.scores(second, slow.temperatures(second)))

    ours = delta_coefficients(v, advantage, K=1, lam_min=0, lam_max=1)
    sides = advantage != 0
    as_given = ours[sides] / ours[sides].mean()
    torch.testing.assert_close(as_given, lagged[sides] / lagged[sides].mean(), rtol=1e-4, atol=1e-4)
    assert (as_given - fresh[sides] / fresh[sides].mean()).abs().max() > 1e-2


def test_margins_linear_form_equals_squared_distances():
    """App. G: ‖v-μ₋‖² - ‖v-μ₊‖² on the positive side, its negative on the other, 0 where A = 0."""
    v, advantage = two_sides(seed=1, dtype=torch.float64)
    mu_pos = v[:10].mean(0)
    mu_neg = v[10:25].mean(0) + 1
    direct = (v - mu_neg).square().sum(1) - (v - mu_pos).square().sum(1)
    torch.testing.assert_close(
        margins(v, advantage, mu_pos, mu_neg), direct * advantage.sign().double()
    )


@pytest.mark.parametrize("delta, gamma", [(0.7, 0.5), (-1.2, 0.9), (0.0, 1.0), (0.2, 3.0)])
def test_scores_maximise_the_entropy_regularised_margin(delta, gamma):
    """Eqs. 5-6: no α on a fine grid of [0, 1] beats σ(Δ/γ) in α Δ + γ h(α)."""
    grid = torch.linspace(1e-4, 1 - 1e-4, 20001, dtype=torch.float64)
    h = -(grid * grid.log() + (1 - grid) * (1 - grid).log())
    best = grid[(grid * delta + gamma * h).argmax()]
    one = torch.ones(1, dtype=torch.float64)
    own, other = torch.tensor(gamma), torch.tensor(gamma + 5)
    on_positive = scores(delta * one, one, own, other)
    on_negative = scores(delta * one, -one, other, own)
    assert abs(on_positive - best) < 1e-4
    assert abs(on_negative - best) < 1e-4


def test_normalise_gives_mean_one_and_keeps_ratios():
    lam = normalise(torch.tensor([0.8, 1.2, 1.6]))
    assert lam.tolist() == pytest.approx([2 / 3, 1.0, 4 / 3])
    assert torch.equal(normalise(torch.zeros(3)), torch.ones(3))


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


DEGENERATE = [
    torch.zeros(4, 3),
    torch.ones(4, 3),
    torch.full((4, 3), 1e-44),
    torch.full((4, 3), 1e15),
    torch.randn(4, 3, dtype=torch.bfloat16),
    torch.tensor([[5.0, 1], [5, 1], [-5, 1], [-5, 1]]),
]


@pytest.mark.parametrize("v", DEGENERATE)
def test_delta_coefficients_are_finite_for_finite_input(v):
    """Equal margins reach the floor of the temperatures."""
    for advantage in ([1.0, 2.0, -1.0, 0.0], [1e-30, 1e30, -1e-30, -1e30], [1.0, -1.0, 1.0, -1.0]):
        for lam_min, lam_max in ((0.0, 0.0), (0.0, 1.0), (0.8, 1.2)):
            lam = delta_coefficients(v, torch.tensor(advantage), 1, lam_min, lam_max)
            assert lam.isfinite().all()


def test_temperatures_have_their_floor_on_the_variance():
    gamma = temperatures(torch.zeros(4), torch.tensor([1.0, 1.0, -1.0, -1.0]))
    assert torch.stack(gamma).tolist() == pytest.approx([1e-6, 1e-6], rel=1e-6)


@pytest.mark.parametrize("bad", [float("nan"), float("-inf")])
def test_delta_coefficients_reject_values_that_are_not_finite(bad):
    v, advantage = two_sides(seed=7)
    for i in (17, (advantage == 0).nonzero()[0]):  # with an advantage, and without
        damaged = v.clone()
        damaged[i, 2] = bad
        with pytest.raises(ValueError, match="margin is not finite: v or A has NaN or inf"):
            delta_coefficients(damaged, advantage)
    advantage[3] = bad
    with pytest.raises(ValueError, match="margin is not finite: v or A has NaN or inf"):
        delta_coefficients(v, advantage)


def test_delta_coefficients_reject_margins_that_overflow():
    v, advantage = two_sides(seed=7)
    with pytest.raises(ValueError, match="margin is not finite"):
        delta_coefficients(v * 1e30, advantage)


@pytest.mark.parametrize("bad", [{"K": -1}, {"lam_min": 1.3}, {"lam_min": -0.1}])
def test_delta_coefficients_reject_a_number_or_range_without_meaning(bad):
    with pytest.raises(ValueError, match="need K >= 0, 0 <= lam_min <= lam_max: got"):
        delta_coefficients(*two_sides(), **bad)


def test_delta_coefficients_reject_other_shapes():
    v, advantage = two_sides()
    for wrong in ((v, torch.ones(4)), (torch.ones(61), advantage)):
        with pytest.raises(ValueError, match=r"v must be \[N, H\] and advantage \[N\], got \(61,"):
            delta_coefficients(*wrong)


def test_delta_coefficients_are_accurate_in_bfloat16():
    """Sums over 20,000 bfloat16 rows are as accurate as over the same rows in float64."""
    v, advantage = two_sides(N=20_000, H=8, seed=8, dtype=torch.bfloat16)
    torch.testing.assert_close(
        delta_coefficients(v, advantage),
        delta_coefficients(v.double(), advantage).float(),
        rtol=1e-4,
        atol=1e-4,
    )


def test_integers_are_converted_or_refused():
    """With v = [[3, 1], [1, 2], ...] the shares of a centroid, below 1, would round to 0."""
    v = torch.tensor([[3, 1], [1, 2], [0, 5], [4, 4]])
    advantage = torch.tensor([1.0, 2.0, -1.0, -1.0])
    expected = delta_coefficients(v.float(), advantage)
    assert expected.std() > 0
    assert torch.equal(delta_coefficients(v, advantage), expected)
    with pytest.raises(RuntimeError, match="dtype"):
        side_centroids(v, advantage)


# ---- the sides (Sec. 3.1) ------------------------------------------------------------------------


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


def test_centroids_and_masses_predict_the_change_of_log_probability(float64_model):
    """Eq. 4: a small step moves log π in other contexts at the rate of the linear score."""
    v = float64_model.gradients(RESPONSES)
    u = float64_model.gradients(OTHERS)
    advantage = float64_model.advantages(RESPONSES)
    mu_pos, mu_neg, mass_pos, mass_neg = side_centroids(v, advantage)
    predicted = mass_pos * (u @ mu_pos) - mass_neg * (u @ mu_neg)  # Eq. 4

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
