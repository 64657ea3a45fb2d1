"""The study of the proxy of mean zero: which runs, its CSV, and what is printed of made-up runs."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import ROOT
from toy_runs import InThisProcess

from infra.errors import UserError
from studies import runs, surprise_runs
from studies.bases import bases
from studies.learn import FOUND, learn
from studies.rows import BEYOND, IN_RANGE, MAIN, ROWS, SECONDARY
from studies.runs import SETTINGS, Job, Setting
from studies.surprise import (
    at_the_entropy,
    chosen,
    over_places,
    paired,
    surprise,
)
from studies.surprise_runs import (
    AGAIN,
    AGAIN_RATE,
    COLUMNS,
    EVERY_SEED,
    LEARN,
    LONG,
    PERMUTED,
    PERMUTED_AT,
    PILOT_SEED,
    PLACES,
    RATES,
    Trained,
    again_jobs,
    best_rates,
    counted_jobs,
    edge_jobs,
    finished,
    line_of,
    pilot_jobs,
    rows_at,
    running_mean,
    trained,
)
from studies.training import CONTRASTS

GAIN = {"surprise": 0.02, "delta": -0.01, IN_RANGE: 0.03}


def made_up(job):
    """The middle rate is the best; at `learn, k12` the row DelTA falls at the end."""
    distance = abs(math.log2(job.rate / RATES[1]))
    noise = 0.001 * ((7 * job.seed + len(job.setting) + 3 * len(job.row)) % 5)
    level = 0.3 + GAIN.get(job.row, 0.0) + noise - 0.1 * distance
    rewards = level + 0.02 * np.arange(28)
    if (job.setting, job.row) == ("learn, k12", "delta"):
        rewards[-5:] -= 0.3
    entropies = 1.0 - 0.01 * np.arange(28)
    return Trained(0.75, 1.0, 40.0, 60.0, tuple(rewards.round(4)), tuple(entropies.round(4)))


@pytest.fixture
def no_runs(monkeypatch):
    threads = torch.get_num_threads()
    monkeypatch.setattr(runs, "ProcessPoolExecutor", InThisProcess)
    monkeypatch.setattr(surprise_runs, "trained", made_up)
    monkeypatch.setattr(Setting, "base", Setting)
    yield
    torch.set_num_threads(threads)


# ---- which runs ----------------------------------------------------------------------------------


def test_the_places_are_those_of_the_protocol():
    page = (ROOT / "docs/results/surprise.md").read_text()
    for place, first in PLACES.items():
        folder = SETTINGS[place].base()
        assert folder.parent == ROOT / "toy/bases"
        assert f"| {place} | `{folder.name}` |" in page
        assert first == (211 if "Zipf" in place else 201)
    assert len(LEARN) == len(PLACES) - 1
    assert {LONG, *PERMUTED_AT} <= set(LEARN)


def test_seeds_are_whole_before_the_next_begins():
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


def test_some_rows_run_again_at_a_rate_of_the_grid():
    jobs = again_jobs()
    assert len(set(jobs)) == len(jobs)
    assert {job.rate for job in jobs} == {AGAIN_RATE} < set(RATES)
    for place, rows in AGAIN.items():
        assert {job.row for job in jobs if job.setting == place} == set(rows) <= set(EVERY_SEED)
        assert min(job.seed for job in jobs if job.setting == place) == PLACES[place]


def test_dapo_runs_on_every_base_that_learns_and_one_that_sharpens(tmp_path, no_runs, capsys):
    path = tmp_path / "bases.csv"
    bases(SimpleNamespace(csv=str(path), seeds=2))
    jobs = list(finished(path))
    first_seeds = {place: PLACES[place] for place in LEARN} | {"k12, more errors": 201}
    assert len(jobs) == 2 * len(first_seeds)
    assert {(job.row, job.rate) for job in jobs} == {("dapo", 1.4e-4)}
    for place, first in first_seeds.items():
        seeds = [job.seed for job in jobs if job.setting == place]
        assert seeds == [first, first + 1]

    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[0].removeprefix("| ") for line in lines[2:8]] == list(first_seeds)
    assert "| 2 |" in lines[2] and "| 0.460 ± 0.000 | 0.460 |" in lines[2]  # 23 steps of 0.02


def test_all_rows_of_the_tables_run_where_there_is_something_to_learn(tmp_path, no_runs, capsys):
    path = tmp_path / "learn.csv"
    measured = learn(SimpleNamespace(csv=str(path), seeds=2))
    jobs = list(finished(path))
    rows = [*MAIN, *SECONDARY, *BEYOND]
    place = "learn, filler 4"
    assert jobs == [Job(place, row, 1.4e-4, seed) for seed in (301, 302) for row in rows]
    used = [first for setting in SETTINGS.values() for first in setting.seeds.values()]
    assert used.count(301) == 1  # no seed of another study

    found, others, contrasts = measured.values()
    assert {line["name"] for line in found + others} == {*rows} - {"dapo"}
    assert len(found) == 8 and len(contrasts) == len(CONTRASTS)
    of_delta = next(line for line in found if line["name"] == "delta")
    assert of_delta["difference"] == pytest.approx(-0.01, abs=0.004)
    said = capsys.readouterr().out
    assert "| learn, filler 4 | otb | 0.00014 | 2 |" in said
    assert "| otb | 0.000 ± 0.000 | 0.000 ± 0.000 | 0.000 ± 0.000 |" in said
    assert path.with_suffix(".png").stat().st_size > 10_000


def test_rows_found_on_sharpen_are_those_of_its_page():
    """In training.md their corrected p is at most 0.05."""
    page = (ROOT / "docs/results/training.md").read_text()
    table = page.split("## One thing at a time")[0] + page.split("## The other rows")[1]
    found = set()
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 5 and cells[0] in ROWS and float(cells[3]) <= 0.05:
            found.add(cells[0])
    assert found == set(FOUND)


# ---- a run ---------------------------------------------------------------------------------------


def test_a_run_is_examined_on_held_out_problems(monkeypatch, tmp_path):
    threads = torch.get_num_threads()
    size = "--prompts 4 --group-size 4 --mini-batch 4 --steps 1"
    small = Setting(k=5, noise=0.2, tokens=64, size=size)
    monkeypatch.setitem(SETTINGS, "small", small)
    monkeypatch.setattr(surprise_runs, "PROBLEMS", 48)
    run = trained(Job("small", "dapo", 1e-5, 0))
    torch.set_num_threads(threads)
    assert run.greedy == 1  # a base that only slips; one small step changes nothing
    assert 0.1 < run.accuracy < 0.8
    assert len(run.rewards) == len(run.entropies) == 1
    assert 30 < run.length < 64


def test_a_collapse_is_a_fall_of_the_last_steps():
    rising = np.linspace(0.3, 0.8, 28)
    fallen = np.concatenate([rising[:-5], np.full(5, 0.5)])
    low = np.full(28, 0.2)
    for rewards, collapsed in ((rising, False), (fallen, True), (low, False)):
        assert Trained(0, 0, 0, 0, tuple(rewards), ()).collapsed == collapsed


def test_running_mean_is_of_steps_that_follow_each_other():
    assert running_mean([1, 2, 3, 4, 5, 11]).tolist() == pytest.approx([3, 5])


def test_reward_at_the_entropy_of_dapos_end():
    steps = np.arange(10)
    dapo = Trained(0, 0, 0, 0, tuple(0.3 + 0.01 * steps), tuple(1.0 - 0.01 * steps))
    faster = Trained(0, 0, 0, 0, tuple(0.3 + 0.04 * steps), tuple(1.0 - 0.02 * steps))
    assert dapo.entropy == pytest.approx(0.93)
    # five steps of mean entropy 0.92 are the third to the seventh: reward 0.3 + 0.04 x 4
    assert at_the_entropy(faster, dapo) == pytest.approx(0.46 - 0.37)
    assert at_the_entropy(dapo, dapo) == pytest.approx(0)
    assert math.isnan(at_the_entropy(dapo, faster))


# ---- the CSV -------------------------------------------------------------------------------------


def test_a_line_is_read_back(tmp_path):
    job = Job("k12", "surprise", 2e-4, 201)
    run = Trained(0.75, 0.9961, 89.0, 31.5, (0.25, 0.5), (0.3251, 0.3))
    line = line_of(job, run)
    path = tmp_path / "surprise.csv"
    path.write_text(",".join(COLUMNS) + "\n" + ",".join(str(line[x]) for x in COLUMNS) + "\n")
    assert finished(path) == {job: run}
    path.write_text(path.read_text().replace(line["flags"], "00000000"))
    with pytest.raises(UserError, match="line 2: surprise in k12 was run with other flags"):
        finished(path)


def test_the_study_picks_rates_and_reads_finished_runs(tmp_path, no_runs, monkeypatch, capsys):
    path = tmp_path / "surprise.csv"
    args = SimpleNamespace(csv=str(path), seeds=3)
    measured = surprise(args)
    said = capsys.readouterr().out
    assert path.with_suffix(".png").stat().st_size > 10_000

    done = finished(path)
    assert best_rates(done, "k12") == dict.fromkeys((*EVERY_SEED, IN_RANGE, PERMUTED), 2e-4)
    rates = {place: best_rates(done, place) for place in PLACES}
    assert set(done) == {*pilot_jobs(), *counted_jobs(rates, 3), *again_jobs(), *edge_jobs()}

    lines = measured["surprise minus dapo"]
    assert [line["name"] for line in lines] == list(PLACES)
    assert {line["seeds"] for line in lines if line["name"] != LONG} == {3}
    for line in lines:
        assert line["difference"] == pytest.approx(0.02, abs=0.004)
    assert len(measured[f"{PERMUTED} minus dapo"]) == 2
    assert "| learn, k12 | delta | 0.0002 | 3 |" in said
    of_delta = next(x for x in said.splitlines() if x.startswith("| learn, k12 | delta | 0.0002"))
    assert of_delta.endswith("| 3 |")  # collapsed
    assert f"{len(done)} runs, {len(done)} minutes of one core" in said

    monkeypatch.setattr(surprise_runs, "trained", None)
    surprise(args)
    assert capsys.readouterr().out == said

    # Half of the seeds of a row pair with all of another's.
    of = chosen(done, counted_jobs(rates, 3))
    assert len(paired(of, "k12", IN_RANGE, "dapo")) == 2
    assert list(over_places(of, PERMUTED, "dapo")) == list(PERMUTED_AT)
