"""evaluate.py: the paper's averages and its test, by hand-computed cases; a whole evaluation on the toy, interrupted and regraded."""
import itertools
import json
import os
import subprocess
import sys

import numpy as np
import pytest

import evaluate
from benchmarks.compare import mann_whitney, paired_bootstrap
from conftest import ROOT
from evaluate import summary, weighted_average

TABLE_1 = """34.79 23.33 24.17 13.54 12.08 16.86 36.46 22.95
36.67 23.96 26.46 15.62 15.42 17.05 39.17 24.80
38.75 24.37 26.25 14.58 16.04 17.42 39.37 25.14
37.50 23.13 23.96 14.58 12.92 17.99 37.71 23.89
43.13 26.46 28.12 18.33 18.54 20.27 44.79 28.40
51.25 32.29 39.79 19.79 30.00 25.38 48.13 35.09
54.37 33.75 41.46 20.42 31.67 24.81 52.08 36.77
53.96 34.17 41.46 20.62 28.33 24.05 50.21 35.94
54.58 35.00 42.50 21.46 32.29 24.43 52.08 37.29
56.87 37.92 45.21 26.04 32.92 26.89 54.79 39.91
25.62 21.88 22.08 14.58 8.75 14.02 26.67 19.01
30.83 24.79 27.08 16.67 13.96 16.29 30.63 22.80"""


@pytest.mark.parametrize("row", TABLE_1.splitlines())
def test_weighted_average_reproduces_table_1(row):
    *columns, average = map(float, row.split())
    assert weighted_average(columns, [30, 30, 30, 30, 30, 33, 30]) == pytest.approx(average, abs=0.0101)


def test_summary_by_hand():
    s = summary(np.array([[1.0, 0, 1, 0], [0, 0, 0, 0], [1, 1, 1, 0]]))
    assert s["problems"] == 3 and s["avg"] == pytest.approx(5 / 12) and s["pass"] == pytest.approx(2 / 3)
    assert s["repetitions"] == pytest.approx([2 / 3, 1 / 3, 2 / 3, 0]) and s["by_problem"] == [0.5, 0, 0.75]
    assert s["stderr"] == pytest.approx(np.std([0.5, 0, 0.75], ddof=1) / 3 ** 0.5)


def test_mann_whitney_hand_computed():
    assert mann_whitney([4, 5, 6], [1, 2, 3]) == (9, pytest.approx(1 / 20))
    assert mann_whitney([1, 2, 3], [4, 5, 6]) == (0, pytest.approx(1.0))
    assert mann_whitney([3, 5], [1, 4]) == (3, pytest.approx(2 / 6))
    assert mann_whitney([1, 1], [1, 1]) == (2, pytest.approx(1.0))


@pytest.mark.parametrize("seed", range(4))
def test_mann_whitney_is_exact_with_ties(seed):
    """Against all ways to deal the pooled scores, one by one."""
    rng = np.random.default_rng(seed)
    a, b = rng.integers(0, 5, 5).tolist(), rng.integers(0, 4, 4).tolist()
    U = lambda x, y: sum((i > j) + 0.5 * (i == j) for i in x for j in y)
    pooled, observed, as_large = a + b, U(a, b), []
    for chosen in itertools.combinations(range(9), 5):
        as_large.append(U([pooled[i] for i in chosen], [pooled[i] for i in range(9) if i not in chosen]) >= observed)
    assert mann_whitney(a, b) == (observed, pytest.approx(np.mean(as_large)))


def test_mann_whitney_normal_approximation_continues_the_exact_one():
    rng = np.random.default_rng(0)
    a, b = rng.normal(0.4, 1, 30).round(1).tolist(), rng.normal(0, 1, 30).round(1).tolist()
    exact = mann_whitney(a, b)[1]
    assert mann_whitney(a + [10.0], b)[1] < exact and abs(mann_whitney(a + [0.2], b)[1] - exact) < 0.02


def test_paired_bootstrap_sees_pairs():
    rng = np.random.default_rng(0)
    b = rng.random(40)
    mean, low, high, p = paired_bootstrap(b + 0.02 + 0.01 * rng.normal(size=40), b)
    assert low < mean < high and mean == pytest.approx(0.02, abs=0.005) and p < 0.001  # though the spread of b is ten times larger
    assert paired_bootstrap(b, b) == (0.0, 0.0, 0.0, 1.0)


@pytest.fixture(scope="module")
def saved(base, tmp_path_factory):
    """A folder with the base model and a benchmark of 6 toy problems."""
    import toy
    folder = tmp_path_factory.mktemp("evaluate")
    base[0].save_pretrained(folder / "model")
    base[1].save_pretrained(folder / "model")
    (folder / "bench.jsonl").write_text("".join(json.dumps(p) + "\n" for p in toy.problems(6, seed=9)))
    return folder


def flags(saved, out, *more):
    return ["--model", str(saved / "model"), "--benchmarks", str(saved / "bench.jsonl"), "--samples", "3", "--max-new-tokens", "48", "--top-p", "1.0",
            "--output-dir", str(out), *more]


def test_evaluation_runs_continues_and_regrades(saved, tmp_path, capsys):
    evaluate.main(flags(saved, tmp_path / "a", "--rollout-rows", "6"))
    scores = json.loads((tmp_path / "a" / "scores.json").read_text())
    assert 0 < scores["average"] < 1 and len(scores["benchmarks"]["bench"]["repetitions"]) == 3
    assert "avg@3" in capsys.readouterr().out
    path = tmp_path / "a" / "bench" / "responses-0.jsonl"
    whole = path.read_text()
    path.write_text(whole[:len(whole) // 2])  # interrupted in the middle of a line
    evaluate.main(flags(saved, tmp_path / "a"))
    assert sorted(set(path.read_text().splitlines())) == sorted(whole.splitlines())
    assert json.loads((tmp_path / "a" / "scores.json").read_text()) == scores
    broken = whole.replace("boxed{", "boxed{1")
    path.write_text(broken)
    evaluate.main(flags(saved, tmp_path / "a", "--regrade"))
    assert path.read_text() == broken and json.loads((tmp_path / "a" / "scores.json").read_text())["average"] != scores["average"]


def test_evaluation_does_not_depend_on_the_number_of_ranks(saved, tmp_path):
    evaluate.main(flags(saved, tmp_path / "one"))
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "evaluate.py", *flags(saved, tmp_path / "two")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    one, two = (json.loads((tmp_path / name / "scores.json").read_text()) for name in ("one", "two"))
    assert one == two and (tmp_path / "two" / "bench" / "responses-1.jsonl").exists()


def test_compare_prints_both_tests(saved, tmp_path, capsys):
    evaluate.main(flags(saved, tmp_path / "a"))
    evaluate.main(flags(saved, tmp_path / "b", "--temperature", "0.01"))
    evaluate.main(["compare", str(tmp_path / "b"), str(tmp_path / "a")])
    out = capsys.readouterr().out
    assert "Mann-Whitney" in out and "p = 0.05 " in out and "paired bootstrap" in out  # 1 / C(6, 3): every greedy repetition is better


@pytest.mark.parametrize("argv, message", [
    ([], "--model"), (["--model", "/no/such"], "/no/such"), (["compare", "a"], "two output folders"), (["compare", "/no/a", "/no/b"], "no scores.json"),
    (["--sample", "3"], "--sample"), (["--model", "x", "--samples", "0"], "samples"), (["--model", "x", "--benchmarks", "/no/such.jsonl"], "/no/such.jsonl")])
def test_user_errors_are_one_line_and_exit_code_2(argv, message, capsys, saved):
    if argv == ["--model", "/no/such"]:
        argv = [*argv, "--benchmarks", str(saved / "bench.jsonl")]
    with pytest.raises(SystemExit) as stopped:
        evaluate.main(argv)
    error = capsys.readouterr().err
    assert stopped.value.code == 2 and message in error and error.count("\n") == 1
