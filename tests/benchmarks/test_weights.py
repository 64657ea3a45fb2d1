"""benchmarks/weights.py: rows that no flag selects, the choice of a rate, and tables."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from references import token_batch

import toy
from benchmarks import weights
from benchmarks.tables import append_csv
from methods import Method

A = torch.tensor([2.0, 2.0, 0.0, -0.5, -0.5, -0.5])
LAM = torch.tensor([1.4, 0.9, 0.8, 1.1, 0.9, 0.7])


def weights_of(row):
    tokens = token_batch([3, 3], advantage=A)
    method = Method(weights=lambda tokens, flags: LAM)
    return weights.method_of(row, method).weights(tokens, None)


def test_tokens_only_and_sides_only_are_the_two_factors_of_the_weights():
    of_tokens, of_sides = weights_of("tokens only"), weights_of("sides only")
    assert torch.allclose((of_tokens * of_sides)[A != 0], LAM[A != 0])
    assert torch.allclose(of_sides[A != 0], torch.tensor([1.15, 1.15, 0.9, 0.9, 0.9]))
    for side in (A > 0, A < 0):
        assert (of_tokens * A)[side].sum() == pytest.approx(float(A[side].sum()))


def test_the_oracle_raises_the_decisive_tokens():
    ids = toy.build_tokenizer()("So 2+3=5\nThen 5-1=3\nanswer \\boxed{3}<eos>").input_ids
    n = len(ids)
    tokens = token_batch([n], advantage=torch.full((n,), -0.5))
    problem = {"problem": "2+3-1=?"}
    tokens = replace(tokens, token=torch.tensor(ids), problems=[problem])
    weight = weights.oracle(tokens, None)
    (decided,) = (weight > 1.1).nonzero().flatten().tolist()
    assert decided == 12 and ids[decided] == toy.TOKEN_ID["3"]
    assert weight.mean() == pytest.approx(1)
    assert weight.max() / weight.min() == pytest.approx(1.5)


def line(row, rate, seed, reward, setting="learn"):
    measured = {"accuracy": 0.5, "pass8": 0.9, "greedy": 0.6, "entropy": 0.1}
    job = weights.Job(setting, row, rate, seed)
    return job._asdict() | measured | {"rewards": f"{reward} {reward}"}


@pytest.mark.parametrize("peak", [1.4e-4, 2e-4, 5.6e-4, 1e-4, 1.1e-3])
def test_the_best_rate_is_no_edge_of_those_tried(tmp_path, monkeypatch, peak):
    trained = []

    def train(job):
        trained.append(job.rate)
        return line(job.row, job.rate, job.seed, 1 - abs(np.log(job.rate / peak)) / 10)

    monkeypatch.setattr(weights, "trained", train)
    assert weights.best_rate(tmp_path / "x.csv", "learn", "dapo") == peak
    index = weights.RATES.index(peak)
    assert set(trained) >= {*weights.GRID, *weights.RATES[max(0, index - 1) : index + 2]}
    runs = len(trained)
    weights.best_rate(tmp_path / "x.csv", "learn", "dapo")
    assert len(trained) == runs  # nothing is trained twice


def test_tables_hold_differences_at_each_row_s_own_rate(tmp_path, capsys):
    path = tmp_path / "x.csv"
    for number, seed in enumerate(weights.COUNTED[:3]):
        rows = [("dapo", 2e-4, 0.5), ("delta", 4e-4, 0.6 + 0.01 * number)]
        append_csv(path, weights.COLUMNS, [line(row, r, seed, x) for row, r, x in rows])
    weights.print_tables(weights.runs(path))
    said = capsys.readouterr().out
    assert "| learn | delta | 0.0004 | 3 | 0.610 ± 0.025 | 0.110 ± 0.025 |" in said
    assert "| learn | 0.110 ± 0.025 | 3 of 3 |" in said


def test_a_run_on_the_toy_gives_a_line(monkeypatch):
    monkeypatch.setitem(weights.SETTINGS, "learn", "--steps 1 --prompts 4 --mini-batch 4")
    monkeypatch.setattr(weights, "PROBLEMS", 2)
    found = weights.trained(weights.Job("learn", "oracle", 1e-4, 0))
    assert set(found) == set(weights.COLUMNS)
    assert len(found["rewards"].split()) == 1
