"""The study of the proxy's mean: its runs, and its output for made-up runs."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import ROOT
from toy_runs import InThisProcess

from studies import running
from studies.mean import (
    ALL_ROWS,
    CONTROL,
    EVERY_SEED,
    LONG,
    LONGER,
    LONGER_ROWS,
    PLACES,
    RATE,
    counted_jobs,
    entropy_at_equal_reward,
    mean,
)
from studies.places import SETTINGS, Setting, places
from studies.rows import ROWS
from studies.runs import Job, Trained, finished_runs
from studies.surprise import PILOT_SEED

GAIN = {"centred": 0.02, "delta": -0.01, CONTROL: 0.03}


def made_up(job, samples):
    """The control's entropy is lower."""
    assert samples == 8
    noise = 0.001 * ((7 * job.seed + len(job.setting) + 3 * len(job.row)) % 5)
    rewards = 0.3 + GAIN.get(job.row, 0.0) + noise + 0.02 * np.arange(28)
    entropies = (0.5 if job.row == CONTROL else 1.0) - 0.01 * np.arange(28)
    kept = (tuple(values.round(4).tolist()) for values in (rewards, entropies))
    return Trained((0.75,), (1.0,), 40.0, 60.0, *kept)


@pytest.fixture
def no_runs(monkeypatch):
    threads = torch.get_num_threads()
    monkeypatch.setattr(running, "ProcessPoolExecutor", InThisProcess)
    monkeypatch.setattr(running, "trained", made_up)
    monkeypatch.setattr(Setting, "base", Setting)
    yield
    torch.set_num_threads(threads)


def test_the_rows_match_the_protocol():
    page = (ROOT / "docs/results/mean.md").read_text()
    for row in ALL_ROWS:
        seeds = 16 if row in EVERY_SEED else 8
        [line] = [x for x in page.splitlines() if x.startswith(f"| {row} |") and x.count("|") == 4]
        assert line.endswith(f"| {seeds} |")
        assert ROWS[row].flags in line or ROWS[row].spelled == "toy only"
    assert set(PLACES.values()) == {501} and places("mean, longer") == {LONGER: 521}
    assert {SETTINGS[place].regime for place in PLACES} == {"learn", "learn-minus", "sharpen"}


def test_each_seed_is_completed_before_the_next():
    jobs = counted_jobs(2)
    assert len(set(jobs)) == len(jobs)
    assert {job.rate for job in jobs if job.setting in PLACES} == {RATE}
    first, second = jobs[: 6 * len(ALL_ROWS) + 3], jobs[6 * len(ALL_ROWS) + 3 :]
    assert {job.seed for job in first} == {501, 521} and {job.seed for job in second} == {502}
    assert [job.row for job in first if job.setting == LONGER] == list(LONGER_ROWS)
    assert LONG in {job.setting for job in first}
    assert {job.setting for job in second} == set(PLACES) - {LONG}
    for place in {job.setting for job in second}:
        assert [job.row for job in first if job.setting == place] == list(ALL_ROWS)
        assert [job.row for job in second if job.setting == place] == list(EVERY_SEED)


def test_entropies_are_compared_when_both_runs_first_reach_the_same_reward():
    steps = np.arange(10)
    slow = Trained((), (), 0, 0, tuple(0.3 + 0.01 * steps), tuple(1.0 - 0.01 * steps))
    fast = Trained((), (), 0, 0, tuple(0.3 + 0.03 * steps), tuple(1.0 - 0.05 * steps))
    # `slow` reaches 0.37 in its last five steps, `fast` 0.36 + 0.03 in its second to sixth steps
    assert entropy_at_equal_reward(fast, slow) == pytest.approx((1 - 0.15) - (1 - 0.07))
    assert entropy_at_equal_reward(slow, fast) == pytest.approx(0.85 * -1 + 0.93)
    assert entropy_at_equal_reward(slow, slow) == 0


def test_the_study_reads_finished_runs(tmp_path, no_runs, monkeypatch, capsys):
    path = tmp_path / "mean.csv"
    args = SimpleNamespace(csv=str(path), seeds=3)
    measured = mean(args)
    said = capsys.readouterr().out
    assert path.with_suffix(".png").stat().st_size > 10_000

    done = finished_runs(path)
    assert set(done) == set(counted_jobs(3))

    for place, values in measured["centred minus delta"].items():
        assert place in PLACES
        assert values.mean() == pytest.approx(0.03, abs=0.004)
    assert len(measured["oracle in range minus dapo"]["k12"]) == 2
    for values in measured[f"entropy at equal reward: centred minus {CONTROL}"].values():
        assert values.mean() == pytest.approx(0.5, abs=0.05)
    assert {len(values) for values in measured["110 steps: centred minus dapo"].values()} == {2}
    assert f"{len(done)} runs, {len(done)} minutes of one core" in said

    monkeypatch.setattr(running, "trained", None)
    mean(args)
    assert capsys.readouterr().out == said


def test_the_rate_is_better_on_the_pilot_seed_at_every_place():
    """The protocol says so of `surprise`'s pilot and its lower rate."""
    pilot = finished_runs(ROOT / "results/surprise.csv")

    def reward(place, rate):
        rows = ("dapo", "delta", "surprise")
        return sum(pilot[Job(place, row, rate, PILOT_SEED)].reward for row in rows)

    assert all(reward(place, RATE) > reward(place, 1.4e-4) for place in PLACES)
