"""benchmarks/gain.py and estimators.py: exact values on small problems, controls, kills, flags."""

from itertools import combinations_with_replacement, permutations, product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hashed_rewards import rewarded
from toy_runs import HELD_OUT, ROOT

import config
import train
from benchmarks import estimators, gain
from benchmarks.__main__ import main
from extensions import weights_by_p
from grpo import group_advantages
from infra.folder import write_json
from infra.micro_batches import mini_batches
from methods import Method, packed
from rollout import Response
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
        response = Response([0], own, np.zeros(len(own), np.float32), "", False)
        rollouts.append(Rollout(response, {}, reward))
    rewards = torch.tensor([x.reward for x in rollouts])
    advantages = group_advantages(rewards, G)
    sampled = [x.response for x in rollouts]
    (plan,) = mini_batches(sampled, advantages, G, 1000)
    parts = [(micro.token_index, policy(micro.ids, micro.mask)) for micro in plan.micro_batches]
    old_logprob, entropy = torch.zeros(2, plan.token_count)
    for index, out in parts:
        old_logprob[index], entropy[index] = out.logprob.detach(), out.entropy.detach()
    tokens = packed(sampled, rewards, advantages, old_logprob, entropy)
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


def columns_of(found: dict, names: list[str]) -> dict[str, torch.Tensor]:
    """What is held equal -> gains above dapo's of all rows, [W - 1] as ratios."""
    values = {statistic: dict(zip(names, each.T, strict=True)) for statistic, each in found.items()}
    columns = gain.held_equal(values)
    return {
        held: torch.stack([gains[row][0] / gains["dapo"][0] for row in names[1:]])
        for held, gains in columns.items()
    }


@pytest.mark.parametrize("problem", ["chain"], indirect=True)
def test_larger_batches_and_runs_gain_what_noise_predicts(problem):
    """Columns from the noise, beside batches that are pooled and gradients that are added up."""
    size = 0.3 * drawn(problem, 2048, pooled=4)[:, FIRST].norm(dim=1).mean()  # of the noise

    def with_noisy_row(k: int) -> torch.Tensor:
        """The gains of k times the batch, with a last row that is dapo's and noise: [1 + C, W]."""
        g = drawn(problem, 2048, pooled=4 * k, seed=k)
        noise = torch.randn(len(g), 1, g.shape[2], generator=torch.Generator().manual_seed(k))
        noisy = g[:, FIRST : FIRST + 1] + size * noise / k**0.5
        return torch.cat([g, noisy], dim=1)

    one = measured(with_noisy_row(1))
    columns = columns_of(one, [*problem.names, "noisy"])
    for k, held in (
        (1, "length, 1 times the batch"),
        (8, "length, 8 times the batch"),
        (gain.UPDATES, "way of 24 steps"),
    ):
        whole = measured(with_noisy_row(k))["gain"][0]
        found = columns[held]
        torch.testing.assert_close(found, whole[1:] / whole[0], rtol=0.05, atol=0)
    assert columns["length, 1 times the batch"][-1] < 0.9  # there is something to tell apart
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
    """By the change of log π, beside the exact KL of a policy that takes the step."""
    policy = Table([[0.3, -0.2, 0.9]])
    _, names, lines = lines_of(policy, [(0,), (1,), (2,)], {(0,)})
    p = policy.logits.detach()[0].softmax(dim=0)
    of_token = [lines_of(policy, [(y,)] * G, set())[0] for y in range(3)]
    parts, mix = estimators.decomposed(lines[FIRST:], estimators.sides(lines[FIRST]))
    batches, _, _ = lines_of(policy, [(0,), (1,), (2,)], {(0,)})
    g = gain.gradients(policy, batches, parts)
    norm = (mix @ g.double()).norm(dim=1)
    monkeypatch.setattr(gain, "LENGTH", 3e-3)
    given = [gain.step_kls(policy, micro, g, mix, norm) for micro in of_token]
    found = (p.double()[:, None] * torch.stack(given)).sum(dim=0)  # over the token's draw
    step = 1e-2
    for row, kl in zip(mix @ g.double(), found, strict=True):
        moved = (policy.logits.detach()[0].double() + step * row / row.norm()).log_softmax(dim=0)
        exact = (p.double() * (p.double().log() - moved)).sum() / step**2
        assert float(kl) == pytest.approx(float(exact), rel=0.02)


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


def test_rows_of_a_block_beside_slow_ones(tmp_path, monkeypatch):
    """Clipped sums for Adam's moments, and KLs on the next batch, row by row, token by token."""
    few = {name: gain.METHODS[name] for name in gain.BY_SIDE}
    monkeypatch.setattr(gain, "METHODS", few)
    words = FLAGS.replace("--max-new-tokens 40", "--max-new-tokens 12").split()[1:]
    study = gain.Study([*words, "--output-dir", str(tmp_path / "policy")])
    with rewarded():  # unequal ones in each group
        batches = study.batches
    b, c = 2, 2  # with 8 batches a block is one batch
    assert study.own[c] == [b]
    own = {x.problem["problem"] for x in batches[b]}
    assert not own & {x.problem["problem"] for x in batches[b + 1]}  # blocks share no problem

    micro_batches, lines = study.prepared(b)
    rows = gain.gradients(study.policy, micro_batches, lines[FIRST:])  # [W, D]
    norm = rows.norm(dim=1)
    monkeypatch.setattr(gain, "CLIP", float(norm.median()))  # some are clipped, some are not
    found = study.rows_of_block(c)
    clipped = rows * (gain.CLIP / norm).clamp(max=1)[:, None]
    atol = 1e-4 * float(clipped.abs().max())
    torch.testing.assert_close(found["sums"][1:], clipped, rtol=0, atol=atol)
    torch.testing.assert_close(found["squares"], clipped.square(), rtol=0, atol=atol**2 + atol)

    micro_batches, _ = study.prepared(b + 1)
    parameters = list(study.policy.parameters())
    slopes = []
    for micro in micro_batches:
        for logprob in study.policy(micro.ids, micro.mask).logprob:
            each = torch.autograd.grad(logprob, parameters, retain_graph=True)
            slopes.append(rows @ torch.cat([x.flatten() for x in each]) / norm)
    slow = torch.stack(slopes).square().mean(dim=0) / 2
    torch.testing.assert_close(found["kl"][0].float(), slow, rtol=0.02, atol=0)


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

    few = tmp_path / "few.jsonl"
    few.write_text('{"problem": "1+1", "answer": "2"}\n')
    for flags, said in {
        f"--data {few}": "gain needs one for each of its 8 blocks",
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


def test_the_repository_s_results_are_printed_and_drawn(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    main(["gain"])
    said = capsys.readouterr().out
    assert said.count("| held equal |") == said.count("p with Adam") >= 8
    assert said.count("dapo's own gain is not above 0") == 1  # GSM8K
    main(["gain", "--picture", str(tmp_path / "gain.png")])
    assert (tmp_path / "gain.png").stat().st_size > 10_000
