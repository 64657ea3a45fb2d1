"""benchmarks/credit.py and branches.py: statistics of weights, measured credit."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

import train
from benchmarks import branches, credit
from benchmarks.tables import read_csv
from config import parse_config
from delta import delta_coefficients
from infra.errors import UserError
from rollout import random_numbers


@pytest.fixture
def batch():
    """Two groups of four responses; those of the second group have equal rewards."""
    g = torch.Generator().manual_seed(3)
    length = torch.tensor([40, 31, 52, 25, 30, 30, 20, 44])
    rewards = [1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0]
    N = int(length.sum())
    p = torch.rand(N, generator=g)
    texts = [["7", "+", "So", ".", " ", "frac"][i % 6] for i in range(N)]
    advantage = torch.tensor([1.0, -1, -1, 1, 0, 0, 0, 0]).repeat_interleave(length)
    return {
        "rollouts": [SimpleNamespace(reward=R, truncated=i == 3) for i, R in enumerate(rewards)],
        "advantage": advantage,
        "logprob": p.log(),
        "entropy": torch.rand(N, generator=g),
        "hidden": torch.randn(N, 6, generator=g),
        "top_k": torch.randn(N, 6, generator=g),
        "mean_p": torch.rand(N, generator=g),
        "texts": texts,
        "length": length,
        "G": 4,
    }


def test_what_p_and_the_state_explain(batch):
    """Weights that are a function of p are explained by p, linear ones in h by the state."""
    p, h = batch["logprob"].exp(), batch["hidden"]
    given_p, given_state = credit.explained((p - 0.5).abs(), p, h)
    assert given_p > 0.9 > 0.1 > given_state
    given_p, given_state = credit.explained(h @ torch.arange(6.0), p, h)
    assert given_state > 0.9 > 0.1 > given_p


def test_statistics_of_the_scalar_rule_beside_itself(batch):
    lines = credit.measured("m", batch)
    found = {(rule, side, statistic): value for _, _, rule, side, statistic, value in lines}
    assert found["", "", "groups with both"] == 1
    assert found["scalar, K = 1", "both", "correlation with scalar"] == pytest.approx(1)
    A, surprise = batch["advantage"], 1 - batch["logprob"].exp()
    lam = delta_coefficients(surprise[:, None] * batch["hidden"], A, 2)
    pos = A > 0
    expected = float((lam * A)[pos].sum() / A.abs().sum())
    assert found["delta, K = 2", "A > 0", "mass"] == pytest.approx(expected)
    words = pos & torch.tensor([text == "So" for text in batch["texts"]])
    expected = float(lam[words].mean() / lam[pos].mean())
    assert found["delta, K = 2", "A > 0", "weight of word"] == pytest.approx(expected)


@pytest.mark.parametrize("spread", [0.1, 1.0, 4.0])
def test_the_first_order_formula_holds_for_independent_states(spread):
    """States m + noise: with little noise the margins are a function of 1 - p."""
    g = torch.Generator().manual_seed(1)
    N, m = 40000, torch.tensor([2.0, -1.0, 0.5])
    A = torch.tensor([1.0, -0.5]).repeat(N // 2)
    s = torch.rand(N, generator=g) ** 2 * torch.where(A > 0, 0.7, 0.9)  # wrong ones are less sure
    h = m + spread * torch.randn(N, 3, generator=g)
    batch = {"advantage": A, "logprob": torch.log1p(-s), "hidden": h}
    found = {(side, name): value for side, name, value in credit.first_order(batch)}
    measured = [found[side, "correlation of margins with 1 - p"] for side in ("A > 0", "A < 0")]
    predicted = [found[side, "the same, predicted"] for side in ("A > 0", "A < 0")]
    assert measured == pytest.approx(predicted, abs=0.03)
    assert measured[0] < 0 < measured[1]
    if spread < 1:
        assert found["A > 0", "x̄"] == pytest.approx(found["both", "x̄, first order"], rel=0.05)


def test_weights_of_each_problem_for_itself(batch):
    v = credit.proxies(batch)["delta"]
    apart = credit.coefficients(batch, v, 1, apart=True)
    n = int(batch["length"][:4].sum())
    assert torch.equal(apart[:n], delta_coefficients(v[:n], batch["advantage"][:n], 1))
    assert torch.equal(apart[n:], torch.ones(len(apart) - n))


def test_a_batch_without_an_advantage_is_refused(tmp_path, monkeypatch):
    rewards = [0.0] * 8 + [1.0] * 8
    rollouts = [SimpleNamespace(reward=reward) for reward in rewards]
    monkeypatch.setattr(train, "prepare", lambda _: None)
    monkeypatch.setattr(train, "sample", lambda *_: (rollouts, 2))
    with pytest.raises(UserError, match="take other problems"):
        credit.sampled_batch(parse_config(["--output-dir", str(tmp_path)]))


def test_chosen_responses_are_complete_and_of_mixed_groups(batch):
    assert branches.chosen_responses(batch) == [0, 1, 2]  # 3 is truncated, 4 to 7 are all wrong


def test_segments_start_after_sentences_and_before_numbers():
    texts = ["So", " 1", "2", " +", " 3", ".", " Then", "\n", "x", " is", " 7"]
    assert branches.starts_of_segments(texts) == [0, 1, 4, 6, 8, 10]
    assert len(branches.starts_of_segments([".", "a"] * 40)) == branches.POINTS


def test_credit_is_the_change_of_value_in_the_direction_of_the_advantage(batch):
    points = [(0, 0, 0.5), (0, 10, 0.25), (1, 0, 0.5), (1, 20, 0.75)]
    lines = pd.DataFrame(points[::-1], columns=["response", "start", "value"])
    weights = torch.arange(len(batch["texts"])).double()
    found = branches.segments_of(batch, lines, {"late": weights})
    assert found["credit"].tolist() == [-0.25, 0.75, -0.25, 0.75]
    expected = [4.5 - 19.5, 24.5 - 19.5, 9.5 - 15, 25 - 15]
    assert found["late"].tolist() == pytest.approx(expected)


def test_auc_counts_pairs_of_segments():
    credit_of, weights = np.array([0.5, 0.1, 0.3, -0.4]), np.array([3.0, 1.0, 2.0, 2.0])
    assert branches.auc_of_credit(weights, credit_of) == (1 + 1 + 1 + 0.5) / 4
    assert np.isnan(branches.auc_of_credit(weights, credit_of - 1))


def test_values_belong_to_their_prefixes(tmp_path, monkeypatch):
    """A continuation of two tokens is right if it ends, and is with its prefix long enough."""
    points = [(0, 0), (0, 3), (2, 1), (1, 2), (1, 4)]
    enough = [4, 6, 2]  # tokens of a response, for each response
    rollouts = [
        SimpleNamespace(
            prompt=[7] * (i + 1), tokens=np.arange(9), reward=0.0, problem={"answer": n}
        )
        for i, n in enumerate(enough)
    ]

    def continued(lm, responses, ends, sampling):
        for response in reversed(responses):
            last = 1 if response.numbers.random() < 0.4 else 2  # 1 is an end token
            response.tokens = torch.cat([response.tokens, torch.tensor([2, last])])
            yield response

    def graded(responses, problems, truncated):
        return [float(len(responses[0]) >= problems[0]["answer"] and not truncated[0])]

    monkeypatch.setattr(branches, "load_model", lambda *_: (None, None))
    monkeypatch.setattr(branches, "end_tokens", lambda *_: [1])
    monkeypatch.setattr(branches, "text_decoder", lambda _: lambda prompt, ids: ids)
    monkeypatch.setattr(branches, "generate", continued)
    monkeypatch.setattr(branches, "grade_all", graded)
    cfg = SimpleNamespace(model="x", dtype="auto", max_new_tokens=2, temperature=1.0, in_flight=4)
    branches.measure(tmp_path / "v.csv", cfg, "x", {"rollouts": rollouts}, points)

    found = read_csv(tmp_path / "v.csv", branches.COLUMNS)
    places = zip(found["response"], found["start"], strict=True)
    values = dict(zip(places, found["value"], strict=True))
    assert sorted(values) == sorted(points)
    for (i, start), value in values.items():
        draws = [random_numbers(branches.KEY, i, start, m).random() for m in range(12)]
        ended = np.mean([draw < 0.4 for draw in draws])
        assert value == pytest.approx(ended * (start + 2 >= enough[i]), abs=1e-4)
    assert len(set(values.values())) > 2
