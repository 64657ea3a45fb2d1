"""benchmarks/weights.py: which runs are trained, and tables."""

import pytest
import torch

from benchmarks import weights
from benchmarks.__main__ import main
from benchmarks.tables import append_csv


def line(row, rate, seed, reward, setting="learn"):
    measured = {"accuracy": 0.5, "pass8": 0.9, "greedy": 0.6, "entropy": 0.1}
    run = {"setting": setting, "row": row, "rate": rate, "seed": seed}
    return run | measured | {"rewards": f"{reward} {reward}"}


def test_a_run_is_trained_once(tmp_path, monkeypatch, capsys):
    trained = []

    def train(setting, row, rate, seed):
        trained.append((row, rate, seed))
        return line(row, rate, seed, 0.5 + 0.01 * len(trained), setting)

    monkeypatch.setattr(weights, "trained", train)
    path = tmp_path / "x.csv"
    append_csv(path, weights.COLUMNS, [line("dapo", 2e-4, 2002, 0.9)])
    for _ in range(2):
        main(["weights", "--csv", str(path), "--row", "dapo", "--rate", "2e-4"])
        assert trained == [("dapo", 2e-4, seed) for seed in (2001, 2003, 2004)]
    said = capsys.readouterr().out
    assert "| row: tuning seeds | 0.0002 |" in said and "| learn | dapo | 0.615 |" in said


@pytest.fixture
def printed(tmp_path, capsys):
    """printed(lines of one seed) -> what is said of three seeds."""

    def of(lines) -> str:
        for number, seed in enumerate(weights.SEEDS["counted"][:3]):
            append_csv(tmp_path / "x.csv", weights.COLUMNS, lines(number, seed))
        weights.print_tables(weights.read_runs(tmp_path / "x.csv"))
        return capsys.readouterr().out

    return of


def test_tables_hold_differences_at_each_row_s_own_rate(printed):
    def lines(number, seed):
        rows = [("dapo", 2e-4, 0.5), ("delta", 4e-4, 0.6 + 0.01 * number), ("scalar", 2e-4, 0.9)]
        earlier = [] if number else [line("delta", 1e-4, weights.SEEDS["counted"][7], 0.9)]
        return earlier + [line(row, rate, seed, x) for row, rate, x in rows[: 2 if number else 3]]

    said = printed(lines)
    assert "| learn | delta | 0.0004 | 3 | 0.610 ± 0.025 | 0.110 ± 0.025 |" in said
    assert "| learn | 0.110 ± 0.025 | 3 of 3 |" in said
    assert "scalar" not in said  # one seed has no interval


def test_signs_are_compared_side_by_side(printed):
    """Sure tokens bring 0.2 where A > 0 and -0.1 where A < 0, whatever the other side has."""
    rewards = {"sure, sure": 0.5, "unsure, sure": 0.3, "sure, unsure": 0.6, "unsure, unsure": 0.4}

    def lines(number, seed):
        own = [line(row, 2e-4, seed, x + seed % 10) for row, x in rewards.items()]
        seed = weights.SEEDS["counted"][2 - number]  # a row's seeds may be in another order
        return [*own[:3], line("unsure, unsure", 2e-4, seed, 0.4 + seed % 10)]

    said = printed(lines)
    assert "| learn | A > 0 | 0.200 ± 0.000 |\n| learn | A < 0 | -0.100 ± 0.000 |" in said


@pytest.mark.parametrize("last, collapsed", [(0.44, 1), (0.46, 0)])
def test_a_run_whose_end_is_below_half_of_its_best_step_has_collapsed(printed, last, collapsed):
    def lines(number, seed):
        rewards = [2 * last if number else 0.9, *5 * [last]]
        return [line("dapo", 2e-4, seed, 0.5) | {"rewards": " ".join(map(str, rewards))}]

    assert f"| 0.100 | {collapsed} |" in printed(lines)


def test_a_run_on_the_toy_gives_a_line(monkeypatch):
    monkeypatch.setitem(weights.SETTINGS, "learn", "--steps 1 --prompts 4 --mini-batch 4")
    monkeypatch.setattr(weights, "PROBLEMS", 2)
    # Other tests compare runs of this process bit for bit: all need the same number of threads.
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)
    found = weights.trained("learn", "scalar", 1e-4, 0)
    assert set(found) == set(weights.COLUMNS)
    assert len(found["rewards"].split()) == 1
