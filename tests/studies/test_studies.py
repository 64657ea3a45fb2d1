"""The studies over seeds: their rows, one short run, and that finished runs are not run again."""

import csv
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

import toy
import train
from infra.errors import UserError
from infra.packing import TokenBatch
from methods import METHODS
from studies import (
    confirm_study,
    curve_study,
    method_study,
    noise_study,
    seed_study,
    study_jobs,
    study_runs,
)
from studies.comparisons import draw_differences, print_differences
from studies.method_study import CANDIDATES, CONTRASTS, GRID, Choice, chosen
from studies.study_jobs import COLUMNS, Finished, Job, finished_runs
from studies.study_runs import (
    IN_RANGE,
    MAIN,
    ORACLE,
    ROWS,
    SECONDARY,
    SETTINGS,
    STUDY,
    FlippedRewards,
    Setting,
    run_row,
)

TINY = "--prompts 8 --group-size 4 --mini-batch 4 --steps 1"
SMALL = Setting(k=5, noise=0.2, tokens=64, size=TINY)  # its base model is committed

# ---- rows and runs -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ROWS)
def test_rows_have_flags_that_train_py_takes(name):
    cfg = train.parse_config(f"{SETTINGS[STUDY].flags} {ROWS[name].flags}".split())
    assert (cfg.steps, cfg.toy_k, cfg.prompts // cfg.mini_batch) == (28, 12, 4)


def test_rows_differ():
    flags = [row.flags for row in ROWS.values() if not row.weights]
    assert len(set(flags)) == len(flags) == len(ROWS) - 2


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_have_room_for_their_responses(name):
    setting = SETTINGS[name]
    cfg = train.parse_config(setting.flags.split())
    assert (cfg.toy_k, cfg.toy_noise, cfg.toy_filler) == (
        setting.k,
        setting.noise,
        setting.filler,
    )
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
    weights = ROWS[name].weights(tokens, None)
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


@pytest.mark.parametrize("name", [ORACLE, "random"])
def test_run_row_is_a_run_of_train_py(name, capsys, same_threads):
    (step,) = run_row(name, 5e-5, seed=0, setting=SMALL)
    assert step["step"] == 1 and step["lambda_std"] > 0
    assert 0 < step["reward"] < 1
    assert ORACLE not in METHODS  # the oracle is known during the run only
    assert capsys.readouterr().out == ""


def test_flipped_rewards_reach_training_and_not_the_study(same_threads, monkeypatch):
    seen = []
    advantages = train.group_advantages

    def group_advantages(rewards, group_size):
        seen.append(float(rewards.mean()))
        return advantages(rewards, group_size)

    monkeypatch.setattr(train, "group_advantages", group_advantages)
    (plain,) = run_row("dapo", 5e-5, 0, SMALL)
    (flipped,) = run_row("dapo", 5e-5, 0, replace(SMALL, flip=1.0))
    assert flipped["reward"] == plain["reward"] == pytest.approx(seen[0])
    assert seen[1] == pytest.approx(1 - seen[0])


def test_flips_are_the_same_in_every_row():
    problem = {"problem": "7*6=?", "answer": "2"}
    right, wrong = "answer \\boxed{2}", "answer \\boxed{3}"
    one, other = FlippedRewards(0.2, seed=3), FlippedRewards(0.2, seed=3)
    of_right = [one([right] * 16, [problem] * 16) for _ in range(125)]
    of_wrong = [other([wrong] * 16, [problem] * 16) for _ in range(125)]
    assert (np.array(of_right) == 1 - np.array(of_wrong)).all()
    assert np.mean(of_wrong) == pytest.approx(0.2, abs=0.05)
    assert set(one.deserved) == {1.0} and set(other.deserved) == {0.0}


def test_another_base_model_is_the_one_that_trains(same_threads, monkeypatch):
    built = []
    committed = toy.base_folder

    def base_folder(k, noise, filler, seed):
        built.append((k, noise, filler, seed))
        return committed(k, noise, filler, 0)

    monkeypatch.setattr(toy, "base_folder", base_folder)
    run_row("dapo", 5e-5, 0, replace(SMALL, build=7))
    assert built == [(5, 0.2, 1, 7)]


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


class InThisProcess:
    """Stands for a pool of processes, which would not see what a test replaces."""

    def __init__(self, count):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def map(self, function, jobs):
        return map(function, jobs)


@pytest.fixture
def no_runs(monkeypatch, same_threads):
    """Runs are made up, in this process, and no base model is built."""
    monkeypatch.setattr(study_jobs, "ProcessPoolExecutor", InThisProcess)
    monkeypatch.setattr(study_jobs, "study_run", made_up_run)
    monkeypatch.setattr(study_runs.Setting, "base", Setting)


def read(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_a_run_keeps_its_mean_and_its_ends(monkeypatch):
    steps = [{"reward": 0.0}] * 5 + [{"reward": 1.0}] * 10 + [{"reward": 0.5}] * 5
    monkeypatch.setattr(study_jobs, "run_row", lambda name, rate, seed, setting: steps)
    run = study_jobs.study_run(Job(STUDY, "dapo", 5e-5, 3))
    assert run[:3] == (0.625, 0.0, 0.5) and run.seconds >= 0


def test_lines_are_there_as_soon_as_their_runs_end(tmp_path, no_runs, monkeypatch):
    def breaks_at_seed_7(job):
        if job.seed == 7:
            raise RuntimeError("the machine stopped")
        return made_up_run(job)

    monkeypatch.setattr(study_jobs, "study_run", breaks_at_seed_7)
    path = tmp_path / "new" / "methods.csv"
    jobs = [Job(STUDY, "delta, fresh", 1e-4, seed) for seed in (5, 6, 7, 8)]
    with pytest.raises(RuntimeError):
        study_jobs.complete(jobs, {}, path, "runs")
    done = finished_runs(path)
    assert list(done) == jobs[:2] and done[jobs[0]] == made_up_run(jobs[0])

    monkeypatch.setattr(study_jobs, "study_run", made_up_run)
    study_jobs.complete(jobs, done, path, "runs")
    assert list(finished_runs(path)) == jobs
    assert path.read_text().count("setting,row") == 1


def test_a_csv_of_something_else_is_refused(tmp_path, no_runs, monkeypatch):
    path = tmp_path / "methods.csv"
    path.write_text("row,lr,seed,reward\ndapo,1e-4,0,0.5\n")
    with pytest.raises(UserError, match="has other columns than setting, row, .*: move it away"):
        finished_runs(path)

    path.unlink()
    study_jobs.complete([Job(STUDY, "dapo", 1e-4, 5)], {}, path, "runs")
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
    measured = method_study.methods(args)
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

    monkeypatch.setattr(study_jobs, "study_run", never)
    method_study.methods(args)
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
    monkeypatch.setattr(confirm_study, "STUDY_CSV", study)
    args = SimpleNamespace(csv=str(tmp_path / "confirm.csv"), seeds=2)
    with pytest.raises(UserError, match="no pilot of dapo: first run `python bench.py methods`"):
        confirm_study.confirm(args)

    jobs = [Job(STUDY, name, 1e-4, seed) for name in MAIN for seed in (0, 1, 5)]
    study_jobs.complete(jobs, {}, study, "runs")
    with pytest.raises(UserError, match="lacks counted seeds"):
        confirm_study.confirm(args)


@pytest.mark.parametrize("study", [confirm_study, noise_study])
def test_other_studies_take_the_best_row_at_its_rate(study, tmp_path, no_runs, monkeypatch, capsys):
    first_csv = tmp_path / "methods.csv"
    rates = {name: BEST_RATE.get(name, MIDDLE) for name in MAIN}
    jobs = [Job(STUDY, name, rates[name], seed) for name in MAIN for seed in (0, 1, 5, 6)]
    study_jobs.complete(jobs, {}, first_csv, "runs")

    monkeypatch.setattr(study, "STUDY_CSV", first_csv)
    path = tmp_path / "other.csv"
    run = {confirm_study: confirm_study.confirm, noise_study: noise_study.noise}[study]
    run(SimpleNamespace(csv=str(path), seeds=3))
    printed = capsys.readouterr().out

    lines = read(path)
    assert {x["setting"] for x in lines} == set(study.PLACES) <= set(SETTINGS)
    seeds = {int(x["seed"]) for x in lines}
    assert len(seeds) == 3 and min(seeds) > method_study.FIRST_SEED + 15
    rows = {"dapo", "delta", "topk, fresh", IN_RANGE}
    if study is noise_study:
        rows.add(ORACLE)
        assert path.with_suffix(".png").stat().st_size > 10_000
        assert "flipped 10 %: DAPO 0.50" in printed
    else:
        assert f"to be confirmed: topk, fresh, at {MIDDLE:g}, the best on 2 seeds" in printed
        assert printed.count("| topk, fresh minus delta |") == len(study.PLACES)
    assert {x["row"] for x in lines} == rows
    assert len(lines) == len(rows) * 3 * len(study.PLACES)


def test_studies_share_no_seed():
    seeds = [
        *method_study.PILOT_SEEDS,
        *range(method_study.FIRST_SEED, method_study.FIRST_SEED + 16),
        *range(confirm_study.FIRST_SEED, confirm_study.FIRST_SEED + 16),
        *range(noise_study.FIRST_SEED, noise_study.FIRST_SEED + 16),
        *curve_study.SEEDS,
    ]
    assert len(set(seeds)) == len(seeds)


# ---- curves --------------------------------------------------------------------------------------


def made_up_curve(name, rate, seed):
    numbers = {"response_length": 80.0, "entropy": 0.3, "lambda_std": 0.0, "seconds": 1.0}
    return [{"step": step, "reward": step / 3 + seed, **numbers} for step in (1, 2)]


def test_curve_study_writes_every_step(tmp_path, monkeypatch, capsys):
    rates = dict.fromkeys(MAIN, MIDDLE)
    monkeypatch.setattr(curve_study, "chosen", lambda path: Choice("topk, fresh", rates, 16))
    monkeypatch.setattr(curve_study, "ProcessPoolExecutor", InThisProcess)
    monkeypatch.setattr(curve_study, "run_row", made_up_curve)
    monkeypatch.setattr(curve_study, "SEEDS", range(2))
    path = tmp_path / "curves.csv"
    lines = curve_study.curves(SimpleNamespace(csv=str(path)))
    assert len(lines) == 2 * 5 * 2
    assert {line["row"] for line in lines} == {"dapo", "delta", "topk, fresh", IN_RANGE, ORACLE}
    text = path.read_text().splitlines()
    assert text[0] == "row,lr,seed,step,reward,response_length,entropy,lambda_std"
    assert text[1] == f"dapo,{MIDDLE},0,1,0.3333,80.0,0.3,0.0"
    assert "dapo: 1.000 ± " in capsys.readouterr().out


# ---- seeds ---------------------------------------------------------------------------------------


def made_up_training(parent, job):
    method, seed = job
    end = {"step": 2, "reward": 0.75, "eval_accuracy": 0.5 + 0.1 * seed, "entropy": 0.25}
    return [
        {"step": 0, "eval_accuracy": 0.4},
        {"step": 1, "reward": 0.25, "entropy": 0.123456},
        end,
    ]


def test_seed_study_reads_finished_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(seed_study, "run_in_process", made_up_training)
    path = tmp_path / "seeds.csv"
    args = SimpleNamespace(csv=str(path), output_dir=str(tmp_path), seeds=2)
    seed_study.seeds(args)
    first = capsys.readouterr().out
    written = path.read_text()
    assert written.splitlines()[0] == (
        "method,seed,step,reward,entropy,response_length,lambda_std,eval_accuracy"
    )
    assert written.splitlines()[2] == "grpo,0,1,0.25,0.1235,,,"
    assert "| delta | 0.550 ± 0.635 | 0.500 ± 0.000 | 2 |" in first
    assert "held-out accuracy before: 0.400 ± 0.000 (one base model, 2 sampling seeds)" in first

    monkeypatch.setattr(seed_study, "run_in_process", lambda parent, job: never(job))
    seed_study.seeds(args)
    assert capsys.readouterr().out == first
    assert path.read_text() == written


def test_seed_study_says_what_failed(tmp_path):
    with pytest.raises(RuntimeError, match="--method: invalid choice|invalid choice: 'nonsense'"):
        seed_study.run_in_process(tmp_path, ("nonsense", 0))
