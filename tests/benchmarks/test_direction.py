"""benchmarks/direction.py and direction_tables.py: rows, the model's direction, the verdict."""

import math

import numpy as np
import pytest
import torch
from references import token_batch
from transformers import AutoModelForCausalLM

import toy
from benchmarks import direction, direction_tables
from benchmarks.tables import print_differences
from delta import centroids, margins, scores, temperatures


def test_the_reparametrised_model_has_the_base_s_logits_and_its_states_share_a_direction():
    plain, _ = toy.load_base(direction.base_folder("learn", False))
    shared = AutoModelForCausalLM.from_pretrained(
        direction.base_folder("learn", True), dtype=torch.float32
    )
    ids = torch.randint(3, 20, (4, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(shared(ids).logits, plain(ids).logits)
        h, states = (lm.model(ids).last_hidden_state.flatten(0, 1) for lm in (plain, shared))
    torch.testing.assert_close(states, torch.cat([h, h.norm(dim=1, keepdim=True)], dim=1))


def test_rule_raises_sure_tokens_of_right_responses_and_surprising_ones_of_wrong_responses():
    tokens = token_batch([5, 8, 3, 6])
    p, A = tokens.logprob.exp().tolist(), tokens.advantage.tolist()
    own = [1 - x for x, a in zip(p, A, strict=True) if a]
    mean = sum(own) / len(own)
    expected = []
    for x, a in zip(p, A, strict=True):
        raised = (a > 0 and 1 - x < mean) or (a < 0 and 1 - x >= mean)
        expected.append(1.2 if raised else 0.8)
    expected = torch.tensor(expected)
    torch.testing.assert_close(direction.rule(tokens, None), expected / expected.mean())


def test_random_half_keeps_half_of_the_tokens_with_an_advantage():
    tokens = token_batch([5, 8, 3, 6])
    weight = direction.random_half(tokens, None)
    assert weight.mean() == pytest.approx(1)
    assert sorted(weight[tokens.advantage != 0].tolist()) == [0] * 8 + [2] * 8
    assert not torch.equal(weight, direction.random_half(token_batch([5, 8, 3, 6], seed=1), None))


def test_planned_has_every_row_of_the_protocol_once_on_each_seed():
    jobs = direction.planned()
    assert len(set(jobs)) == len(jobs)
    of = {(job.setting, job.row) for job in jobs}
    assert {(setting, row) for setting in direction.PRIMARY for row in ("dapo", "S = 1")} <= of
    assert {("k5", "hard, S = 0"), ("learn", "K = 3, S = 1"), ("Zipf", "model")} <= of
    for pair in of:
        assert {job.seed for job in jobs if (job.setting, job.row) == pair} == set(direction.SEEDS)


@pytest.mark.parametrize("N, H", [(2_000, 16), (8_000, 64), (20_000, 32)])
def test_without_signal_one_refinement_saturates_as_sqrt_n_over_h(N, H):
    """Δ⁽¹⁾/γ⁽⁰⁾ spreads by 1 + 0.83 / d, where d = 2 sqrt(H/N) without signal (direction.md)."""
    distances = []
    for seed in range(8):
        v = torch.randn(N, H, generator=torch.Generator().manual_seed(seed))
        A = torch.ones(N)
        A[: N // 2] = -1
        mu_pos, mu_neg = centroids(v, A)
        distances.append(float((mu_pos - mu_neg).norm()))
        delta = margins(v, A, mu_pos, mu_neg)
        gamma = temperatures(delta, A)
        refined = margins(v, A, *centroids(v, A, scores(delta, A, *gamma)))
        ratio = float(refined[A > 0].std() / gamma[0])
        assert ratio == pytest.approx(1 + 0.826 / distances[-1], rel=0.06)
    assert np.mean(distances) == pytest.approx(2 * math.sqrt(H / N), rel=0.1)


# ---- tables --------------------------------------------------------------------------------------


def line(setting, row, seed, rewards, entropies=()):
    """A line of the CSV with these rewards."""
    cells = dict.fromkeys(direction.COLUMNS, "0.5")
    cells |= {"setting": setting, "row": row, "seed": str(seed)}
    entropies = entropies or [1.0] * len(rewards)
    for name, values in zip(direction.PER_STEP, (rewards, entropies, entropies), strict=True):
        cells[name] = " ".join(map(str, values))
    return cells


def study(shift_of, flat=()):
    """A study in which S = 1 is shift_of[setting] above DAPO and S = 0 is 0.01 below it."""
    rng = np.random.default_rng(0)
    lines = []
    for setting, shift in shift_of.items():
        for seed in direction.SEEDS:
            rise = 0.0 if setting in flat else 0.2
            rewards = np.linspace(0.4, 0.4 + rise, 28) + 0.001 * rng.normal()
            for row, more in (("dapo", 0.0), ("S = 0", -0.01), ("S = 1", shift)):
                lines.append(line(setting, row, seed, rewards + more + 0.002 * rng.normal()))
    return direction_tables.study_of(lines)


@pytest.mark.parametrize(
    "shifts, verdict",
    [
        ([0.02] * 4 + [0.0] * 3, "confirmed"),
        ([0.02] * 3 + [0.0] * 4, "partly confirmed"),
        ([0.02] * 1 + [0.0] * 6, "refuted"),
        ([0.02] * 6 + [-0.008], "refuted"),  # in one below DAPO, not below S = 0
    ],
)
def test_verdict_follows_the_protocol(shifts, verdict, capsys):
    found = study(dict(zip(direction.PRIMARY, shifts, strict=True)))
    pairs = {}
    for b in ("dapo", "S = 0"):
        values = {s: direction_tables.paired(found, s, "S = 1", b) for s in direction.PRIMARY}
        pairs[b] = print_differences(b, values)
    direction_tables.print_verdict(pairs["dapo"], pairs["S = 0"], found)
    assert f"verdict: {verdict}:" in capsys.readouterr().out


def test_rows_are_equivalent_within_one_percent(capsys):
    found = study(dict(zip(direction.SECONDARY, [0.0, 0.005, 0.015], strict=True)))
    direction_tables.print_equivalence(found, [("S = 1", "dapo")])
    *_, equal, near, apart = capsys.readouterr().out.strip().splitlines()
    assert equal.endswith("| yes |") and near.endswith("| yes |")
    assert apart.endswith("| no |")


def test_a_setting_whose_reward_does_not_rise_is_flat():
    found = study({"learn": 0.02, "k5": 0.02}, flat=["k5"])
    assert direction_tables.print_settings(found) == ["learn"]


def test_entropy_is_compared_where_both_runs_first_reach_the_lower_of_their_highest_rewards():
    slow = line("learn", "a", 1101, [0.1 * i for i in range(10)], [float(i) for i in range(10)])
    fast = line("learn", "b", 1101, [0.2 * i for i in range(10)], [10.0 + i for i in range(10)])
    found = direction_tables.study_of([slow, fast])
    (apart,) = direction_tables.entropy_at_equal_reward(found, "learn", "a", "b", "results")
    assert apart == pytest.approx(7 - (10 + 4))  # steps 5 to 9 of a and 2 to 6 of b: 0.7 < 0.8
