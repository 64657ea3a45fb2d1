"""studies/truth.py: token advantages by branching, compared with small hand calculations."""

import numpy as np
import pytest
import torch

import toy
from studies import truth
from studies.tables import appending
from studies.truth import advantages_of, lines_of_base, read_truth, rewards_of_branches


def test_advantages_match_a_hand_calculation():
    """Five tokens; only the second and the fourth are uncertain; the response is right."""
    rewards = np.array([[1.0, 0.0, 0.0, 1.0], [1.0, 1.0, 0.0, 1.0]])
    value, advantage, error = advantages_of(rewards, [1, 3], length=5, reward=1.0)
    np.testing.assert_allclose(value, [0.5, 0.5, 0.75, 0.75, 1.0])
    np.testing.assert_allclose(advantage, [0, 0.25, 0, 0.25, 0])
    # gains 0 1 0 0, twice: deviation sqrt(3/4 · 1/4 · 4/3) = 0.5, of four samples
    np.testing.assert_allclose(error, [0, 0.25, 0, 0.25, 0])


def test_advantages_sum_to_the_gain_of_the_response():
    rng = np.random.default_rng(0)
    rewards = rng.integers(2, size=(6, 10)).astype(float)
    value, advantage, _ = advantages_of(rewards, [0, 2, 3, 7, 8, 11], length=13, reward=0.0)
    assert advantage.sum() == pytest.approx(0.0 - value[0])


def test_only_early_branches_can_change_the_answer(base):
    """Branches at the last token cannot change the answer; branches at the first token can."""
    lm, tokenizer = base
    problem = {"problem": "7*6+1-4+2*3=?", "answer": "3"}
    prompt = tokenizer(problem["problem"]).input_ids
    text = toy.demonstration(problem["problem"], np.random.default_rng(0)) + "<eos>"
    right = tokenizer(text).input_ids
    rewards = rewards_of_branches(
        lm, tokenizer, prompt, right, [0, len(right) - 1], problem, seed=1, samples=32
    )
    assert rewards.shape == (2, 32)
    assert rewards[1].mean() == 1.0  # the box contains the answer
    assert 0 < rewards[0].mean() < 1


def test_only_the_wrong_result_has_a_negative_advantage(base):
    """The first wrong digit lowers the chance of a right answer; a connective does not."""
    lm, tokenizer = base
    problem = {"problem": "7+6+1+4+2+3=?", "answer": "3"}
    prompt = tokenizer(problem["problem"]).input_ids
    wrong = tokenizer("So 7+6=8\nThen 8+1=9\nNow 9+4=3\nAlso 3+2=5\nThus 5+3=8\n").input_ids
    assert [toy.VOCABULARY[i] for i in wrong[:6]] == ["So ", "7", "+", "6", "=", "8"]
    rewards = rewards_of_branches(
        lm, tokenizer, prompt, wrong, [0, 1, 5, 6], problem, seed=1, samples=64
    )
    before, after_connective, before_digit, after_digit = rewards.mean(axis=1)
    assert abs(after_connective - before) < 0.25
    assert after_digit < before_digit - 0.15


def test_every_token_in_a_base_gets_a_line(tmp_path, monkeypatch):
    monkeypatch.setattr(truth, "K", 5)
    monkeypatch.setattr(truth, "NOISE", 0.2)  # a committed base
    monkeypatch.setattr(truth, "PROMPTS", 2)
    monkeypatch.setattr(truth, "GROUP", 2)
    monkeypatch.setattr(truth, "SAMPLES", 4)
    threads = torch.get_num_threads()
    try:
        lines = lines_of_base(0)
    finally:
        torch.set_num_threads(threads)
    assert [line["response"] for line in lines] == sorted(line["response"] for line in lines)
    assert {line["response"] for line in lines} == {0, 1, 2, 3}
    one = [line for line in lines if line["response"] == 3]
    assert [line["position"] for line in one] == list(range(len(one)))
    assert lines[-1]["token"] == "<eos>"
    for line in lines:
        assert abs(line["advantage"]) <= 1
        if line["one_minus_p"] < truth.SURE / 2:
            assert line["advantage"] == 0
    with appending(tmp_path / "truth.csv", truth.COLUMNS) as write:
        write(lines)
    assert read_truth(tmp_path / "truth.csv") == lines
