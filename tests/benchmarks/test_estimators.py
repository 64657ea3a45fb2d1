"""Tests benchmarks/estimators.py and gradients.py, on policies whose exact values are known."""

from itertools import combinations_with_replacement, permutations, product
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import benchmarks.gradients
from benchmarks import estimators, gain_tables
from benchmarks.gain_rows import FIRST, coefficients, derived_weights, weights_by_p
from benchmarks.gradients import decomposed, gradients, sides, step_kls
from grpo import group_advantages
from infra.micro_batches import mini_batches
from methods import packed
from rollout import Response

G = 3  # responses in a group; here a batch is a single group

# ---- problems whose gradients are known ----------------------------------------------------------


class Table(torch.nn.Module):
    """A policy without a model: logits for the first token, and for those after each token."""

    def __init__(self, logits: list[list[float]]):
        super().__init__()
        self.logits = torch.nn.Parameter(torch.tensor(logits))

    def forward(self, ids, mask):
        rows = [0 * (t == 1) + (1 + ids[:, t - 1]) * (t > 1) for t in range(1, ids.shape[1])]
        rows = torch.stack(rows, dim=1)  # [b, T] column 0 is the prompt
        logp = self.logits.log_softmax(dim=1)[rows]  # [b, T, V]
        picked = logp.gather(2, ids[:, 1:, None]).squeeze(2)[mask[:, 1:]]
        entropy = -(logp.exp() * logp).sum(dim=2)[mask[:, 1:]]
        return SimpleNamespace(logprob=picked, entropy=entropy)


PROBLEMS = {  # name -> (policy, tokens of a response, the rewarded responses)
    "bandit": (Table([[0.3, -0.2, 0.9]]), 1, {(0,)}),
    "chain": (Table([[0.2, -0.3], [0.5, -0.1], [1.0, 0.3]]), 2, {(0, 1), (1, 0)}),
}


def rows_of(tokens) -> dict[str, torch.Tensor]:
    """The token weights of some rows. DelTA's are made up: unsure tokens get larger ones."""
    A = tokens.advantage
    lam = 1.2 - 0.4 * tokens.old_logprob.exp() + 0.1 * (A > 0)
    rows = {"dapo": torch.ones_like(A), "delta": lam}
    for pos, neg in product((1, -1), (1, -1)):
        rows[f"{pos}, {neg}"] = weights_by_p(tokens, None, None, pos=pos, neg=neg)
    return rows | derived_weights(lam, A)


def lines_of(policy, responses: list[tuple], rewarded: set) -> tuple[list, dict]:
    """(micro-batches, lines: name -> coefficients [N]) of a batch of one group."""
    sampled, rewards = [], []
    for tokens in responses:
        own = np.array(tokens, dtype=np.int32)
        sampled.append(Response([0], own, np.zeros(len(own), np.float32), "", False))
        rewards.append(float(tokens in rewarded))
    rewards = torch.tensor(rewards)
    length = torch.tensor([len(tokens) for tokens in responses])
    advantage = group_advantages(rewards, G).repeat_interleave(length)
    (plan,) = mini_batches(sampled, advantage, G, 1000)
    old_logprob, entropy = torch.zeros(2, plan.token_count)
    for micro in plan.micro_batches:
        out = policy(micro.ids, micro.is_token)
        old_logprob[micro.token_index] = out.logprob.detach()
        entropy[micro.token_index] = out.entropy.detach()
    tokens = packed(sampled, rewards, advantage, old_logprob, entropy)
    return plan.micro_batches, coefficients(tokens, rows_of(tokens), G)


def stacked(lines: dict, first: int = 0) -> torch.Tensor:
    """The lines from `first` on, [any, N]."""
    return torch.stack([*lines.values()][first:])


@pytest.fixture(scope="module", params=PROBLEMS)
def problem(request):
    """All O batches of a problem: names of rows, p [O], g [O, L, D], ∇E R and ∇ entropy [D]."""
    policy, T, rewarded = PROBLEMS[request.param]
    V = policy.logits.shape[1]
    responses = list(product(range(V), repeat=T))
    ids = torch.tensor([[0, *x] for x in responses])
    out = policy(ids, torch.ones_like(ids) > 0)
    p = out.logprob.view(-1, T).sum(dim=1).exp()  # of each response
    R = torch.tensor([float(x in rewarded) for x in responses])
    H = (p.detach() * out.entropy.view(-1, T).mean(dim=1)).sum()  # at the states of a batch
    of_gradients = (
        torch.autograd.grad(x, policy.logits, retain_graph=True)[0].flatten().double()
        for x in ((p * R).sum(), H)
    )
    probability, found = [], []
    p, of_R, of_H = p.detach(), *of_gradients
    for group in combinations_with_replacement(range(len(responses)), G):
        micro_batches, lines = lines_of(policy, [responses[i] for i in group], rewarded)
        parts, mix = decomposed(stacked(lines), sides(lines["dapo"]))
        found.append(mix @ gradients(policy, micro_batches, parts).double())
        orders = len(set(permutations(group)))
        probability.append(orders * float(p[list(group)].prod()))
    probability = torch.tensor(probability, dtype=torch.float64)
    g = torch.stack(found)
    names = list(lines)[FIRST:]
    return SimpleNamespace(names=names, p=probability, g=g, of_R=of_R, of_H=of_H)


def drawn(problem, count: int, pooled: int = 1, seed: int = 0) -> torch.Tensor:
    """The lines' gradients for `count` independent batches, each the mean of `pooled` groups."""
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.multinomial(problem.p, count * pooled, True, generator=generator)
    return problem.g[chosen].unflatten(0, (count, pooled)).mean(dim=1)  # [n, L, D]


def measured(g: torch.Tensor, C: int = 16) -> dict[str, torch.Tensor]:
    """All estimates from the lines' gradients [n, L, D]: J's first, then entropy's, then rows'."""
    block = torch.arange(len(g)) * C // len(g)
    of_blocks = [g[block == c] for c in range(C)]
    directions = torch.stack([own[:, :FIRST].sum(dim=0) for own in of_blocks])  # [C, 2, D]
    blocks = []
    for own in of_blocks:
        J, rows = own[:, :1], own[:, FIRST:]
        products = {
            "gram": own @ own.transpose(1, 2),
            "with_blocks": torch.einsum("nld,ckd->nlck", own, directions),
            "kl": torch.ones(rows.shape[:2]),
            "sums": torch.cat([J, rows], dim=1).sum(dim=0),
            "squares": rows.square().sum(dim=0),
            "weight": torch.ones(g.shape[2]).double(),
        }
        blocks.append(products)
    return estimators.estimates(blocks, block, g.shape[2])


# ---- exact values --------------------------------------------------------------------------------


def test_J_and_entropy_are_unbiased(problem):
    mean = torch.einsum("o,old->ld", problem.p, problem.g)
    torch.testing.assert_close(mean[0], problem.of_R, atol=1e-6, rtol=0)
    torch.testing.assert_close(mean[1], problem.of_H, atol=1e-6, rtol=0)


def test_estimates_cover_the_exact_values(problem):
    g = problem.g[:, FIRST:]  # [O, W, D]
    mean = torch.einsum("o,owd->wd", problem.p, g)
    square = torch.einsum("o,owd->wd", problem.p, g.square())
    unit = g / g.norm(dim=2, keepdim=True).clamp(min=1e-12)
    unit = torch.einsum("o,owd->wd", problem.p, unit)
    exact = {
        "gain": unit @ problem.of_R,
        "entropy": unit @ problem.of_H,
        "noise": square.sum(dim=1) / mean.square().sum(dim=1) - 1,
        "bias": torch.cosine_similarity(mean, problem.of_R[None], dim=1),
        "adam": (mean / square.sqrt()) @ problem.of_R,
    }
    assert (exact["bias"] > 0.99).all()  # no side of a row has the wrong sign
    found = measured(drawn(problem, 2048))
    for name, values in exact.items():
        error = estimators.jackknife_error(found[name])
        assert ((found[name][0] - values).abs() < 4 * error + 0.002).all(), name
        assert (error < 0.1 * values.abs() + 0.01).all(), name  # small enough to test anything
    # The errors of ratios to dapo's gain are much smaller than the errors of the gains.
    ratio = found["gain"] / found["gain"][:, :1]
    error = estimators.jackknife_error(ratio)
    assert ((ratio[0] - exact["gain"] / exact["gain"][0]).abs() < 4 * error + 1e-9).all()
    assert (error < 0.002).all()


def test_own_noise_is_left_out():
    """Without any signal the gain is 0, although each g equals its own batch's J."""
    g = torch.randn(16, FIRST + 1, 400, generator=torch.Generator().manual_seed(0)).double()
    g[:, FIRST:] = g[:, :1]
    found = measured(g)
    # Included, the own J would give ‖g‖ / 15, and for Adam Σ |mean of 16|.
    for name, with_own in (("gain", 20 / 15), ("adam", 400 / 16)):
        error = estimators.jackknife_error(found[name])
        assert found[name][0].abs() < 3 * error
        assert error < with_own / 5


def test_the_jackknife_is_the_standard_error_of_a_mean():
    values = torch.randn(16, generator=torch.Generator().manual_seed(0)).double()
    without = torch.stack([values[kept].mean() for kept in estimators.without_each(16)])
    assert float(estimators.jackknife_error(without)) == pytest.approx(float(values.std() / 4))


# ---- what is held equal --------------------------------------------------------------------------


def columns_of(found: dict, names: list[str]) -> dict[str, torch.Tensor]:
    """What is held equal -> the ratios of the other rows' gains to dapo's, [W - 1]."""
    values = {statistic: dict(zip(names, each.T, strict=True)) for statistic, each in found.items()}
    columns = gain_tables.held_equal(values)
    return {
        held: torch.stack([gains[row][0] / gains["dapo"][0] for row in names[1:]])
        for held, gains in columns.items()
    }


@pytest.mark.parametrize("problem", ["chain"], indirect=True)
def test_larger_batches_and_runs_gain_what_noise_predicts(problem):
    """Compares columns that the noise gives with gains of pooled batches."""
    size = 0.3 * drawn(problem, 2048, pooled=4)[:, FIRST].norm(dim=1).mean()  # the noise's length

    def with_noisy_row(k: int) -> torch.Tensor:
        """The gradients of k times the batch [n, L, D]; the last line is dapo's with noise."""
        g = drawn(problem, 2048, pooled=4 * k, seed=k)
        noise = torch.randn(len(g), 1, g.shape[2], generator=torch.Generator().manual_seed(k))
        noisy = g[:, FIRST : FIRST + 1] + size * noise / k**0.5
        return torch.cat([g, noisy], dim=1)

    one = measured(with_noisy_row(1))
    columns = columns_of(one, [*problem.names, "noisy"])
    for k, held in (
        (1, "length, 1 times the batch"),
        (8, "length, 8 times the batch"),
        (gain_tables.UPDATES, "way of 24 steps"),
    ):
        whole = measured(with_noisy_row(k))["gain"][0]
        found = columns[held]
        torch.testing.assert_close(found, whole[1:] / whole[0], rtol=0.05, atol=0)
    assert columns["length, 1 times the batch"][-1] < 0.9  # else the columns would be all alike
    assert columns["way of 24 steps"][-1] > 0.95


@pytest.mark.parametrize("problem", ["chain"], indirect=True)
def test_equal_entropy_is_a_step_whose_length_loses_as_much(problem):
    g = problem.g[:, FIRST:]  # [O, W, D]
    unit = g / g.norm(dim=2, keepdim=True).clamp(min=1e-12)
    direction = torch.einsum("o,owd->wd", problem.p, unit)
    length = (direction[0] @ problem.of_H) / (direction @ problem.of_H)  # of each row's step
    gains = length * (direction @ problem.of_R)
    found = columns_of(measured(drawn(problem, 2048)), problem.names)["entropy lost"]
    near = (direction @ problem.of_H).abs() > 0.2 * (direction[0] @ problem.of_H).abs()
    exact = (gains / gains[0])[1:]
    torch.testing.assert_close(found[near[1:]], exact[near[1:]], rtol=0.1, atol=0)


def test_the_kl_of_a_step(monkeypatch):
    """The KL from the change of log π agrees with that of a policy that has taken the step."""
    policy = Table([[0.3, -0.2, 0.9]])
    micro_batches, lines = lines_of(policy, [(0,), (1,), (2,)], {(0,)})
    p = policy.logits.detach()[0].softmax(dim=0)
    of_token = [lines_of(policy, [(y,)] * G, set())[0] for y in range(3)]
    parts, mix = decomposed(stacked(lines, FIRST), sides(lines["dapo"]))
    g = gradients(policy, micro_batches, parts)
    norm = (mix @ g.double()).norm(dim=1)
    monkeypatch.setattr(benchmarks.gradients, "LENGTH", 3e-3)
    given = [step_kls(policy, micro, g, mix, norm) for micro in of_token]
    found = (p.double()[:, None] * torch.stack(given)).sum(dim=0)  # the mean over the token's draw
    step = 1e-2
    for row, kl in zip(mix @ g.double(), found, strict=True):
        moved = (policy.logits.detach()[0].double() + step * row / row.norm()).log_softmax(dim=0)
        exact = (p.double() * (p.double().log() - moved)).sum() / step**2
        assert float(kl) == pytest.approx(float(exact), rel=0.02)


# ---- parts, coordinates --------------------------------------------------------------------------


def test_rows_are_mixes_of_a_few_parts():
    policy, _, rewarded = PROBLEMS["chain"]
    micro_batches, lines = lines_of(policy, [(0, 1), (0, 0), (1, 1)], rewarded)
    rows = stacked(lines, FIRST)
    tried = torch.cat([sides(lines[name]) for name in ("dapo", "delta", "1, 1")])
    parts, mix = decomposed(rows, tried)
    assert len(parts) <= 6  # the two sides of dapo, of DelTA and of one rule by p give ten rows
    torch.testing.assert_close(mix @ parts, rows.double(), rtol=0, atol=1e-6)
    found = mix @ gradients(policy, micro_batches, parts).double()
    direct = gradients(policy, micro_batches, rows)
    torch.testing.assert_close(found.float(), direct, rtol=0, atol=1e-5)


def test_sampled_coordinates_leave_a_sum_unbiased():
    generator = torch.Generator().manual_seed(0)
    J = torch.randn(5000, generator=generator) ** 5
    x = J * torch.rand(5000, generator=generator)
    found = []
    for seed in range(400):
        index, weight = estimators.sampled_coordinates(J, 300, seed)
        found.append(float((weight * x[index]).sum()))
    spread = np.std(found) / 20
    assert abs(np.mean(found) - float(x.sum())) < 4 * spread
    assert spread < 0.01 * float(x.abs().sum())
    index, weight = estimators.sampled_coordinates(J, 5000, 0)
    assert (index == torch.arange(5000)).all() and (weight == 1).all()


def test_the_error_of_sampled_coordinates_is_that_over_seeds():
    generator = torch.Generator().manual_seed(0)
    D, C = 30_000, 8
    signal = torch.randn(D, generator=generator) ** 3
    sums = signal + torch.randn(C, 3, D, generator=generator)
    sums[:, 2] += 0.5 * signal * (torch.arange(D) % 7 == 0)
    squares = sums[:, 1:] ** 2 + 1
    ratios, variances = [], []
    for seed in range(100):
        index, weight = estimators.sampled_coordinates(sums[:, 0].sum(dim=0), 2000, seed)
        some = sums[:, :, index], squares[:, :, index], weight, torch.arange(C)
        values, groups = estimators.adam_gains(*some)
        torch.testing.assert_close(groups.sum(dim=0), values[0])
        ratios.append(float(values[0, 1] / values[0, 0]))
        variances.append(float(estimators.sampling_variance(groups[:, 1], groups[:, 0])))
    whole, _ = estimators.adam_gains(sums, squares, torch.ones(D), torch.arange(C))
    spread = np.std(ratios)
    assert abs(np.mean(ratios) - float(whole[0, 1] / whole[0, 0])) < 0.4 * spread
    assert 0.8 * spread < np.mean(variances) ** 0.5 < 1.3 * spread
