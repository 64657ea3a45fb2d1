"""The studies over seeds: their rows, one short run, and that finished runs are not run again."""

import csv
from types import SimpleNamespace

import pytest
import torch

import toy
import train
from benchmarks import curve_study, method_study, seed_study
from benchmarks.study_runs import ORACLE, ROWS, TASK, oracle, run_row
from infra.packing import TokenBatch
from methods import METHODS

SMALL = TASK.replace("--steps 24", "--steps 1").replace("--toy-k 12", "--toy-k 10")


# ---- rows and runs -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ROWS)
def test_rows_have_flags_that_train_py_takes(name):
    cfg = train.parse_config([*TASK.split(), *ROWS[name].flags.split()])
    assert (cfg.steps, cfg.toy_k, cfg.prompts // cfg.mini_batch) == (24, 12, 2)


def test_rows_differ():
    flags = [row.flags for name, row in ROWS.items() if name != ORACLE]
    assert len(set(flags)) == len(flags)


def test_oracle_marks_the_tokens_that_decided():
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
    weights = oracle(tokens, None)
    assert float(weights.mean()) == pytest.approx(1)
    words = [toy.VOCABULARY[i] for i in tokens.token.tolist()]
    heavy = [i for i in range(N) if weights[i] > 1]
    assert [words[i] for i in heavy] == ["2", "3"]
    assert float(weights[heavy[0]] / weights[0]) == pytest.approx(11)


@pytest.mark.parametrize("name", [ORACLE, "random"])
def test_run_row_is_a_run_of_train_py(name, capsys):
    threads = torch.get_num_threads()
    try:
        (step,) = run_row(name, 5e-5, seed=0, task=SMALL)
    finally:
        torch.set_num_threads(threads)
    assert step["step"] == 1 and step["lambda_std"] > 0
    assert ORACLE not in METHODS  # the oracle is known during the run only
    assert capsys.readouterr().out == ""


# ---- methods -------------------------------------------------------------------------------------


def made_up_run(job):
    """Row by row a little more reward; the middle learning rate is the best."""
    name, rate, seed = job
    reward = 0.5 + 0.01 * list(ROWS).index(name) + 0.001 * seed - abs(rate - 5e-5)
    return {
        "row": name,
        "lr": rate,
        "seed": seed,
        "reward": round(reward, 5),
        "last_reward": 0.25,
        "seconds": 1.0,
    }


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


def test_method_study_picks_the_rate_and_reads_finished_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(method_study, "ProcessPoolExecutor", InThisProcess)
    monkeypatch.setattr(method_study, "study_run", made_up_run)
    path = tmp_path / "methods.csv"
    args = SimpleNamespace(csv=str(path))
    method_study.methods(args)
    first = capsys.readouterr().out
    written = path.read_bytes()

    with open(path) as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == len(ROWS) * (3 + 7)  # three rates with one seed, then seven at the best
    assert {line["lr"] for line in lines if line["seed"] == "7"} == {"5e-05"}
    assert "| dapo | 5e-05 | 0.503 ± 0.002 | 0.000 ± 0.000 | 0.250 ± 0.000 | 22.95 |" in first
    assert "| grpo | 5e-05 | 0.513 ± 0.002 | 0.010 ± 0.000 | 0.250 ± 0.000 | - |" in first
    assert path.with_suffix(".png").stat().st_size > 10_000

    monkeypatch.setattr(method_study, "study_run", never)
    method_study.methods(args)
    assert capsys.readouterr().out == first
    assert path.read_bytes() == written


def test_method_study_run_is_a_line_of_its_csv(monkeypatch):
    steps = [{"reward": 0.0}] * 4 + [{"reward": 1.0}] * 4 + [{"reward": 0.5}] * 4
    monkeypatch.setattr(method_study, "run_row", lambda name, rate, seed: steps)
    line = method_study.study_run(("dapo", 5e-5, 3))
    assert line.pop("seconds") >= 0
    assert line == {"row": "dapo", "lr": 5e-5, "seed": 3, "reward": 0.5, "last_reward": 0.75}


# ---- curves --------------------------------------------------------------------------------------


def made_up_curve(name, rate, seed):
    numbers = {"response_length": 80.0, "entropy": 0.3, "lambda_std": 0.0, "seconds": 1.0}
    return [{"step": step, "reward": step / 3 + seed, **numbers} for step in (1, 2)]


def test_curve_study_writes_every_step(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(curve_study, "ProcessPoolExecutor", InThisProcess)
    monkeypatch.setattr(curve_study, "run_row", made_up_curve)
    monkeypatch.setattr(curve_study, "SEEDS", 2)
    path = tmp_path / "curves.csv"
    lines = curve_study.curves(SimpleNamespace(csv=str(path)))
    assert len(lines) == 2 * 3 * 2
    text = path.read_text().splitlines()
    assert text[0] == "row,lr,seed,step,reward,response_length,entropy,lambda_std"
    assert text[1] == "dapo,2.5e-05,0,1,0.3333,80.0,0.3,0.0"
    assert "dapo 1.000 ± " in capsys.readouterr().out


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
