"""benchmarks/gain.py and estimators.py: exact values on small problems, controls, kills, flags."""

from itertools import combinations_with_replacement, permutations, product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hashed_rewards import rewarded
from toy_runs import HELD_OUT

import config
import train
from benchmarks import estimators, gain
from benchmarks.__main__ import main
from extensions import weights_by_p
from grpo import group_advantages
from infra.folder import write_json
from infra.micro_batches import mini_batches
from methods import Method, packed
from train import Rollout

G = 3  # responses of a group; a batch of a small problem is one group
FIRST = gain.FIRST

# ---- problems whose gradients are known ----------------------------------------------------------


class Table(torch.nn.Module):
    """A policy without a model: a row of logits for the first token, and for each token before."""

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
    """Weights of some rows; DelTA's are made up: unsure tokens gain."""
    A = tokens.advantage
    lam = 1.2 - 0.4 * tokens.old_logprob.exp() + 0.1 * (A > 0)
    rows = {"dapo": torch.ones_like(A), "delta": lam}
    for pos, neg in product((1, -1), (1, -1)):
        rows[f"{pos}, {neg}"] = weights_by_p(tokens, None, None, pos=pos, neg=neg)
    return rows | gain.derived_weights(lam, A)


def lines_of(policy, responses: list[tuple], rewarded: set) -> tuple:
    """(micro-batches, names of rows, lines of coefficients) of one group."""
    rollouts = []
    for tokens in responses:
        own = np.array(tokens, dtype=np.int32)
        reward = float(tokens in rewarded)
        rollouts.append(Rollout([0], own, np.zeros(len(own), np.float32), "", False, {}, reward))
    rewards = torch.tensor([x.reward for x in rollouts])
    advantages = group_advantages(rewards, G)
    (plan,) = mini_batches(rollouts, advantages, G, 1000)
    parts = [(micro.token_index, policy(micro.ids, micro.mask)) for micro in plan.micro_batches]
    old_logprob, entropy = torch.zeros(2, plan.token_count)
    for index, out in parts:
        old_logprob[index], entropy[index] = out.logprob.detach(), out.entropy.detach()
    tokens = packed(
        rollouts, rewards=rewards, advantages=advantages, old_logprob=old_logprob, entropy=entropy
    )
    rows = rows_of(tokens)
    lines = gain.coefficients(tokens, torch.stack(list(rows.values())), G)
    return plan.micro_batches, list(rows), lines


@pytest.fixture(scope="module", params=PROBLEMS)
def problem(request):
    """All batches of a problem: names of rows, p [O], g [O, L, D], ∇E R and ∇ entropy [D]."""
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
        micro_batches, names, lines = lines_of(policy, [responses[i] for i in group], rewarded)
        parts, mix = estimators.decomposed(lines, estimators.sides(lines[FIRST]))
        found.append(mix @ gain.gradients(policy, micro_batches, parts).double())
        orders = len(set(permutations(group)))
        probability.append(orders * float(p[list(group)].prod()))
    probability = torch.tensor(probability, dtype=torch.float64)
    g = torch.stack(found)
    return SimpleNamespace(names=names, p=probability, g=g, of_R=of_R, of_H=of_H)


def drawn(problem, count: int, pooled: int = 1, seed: int = 0) -> torch.Tensor:
    """Lines' gradients of `count` independent batches, each the mean of `pooled` groups."""
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.multinomial(problem.p, count * pooled, True, generator=generator)
    return problem.g[chosen].unflatten(0, (count, pooled)).mean(dim=1)  # [n, L, D]


def measured(g: torch.Tensor, C: int = 16) -> dict[str, torch.Tensor]:
    """All estimates of lines' gradients [n, L, D]: J first, then the entropy's, rows."""
    block = torch.arange(len(g)) * C // len(g)
    of_blocks = [g[block == c].sum(dim=0) for c in range(C)]
    gram = g @ g.transpose(1, 2)
    norm = gram.diagonal(dim1=1, dim2=2)[:, FIRST:].sqrt()
    found = {}
    for place, name in enumerate(("gain", "entropy")):
        sums = torch.stack([own[place] for own in of_blocks])  # [C, D]
        own = gram[:, place, FIRST:]
        found[name] = estimators.step_gains(g[:, FIRST:] @ sums.T, own, norm, block)
    sums = torch.stack([torch.cat([own[:1], own[FIRST:]]) for own in of_blocks])
    squares = torch.stack([g[block == c, FIRST:].square().sum(dim=0) for c in range(C)])
    weight = torch.ones(g.shape[2]).double()
    found["noise"], found["bias"] = estimators.noise_and_bias(sums, weight, norm, block)
    found["adam"], _ = estimators.adam_gains(sums, squares, weight, block)
    return found


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
    found = measured(drawn(problem, 2048))
    for name, values in exact.items():
        error = estimators.jackknife_error(found[name])
        assert ((found[name][0] - values).abs() < 4 * error + 0.002).all(), name
        assert (error < 0.1 * values.abs() + 0.01).all(), name  # it says something
    # Paired with dapo's, differences are seen that the gains themselves would hide.
    ratio = found["gain"] / found["gain"][:, :1]
    error = estimators.jackknife_error(ratio)
    assert ((ratio[0] - exact["gain"] / exact["gain"][0]).abs() < 4 * error + 1e-9).all()
    assert (error < 0.002).all()


def test_own_noise_is_left_out():
    """Without any signal the gain is 0, though each g is its own batch's J."""
    g = torch.randn(16, FIRST + 1, 400, generator=torch.Generator().manual_seed(0)).double()
    g[:, FIRST:] = g[:, :1]
    found = measured(g)
    for name, with_own in (("gain", 20 / 15), ("adam", 400 / 16)):  # ‖g‖ / 15; Σ |mean| of 16
        error = estimators.jackknife_error(found[name])
        assert found[name][0].abs() < 3 * error
        assert error < with_own / 5


def test_the_jackknife_is_the_standard_error_of_a_mean():
    values = torch.randn(16, generator=torch.Generator().manual_seed(0)).double()
    without = torch.stack([values[kept].mean() for kept in estimators.without_each(16)])
    assert float(estimators.jackknife_error(without)) == pytest.approx(float(values.std() / 4))


# ---- controls ------------------------------------------------------------------------------------


@pytest.mark.parametrize("problem", ["chain"], indirect=True)
def test_controls(problem):
    g = drawn(problem, 1024, pooled=8)
    place = {name: FIRST + i for i, name in enumerate(problem.names)}
    dapo, constants = g[:, place["dapo"]], g[:, place["two constants"]]
    sided = (constants - 0.9 * dapo) / 0.2, (1.1 * dapo - constants) / 0.2  # A > 0, A < 0
    generator = torch.Generator().manual_seed(1)
    random = 1 + 0.2 * torch.randn(len(g), 2, generator=generator).double()
    rows = [
        dapo,
        constants,
        g[:, place["inverse constants"]],
        sided[0] - sided[1],  # a sign error: one side swapped
        random[:, :1] * sided[0] + random[:, 1:] * sided[1],
    ]
    values = measured(torch.cat([g[:, :FIRST], torch.stack(rows, dim=1)], dim=1))["gain"]
    ratio = values / values[:, :1]
    error = estimators.jackknife_error(ratio)
    _, two, inverse, swapped, noisy = (ratio[0] - 1).tolist()
    assert two * inverse < 0 and abs(two + inverse) < 0.2 * abs(two) + 0.01
    assert noisy < 2 * error[4]
    assert swapped < -0.5


@pytest.mark.parametrize("problem", ["chain"], indirect=True)
def test_two_batches_pooled_gain_what_noise_predicts(problem):
    one, two = (measured(drawn(problem, 1024, pooled=n, seed=n)) for n in (8, 16))
    predicted = ((1 + one["noise"][0]) / (1 + one["noise"][0] / 2)).sqrt()
    assert (predicted > 1.02).all()
    torch.testing.assert_close(two["gain"][0] / one["gain"][0], predicted, rtol=0.02, atol=0)


# ---- parts, coordinates --------------------------------------------------------------------------


def test_no_backward_pass_runs_twice(monkeypatch):
    policy, _, rewarded = PROBLEMS["chain"]
    micro_batches, names, lines = lines_of(policy, [(0, 1), (0, 0), (1, 1)], rewarded)
    places = [FIRST + names.index(name) for name in ("delta", "1, 1")]
    tried = torch.cat([estimators.sides(lines[place]) for place in (FIRST, *places)])
    parts, mix = estimators.decomposed(lines[FIRST:], tried)
    assert len(parts) <= 6  # of ten rows: two sides each of dapo, DelTA and one rule by p
    torch.testing.assert_close(mix @ parts, lines[FIRST:].double(), rtol=0, atol=1e-6)

    passes = []
    grad = torch.autograd.grad
    monkeypatch.setattr(torch.autograd, "grad", lambda *a, **b: passes.append(1) or grad(*a, **b))
    found = mix @ gain.gradients(policy, micro_batches, parts).double()
    assert len(passes) == len(parts)  # in one micro-batch
    monkeypatch.undo()
    direct = gain.gradients(policy, micro_batches, lines[FIRST:])
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


# ---- the command ---------------------------------------------------------------------------------

FLAGS = "gain --model toy --batches 8 --prompts 2 --group-size 4 --max-new-tokens 40"


@pytest.fixture
def command(tmp_path, monkeypatch):
    """command(flags) -> the result, measured with few rows."""
    few = {name: gain.METHODS[name] for name in gain.BY_SIDE}
    monkeypatch.setattr(gain, "METHODS", few)
    monkeypatch.setattr(gain, "SEEN", 0)

    def run(*more: str, folder: str = "policy", rewards=None) -> str:
        with rewarded(rewards) if rewards else torch.enable_grad():
            main([*FLAGS.split(), "--output-dir", str(tmp_path / folder), *more])
        return (tmp_path / folder / gain.RESULT).read_text()

    return run


def test_a_killed_measurement_goes_on(command, tmp_path, monkeypatch, capsys):
    whole = command(folder="whole")
    assert "| two constants | " in capsys.readouterr().out

    class Killed(Exception):
        pass

    saved = []
    save = torch.save
    for limit in (1, 4, 8):  # sampling, sums of J, rows

        def failing(content, path, limit=limit):
            save(content, path)
            saved.append(path.name)
            if len(saved) == limit:
                raise Killed

        monkeypatch.setattr(torch, "save", failing)
        with pytest.raises(Killed):
            command()
    monkeypatch.setattr(torch, "save", save)
    assert command() == whole
    assert not list((tmp_path / "policy").glob("direction*"))
    monkeypatch.setattr(train, "sample", None)  # nothing is sampled again
    assert command() == whole


def test_a_result_belongs_to_its_flags_and_is_printed_again(command, tmp_path, capsys):
    written = command()
    shown = capsys.readouterr().out
    for flags in (["--seed", "1"], ["--data", HELD_OUT], ["--proxy", "scalar"]):
        with pytest.raises(SystemExit):
            command(*flags)
        assert "policy holds another run" in capsys.readouterr().err
    assert (tmp_path / "policy" / gain.RESULT).read_text() == written
    main(["gain", str(tmp_path / "policy")])
    assert capsys.readouterr().out == shown

    (tmp_path / "run").mkdir()
    write_json(tmp_path / "run" / "config.json", {"method": "dapo", "seed": 0})  # a training run's
    with pytest.raises(SystemExit):
        command(folder="run")
    assert "run holds another run" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["gain", str(tmp_path / "run")])
    assert "run has no gain.csv" in capsys.readouterr().err


def test_a_method_of_one_s_own_is_a_row(command, monkeypatch, capsys):
    def rarity(tokens, v, cfg):
        return tokens.old_logprob / tokens.old_logprob.mean()

    monkeypatch.setitem(config.METHODS, "rarity", Method(weights=rarity))
    command("--method", "rarity")
    assert "\n| --method rarity | " in capsys.readouterr().out
    command("--method", "gspo", folder="other")
    assert "\n| --method gspo (its weights alone) | " in capsys.readouterr().out


def test_mistakes_are_one_line(command, tmp_path, capsys):
    def equal(texts, problems, truncated):
        return [0.0] * len(texts)

    for flags, said in {
        "--batches 7": "must be finite, at least 8",
        "--dtype bfloat16": "in float32",
    }.items():
        with pytest.raises(SystemExit) as ended:
            command(*flags.split(), folder="refused")
        assert ended.value.code == 2 and said in capsys.readouterr().err
        assert not (tmp_path / "refused").exists()
    with pytest.raises(SystemExit) as ended:
        command(rewards=equal)
    assert ended.value.code == 2
    assert "all rewards of each group are equal" in capsys.readouterr().err


def test_per_cent_of_nothing_is_not_printed(tmp_path, capsys):
    lines = "row,statistic,values\ndapo,gain,1 0.5 1.5 1\ndelta,gain,2 1 3 2\n"
    (tmp_path / gain.RESULT).write_text(lines)
    main(["gain", str(tmp_path)])
    said = capsys.readouterr().out
    assert "dapo's own gain is not above 0" in said and "delta" not in said
