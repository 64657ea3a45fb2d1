"""The training studies: their rows, one short run, the CSV, pilots, and the output."""

import csv
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import ROOT
from infra.packing import TokenBatch
from matplotlib.figure import Figure
from toy_runs import PROBLEMS, InThisProcess

import toy
import train
from infra.errors import UserError
from methods import METHODS
from studies import running, training
from studies.comparisons import against_dapo, counted, draw_differences, print_differences
from studies.pilot import PILOT_SEEDS, best_rate
from studies.places import LEARN, SETTINGS, STUDY, Setting, places
from studies.rows import BEYOND, IN_RANGE, MAIN, ORACLE, ROWS, SECONDARY, STATIC, configured
from studies.running import FlippedRewards, trained
from studies.runs import (
    COLUMNS,
    Job,
    Trained,
    finished_runs,
    line_of,
    running_mean,
    seed_by_seed,
)
from studies.statistics import smallest_seen
from studies.training import BEST, CANDIDATES, CONTRASTS, GRID, RATE

TINY = "--prompts 8 --group-size 4 --mini-batch 4 --steps 1"
SMALL = Setting(k=5, noise=0.2, tokens=64, size=TINY)  # its base model is committed

# ---- rows and runs -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ROWS)
def test_train_py_accepts_the_flags_of_every_row(name):
    cfg = train.parse_config(f"{SETTINGS[STUDY].flags} {ROWS[name].flags}".split())
    assert (cfg.steps, cfg.toy_k, cfg.prompts // cfg.mini_batch) == (28, 12, 4)


def test_rows_differ():
    for rows in (MAIN | SECONDARY, STATIC):
        assert len({(row.flags, row.permuted, row.oracle) for row in rows.values()}) == len(rows)


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_have_room_for_their_responses(name):
    setting = SETTINGS[name]
    cfg = train.parse_config(setting.flags.split())
    assert cfg.max_new_tokens == setting.tokens
    if setting.code:
        return
    longer = setting.tested or setting.k, setting.tested_tokens or setting.tokens
    for flag in ("k", "noise", "filler", "regime", "zipf"):
        assert getattr(cfg, f"toy_{flag}") == getattr(setting, flag)
    tokenizer = toy.build_tokenizer()
    for k, limit in ((setting.k, setting.tokens), longer):  # in training, held out
        (problem,) = toy.problems(1, k=k)
        rng = np.random.default_rng(0)
        worked = toy.demonstration(problem["problem"], rng, 0.0, setting.filler)
        assert len(tokenizer(worked).input_ids) + 1 < limit
        assert len(tokenizer(problem["problem"]).input_ids) <= cfg.max_prompt_tokens


@pytest.mark.parametrize("name, ratios", [(ORACLE, (11, 11)), (IN_RANGE, (1.5, 1.5))])
def test_oracles_mark_the_decisive_tokens(name, ratios):
    check_heavy_tokens(name, ratios)


def test_results_weigh_more_and_unlikely_ones_most_in_wrong_responses():
    check_heavy_tokens("results", (11, 8.5))  # 0.1 + 1 and 0.1 + 1 - p, over 0.1


def check_heavy_tokens(name, ratios):
    """The result of a right response and that of a wrong one, with p = 1/4, weigh more."""
    problem = {"problem": "7*6=?", "answer": "2"}
    right = "So 7*6=2\nanswer \\boxed{2}"
    wrong = "So 7*6=3\nanswer \\boxed{3}"
    ids = [torch.tensor(toy.build_tokenizer()(text).input_ids) for text in (right, wrong)]
    N = sum(len(x) for x in ids)
    tokens = TokenBatch(
        logprob=torch.full((N,), math.log(0.25)),
        entropy=torch.zeros(N),
        mean_p=torch.ones(N),
        token=torch.cat(ids),
        length=torch.tensor([len(x) for x in ids]),
        advantage=torch.tensor([1.0, -1.0]).repeat_interleave(torch.tensor([len(x) for x in ids])),
        problems=[problem, problem],
    )
    method, cfg = configured(ROWS[name], [])
    weights = method.weights(tokens, cfg)
    assert float(weights.mean()) == pytest.approx(1)
    words = [toy.VOCABULARY[i] for i in tokens.token.tolist()]
    heavy = [i for i in range(N) if weights[i] > 1]
    assert [words[i] for i in heavy] == ["2", "3"]
    assert (weights[heavy] / weights[0]).tolist() == pytest.approx(ratios)


@pytest.fixture
def same_threads():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def small(monkeypatch, same_threads):
    """A function that adds a setting to SETTINGS and returns a job for it."""

    def job(row, **changes):
        monkeypatch.setitem(SETTINGS, "small", replace(SMALL, **changes))
        return Job("small", row, 5e-5, 0)

    return job


def test_a_run_trains_with_its_method_and_is_evaluated(capsys, small, monkeypatch):
    monkeypatch.setattr(running, "PROBLEMS", 48)
    weighed = []
    token_weights = train.token_weights

    def watched(method, tokens, cfg):
        weighed.append(token_weights(method, tokens, cfg))
        return weighed[-1]

    monkeypatch.setattr(train, "token_weights", watched)
    run = trained(small(ORACLE))
    (weights,) = weighed
    assert float(weights.max() / weights.min()) == pytest.approx(11)
    assert len(run.rewards) == len(run.entropies) == 1 and 0 < run.reward < 1
    assert len(run.accuracies) == len(run.greedies) == 1
    assert run.greedy == 1  # as before the run: one small step leaves greedy answers unchanged
    assert 0.1 < run.accuracy < 0.8
    assert 30 < run.length < 64
    assert capsys.readouterr().out == ""


def test_a_run_may_be_tested_on_longer_chains_with_several_responses(small, monkeypatch):
    asked = []

    def grades(lm, tokenizer, problems, prompts, samples, sampling):
        asked.append((problems, samples, sampling.temperature, sampling.max_new_tokens))
        return np.full((len(problems), samples), 0.5)

    monkeypatch.setattr(running, "sample_grades", grades)
    run = trained(small("dapo", tested=7, tested_tokens=90), samples=3)
    assert run.accuracies == run.greedies == (0.5,)
    chains = toy.problems(running.PROBLEMS, seed=1, k=7)
    assert asked == [(chains, 3, 1.0, 90), (chains, 1, 0.0, 90)]


def test_evaluations_made_by_train_py_are_kept(small):
    run = trained(small("random", size=f"{TINY} --eval-data {PROBLEMS} --eval-every 160"))
    assert len(run.accuracies) == len(run.greedies) == 2  # before and after
    assert run.greedies == (1, 1) and run.accuracy == run.accuracies[1] < 1


@pytest.fixture
def examined(monkeypatch):
    """Skips model evaluation."""
    nothing = {"eval_accuracy": 0.5, "eval_greedy": 0.5}
    monkeypatch.setattr(running, "held_out", lambda *_: nothing)


def test_permuted_rows_get_rewards_from_other_responses_in_the_group(monkeypatch):
    row = replace(MAIN["delta"], permuted=True)
    tokens = TokenBatch(
        logprob=torch.zeros(12),
        entropy=torch.zeros(12),
        mean_p=torch.ones(12),
        token=torch.zeros(12),
        length=torch.tensor([1, 2, 1, 3, 2, 1, 1, 1]),
        generator=torch.Generator().manual_seed(5),
    )
    advantages = torch.tensor([1.0, 2.0, 3.0, 4.0, -1.0, -2.0, -3.0, -4.0])
    tokens.advantage = advantages.repeat_interleave(tokens.length)
    seen = []

    def weights(tokens, cfg):
        seen.append(tokens.advantage)

    monkeypatch.setitem(METHODS, "delta", replace(METHODS["delta"], weights=weights))
    method, cfg = configured(row, ["--group-size", "4"])
    method.weights(tokens, cfg)
    (found,) = seen
    of_response = found[tokens.length.cumsum(0) - 1]
    assert torch.equal(found, of_response.repeat_interleave(tokens.length))
    assert not torch.equal(of_response, advantages)
    assert torch.equal(of_response[:4].sort().values, advantages[:4])
    assert of_response[4:].sort().values.tolist() == [-4, -3, -2, -1]


def test_flipped_rewards_reach_only_training(small, examined, monkeypatch):
    seen = []
    advantages = train.group_advantages

    def group_advantages(rewards, group_size):
        seen.append(float(rewards.mean()))
        return advantages(rewards, group_size)

    monkeypatch.setattr(train, "group_advantages", group_advantages)
    plain = trained(small("dapo"))
    flipped = trained(small("dapo", flip=1.0))
    assert flipped.rewards == plain.rewards == pytest.approx(seen[:1], abs=1e-4)
    assert seen[-1] == pytest.approx(1 - seen[0])


def test_every_row_gets_the_same_flips():
    problem = {"problem": "7*6=?", "answer": "2"}
    right, wrong = "answer \\boxed{2}", "answer \\boxed{3}"
    one, other = FlippedRewards(0.2, seed=3), FlippedRewards(0.2, seed=3)
    of_right = [one([right] * 16, [problem] * 16, [False] * 16) for _ in range(125)]
    of_wrong = [other([wrong] * 16, [problem] * 16, [False] * 16) for _ in range(125)]
    assert (np.array(of_right) == 1 - np.array(of_wrong)).all()
    assert np.mean(of_wrong) == pytest.approx(0.2, abs=0.05)
    assert set(one.deserved) == {1.0} and set(other.deserved) == {0.0}


def test_a_run_trains_the_base_model_in_its_setting(small, examined, monkeypatch):
    built = []
    committed = toy.base_folder

    def base_folder(k, noise, filler, seed, regime, zipf):
        built.append((k, noise, filler, seed, regime, zipf))
        return committed(k, noise, filler, 0)

    monkeypatch.setattr(toy, "base_folder", base_folder)
    trained(small("dapo", build=7))
    assert built == [(5, 0.2, 1, 7, "sharpen", False)]


# ---- a run's measurements ------------------------------------------------------------------------


def of_rewards(rewards, entropies=()):
    return Trained((), (), 0.0, 0.0, tuple(rewards), tuple(entropies))


def test_a_run_has_mean_first_and_last_rewards():
    run = of_rewards([0.0] * 5 + [1.0] * 10 + [0.5] * 5)
    assert (run.reward, run.first, run.last, run.gained) == (0.625, 0.0, 0.5, 0.5)


def test_a_collapse_is_a_drop_in_the_last_steps():
    rising = np.linspace(0.3, 0.8, 28)
    fallen = np.concatenate([rising[:-5], np.full(5, 0.5)])
    low = np.full(28, 0.2)
    for rewards, collapsed in ((rising, False), (fallen, True), (low, False)):
        assert of_rewards(rewards).collapsed == collapsed


def test_running_mean_averages_consecutive_steps():
    assert running_mean([1, 2, 3, 4, 5, 11]).tolist() == pytest.approx([3, 5])


# ---- jobs and their CSV --------------------------------------------------------------------------

LOWEST, MIDDLE, HIGHEST = GRID
BEST_RATE = {"select bottom": HIGHEST, "exact": LOWEST / 2}  # the others: MIDDLE


def made_up_run(job, samples=1):
    """The reward rises from row to row and alternates by seed; BEST_RATE is the best rate."""
    distance = abs(math.log2(job.rate / BEST_RATE.get(job.row, MIDDLE)))
    reward = 0.5 + 0.01 * list(ROWS).index(job.row) + 0.004 * (job.seed % 2) - 0.05 * distance
    rewards = reward + np.linspace(-0.25, 0.25, 28)
    accuracies = (0.4, round(0.5 + 0.1 * (job.seed % 2), 4))
    greedies = (0.2, round(0.75 + 0.1 * (job.seed % 2), 4))
    entropies = 1.0 - 0.01 * np.arange(28)
    kept = (tuple(values.round(4).tolist()) for values in (rewards, entropies))
    return Trained(accuracies, greedies, 40.0, 60.0, *kept)


def never(job, samples):
    raise AssertionError(f"{job} was run again")


@pytest.fixture
def no_runs(monkeypatch, same_threads):
    """Runs are faked in this process, and no base model is built."""
    monkeypatch.setattr(running, "ProcessPoolExecutor", InThisProcess)
    monkeypatch.setattr(running, "trained", made_up_run)
    monkeypatch.setattr(Setting, "base", Setting)


def read(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_a_line_is_written_when_its_run_ends(tmp_path, no_runs, monkeypatch):
    def breaks_at_seed_7(job, samples):
        if job.seed == 7:
            raise RuntimeError("the machine stopped")
        return made_up_run(job)

    monkeypatch.setattr(running, "trained", breaks_at_seed_7)
    path = tmp_path / "new" / "methods.csv"
    jobs = seed_by_seed(STUDY, {"delta, fresh": 1e-4, "dapo": 2e-4}, range(6, 9))
    with pytest.raises(RuntimeError):
        running.complete(jobs, {}, path, "runs")
    done = finished_runs(path)
    assert done == {job: made_up_run(job) for job in jobs[:2]}

    monkeypatch.setattr(running, "trained", made_up_run)
    running.complete(jobs, done, path, "runs")
    assert finished_runs(path) == done == {job: made_up_run(job) for job in jobs}
    assert path.read_text().count("setting,row") == 1


def test_cells_with_only_a_mean_are_read(tmp_path):
    job = Job(STUDY, "dapo", 1e-4, 5)
    line = line_of(job, of_rewards([0.25, 1.0])) | {"length": "", "rewards": "0.25*2 1.0"}
    path = tmp_path / "methods.csv"
    path.write_text(",".join(COLUMNS) + "\n" + ",".join(str(line[x]) for x in COLUMNS) + "\n")
    (run,) = finished_runs(path).values()
    assert run.rewards == (0.25, 0.25, 1.0)
    assert run.accuracies == run.greedies == run.entropies == () and math.isnan(run.length)


def test_an_empty_csv_has_no_runs(tmp_path):
    path = tmp_path / "methods.csv"
    path.touch()
    assert finished_runs(path) == {}


def test_an_unrelated_csv_is_refused(tmp_path, no_runs, monkeypatch):
    path = tmp_path / "methods.csv"
    path.write_text("row,lr,seed,reward\ndapo,1e-4,0,0.5\n")
    with pytest.raises(UserError, match="does not have the columns setting, row, .*: move it away"):
        finished_runs(path)

    path.unlink()
    running.complete([Job(STUDY, "dapo", 1e-4, 5)], {}, path, "runs")
    monkeypatch.setitem(SETTINGS, STUDY, replace(SETTINGS[STUDY], flip=0.5))
    with pytest.raises(UserError, match="line 2: dapo in k12 was run with flags that have changed"):
        finished_runs(path)
    path.write_text(",".join(COLUMNS) + "\nk12,nonsense,1e-4,5,1,1,1,1,0,1,1\n")
    with pytest.raises(UserError, match="line 2: nonsense"):
        finished_runs(path)


@pytest.mark.parametrize(
    "study",
    ["methods", "confirm", "noise", "curves", "seeds"]
    + ["make_train", "surprise", "bases", "learn", "longer"],
)
def test_committed_runs_match_the_settings(study):
    done = finished_runs(ROOT / "results" / f"{study}.csv")
    first_seeds = places(study) | (LEARN if study == "bases" else {})
    assert {job.setting for job in done} == set(first_seeds)
    for place, first in first_seeds.items():
        counted_seeds = {job.seed for job in done if job.setting == place}
        if study in ("methods", "surprise"):
            counted_seeds -= set(PILOT_SEEDS)
        assert min(counted_seeds) == first


def test_studies_share_no_seed():
    names = ("methods", "confirm", "noise", "curves", "learn", "longer", "mean", "mean, longer")
    seeds = list(PILOT_SEEDS)
    for name in names:
        for first in set(places(name).values()):
            seeds += range(first, first + 16)
    assert len(set(seeds)) == len(seeds)
    others = set(places("surprise").values())  # two of its settings share seeds
    assert not {seed for first in others for seed in range(first, first + 16)} & set(seeds)


# ---- methods -------------------------------------------------------------------------------------


def rates_of(lines, row):
    """The learning rates used in a row's runs."""
    return {float(line["lr"]) for line in lines if line["row"] == row}


def test_method_study_picks_rates_and_reads_finished_runs(tmp_path, no_runs, monkeypatch, capsys):
    path = tmp_path / "methods.csv"
    args = SimpleNamespace(csv=str(path), seeds=8)
    measured = training.methods(args)
    first = capsys.readouterr().out
    written = path.read_bytes()
    assert (tmp_path / "methods_main.png").stat().st_size > 10_000

    lines = read(path)
    of_dapo = [(float(x["lr"]), int(x["seed"])) for x in lines if x["row"] == "dapo"]
    assert of_dapo[:6] == [(rate, seed) for seed in (0, 1) for rate in GRID]
    assert of_dapo[6:] == [(MIDDLE, seed) for seed in range(5, 13)]  # other rows use 5 to 10 again
    # Only these two grids were widened, because the best rate was at an edge (twice for `exact`).
    assert rates_of(lines, "exact") == {*GRID, LOWEST / 2, LOWEST / 4}
    assert rates_of(lines, "select bottom") == {*GRID, 2 * HIGHEST}
    assert rates_of(lines, "select top") == set(GRID)
    main_pilot = 2 * (3 * len(MAIN) + 2)
    secondary_pilot = 3 * len(SECONDARY) + 1
    assert len(lines) == main_pilot + 8 * len(MAIN) + secondary_pilot + 6 * len(SECONDARY)

    row = "| `--method dapo` | 22.95 | 0.0002 | 0.502 ± 0.002 | 0.715 ± 0.002 |"
    assert f"| dapo {row}" in first
    assert "| exact | `--proxy exact` | - | 5e-05 (of 2.5e-05 to 0.0004) |" in first
    assert "k12: DAPO 0.502 ± 0.002, first 5 steps 0.289 ± 0.002, last 5 0.715 ± 0.002" in first
    assert f"{len(lines)} runs, {len(lines)} minutes of one core" in first
    assert path.with_suffix(".png").stat().st_size > 10_000

    assert list(measured["minus dapo"]) == list(MAIN)[1:]
    assert list(measured["one thing at a time"]) == list(CONTRASTS)
    assert list(measured["other rows"]) == list(SECONDARY)
    assert {len(values) for values in measured["other rows"].values()} == {6}
    apart = list(ROWS).index("topk, fresh") - list(ROWS).index("topk")
    differences = measured["one thing at a time"]["top-K proxy: γ fresh, not lagged"]
    assert differences == pytest.approx(np.full(8, 0.01 * apart), abs=1e-4)

    monkeypatch.setattr(running, "trained", never)
    training.methods(args)
    assert capsys.readouterr().out == first
    assert path.read_bytes() == written


def test_the_best_variant_and_its_rate_follow_from_the_committed_runs():
    """confirm, noise and curves depend on both."""
    done = finished_runs(ROOT / "results/methods.csv")
    for row in MAIN:
        assert best_rate(done, STUDY, row, GRID, PILOT_SEEDS) == RATE
    jobs = [job for job in done if job.seed >= training.FIRST_SEED and job.row in MAIN]
    means = {
        row: values.mean()
        for row, values in against_dapo(counted(done, jobs), STUDY, CANDIDATES).items()
    }
    assert max(means, key=means.get) == BEST


def test_contrasts_and_candidates_are_main_rows():
    assert {name for pair in CONTRASTS.values() for name in pair} <= set(MAIN)
    assert set(CANDIDATES) == {
        "delta, fresh",
        "delta, K = 0",
        "delta, side",
        "delta, held out",
        "topk",
        "topk, fresh",
        "topk, K = 0",
    }


def test_differences_are_corrected_and_printed_with_their_power(capsys):
    values = np.array([0.01, 0.03, 0.02, 0.02])
    print_differences({"rows": {"a": values, "b": -values, "c": values - 0.02}}, ranks=True)
    lines = capsys.readouterr().out.splitlines()
    # Holm: both become 3 p, since the second cannot be lower. `power` is above the half-width.
    power = smallest_seen(values, level=0.05 / 3)
    assert power > 0.013
    assert lines[2] == f"| a | 0.020 ± 0.013 | 4 of 4 | 0.049 | {power:.3f} | 0.12 |"
    assert lines[3] == f"| b | -0.020 ± 0.013 | 0 of 4 | 0.049 | {power:.3f} | 0.12 |"
    assert "| 1 of 4 | 1 |" in lines[4]


def test_points_are_aligned_with_their_names(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    few = np.array([0.01, 0.03])
    groups = {"one": {"a": few, "b": -few}, "other": {"b": 2 * few}}
    draw_differences(groups, "title", tmp_path / "x.png")
    (axes,) = figures[0].axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b"]
    assert axes.get_ylim()[0] > axes.get_ylim()[1]  # the first name on top

    points = [container.lines[0] for container in axes.containers]
    assert [line.get_xdata().tolist() for line in points] == [[0.02, -0.02], [0.04]]
    assert [[round(y) for y in line.get_ydata()] for line in points] == [[0, 1], [1]]
    assert len({line.get_marker() for line in points}) == 2  # distinguishable without colour


# ---- confirm and noise ---------------------------------------------------------------------------


@pytest.mark.parametrize("study", ["confirm", "noise"])
def test_other_studies_run_the_best_row_at_every_place(study, tmp_path, no_runs, capsys):
    path = tmp_path / "other.csv"
    getattr(training, study)(SimpleNamespace(csv=str(path), seeds=3))
    printed = capsys.readouterr().out

    rows = {"dapo", "delta", BEST, IN_RANGE}
    if study == "noise":
        rows.add(ORACLE)
        assert path.with_suffix(".png").stat().st_size > 10_000
        assert "flipped 10 %: DAPO 0.50" in printed
    else:
        assert printed.count(f"| {BEST} minus delta |") == len(places(study))
    expected = []
    for place, first in places(study).items():
        seeds = range(first, first + 3)
        expected += [Job(place, row, RATE, seed) for seed in seeds for row in rows]
    assert set(finished_runs(path)) == set(expected) and len(read(path)) == len(expected)


# ---- studies at one learning rate ----------------------------------------------------------------


def test_dapo_runs_on_every_base_that_learns_and_one_that_sharpens(tmp_path, no_runs, capsys):
    path = tmp_path / "bases.csv"
    training.bases(SimpleNamespace(csv=str(path), seeds=2))
    first_seeds = LEARN | {"k12, more errors": 201}
    expected = [
        Job(place, "dapo", 1.4e-4, first + number)
        for place, first in first_seeds.items()
        for number in (0, 1)
    ]
    assert list(finished_runs(path)) == expected
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[0].removeprefix("| ") for line in lines[2:8]] == list(first_seeds)
    assert "| 0.426 ± 0.000 | 0.426 | 0.550 ± 0.635 | 0.800 ± 0.635 |" in lines[2]


def test_every_table_row_runs_in_the_learning_setting(tmp_path, no_runs, capsys):
    path = tmp_path / "learn.csv"
    measured = training.learn(SimpleNamespace(csv=str(path), seeds=2))
    rows = [*MAIN, *SECONDARY, *BEYOND]
    place = "learn, filler 4"
    expected = [Job(place, row, 1.4e-4, seed) for seed in (301, 302) for row in rows]
    assert list(finished_runs(path)) == expected

    found, others, contrasts = measured.values()
    assert {*found, *others} == {*rows} - {"dapo"}
    assert len(found) == 8 and len(contrasts) == len(CONTRASTS)
    assert found["delta"] == pytest.approx([0.01, 0.01], abs=1e-4)
    said = capsys.readouterr().out
    assert "| learn, filler 4 | otb | 0.00014 | 2 |" in said
    assert "| otb | 0.000 ± 0.000 | 0.000 ± 0.000 | 0.000 ± 0.000 |" in said
    assert path.with_suffix(".png").stat().st_size > 10_000


def test_four_rows_run_for_longer_and_on_programs(tmp_path, no_runs, capsys):
    path = tmp_path / "longer.csv"
    measured = training.longer(SimpleNamespace(csv=str(path), seeds=2))
    rows = ("dapo", "surprise", "no centroids", "delta")
    expected = [
        Job(place, row, 1.4e-4, seed)
        for place in ("learn, filler 4, 110 steps", "programs")
        for seed in (401, 402)
        for row in rows
    ]
    assert list(finished_runs(path)) == expected
    assert len(measured) == 3 * 5
    said = capsys.readouterr().out
    assert "| programs | surprise | 0.00014 | 2 |" in said
    assert "| last 5 steps: surprise minus dapo | difference" in said


def test_significant_rows_match_the_results_page():
    """The rows whose corrected p in training.md is at most 0.05."""
    page = (ROOT / "docs/results/training.md").read_text()
    table = page.split("## One thing at a time")[0] + page.split("## The other rows")[1]
    found = set()
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 5 and cells[0] in ROWS and float(cells[3]) <= 0.05:
            found.add(cells[0])
    assert found == set(training.FOUND)


def test_accuracies_before_and_after_are_printed(tmp_path, no_runs, monkeypatch, capsys):
    for study, lines in (
        (
            training.make_train,
            [
                "| held out, temperature 1 | delta | 0.400 ± 0.000 | 0.550 ± 0.635 | 0.500 | 2 |",
                "| held out, greedy | delta | 0.200 ± 0.000 | 0.800 ± 0.635 | 0.750 | 2 |",
                "| training, first and last 5 steps | delta | 0.249 ± 0.025 | 0.675 ± 0.025 |",
            ],
        ),
        (
            training.seeds,
            [
                "| held out, temperature 1 | grpo | 0.400 ± 0.000 | 0.550 ± 0.635 | 0.500 | 2 |",
                "| training, first and last 5 steps | dapo | 0.239 ± 0.025 | 0.665 ± 0.025 |",
                "| held out, greedy | delta | 0.200 ± 0.000 | 0.800 ± 0.635 | 0.750 | 2 |",
            ],
        ),
    ):
        path = tmp_path / f"{study.__name__}.csv"
        study(SimpleNamespace(csv=str(path), seeds=2))
        said = capsys.readouterr().out
        for line in lines:
            assert line in said


def test_curves_show_five_rows(tmp_path, no_runs, capsys):
    path = tmp_path / "curves.csv"
    training.curves(SimpleNamespace(csv=str(path), seeds=2))
    said = capsys.readouterr().out
    assert said.startswith("dapo: 0.502 ± 0.025") and said.count("±") == 5
    assert {job.rate for job in finished_runs(path)} == {RATE}


def test_make_train_is_the_default_task_of_train_py():
    cfg = train.parse_config(SETTINGS["make train"].flags.split())
    default = train.parse_config([])
    for name in ("toy_regime", "toy_k", "toy_noise", "toy_filler", "toy_zipf", "steps", "prompts"):
        assert getattr(cfg, name) == getattr(default, name)
    for name in ("group_size", "mini_batch", "max_new_tokens", "eval_data", "method"):
        assert getattr(cfg, name) == getattr(default, name)
    assert default.lr == training.DEFAULT_RATE
