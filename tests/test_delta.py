"""delta.py against slow references: float64, explicit loops, explicit squared distances, straight from the paper."""
import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from delta import VARIANTS, delta_coefficients, hidden_gradient_proxy, lm_head_gradient, margins, scores, token_gradient_proxy
from delta import delta as delta_method
from test_grpo import token_batch


def problem(N=61, H=5, seed=0, dtype=torch.float32):
    """An asymmetric batch: 3 advantages on the positive side, 2 on the negative, some zero rows, sides shifted apart."""
    g = torch.Generator().manual_seed(seed)
    advantage = torch.tensor([1.7, -0.4, 0.0, 0.3, -2.1, 0.9])[torch.randint(6, (N,), generator=g)]
    v = torch.randn(N, H, generator=g) * torch.rand(N, 1, generator=g) * 3 + 1.0
    v[advantage > 0, 0] += 0.7
    v[advantage < 0, 1] -= 0.4
    return v.to(dtype), advantage


def reference(v, advantage, K, lam_min, lam_max, variant):
    """Sec. 3.2 and Apps. F-H token by token, with the lagged temperatures, in Python floats."""
    v, A = v.double().tolist(), advantage.double().tolist()
    N, H = len(v), len(v[0])
    plus, minus = [i for i in range(N) if A[i] > 0], [i for i in range(N) if A[i] < 0]
    distance = lambda x, y: sum((a - b) ** 2 for a, b in zip(x, y))

    def centroid(side, weight):
        total = sum(abs(A[i]) * weight[i] for i in side)
        return [sum(abs(A[i]) * weight[i] * v[i][j] for i in side) / total if total else 0.0 for j in range(H)]

    def margin(mu_plus, mu_minus):
        out = [0.0] * N
        for i in plus:
            out[i] = -distance(v[i], mu_plus) + (0 if variant == "within_side" else distance(v[i], mu_minus))
        for i in minus:
            out[i] = -distance(v[i], mu_minus) + (0 if variant == "within_side" else distance(v[i], mu_plus))
        return out

    def gammas(delta):
        out = []
        for side in (plus, minus):
            mean = sum(delta[i] for i in side) / len(side)
            out.append(math.sqrt(max(sum((delta[i] - mean) ** 2 for i in side) / len(side), 1e-12)))
        return out

    def alphas(delta, gamma):
        if variant == "hard":
            return [float(d > 0) for d in delta]
        return [1 / (1 + math.exp(-delta[i] / gamma[0 if A[i] > 0 else 1])) for i in range(N)]

    delta = margin(centroid(plus, [1.0] * N), centroid(minus, [1.0] * N))
    gamma = gammas(delta)
    for _ in range(K):
        alpha = alphas(delta, gamma)
        next_gamma = gammas(delta)
        delta = margin(centroid(plus, alpha), centroid(minus, alpha))
        gamma = next_gamma
    alpha = alphas(delta, gamma)
    if variant == "no_range_map":
        lam = [alpha[i] if A[i] else 0.0 for i in range(N)]
    else:
        lam = [lam_min + (lam_max - lam_min) * alpha[i] if A[i] else lam_min for i in range(N)]
    if variant == "no_norm":
        return lam
    return [x * N / sum(lam) for x in lam]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("K", [0, 1, 2, 3])
def test_delta_coefficients_match_reference(K, variant):
    v, advantage = problem(seed=K)
    ours = delta_coefficients(v, advantage, K, 0.7, 1.3, variant)
    expected = torch.tensor(reference(v, advantage, K, 0.7, 1.3, variant))
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, expected, rtol=2e-5, atol=2e-5)
    in_float64 = delta_coefficients(v.double(), advantage.double(), K, 0.7, 1.3, variant)
    torch.testing.assert_close(in_float64, torch.tensor(reference(v, advantage, K, 0.7, 1.3, variant), dtype=torch.float64),
                               rtol=1e-9, atol=1e-9)


def test_delta_coefficients_defaults_are_the_papers():
    v, advantage = problem(seed=9)
    torch.testing.assert_close(delta_coefficients(v, advantage), torch.tensor(reference(v, advantage, 1, 0.8, 1.2, "full")),
                               rtol=2e-5, atol=2e-5)


def test_variants_all_differ():
    v, advantage = problem(seed=4)
    results = [delta_coefficients(v, advantage, 1, variant=variant) for variant in VARIANTS]
    for i, a in enumerate(results):
        for b in results[:i]:
            assert (a - b).abs().max() > 1e-3


def test_delta_coefficients_lagged_temperature():
    """K = 1 scores with γ measured on Δ⁽⁰⁾ (App. H); a temperature refreshed on Δ⁽¹⁾ would give other coefficients."""
    v, advantage = problem(seed=2)
    ours = delta_coefficients(v, advantage, 1, variant="no_norm")
    plus = advantage > 0
    w = torch.where(advantage > 0, advantage, 0.0), torch.where(advantage < 0, -advantage, 0.0)
    mu = [(x[:, None] * v).sum(0) / x.sum() for x in w]
    d = lambda mu: advantage.sign() * ((v - mu[1]).square().sum(1) - (v - mu[0]).square().sum(1))
    std = lambda x: torch.where(plus, x[plus].std(unbiased=False), x[advantage < 0].std(unbiased=False))
    alpha0 = torch.sigmoid(d(mu) / std(d(mu)))
    mu1 = [(x[:, None] * alpha0[:, None] * v).sum(0) / (x * alpha0).sum() for x in w]
    sides = advantage != 0
    lagged, fresh = (0.8 + 0.4 * torch.sigmoid(d(mu1) / gamma) for gamma in (std(d(mu)), std(d(mu1))))
    torch.testing.assert_close(ours[sides], lagged[sides], rtol=1e-4, atol=1e-5)
    assert (ours[sides] - fresh[sides]).abs().max() > 1e-3


def test_delta_coefficients_favour_own_side():
    """A token beside its own centroid gets more than one beside the other's, on both sides (a swapped sign fails)."""
    v = torch.tensor([[1.0, 0], [1, 0.1], [-0.9, 0], [-1, 0], [-1, 0.1], [0.9, 0]])
    advantage = torch.tensor([1.0, 1, 1, -1, -1, -1])
    lam = delta_coefficients(v, advantage)
    assert lam[0] > 1 > lam[2] and lam[3] > 1 > lam[5]


def test_margins_linear_form_equals_squared_distances():
    """App. G: ‖v-μ₋‖² - ‖v-μ₊‖² = 2 vᵀ(μ₊-μ₋) + ‖μ₋‖² - ‖μ₊‖², negated on the negative side, in units of scale²."""
    v, advantage = problem(seed=1, dtype=torch.float64)
    mu_pos, mu_neg = v[:10].mean(0), v[10:25].mean(0) + 1
    direct = (v - mu_neg).square().sum(1) - (v - mu_pos).square().sum(1)
    torch.testing.assert_close(margins(v, advantage, mu_pos, mu_neg, scale=3.0) * 9, direct * advantage.sign().double())


def test_scores_maximise_the_entropy_regularised_margin():
    """Eqs. 5-6: no α on a fine grid of [0, 1] beats σ(Δ/γ) in α Δ + γ h(α); and γ -> 0 is the hard choice."""
    grid = torch.linspace(1e-4, 1 - 1e-4, 20001, dtype=torch.float64)
    h = -(grid * grid.log() + (1 - grid) * (1 - grid).log())
    for delta, gamma in [(0.7, 0.5), (-1.2, 0.9), (0.0, 1.0), (0.2, 3.0)]:
        best = grid[(grid * delta + gamma * h).argmax()]
        alpha = scores(torch.tensor(delta, dtype=torch.float64), torch.tensor(gamma, dtype=torch.float64))
        assert abs(alpha - best) < 1e-4
    delta = torch.tensor([-0.3, 0.2])
    torch.testing.assert_close(scores(delta, torch.tensor(1e-4)), scores(delta, torch.tensor(1.0), "hard"))


def test_token_gradient_proxy_is_the_lm_head_row_gradient():
    """App. F: the gradient of log p(y) with respect to row y of the LM head, by autograd, is (1 - p) h."""
    g = torch.Generator().manual_seed(0)
    W, h = torch.randn(7, 4, generator=g, requires_grad=True), torch.randn(3, 4, generator=g)
    y = torch.tensor([2, 0, 6])
    logprob = (h @ W.T).log_softmax(-1).gather(1, y[:, None]).squeeze(1)
    rows = torch.stack([torch.autograd.grad(logprob[i], W, retain_graph=True)[0][y[i]] for i in range(3)])
    torch.testing.assert_close(token_gradient_proxy(h, logprob.detach()), rows)


def test_token_gradient_proxy_near_certainty():
    """1 - p keeps its digits for p near 1: float32 exp would give 0."""
    v = token_gradient_proxy(torch.ones(1, 1), torch.tensor([-1e-9]))
    torch.testing.assert_close(v, torch.tensor([[1e-9]]), rtol=1e-5, atol=0)


def test_delta_coefficients_mean_is_one_and_order_does_not_matter():
    v, advantage = problem(N=1000, seed=3)
    lam = delta_coefficients(v, advantage)
    assert abs(lam.double().mean() - 1) < 1e-6
    order = torch.randperm(1000, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(delta_coefficients(v[order], advantage[order]), lam[order], rtol=1e-4, atol=1e-5)


def test_delta_coefficients_do_not_depend_on_the_unit_of_v():
    v, advantage = problem(seed=5)
    lam = delta_coefficients(v, advantage)
    for unit in (1e-12, 1e12, 1e30):
        torch.testing.assert_close(delta_coefficients(v * unit, advantage), lam, rtol=1e-3, atol=1e-4)


def test_zero_advantage_rows_get_lam_min():
    v, advantage = problem(seed=6)
    lam = delta_coefficients(v, advantage, lam_min=0.6, variant="no_norm")
    assert torch.all(lam[advantage == 0] == 0.6) and torch.all(lam[advantage != 0] > 0.6)
    assert torch.all(delta_coefficients(v, advantage, variant="no_range_map")[advantage == 0] == 0)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("advantage", [[1.0, 2.0, 0.0], [-1.0, -2.0, 0.0], [0.0, 0.0, 0.0]])
def test_an_empty_side_gives_all_ones(advantage, variant):
    assert torch.all(delta_coefficients(torch.randn(3, 4), torch.tensor(advantage), lam_min=0.0, variant=variant) == 1)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("K", [0, 1, 3])
@pytest.mark.parametrize("v", [torch.zeros(4, 3), torch.ones(4, 3), torch.full((4, 3), 1e38), torch.full((4, 3), 1e-44),
                               torch.tensor([[1e38], [-1e38], [1e-38], [0.0]]), torch.randn(4, 3, dtype=torch.bfloat16),
                               torch.tensor([[5.0, 1], [5, 1], [-5, 1], [-5, 1]])])
def test_delta_coefficients_are_finite_for_finite_input(v, K, variant):
    for advantage in ([1.0, 2.0, -1.0, 0.0], [1e-30, 1e30, -1e-30, -1e30], [1.0, -1.0, 1.0, -1.0]):
        for lam_min, lam_max in ((0.0, 0.0), (0.0, 1.0), (0.8, 1.2)):
            assert delta_coefficients(v, torch.tensor(advantage), K, lam_min, lam_max, variant).isfinite().all()


def test_no_rows_give_no_coefficients():
    assert delta_coefficients(torch.zeros(0, 4), torch.zeros(0)).shape == (0,)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_delta_coefficients_reject_values_that_are_not_finite(bad):
    v, advantage = problem(seed=7)
    v[17, 2] = bad
    with pytest.raises(ValueError, match="v holds a NaN or inf"):
        delta_coefficients(v, advantage)
    with pytest.raises(ValueError, match="v holds a NaN or inf"):
        delta_coefficients(v, advantage.abs())
    v, advantage = problem(seed=7)
    advantage[3] = bad
    with pytest.raises(ValueError, match="advantage holds"):
        delta_coefficients(v, advantage)


@pytest.mark.parametrize("change, match", [(dict(K=-1), "K is -1"), (dict(lam_min=1.3), "lam_min"), (dict(variant="x"), "variant"),
                                           (dict(advantage=torch.ones(4)), r"\(61, 5\) and \(4,\)"),
                                           (dict(v=torch.ones(61)), r"\(61,\)")])
def test_delta_coefficients_reject_bad_arguments(change, match):
    v, advantage = problem()
    with pytest.raises(ValueError, match=match):
        delta_coefficients(**({"v": v, "advantage": advantage} | change))


def test_delta_coefficients_are_accurate_in_bfloat16():
    """Sums over 40,000 bf16 rows: as exact as from the same rows in float64."""
    v, advantage = problem(N=40_000, H=8, seed=8, dtype=torch.bfloat16)
    torch.testing.assert_close(delta_coefficients(v, advantage), delta_coefficients(v.double(), advantage).float(),
                               rtol=1e-4, atol=1e-4)


def test_delta_coefficients_allocate_nothing_of_the_size_of_v():
    class Largest(TorchDispatchMode):
        elements = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            for tensor in out if isinstance(out, (tuple, list)) else [out]:
                if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().data_ptr() != own:  # not a view of v
                    self.elements = max(self.elements, tensor.untyped_storage().nbytes() // 4)
            return out

    v, advantage = torch.randn(60_000, 128).bfloat16(), torch.randn(60_000)
    own = v.untyped_storage().data_ptr()
    for variant in VARIANTS:
        with Largest() as largest:
            delta_coefficients(v, advantage, variant=variant)
        assert largest.elements < v.numel() / 5


def test_delta_coefficients_carry_no_gradient():
    v, advantage = problem()
    assert not delta_coefficients(v.requires_grad_(), advantage).requires_grad


def test_hidden_gradient_proxy_is_the_gradient_for_all_tokens_and_its_top_k_restriction():
    """App. F: with k = V it is ∇_h log p(y) by autograd; with k < V the softmax inside the k likeliest, one row at a time."""
    g = torch.Generator().manual_seed(0)
    W, h, y = torch.randn(9, 4, generator=g), torch.randn(5, 4, generator=g, requires_grad=True), torch.tensor([0, 3, 8, 3, 1])
    gradient, = torch.autograd.grad((h @ W.T).log_softmax(-1).gather(1, y[:, None]).sum(), h)
    h = h.detach()
    torch.testing.assert_close(hidden_gradient_proxy(h, y, W, 9), gradient)
    torch.testing.assert_close(hidden_gradient_proxy(h, y, W, 100), gradient)
    ours = hidden_gradient_proxy(h, y, W, 3)
    for i in range(5):
        logits = [float(W[j] @ h[i]) for j in range(9)]
        top = sorted(range(9), key=lambda j: -logits[j])[:3]
        total = sum(math.exp(logits[j]) for j in top)
        torch.testing.assert_close(ours[i], W[y[i]] - sum(math.exp(logits[j]) / total * W[j] for j in top))


def test_lm_head_gradient_is_autograds():
    g = torch.Generator().manual_seed(1)
    W, h, y = torch.randn(6, 3, generator=g, requires_grad=True), torch.randn(4, 3, generator=g), torch.tensor([5, 0, 2, 2])
    logprob = (h @ W.T).log_softmax(-1).gather(1, y[:, None]).squeeze(1)
    rows = torch.stack([torch.autograd.grad(x, W, retain_graph=True)[0].flatten() for x in logprob])
    torch.testing.assert_close(lm_head_gradient(h, y, W.detach()), rows)
    with pytest.raises(ValueError, match="65536"):
        lm_head_gradient(torch.zeros(1, 300), torch.zeros(1, dtype=torch.long), torch.zeros(300, 300))


def test_fixed_gamma_keeps_the_first_batchs_temperatures():
    """The first batch gives what `full` gives; a second batch is scored with the first's γ, whatever its own and its unit."""
    (v1, a1), (v2, a2) = problem(seed=1), problem(seed=2)
    memory = []
    torch.testing.assert_close(delta_coefficients(v1, a1, fixed_gamma=memory), delta_coefficients(v1, a1))
    kept = list(memory)
    frozen, own = delta_coefficients(3 * v2, a2, fixed_gamma=memory), delta_coefficients(3 * v2, a2)
    assert memory == kept and (frozen - own).abs().max() > 1e-2
    v, sides = 3 * v2.double(), [(a2 > 0), (a2 < 0)]
    alpha = torch.ones(len(v), dtype=torch.float64)
    for _ in range(2):  # Δ⁽⁰⁾, then Δ⁽¹⁾, both divided by the first batch's γ
        mu = [((a2.abs() * alpha)[side, None] * v[side]).sum(0) / (a2.abs() * alpha)[side].sum() for side in sides]
        delta = a2.sign() * ((v - mu[1]).square().sum(1) - (v - mu[0]).square().sum(1))
        alpha = torch.sigmoid(delta / torch.where(a2 > 0, kept[0], kept[1]))
    lam = torch.where(a2 == 0, 0.8, 0.8 + 0.4 * alpha)
    torch.testing.assert_close(frozen.double(), lam / lam.mean(), rtol=1e-4, atol=1e-4)


def test_random_coefficients_are_uniform_in_their_range_and_seeded():
    tokens = token_batch(torch.tensor([400, 600]))
    draw = lambda seed: delta_method(tokens, delta_variant="random", generator=torch.Generator().manual_seed(seed))
    lam = draw(0)
    assert torch.equal(lam, draw(0)) and not torch.equal(lam, draw(1)) and lam.mean() == pytest.approx(1, abs=1e-6)
    assert 0.78 < lam.min() < 0.82 and 1.18 < lam.max() < 1.22 and abs(lam.median() - 1) < 0.02


def test_select_keeps_the_tokens_of_highest_or_lowest_coefficient():
    tokens = token_batch(torch.tensor([20, 30, 11]))
    lam = delta_method(tokens)
    top, bottom = (delta_method(tokens, select=which, select_share=0.3) > 0 for which in ("top", "bottom"))
    assert top.sum() == bottom.sum() == math.ceil(0.3 * 61) and not (top & bottom).any()
    assert lam[top].min() >= lam[~top].max() and lam[bottom].max() <= lam[~bottom].min()
    chance = delta_method(tokens, select="random", select_share=0.3, generator=torch.Generator().manual_seed(0)) > 0
    assert chance.sum() == top.sum() and not torch.equal(chance, top)


def test_select_looks_only_at_tokens_with_an_advantage():
    """Rows of zero advantage have the lowest λ of all and move nothing: they must not fill up the bottom share."""
    tokens = token_batch(torch.tensor([20, 30, 11, 25]))  # the fourth response has no advantage
    weights, sides = delta_method(tokens, select="bottom", select_share=0.3), tokens.advantage != 0
    assert (weights[sides] > 0).sum() == math.ceil(0.3 * 61) and weights[sides].mean() == pytest.approx(1)
    assert torch.all(weights[~sides] == 1)


@pytest.mark.parametrize("proxy", ["topk", "exact"])
def test_proxies_give_other_coefficients_of_mean_one(proxy):
    tokens = token_batch(torch.tensor([20, 30, 11]))
    lam = delta_method(tokens, proxy=proxy, proxy_topk=3)
    assert lam.mean() == pytest.approx(1, abs=1e-6) and (lam - delta_method(tokens)).abs().max() > 1e-3
