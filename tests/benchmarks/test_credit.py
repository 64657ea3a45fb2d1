"""benchmarks/credit.py: credit by branching, compared with sums over all endings of a chain."""

import itertools

import numpy as np
import pytest
import torch

import toy
from batch import Rollout
from benchmarks import credit
from benchmarks.credit import Truth, agreement, auc, credit_of, ranked, rewards_of_branches


def test_credit_matches_a_hand_calculation():
    """Five tokens; only the second and the fourth are uncertain; the response is right."""
    rewards = np.array([[1.0, 0.0, 0.0, 1.0], [1.0, 1.0, 0.0, 1.0]])
    found, error = credit_of(rewards, [1, 3], length=5, reward=1.0)
    np.testing.assert_allclose(found, [0, 0.25, 0, 0.25, 0])
    # gains 0 1 0 0, twice: deviation sqrt(3/4 · 1/4 · 4/3) = 0.5, of four samples
    np.testing.assert_allclose(error, [0, 0.25, 0, 0.25, 0])


def test_branches_match_the_sum_over_all_endings():
    """All 100 endings of a chain, a product and a sum, with the model's probabilities."""
    model, tokenizer = toy.base_model(noise=0.1, regime="learn")
    problem = {"problem": "3+4-5+1*7+2=?", "answer": "3"}
    prompt = tokenizer(problem["problem"]).input_ids
    begun = "So 3+4=7\nSo 7-5=2\nSo 2+1=3\nSo 3*7="

    # Every pair of results, teacher-forced: its probability, and whether the answer is right.
    pairs = list(itertools.product(range(10), repeat=2))
    texts = [f"{begun}{first}\nSo {first}+2={second}" for first, second in pairs]
    ids = torch.tensor([prompt + tokenizer(text).input_ids for text in texts])
    with torch.no_grad():
        logprob = model(input_ids=ids).logits.log_softmax(dim=-1)[:, :-1]
    logprob = logprob.gather(-1, ids[:, 1:, None])[..., 0]
    second = logprob[:, -1].exp().reshape(10, 10)
    first = logprob[:, -8].exp().reshape(10, 10)[:, 0]
    after = second[:, 3]  # V after the first result
    before = (first * after).sum()
    assert after[1] - before > 0.3 and before - after[4] > 0.3  # 3*7 is stated as 4 too often

    for digit in (1, 4):
        tokens = np.array(tokenizer(f"{begun}{digit}\n").input_ids, dtype=np.int32)
        response = Rollout(prompt, tokens, np.zeros(len(tokens)), "", False, problem, 0.0)
        places = [len(tokens) - 2, len(tokens) - 1]
        rewards = rewards_of_branches(model, tokenizer, response, places, seed=1, samples=256)
        # At most four standard errors of 256 samples.
        assert abs(rewards[0].mean() - float(before)) < 0.125
        assert abs(rewards[1].mean() - float(after[digit])) < 0.125


def test_auc_is_the_share_of_pairs_in_the_right_order():
    generator = torch.Generator().manual_seed(1)
    values = torch.randint(6, (40,), generator=generator).float()  # with ties
    positive = torch.rand(40, generator=generator) < 0.3
    pairs = []
    for a in values[positive].tolist():
        for b in values[~positive].tolist():
            pairs.append(1.0 if a > b else 0.5 if a == b else 0.0)
    assert auc(values, positive) == pytest.approx(sum(pairs) / len(pairs))
    assert np.isnan(auc(values, positive & False))


def test_a_right_step_in_a_wrong_response_is_no_target():
    """Four tokens of a wrong response: an error, a right step, a slip within noise, a sure one."""
    truth = Truth(torch.tensor([-0.5, 0.4, -0.1, 0.0]), torch.tensor([0.1, 0.1, 0.1, 0.0]))
    advantage = -torch.ones(4)
    by_size = torch.tensor([1.2, 1.2, 1.0, 0.8])
    signed = torch.tensor([1.2, 0.8, 1.0, 0.8])
    assert ranked("x", by_size, advantage, truth)[1]["auc"] == pytest.approx(2.5 / 3, abs=1e-4)
    assert ranked("x", signed, advantage, truth)[1]["auc"] == 1
    wrong = Rollout([0], np.arange(4), None, "", False, {}, 0.0)
    line = agreement(truth, [wrong], torch.tensor([True, False, False, False]))[1]
    assert (line["tokens"], line["clear"], line["above"]) == (4, 2, 1)
    assert line["auc"] == 1 and line["share"] == 0.5


def test_a_base_gets_two_lines_for_each_row(monkeypatch):
    small = {"K": 5, "NOISE": 0.2, "PROMPTS": 2, "GROUP": 2, "SAMPLES": 4, "STATIC": ("delta",)}
    for name, value in small.items():  # a committed base
        monkeypatch.setattr(credit, name, value)
    lines = credit.lines_of_base(0)
    assert [(x["row"], x["responses"]) for x in lines] == [
        (row, side) for row in (credit.MARKS, "delta") for side in ("right", "wrong")
    ]
    assert {*lines[0]} == {*credit.COLUMNS}
