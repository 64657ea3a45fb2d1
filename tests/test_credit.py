"""benchmarks/credit.py and credit_study.py against slow references, whatever the model draws."""

import csv
import math
from pathlib import Path

import pytest
import torch

import toy
from benchmarks import credit_study
from benchmarks.credit import (
    ORACLE,
    ROWS,
    auc,
    batch,
    direction,
    policy_gradient,
    weights_of,
)
from benchmarks.credit_study import Case, measured, rank_correlation
from evaluate import grade
from methods import row_proxy

RESULTS = Path(__file__).parent.parent / "results" / "credit.csv"


@pytest.fixture(scope="module")
def graded(base):
    """6 problems x 4 responses of the base model."""
    return batch(*base, toy.problems(6, seed=5), 4, seed=3)


# ---- graded batches ------------------------------------------------------------------------------


def test_batch_of_the_code_toy_is_graded_by_its_tests_and_marked_by_its_tokens():
    problems = toy.code_task.problems(4, seed=5)
    graded = batch(*toy.code_base_model(), problems, 3, seed=3, limit=32)

    rollouts = graded.rollouts
    asked = [problem for problem in problems for _ in range(3)]
    rights = [
        toy.code_task.is_right(problem["problem"], text)
        for problem, text in zip(asked, rollouts.texts, strict=True)
    ]
    assert graded.rewards.tolist() == [float(right) for right in rights]

    marks = graded.decisive.split(rollouts.response_length.tolist())
    for i, problem in enumerate(asked):
        expected = toy.code_task.decisive(problem["problem"], rollouts.response_ids(i))
        assert torch.equal(marks[i], expected)
        assert rights[i] or marks[i].sum() <= 1


# ---- auc and ranks -------------------------------------------------------------------------------


def test_auc_is_the_share_of_pairs_in_the_right_order():
    generator = torch.Generator().manual_seed(1)
    values = torch.randint(6, (40,), generator=generator).float()  # with ties
    positive = torch.rand(40, generator=generator) < 0.3
    pairs = []
    for a in values[positive].tolist():
        for b in values[~positive].tolist():
            pairs.append(1.0 if a > b else 0.5 if a == b else 0.0)
    assert auc(values, positive) == pytest.approx(sum(pairs) / len(pairs))


def test_auc_of_extremes():
    values = torch.tensor([1.0, 2.0, 3.0])
    positive = torch.tensor([False, False, True])
    assert auc(values, positive) == 1
    assert auc(-values, positive) == 0
    assert auc(torch.ones(3), positive) == 0.5
    assert math.isnan(auc(values, torch.ones(3, dtype=torch.bool)))
    assert math.isnan(auc(values[:0], positive[:0]))


def test_rank_correlation_sees_the_order_alone():
    a = torch.tensor([0.1, 5.0, 0.2, 0.1])
    assert rank_correlation(a, a.exp()) == pytest.approx(1)
    assert rank_correlation(a, -a) == pytest.approx(-1)
    assert math.isnan(rank_correlation(a, torch.ones(4)))
    # ranks 0 2 1 0 against 0 0 1 0: covariance 1/12, variances 11/16 and 3/16
    b = torch.tensor([3.0, 3.0, 4.0, 3.0])
    assert rank_correlation(a, b) == pytest.approx(1 / 16 / math.sqrt(11 / 16 * 3 / 16))


# ---- a graded batch ------------------------------------------------------------------------------


def test_batch_is_graded_problem_by_problem(graded):
    rollouts, tokens = graded.rollouts, graded.tokens
    rewards = []
    marks = []
    for i, problem in enumerate(tokens.problems):
        assert problem == toy.problems(6, seed=5)[i // 4]
        rewards.append(grade(rollouts.texts[i], problem))
        marks.append(toy.decisive(problem["problem"], rollouts.response_ids(i)))
    assert graded.rewards.tolist() == rewards
    assert torch.equal(graded.decisive, torch.cat(marks))
    assert torch.equal(tokens.advantage, graded.advantages.repeat_interleave(tokens.length))
    assert torch.equal(tokens.current, tokens.logprob)
    assert tokens.kept is None


def test_batch_with_all_rewards_flipped_has_the_opposite_advantages(base, graded):
    flipped = batch(*base, toy.problems(6, seed=5), 4, seed=3, flip=1.0)
    assert flipped.rollouts.texts == graded.rollouts.texts
    assert torch.equal(flipped.rewards, graded.rewards)
    assert torch.allclose(flipped.advantages, -graded.advantages, atol=1e-6)


def test_batch_keeps_what_it_is_told_to(base, graded):
    kept = batch(*base, toy.problems(6, seed=5), 4, seed=3, keep=row_proxy).tokens.kept
    N = len(graded.tokens.logprob)
    assert kept.shape == (N, base[0].config.hidden_size)
    assert torch.equal(kept.mine, torch.arange(N))


# ---- weights -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ROWS)
def test_weights_of_every_row_have_mean_one(name, base, graded):
    weights = weights_of(name, base[0], graded)
    assert weights.shape == graded.tokens.logprob.shape
    assert (weights >= 0).all()
    assert float(weights.mean()) == pytest.approx(1, abs=1e-5)
    assert graded.tokens.kept is None  # what a row needs stays with that row


def test_weights_of_the_oracle_stand_eleven_to_one(base, graded):
    weights = weights_of(ORACLE, base[0], graded)
    decisive, other = weights[graded.decisive], weights[~graded.decisive]
    assert torch.allclose(decisive, 11 * other[0])
    assert torch.equal(other, other[0].expand_as(other))


def test_weights_that_are_drawn_depend_on_the_seed(base, graded):
    first = weights_of("random", base[0], graded, seed=1)
    assert torch.equal(first, weights_of("random", base[0], graded, seed=1))
    assert not torch.equal(first, weights_of("random", base[0], graded, seed=2))


# ---- directions ----------------------------------------------------------------------------------


def test_direction_is_the_gradient_of_the_weighted_log_probabilities(base, graded):
    """Against one sequence after the other, unpadded and with a plain log-softmax."""
    lm = base[0]
    N = len(graded.tokens.logprob)
    coefficient = torch.linspace(-1, 2, N)

    total = 0.0
    packed = iter(coefficient)
    for i in range(len(graded.rollouts)):
        start = int(graded.rollouts.prompt_length[i])
        end = start + int(graded.rollouts.response_length[i])
        ids = graded.rollouts.ids[i, :end]
        logp = lm(ids[None]).logits[0].log_softmax(dim=-1)
        for t in range(start, end):
            total = total + next(packed) * logp[t - 1, ids[t]]
    gradients = torch.autograd.grad(total, list(lm.parameters()))
    expected = torch.cat([g.flatten() for g in gradients])

    found = direction(lm, graded.rollouts, coefficient)
    assert torch.allclose(found, expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))
    assert all(p.grad is None or not p.grad.any() for p in lm.parameters())


def test_policy_gradient_of_one_group_is_its_centred_rewards(base):
    (estimate,) = policy_gradient(*base, prompts=1, group=8, halves=1)
    again = batch(*base, toy.problems(1, seed=1000), 8, seed=500)
    centred = again.rewards - again.rewards.mean()
    by_token = centred.repeat_interleave(again.tokens.length)
    expected = direction(base[0], again.rollouts, by_token)
    assert torch.allclose(estimate, expected, atol=1e-6)


# ---- the study -----------------------------------------------------------------------------------


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(credit_study, "PROMPTS", 4)
    monkeypatch.setattr(credit_study, "GROUP", 4)


def test_lines_have_the_columns_of_the_committed_csv(base, small):
    lm, tokenizer = base
    names = ("dapo", "exact, K = 1", ORACLE)
    truth = torch.ones(sum(p.numel() for p in lm.parameters()))
    lines = measured(Case(1, 0.0, names), 0, lm, tokenizer, truth)

    with open(RESULTS) as file:
        assert list(lines[0]) == next(csv.reader(file))
    assert [line["row"] for line in lines] == list(names)

    dapo, exact, oracle = lines
    for side in ("auc_pos", "auc_neg"):  # NaN where a side has no decisive token
        assert dapo[side] == 0.5 or math.isnan(dapo[side])
        assert oracle[side] == 1 or math.isnan(oracle[side])
    assert math.isnan(dapo["rank_correlation"])
    assert -1 <= exact["cosine"] <= 1 or math.isnan(exact["cosine"])


def test_lines_with_flipped_rewards_and_without_a_policy_gradient(base, small):
    lm, tokenizer = base
    (line,) = measured(Case(2, 1.0, ("lm_head, K = 1",)), 0, lm, tokenizer, None)
    assert (line["filler"], line["flip"]) == (2, 1.0)
    assert math.isnan(line["cosine"])
    # The sides have changed places, so each token is as near to its own as it was.
    assert line["rank_correlation"] > 0.99 or math.isnan(line["rank_correlation"])


def test_study_fills_the_csv_and_prints_a_line_for_each_row(base, small, tmp_path, monkeypatch):
    monkeypatch.setattr(credit_study, "BATCHES", 2)
    monkeypatch.setattr(credit_study, "CASES", (Case(1, 0.0, ("dapo", ORACLE)),))
    monkeypatch.setattr(credit_study, "policy_gradient", two_estimates)
    args = type("Args", (), {"csv": str(tmp_path / "credit.csv")})
    lines = credit_study.credit(args)
    with open(args.csv) as file:
        written = list(csv.DictReader(file))
    assert [(row["row"], row["batch"]) for row in written] == [
        ("dapo", "0"),
        (ORACLE, "0"),
        ("dapo", "1"),
        (ORACLE, "1"),
    ]
    assert int(written[0]["tokens"]) == lines[0]["tokens"]


def two_estimates(lm, tokenizer):
    count = sum(p.numel() for p in lm.parameters())
    return torch.ones(count), torch.ones(count)
