"""The study of the zero-mean proxy: its runs, and its output for made-up runs."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import ROOT
from toy_runs import InThisProcess

from studies import running
from studies.comparisons import counted, over_places, paired
from studies.places import LEARN, PLACES, SETTINGS, Setting
from studies.rows import IN_RANGE
from studies.runs import Job, Trained, finished_runs
from studies.surprise import (
    AGAIN,
    AGAIN_RATE,
    BEYOND,
    EVERY_SEED,
    LONG,
    PERMUTED,
    PERMUTED_AT,
    PILOT_SEED,
    RATES,
    again_jobs,
    at_the_entropy,
    counted_jobs,
    rows_at,
    surprise,
)

GAIN = {"surprise": 0.02, "delta": -0.01, IN_RANGE: 0.03}


def made_up(job, samples=1):
    """The middle rate is the best. At `learn, k12`, DelTA's reward drops at the end."""
    distance = abs(math.log2(job.rate / RATES[1]))
    noise = 0.001 * ((7 * job.seed + len(job.setting) + 3 * len(job.row)) % 5)
    level = 0.3 + GAIN.get(job.row, 0.0) + noise - 0.1 * distance
    rewards = level + 0.02 * np.arange(28)
    if (job.setting, job.row) == ("learn, k12", "delta"):
        rewards[-5:] -= 0.3
    entropies = 1.0 - 0.01 * np.arange(28)
    return Trained((0.75,), (1.0,), 40.0, 60.0, tuple(rewards.round(4)), tuple(entropies.round(4)))


@pytest.fixture
def no_runs(monkeypatch):
    threads = torch.get_num_threads()
    monkeypatch.setattr(running, "ProcessPoolExecutor", InThisProcess)
    monkeypatch.setattr(running, "trained", made_up)
    monkeypatch.setattr(Setting, "base", Setting)
    yield
    torch.set_num_threads(threads)


# ---- runs ----------------------------------------------------------------------------------------


def test_the_places_match_the_protocol():
    page = (ROOT / "docs/results/surprise.md").read_text()
    for place, first in PLACES.items():
        folder = SETTINGS[place].base()
        assert folder.parent == ROOT / "toy/bases"
        assert f"| {place} | `{folder.name}` |" in page
        assert first == (211 if "Zipf" in place else 201)
    assert len(LEARN) == len(PLACES) - 1
    assert {LONG, *PERMUTED_AT} <= set(LEARN)


def test_each_seed_is_completed_before_the_next():
    rates = {place: dict.fromkeys((*EVERY_SEED, IN_RANGE, PERMUTED), 2e-4) for place in PLACES}
    jobs = counted_jobs(rates, 2)
    assert len(set(jobs)) == len(jobs)
    numbers = [job.seed - PLACES[job.setting] for job in jobs]
    assert numbers == sorted(numbers)
    for place in PLACES:
        for number in (0, 1):
            rows = [j.row for j in jobs if j.setting == place and j.seed == PLACES[place] + number]
            assert rows == rows_at(place, number)
    assert rows_at(LONG, 1) == []
    assert rows_at("k12", 1) == list(EVERY_SEED)
    assert rows_at("k12", 2) == [*EVERY_SEED, IN_RANGE]
    assert rows_at("learn, k12", 4) == [*EVERY_SEED, IN_RANGE, PERMUTED]
    assert PILOT_SEED not in {job.seed for job in jobs}


def test_some_rows_run_again_at_another_rate_in_the_grid():
    jobs = again_jobs()
    assert len(set(jobs)) == len(jobs)
    assert {job.rate for job in jobs} == {AGAIN_RATE} < set(RATES)
    for place, rows in AGAIN.items():
        assert {job.row for job in jobs if job.setting == place} == set(rows) <= set(EVERY_SEED)
        assert min(job.seed for job in jobs if job.setting == place) == PLACES[place]


def test_reward_is_taken_when_entropy_reaches_dapos_final_entropy():
    steps = np.arange(10)
    dapo = Trained((), (), 0, 0, tuple(0.3 + 0.01 * steps), tuple(1.0 - 0.01 * steps))
    faster = Trained((), (), 0, 0, tuple(0.3 + 0.04 * steps), tuple(1.0 - 0.02 * steps))
    assert dapo.entropy == pytest.approx(0.93)
    # the third to the seventh step have mean entropy 0.92 and reward 0.3 + 0.04 x 4
    assert at_the_entropy(faster, dapo) == pytest.approx(0.46 - 0.37)
    assert at_the_entropy(dapo, dapo) == pytest.approx(0)
    assert math.isnan(at_the_entropy(dapo, faster))


def test_the_study_picks_rates_and_reads_finished_runs(tmp_path, no_runs, monkeypatch, capsys):
    path = tmp_path / "surprise.csv"
    args = SimpleNamespace(csv=str(path), seeds=3)
    measured = surprise(args)
    said = capsys.readouterr().out
    assert path.with_suffix(".png").stat().st_size > 10_000

    done = finished_runs(path)
    pilot = [Job(x, row, rate, 0) for x in PLACES for row in EVERY_SEED for rate in RATES]
    rates = dict.fromkeys(PLACES, dict.fromkeys((*EVERY_SEED, IN_RANGE, PERMUTED), 2e-4))
    edge = [Job(place, "dapo", BEYOND, PILOT_SEED) for place in LEARN]
    assert set(done) == {*pilot, *counted_jobs(rates, 3), *again_jobs(), *edge}

    lines = measured["surprise minus dapo"]
    assert list(lines) == list(PLACES)
    assert {len(values) for place, values in lines.items() if place != LONG} == {3}
    for values in lines.values():
        assert values.mean() == pytest.approx(0.02, abs=0.004)
    assert len(measured[f"{PERMUTED} minus dapo"]) == 2
    assert "| learn, k12 | delta | 0.0002 | 3 |" in said
    of_delta = next(x for x in said.splitlines() if x.startswith("| learn, k12 | delta | 0.0002"))
    assert of_delta.endswith("| 3 |")  # collapsed
    assert f"{len(done)} runs, {len(done)} minutes of one core" in said

    monkeypatch.setattr(running, "trained", None)
    surprise(args)
    assert capsys.readouterr().out == said

    # IN_RANGE runs on every other seed, and only those seeds have pairs.
    of = counted(done, counted_jobs(rates, 3))
    assert len(paired(of, "k12", IN_RANGE, "dapo")) == 2
    assert list(over_places(of, PERMUTED, "dapo")) == list(PERMUTED_AT)
