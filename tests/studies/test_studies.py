"""The studies over seeds: their rows, one short run, and that finished runs are not run again."""

import csv
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import ROOT
from matplotlib.figure import Figure
from toy_runs import InThisProcess

import ablations
import toy
import train
from infra.errors import UserError
from infra.packing import TokenBatch
from methods import METHODS
from studies import curves, runs, training
from studies.comparisons import draw_differences, print_differences
from studies.rows import IN_RANGE, MAIN, ORACLE, ROWS, SECONDARY, STATIC, configured
from studies.runs import (
    COLUMNS,
    PILOT_SEEDS,
    SETTINGS,
    STUDY,
    Finished,
    FlippedRewards,
    Job,
    Setting,
    finished_runs,
    places,
    run_row,
)
from studies.training import CANDIDATES, CONTRASTS, GRID, Choice, chosen

TINY = "--prompts 8 --group-size 4 --mini-batch 4 --steps 1"
SMALL = Setting(k=5, noise=0.2, tokens=64, size=TINY)  # its base model is committed

# ---- rows and runs -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ROWS)
def test_rows_have_flags_that_train_py_takes(name):
    cfg = train.parse_config(f"{SETTINGS[STUDY].flags} {ROWS[name].flags}".split())
    assert (cfg.steps, cfg.toy_k, cfg.prompts // cfg.mini_batch) == (28, 12, 4)


def test_rows_differ():
    for rows in (MAIN | SECONDARY, STATIC):
        assert len({(row.flags, row.permuted, row.oracle) for row in rows.values()}) == len(rows)


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_have_room_for_their_responses(name):
    setting = SETTINGS[name]
    cfg = train.parse_config(setting.flags.split())
    for flag in ("k", "noise", "filler", "regime", "zipf"):
        assert getattr(cfg, f"toy_{flag}") == getattr(setting, flag)
    (problem,) = toy.problems(1, k=setting.k)
    worked = toy.demonstration(problem["problem"], np.random.default_rng(0), 0.0, setting.filler)
    tokenizer = toy.build_tokenizer()
    assert len(tokenizer(worked).input_ids) + 1 < cfg.max_new_tokens
    assert len(tokenizer(problem["problem"]).input_ids) <= cfg.max_prompt_tokens


@pytest.mark.parametrize("name, ratio", [(ORACLE, 11), (IN_RANGE, 1.5)])
def test_oracles_mark_the_tokens_that_decided(name, ratio):
    problem = {"problem": "7*6=?", "answer": "2"}
    right = "So 7*6=2\nanswer \\boxed{2}"
    wrong = "So 7*6=3\nanswer \\boxed{3}"
    ids = [torch.tensor(toy.build_tokenizer()(text).input_ids) for text in (right, wrong)]
    N = sum(len(x) for x in ids)
    tokens = TokenBatch(
        logprob=torch.zeros(N),
        entropy=torch.zeros(N),
        token=torch.cat(ids),
        length=torch.tensor([len(x) for x in ids]),
        problems=[problem, problem],
    )
    method, cfg = configured(ROWS[name], [])
    weights = method.weights(tokens, cfg)
    assert float(weights.mean()) == pytest.approx(1)
    words = [toy.VOCABULARY[i] for i in tokens.token.tolist()]
    heavy = [i for i in range(N) if weights[i] > 1]
    assert [words[i] for i in heavy] == ["2", "3"]
    assert float(weights[heavy[0]] / weights[0]) == pytest.approx(ratio)


@pytest.fixture
def same_threads():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def small(monkeypatch, same_threads):
    """A function that puts a setting among SETTINGS, and answers with a job in it."""

    def job(row, **changes):
        monkeypatch.setitem(SETTINGS, "small", replace(SMALL, **changes))
        return Job("small", row, 5e-5, 0)

    return job


@pytest.mark.parametrize("name", [ORACLE, "random"])
def test_run_row_is_a_run_of_train_py(name, capsys, small):
    before = ablations.configured
    (step,) = run_row(small(name))
    assert step["step"] == 1 and step["lambda_std"] > 0
    assert 0 < step["reward"] < 1
    assert ablations.configured is before  # the oracle is known during the run only
    assert capsys.readouterr().out == ""


def test_permuted_rows_see_rewards_of_other_responses_of_the_group(monkeypatch):
    row = replace(MAIN["delta"], permuted=True)
    tokens = TokenBatch(
        logprob=torch.zeros(12),
        entropy=torch.zeros(12),
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


def test_flipped_rewards_reach_training_and_not_the_study(small, monkeypatch):
    seen = []
    advantages = train.group_advantages

    def group_advantages(rewards, group_size):
        seen.append(float(rewards.mean()))
        return advantages(rewards, group_size)

    monkeypatch.setattr(train, "group_advantages", group_advantages)
    (plain,) = run_row(small("dapo"))
    (flipped,) = run_row(small("dapo", flip=1.0))
    assert flipped["reward"] == plain["reward"] == pytest.approx(seen[0])
    assert seen[-1] == pytest.approx(1 - seen[0])


def test_flips_are_the_same_in_every_row():
    problem = {"problem": "7*6=?", "answer": "2"}
    right, wrong = "answer \\boxed{2}", "answer \\boxed{3}"
    one, other = FlippedRewards(0.2, seed=3), FlippedRewards(0.2, seed=3)
    of_right = [one([right] * 16, [problem] * 16, [False] * 16) for _ in range(125)]
    of_wrong = [other([wrong] * 16, [problem] * 16, [False] * 16) for _ in range(125)]
    assert (np.array(of_right) == 1 - np.array(of_wrong)).all()
    assert np.mean(of_wrong) == pytest.approx(0.2, abs=0.05)
    assert set(one.deserved) == {1.0} and set(other.deserved) == {0.0}


def test_another_base_model_is_the_one_that_trains(small, monkeypatch):
    built = []
    committed = toy.base_folder

    def base_folder(k, noise, filler, seed, regime, zipf):
        built.append((k, noise, filler, seed, regime, zipf))
        return committed(k, noise, filler, 0)

    monkeypatch.setattr(toy, "base_folder", base_folder)
    run_row(small("dapo", build=7))
    assert built == [(5, 0.2, 1, 7, "sharpen", False)]


# ---- jobs and their CSV --------------------------------------------------------------------------

LOWEST, MIDDLE, HIGHEST = GRID
BEST_RATE = {"select bottom": HIGHEST, "exact": LOWEST / 2}  # the others: MIDDLE


def made_up_run(job):
    """Row by row a little more reward; the best learning rates are above, the seeds alternate."""
    distance = abs(math.log2(job.rate / BEST_RATE.get(job.row, MIDDLE)))
    reward = 0.5 + 0.01 * list(ROWS).index(job.row) + 0.004 * (job.seed % 2) - 0.05 * distance
    if job.row == "topk, fresh":
        reward += 0.2 + 0.002 * job.seed
    return Finished(round(reward, 5), 0.25, 0.75, 60.0)


def never(job):
    raise AssertionError(f"{job} was run again")


@pytest.fixture
def no_runs(monkeypatch, same_threads):
    """Runs are made up, in this process, and no base model is built."""
    monkeypatch.setattr(runs, "ProcessPoolExecutor", InThisProcess)
    monkeypatch.setattr(runs, "study_run", made_up_run)
    monkeypatch.setattr(Setting, "base", Setting)


def read(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_a_run_keeps_its_mean_and_its_ends(monkeypatch):
    steps = [{"reward": 0.0}] * 5 + [{"reward": 1.0}] * 10 + [{"reward": 0.5}] * 5
    monkeypatch.setattr(runs, "run_row", lambda job: steps)
    run = runs.study_run(Job(STUDY, "dapo", 5e-5, 3))
    assert run[:3] == (0.625, 0.0, 0.5) and run.seconds >= 0


def test_lines_are_there_as_soon_as_their_runs_end(tmp_path, no_runs, monkeypatch):
    def breaks_at_seed_7(job):
        if job.seed == 7:
            raise RuntimeError("the machine stopped")
        return made_up_run(job)

    monkeypatch.setattr(runs, "study_run", breaks_at_seed_7)
    path = tmp_path / "new" / "methods.csv"
    jobs = [Job(STUDY, "delta, fresh", 1e-4, seed) for seed in (5, 6, 7, 8)]
    with pytest.raises(RuntimeError):
        runs.complete(jobs, {}, path, "runs")
    done = finished_runs(path)
    assert list(done) == jobs[:2] and done[jobs[0]] == made_up_run(jobs[0])

    monkeypatch.setattr(runs, "study_run", made_up_run)
    runs.complete(jobs, done, path, "runs")
    assert list(finished_runs(path)) == jobs
    assert path.read_text().count("setting,row") == 1


def test_a_csv_that_was_stopped_before_its_first_line_holds_no_run(tmp_path):
    path = tmp_path / "methods.csv"
    path.touch()
    assert finished_runs(path) == {}


def test_a_csv_of_something_else_is_refused(tmp_path, no_runs, monkeypatch):
    path = tmp_path / "methods.csv"
    path.write_text("row,lr,seed,reward\ndapo,1e-4,0,0.5\n")
    with pytest.raises(UserError, match="has other columns than setting, row, .*: move it away"):
        finished_runs(path)

    path.unlink()
    runs.complete([Job(STUDY, "dapo", 1e-4, 5)], {}, path, "runs")
    monkeypatch.setitem(SETTINGS, STUDY, replace(SETTINGS[STUDY], flip=0.5))
    with pytest.raises(UserError, match="line 2: dapo in k12 was run with other flags"):
        finished_runs(path)
    path.write_text(",".join(COLUMNS) + "\nk12,nonsense,1e-4,5,1,1,1,1,0\n")
    with pytest.raises(UserError, match="line 2: nonsense"):
        finished_runs(path)


# ---- methods -------------------------------------------------------------------------------------


def rates_of(lines, row):
    """The learning rates that a row was run at."""
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
    # Two winners stood at an edge, one of them twice: their grids were widened, no other's.
    assert rates_of(lines, "exact") == {*GRID, LOWEST / 2, LOWEST / 4}
    assert rates_of(lines, "select bottom") == {*GRID, 2 * HIGHEST}
    assert rates_of(lines, "select top") == set(GRID)
    main_pilot = 2 * (3 * len(MAIN) + 2)
    secondary_pilot = 3 * len(SECONDARY) + 1
    assert len(lines) == main_pilot + 8 * len(MAIN) + secondary_pilot + 6 * len(SECONDARY)

    row = "| `--method dapo` | 22.95 | 0.0002 | 0.502 ± 0.002 | 0.750 ± 0.000 |"
    assert f"| dapo {row}" in first
    assert "| exact | `--proxy exact` | - | 5e-05 (of 2.5e-05 to 0.0004) |" in first
    assert "gained 0.500 ± 0.000" in first
    assert f"{len(lines)} runs, {len(lines)} minutes of one core, " in first
    assert path.with_suffix(".png").stat().st_size > 10_000

    assert [line["name"] for line in measured["main"]] == list(MAIN)[1:]
    assert [line["name"] for line in measured["contrasts"]] == list(CONTRASTS)
    assert {line["seeds"] for line in measured["secondary"]} == {6}
    fresh = {line["name"]: line for line in measured["contrasts"]}[
        "top-K proxy: γ fresh, not lagged"
    ]
    assert fresh["difference"] == pytest.approx(0.21 + 0.002 * 8.5)
    assert chosen(path) == ("topk, fresh", {name: BEST_RATE.get(name, MIDDLE) for name in MAIN}, 8)

    monkeypatch.setattr(runs, "study_run", never)
    training.methods(args)
    assert capsys.readouterr().out == first
    assert path.read_bytes() == written


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


def test_differences_are_corrected_and_say_what_could_be_seen(capsys):
    values = np.array([0.01, 0.03, 0.02, 0.02])
    lines = print_differences({"a": values, "b": -values, "c": values - 0.02}, "rows")
    assert lines[0]["p_holm"] == pytest.approx(lines[1]["p_holm"])  # 3 times p, and not 2 times
    assert lines[0]["difference"] == pytest.approx(0.02)
    assert lines[0]["above_0"] == 4 and lines[2]["p_holm"] == pytest.approx(1)
    assert lines[0]["smallest_seen"] > lines[0]["half_width"]
    assert "| a | 0.020 ± 0.013 | 4 of 4 | 0.049 |" in capsys.readouterr().out


def test_points_stand_at_their_names(tmp_path, monkeypatch):
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
    assert len({line.get_marker() for line in points}) == 2  # told apart without colour


# ---- confirm and noise ---------------------------------------------------------------------------


def test_the_other_studies_need_the_first(tmp_path, no_runs, monkeypatch):
    study = tmp_path / "methods.csv"
    monkeypatch.setattr(training, "STUDY_CSV", study)
    args = SimpleNamespace(csv=str(tmp_path / "confirm.csv"), seeds=2)
    with pytest.raises(UserError, match="no pilot of dapo: first run `python bench.py methods`"):
        training.confirm(args)

    jobs = [Job(STUDY, name, 1e-4, seed) for name in MAIN for seed in (0, 1, 5)]
    runs.complete(jobs, {}, study, "runs")
    with pytest.raises(UserError, match="lacks counted seeds"):
        training.confirm(args)


@pytest.mark.parametrize("study", ["confirm", "noise"])
def test_other_studies_take_the_best_row_at_its_rate(study, tmp_path, no_runs, monkeypatch, capsys):
    first_csv = tmp_path / "methods.csv"
    rates = {name: BEST_RATE.get(name, MIDDLE) for name in MAIN}
    jobs = [Job(STUDY, name, rates[name], seed) for name in MAIN for seed in (0, 1, 5, 6)]
    runs.complete(jobs, {}, first_csv, "runs")

    monkeypatch.setattr(training, "STUDY_CSV", first_csv)
    path = tmp_path / "other.csv"
    getattr(training, study)(SimpleNamespace(csv=str(path), seeds=3))
    printed = capsys.readouterr().out

    lines = read(path)
    assert {x["setting"] for x in lines} == set(places(study)) <= set(SETTINGS)
    for place, first in places(study).items():
        seeds = {int(x["seed"]) for x in lines if x["setting"] == place}
        assert seeds == {first, first + 1, first + 2}
    rows = {"dapo", "delta", "topk, fresh", IN_RANGE}
    if study == "noise":
        rows.add(ORACLE)
        assert path.with_suffix(".png").stat().st_size > 10_000
        assert "flipped 10 %: DAPO 0.50" in printed
    else:
        assert f"to be confirmed: topk, fresh, at {MIDDLE:g}, the best on 2 seeds" in printed
        assert printed.count("| topk, fresh minus delta |") == len(places(study))
    assert {x["row"] for x in lines} == rows
    assert len(lines) == len(rows) * 3 * len(places(study))


def test_studies_share_no_seed():
    firsts = {name: set() for name in ("methods", "confirm", "noise", "curves")}
    for name, found in firsts.items():
        found |= set(places(name).values())
    seeds = list(PILOT_SEEDS)
    for found in firsts.values():
        for first in found:
            seeds += range(first, first + 16)
    assert len(set(seeds)) == len(seeds)
    assert min(places("surprise").values()) > max(seeds)  # two of its places share some


@pytest.mark.parametrize("study", ["methods", "confirm", "noise"])
def test_committed_runs_are_read(study):
    done = finished_runs(ROOT / "results" / f"{study}.csv")
    places_of_runs = {job.setting for job in done}
    assert places_of_runs == set(places(study))
    for place, first in places(study).items():
        counted = {job.seed for job in done if job.setting == place} - set(PILOT_SEEDS)
        assert min(counted) == first


# ---- every step ----------------------------------------------------------------------------------


def made_up_steps(job):
    numbers = {"response_length": 80.0, "entropy": 0.123456, "lambda_std": 0.0, "seconds": 1.0}
    steps = [{"step": step, "reward": step / 3 + job.seed, **numbers} for step in (1, 2)]
    if job.setting == STUDY:
        return steps
    steps[-1] |= {"eval_accuracy": 0.5 + 0.1 * job.seed, "eval_greedy": 0.75 + 0.1 * job.seed}
    return [{"step": 0, "eval_accuracy": 0.4, "eval_greedy": 0.2}, *steps]


def test_curves_are_kept_step_by_step(tmp_path, no_runs, monkeypatch, capsys):
    rates = dict.fromkeys(MAIN, MIDDLE)
    monkeypatch.setattr(curves, "chosen", lambda path: Choice("topk, fresh", rates, 16))
    monkeypatch.setattr(curves, "run_row", made_up_steps)
    path = tmp_path / "curves.csv"
    args = SimpleNamespace(csv=str(path), seeds=2)
    curves.curves(args)
    said = capsys.readouterr().out
    assert said.startswith("dapo: 62.000 ± ")
    assert {line["row"] for line in read(path)} == {
        "dapo",
        "delta",
        "topk, fresh",
        IN_RANGE,
        ORACLE,
    }
    text = path.read_text().splitlines()
    assert len(text) == 1 + 2 * 5 * 2
    assert text[0] == "row,lr,seed,step,reward,response_length,entropy,lambda_std"
    assert text[1] == f"dapo,{MIDDLE},61,1,61.3333,80.0,0.1235,0.0"

    monkeypatch.setattr(curves, "run_row", never)
    curves.curves(args)
    assert capsys.readouterr().out == said
    path.write_text("row,seed,step\n")
    with pytest.raises(UserError, match="other columns"):
        curves.curves(args)


def test_seeds_go_on_from_finished_runs(tmp_path, no_runs, monkeypatch, capsys):
    monkeypatch.setattr(curves, "run_row", made_up_steps)
    path = tmp_path / "seeds.csv"
    curves.seeds(SimpleNamespace(csv=str(path), seeds=2))
    said = capsys.readouterr().out
    lines = path.read_text().splitlines()
    assert lines[:3] == [
        "method,seed,step,reward,entropy,response_length,lambda_std,eval_accuracy",
        "grpo,0,0,,,,,0.4",
        "grpo,0,1,0.3333,0.1235,80.0,0.0,",
    ]
    assert "| delta | 0.550 ± 0.635 | 1.000 ± 6.353 | 2 |" in said
    assert "held-out accuracy before: 0.400 ± 0.000 (one base model, 2 sampling seeds)" in said

    path.write_text("\n".join(lines[:-3]) + "\n")  # the last run is missing
    ran = []
    monkeypatch.setattr(curves, "run_row", lambda job: ran.append(job) or made_up_steps(job))
    curves.seeds(SimpleNamespace(csv=str(path), seeds=2))
    assert ran == [Job("k5, 160 steps", "delta", curves.DEFAULT_RATE, 1)]
    assert path.read_text().splitlines() == lines
    assert capsys.readouterr().out == said


def test_make_train_is_told_before_and_after(tmp_path, no_runs, monkeypatch, capsys):
    monkeypatch.setattr(curves, "run_row", made_up_steps)
    path = tmp_path / "make_train.csv"
    curves.make_train(SimpleNamespace(csv=str(path), seeds=2))
    said = capsys.readouterr().out
    assert "| held out, temperature 1 | 0.400 ± 0.000 | 0.550 ± 0.635 | 0.500 | 2 |" in said
    assert "| held out, greedy | 0.200 ± 0.000 | 0.800 ± 0.635 | 0.750 | 2 |" in said
    assert (
        "| training, first and last 5 steps | 1.000 ± 6.353 | 1.000 ± 6.353 | 0.500 | 2 |" in said
    )
    assert path.read_text().splitlines()[1] == "delta,0,0,,,,0.4,0.2"


def test_make_train_is_the_task_that_train_py_runs_by_default():
    cfg = train.parse_config(SETTINGS["make train"].flags.split())
    default = train.parse_config([])
    for name in ("toy_regime", "toy_k", "toy_noise", "toy_filler", "toy_zipf", "steps", "prompts"):
        assert getattr(cfg, name) == getattr(default, name)
    for name in ("group_size", "mini_batch", "max_new_tokens", "eval_data", "method"):
        assert getattr(cfg, name) == getattr(default, name)
    assert default.lr == curves.DEFAULT_RATE
