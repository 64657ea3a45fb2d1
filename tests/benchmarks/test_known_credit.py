"""Tests benchmarks/known_credit.py: the oracle and the shared direction by hand, the measure."""

import math

import pytest
import torch
from hashed_rewards import rewarded
from toy_runs import ROOT, small_config

import train
from benchmarks import known_credit
from config import parse_config
from infra.errors import UserError
from methods import TokenOutputs
from toy import TOKEN_ID
from toy.task import is_right

PROBLEM = "7*6+1=?"  # 2, then 3
RIGHT = ["So ", *"7*6=2", "\n", "Then ", *"2+1=3", "\n", "answer ", "\\boxed{", "3", "}"]
WRONG = [*RIGHT]
WRONG[5] = WRONG[8] = "4"  # 7*6=4, then 4+1=5
WRONG[12] = WRONG[16] = "5"


def test_the_oracle_raises_what_decided_and_keeps_each_side_s_mass():
    advantage = torch.tensor([2.0] * len(RIGHT) + [-1.0] * len(WRONG))
    pairs = [(PROBLEM, RIGHT, True), (PROBLEM, WRONG, False)]
    weight = known_credit.oracle_weights(pairs, advantage).split(len(RIGHT))
    for found, decided in zip(weight, ([5, 12], [5]), strict=True):  # the results; the error
        n, N = len(decided), len(RIGHT)
        scale = N / (1.2 * n + 0.8 * (N - n))
        expected = torch.full([N], 0.8 * scale)
        expected[decided] = 1.2 * scale
        torch.testing.assert_close(found, expected)
        assert float(found.sum()) == pytest.approx(N)


def test_a_word_of_a_larger_vocabulary_decides_nothing():
    ids = torch.tensor([TOKEN_ID["7"], 200, TOKEN_ID["="]])
    assert known_credit.words(ids) == ["7", "So ", "="]


def test_training_with_the_oracle_finds_the_problems_of_its_step(tmp_path, monkeypatch):
    """In each of two steps every response gets the marks of its own problem."""
    seen, agree = [], []
    weights = known_credit.oracle_weights

    def recorded(answered, advantage):
        seen.append({problem for problem, *_ in answered})
        agree.extend(is_right(x, "".join(y)) == right for x, y, right in answered)
        return weights(answered, advantage)

    monkeypatch.setattr(known_credit, "oracle_weights", recorded)
    flags = ["--data", "toy", "--max-new-tokens", "40", "--seed", "3", "--method", "oracle"]
    train.train(small_config(tmp_path / "a", *flags, steps=2))
    assert len(seen) == 2 and not seen[0] & seen[1] and len(seen[0]) == 8
    assert sum(agree) >= 0.95 * len(agree)  # of other problems one in ten answers would be right
    with pytest.raises(UserError, match="oracle needs --data toy"), rewarded():
        train.train(small_config(tmp_path / "b", "--method", "oracle", steps=1))


def test_the_proxy_of_states_that_share_a_direction():
    """Its inner products are (1 - p)(1 - q) (h k + |h||k|), which are never negative."""
    hidden, logprob = torch.randn(5, 8), -torch.rand(5)
    v = known_credit.common_proxy(TokenOutputs(hidden, torch.zeros(5).long(), logprob), None)
    norm, miss = hidden.norm(dim=1), 1 - logprob.exp()
    expected = miss[:, None] * miss * (hidden @ hidden.T + norm[:, None] * norm)
    torch.testing.assert_close(v @ v.T, expected)
    assert v.shape == (5, 9) and (v @ v.T >= -1e-6).all()


def test_what_is_measured_at_the_end_of_a_run(tmp_path):
    """An untrained base: its words are drawn from eight, its greedy answers are often wrong."""
    folder = ROOT / "toy/bases/learn-k5-noise0.1-filler4-seed0"
    (tmp_path / "model").symlink_to(folder)
    flags = f"--data toy --eval-data= --model {folder} --output-dir {tmp_path} --prompts 4"
    flags += " --mini-batch 4 --max-new-tokens 64 --max-prompt-tokens 64"
    found = known_credit.outcomes(parse_config(flags.split()))
    assert found["entropy_words"] == pytest.approx(math.log(8), abs=0.01)
    assert 0.3 < found["entropy_results"] < 0.8
    assert 0.15 < found["greedy"] < 0.35 and 0.2 < found["accuracy"] < 0.35
