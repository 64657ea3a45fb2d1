"""evaluate.py: averages and tests on hand-computed cases, and complete evaluations on the toy.

Correct and wrong responses are written by hand. Complete evaluations test only that responses are
saved, continued and graded correctly, whatever is sampled.
"""

import itertools
import json
import math

import numpy as np
import pytest
from forked import finished, torchrun
from toy_runs import SMALL, read_lines

import evaluate
import grading
import toy
from evaluate import (
    grade_benchmark,
    mann_whitney,
    paired_bootstrap,
    summary,
    weighted_average,
    whole_repetitions,
)
from grading import grade, graded_once
from infra.errors import UserError
from infra.responses import saved_responses
from rollout import generate

PROBLEMS = toy.problems(6, seed=9)  # the contents of bench.jsonl
BENCH = "bench.jsonl"  # its subfolder of an output folder

# Table 1: the seven benchmarks, and their average
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


# ---- averages ------------------------------------------------------------------------------------


def test_grade_compares_letters_for_multiple_choice_and_answers_otherwise():
    assert grade("\\boxed{C}", {"answer": "C", "choice": True}) == 1.0
    assert grade("\\boxed{\\text{(C)} 5}", {"answer": "C", "choice": True}) == 1.0
    assert grade("\\boxed{B}", {"answer": "C", "choice": True}) == 0.0
    assert grade("no idea", {"answer": "C", "choice": True}) == 0.0

    assert grade("\\boxed{0.5}", {"answer": "1/2"}) == 1.0
    assert grade("\\boxed{0.5}", {"answer": "1/2", "choice": False}) == 1.0
    assert grade("\\boxed{0.6}", {"answer": "1/2"}) == 0.0


@pytest.mark.parametrize("row", TABLE_1.splitlines())
def test_weighted_average_reproduces_table_1(row):
    *benchmarks, average = (float(cell) for cell in row.split())
    sizes = [30, 30, 30, 30, 30, 33, 30]
    assert weighted_average(benchmarks, sizes) == pytest.approx(average, abs=0.0101)


def test_summary_by_hand():
    s = summary(np.array([[1.0, 0, 1, 0], [0, 0, 0, 0], [1, 1, 1, 0]]))
    assert s["problems"] == 3
    assert s["avg"] == pytest.approx(5 / 12)
    assert s["pass"] == pytest.approx(2 / 3)
    assert s["repetitions"] == pytest.approx([2 / 3, 1 / 3, 2 / 3, 0])
    assert s["by_problem"] == [0.5, 0, 0.75]
    # deviations from 5/12, in twelfths: 1, -5, 4
    assert s["stderr"] == pytest.approx((42 / 144 / 2 / 3) ** 0.5)


def test_summary_of_one_problem_has_no_standard_error():
    s = summary(np.array([[1.0, 0]]))
    assert s["avg"] == 0.5
    assert s["stderr"] is None


# ---- the two significance tests ------------------------------------------------------------------


def test_mann_whitney_hand_computed():
    assert mann_whitney([4, 5, 6], [1, 2, 3]) == (9, pytest.approx(1 / 20))
    assert mann_whitney([1, 2, 3], [4, 5, 6]) == (0, pytest.approx(1.0))
    assert mann_whitney([3, 5], [1, 4]) == (3, pytest.approx(2 / 6))
    assert mann_whitney([1, 1], [1, 1]) == (2, pytest.approx(1.0))


def slow_u(a, b):
    """U, computed from all pairs."""
    u = 0.0
    for x in a:
        for y in b:
            if x > y:
                u += 1
            if x == y:
                u += 0.5
    return u


@pytest.mark.parametrize("seed", range(4))
def test_mann_whitney_is_exact_with_ties(seed):
    """Compared with an enumeration of all splits of the pooled values."""
    rng = np.random.default_rng(seed)
    a = rng.integers(0, 5, 5).tolist()
    b = rng.integers(0, 4, 4).tolist()
    pooled = a + b
    observed = slow_u(a, b)

    as_large = []
    for chosen in itertools.combinations(range(9), 5):
        one = [pooled[i] for i in chosen]
        other = [pooled[i] for i in range(9) if i not in chosen]
        as_large.append(slow_u(one, other) >= observed)

    assert mann_whitney(a, b) == (observed, pytest.approx(np.mean(as_large)))


def test_mann_whitney_of_61_values_matches_a_hand_calculation():
    # a: 31 ones; b: 20 zeros, 10 ones. U = 31 x (20 + 10 / 2).
    u, p = mann_whitney([1.0] * 31, [0.0] * 20 + [1.0] * 10)
    assert u == 775
    # A U this large requires b, with 30 of the 61 values, to contain all 20 zeros.
    assert p == pytest.approx(math.comb(41, 10) / math.comb(61, 30), rel=1e-9)


def test_mann_whitney_p_of_many_equal_values_is_one():
    assert mann_whitney([1.0] * 40, [1.0] * 40) == (800, pytest.approx(1.0))


def test_paired_bootstrap_uses_the_pairs():
    rng = np.random.default_rng(0)
    b = rng.random(40)
    a = b + 0.02 + 0.01 * rng.normal(size=40)  # b varies thirty times as much as a - b
    mean, low, high, p = paired_bootstrap(a, b)
    assert mean == pytest.approx((a - b).mean())
    # standard error of the mean of 40 paired differences
    error = (a - b).std() / 40**0.5
    assert low == pytest.approx(mean - 1.96 * error, abs=0.2 * error)
    assert high == pytest.approx(mean + 1.96 * error, abs=0.2 * error)
    assert p < 0.001


def test_paired_bootstrap_of_no_difference():
    b = np.random.default_rng(0).random(40)
    assert paired_bootstrap(b, b) == (0.0, 0.0, 0.0, 1.0)


# ---- compare -------------------------------------------------------------------------------------


def write_averages(folder, grades_by_benchmark):
    """Write a averages.json as `run` does, from each benchmark's grades [P, n]."""
    folder.mkdir()
    benchmarks = {name: summary(np.array(g)) for name, g in grades_by_benchmark.items()}
    samples = len(next(iter(benchmarks.values()))["repetitions"])
    scores = {"samples": samples, "benchmarks": benchmarks}
    (folder / "averages.json").write_text(json.dumps(scores))
    return str(folder)


def test_whole_repetitions_weights_benchmarks_by_problem_count():
    long = summary(np.array([[1.0, 0], [1, 0], [0, 1]]))
    short = summary(np.array([[1.0, 0]]))
    scores = {"benchmarks": {"long": long, "short": short, "other": short}}
    assert whole_repetitions(scores, ["long", "short"]) == pytest.approx([3 / 4, 1 / 4])
    assert whole_repetitions(scores, ["long"]) == pytest.approx([2 / 3, 1 / 3])


def test_compare_prints_both_tests(tmp_path, capsys):
    # A's repetitions: 4/4, 3/4, 3/4; B's: 2/4, 2/4, 2/4; "only" is not in both
    a = write_averages(
        tmp_path / "A", {"x": [[1.0, 1, 1], [1, 1, 1], [1, 0, 0]], "y": [[1.0, 1, 1]]}
    )
    b = write_averages(
        tmp_path / "B",
        {"only": [[0.0, 0, 0]], "x": [[1.0, 1, 1], [0, 0, 0], [0, 0, 0]], "y": [[1, 1, 1]]},
    )
    evaluate.main(["compare", a, b])
    averages, repetitions, problems = capsys.readouterr().out.splitlines()

    assert averages == f"{a} 0.8333, {b} 0.5000 on x, y"
    # 1 / C(6, 3): every repetition of A beats every repetition of B
    assert repetitions == (
        "over repetitions: U = 9 of 9, one-sided p = 0.05 (Mann-Whitney, App. K)"
    )
    # per-problem differences 0, 1, 1/3, 0: mean 1/3; only a resample of zeros has mean 0
    assert problems.startswith("over problems: difference +0.3333, 95 % interval +0.0000 to +")
    assert problems.endswith("(paired bootstrap)")
    p = float(problems.split("p = ")[1].split()[0])
    assert p == pytest.approx(1 / 16, abs=0.01)


def test_compare_refuses_different_problems(tmp_path, capsys):
    a = write_averages(tmp_path / "A", {"x": [[1.0], [1.0]]})
    b = write_averages(tmp_path / "B", {"x": [[1.0]]})
    c = write_averages(tmp_path / "C", {"y": [[1.0]]})
    with pytest.raises(UserError, match="x has 2 problems in .*A and 1 in .*B"):
        evaluate.compare(a, b)
    with pytest.raises(UserError, match="no benchmark in common"):
        evaluate.compare(b, c)


# ---- complete evaluations ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(base, tmp_path_factory):
    """A folder with the base model in model/ and a benchmark of 6 toy problems, bench.jsonl."""
    model, tokenizer = base
    folder = tmp_path_factory.mktemp("evaluate")
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    lines = [json.dumps(problem) + "\n" for problem in PROBLEMS]
    (folder / "bench.jsonl").write_text("".join(lines))
    return folder


def flags(saved, output, *more):
    """The flags of an evaluation with three samples per problem, written to `output`."""
    named = {
        "--model": saved / "model",
        "--benchmarks": saved / "bench.jsonl",
        "--samples": 3,
        "--max-new-tokens": 48,
        "--top-p": 1.0,
        "--output-dir": output,
    }
    return [str(word) for pair in named.items() for word in pair] + [str(word) for word in more]


def averages(folder):
    return json.loads((folder / "averages.json").read_text())


def texts(folder):
    return {place: line["response"] for place, line in saved_responses(folder).items()}


def test_an_evaluation_grades_and_averages_its_samples(saved, tmp_path, capsys):
    evaluate.main(flags(saved, tmp_path, "--in-flight", "6"))
    printed = capsys.readouterr().out
    assert "| benchmark | problems | avg@3 | pass@3 | standard error |" in printed
    assert f"| {BENCH} | 6 | " in printed

    lines = read_lines(tmp_path / BENCH / "responses-0.jsonl")
    assert {(line["asked"], line["sample"]) for line in lines} == {
        (problem["problem"], sample) for problem in PROBLEMS for sample in range(3)
    }
    assert len(lines) == 18
    assert all(0 < line["tokens"] <= 48 for line in lines)
    answer = {problem["problem"]: problem for problem in PROBLEMS}
    grades = {(x["asked"], x["sample"]): grade(x["response"], answer[x["asked"]]) for x in lines}
    graded = [[grades[text, sample] for sample in range(3)] for text in answer]
    expected = summary(np.array(graded))
    assert averages(tmp_path)["benchmarks"] == {BENCH: expected}
    assert averages(tmp_path)["average"] == expected["avg"]

    wrong = read_lines(tmp_path / BENCH / "wrong.jsonl")
    places = {(line["asked"], line["sample"]) for line in wrong}
    assert places == {place for place, value in grades.items() if value == 0}
    assert all(line["answer"] == answer[line["asked"]]["answer"] for line in wrong)


def test_an_evaluation_continues_after_a_kill(saved, tmp_path):
    evaluate.main(flags(saved, tmp_path))
    path = tmp_path / BENCH / "responses-0.jsonl"
    whole, result = path.read_text(), averages(tmp_path)

    half = whole[: len(whole) // 2]  # in the middle of a line
    path.write_text(half)
    evaluate.main(flags(saved, tmp_path))
    continued = path.read_text()
    assert sorted(continued.splitlines()) == sorted(whole.splitlines())  # each line once
    assert continued.startswith(half[: half.rindex("\n") + 1])
    assert averages(tmp_path) == result


def test_all_benchmarks_are_sampled_in_one_call(saved, tmp_path, monkeypatch):
    """A set gets the same responses as on its own. A copy of the set gets different ones."""
    other = tmp_path / "other.jsonl"
    other.write_text((saved / "bench.jsonl").read_text())
    calls = []

    def spy(lm, jobs, *more, **named):
        calls.append(len(jobs))
        return generate(lm, jobs, *more, **named)

    monkeypatch.setattr(evaluate, "generate", spy)
    both = f"{saved / BENCH},{other}"
    evaluate.main(flags(saved, tmp_path / "both", "--benchmarks", both, "--in-flight", "7"))
    evaluate.main(flags(saved, tmp_path / "alone"))
    assert calls == [2 * 18, 18]
    one, two = (texts(tmp_path / "both" / name) for name in (BENCH, "other.jsonl"))
    assert one == texts(tmp_path / "alone" / BENCH)
    assert one.keys() == two.keys()
    assert one != two


def test_regrade_grades_saved_responses(saved, tmp_path):
    evaluate.main(flags(saved, tmp_path))
    path = tmp_path / BENCH / "responses-0.jsonl"
    lines = []
    for i, problem in enumerate(PROBLEMS):  # replaces the sampled responses
        right, wrong = rf"\boxed{{{problem['answer']}}}", rf"\boxed{{1{problem['answer']}}}"
        for sample, response in enumerate([right, wrong, right if i < 2 else wrong]):
            line = {"asked": problem["problem"], "sample": sample, "response": response}
            lines.append(json.dumps(line | {"truncated": False}) + "\n")
    path.write_text("".join(lines))
    evaluate.main(flags(saved, tmp_path, "--regrade"))
    result = averages(tmp_path)["benchmarks"][BENCH]
    assert result["repetitions"] == pytest.approx([1, 0, 1 / 3])
    assert result["pass"] == 1
    assert path.read_text() == "".join(lines)
    with pytest.raises(UserError, match="lacks 6 of 24 responses: run without --regrade"):
        grade_benchmark(PROBLEMS, 4, tmp_path / BENCH)


def test_an_evaluation_does_not_depend_on_the_number_of_ranks(saved, tmp_path):
    evaluate.main(flags(saved, tmp_path / "one"))
    finished(torchrun(2, "evaluate.py", *flags(saved, tmp_path / "two")))
    assert (tmp_path / "two" / BENCH / "responses-1.jsonl").exists()
    assert texts(tmp_path / "two" / BENCH) == texts(tmp_path / "one" / BENCH)
    assert averages(tmp_path / "one") == averages(tmp_path / "two")


def test_a_limit_evaluates_the_first_problems_and_a_full_evaluation_continues(saved, tmp_path):
    evaluate.main(flags(saved, tmp_path, "--limit", 2))
    first = texts(tmp_path / BENCH)
    assert len(first) == 6
    assert averages(tmp_path)["benchmarks"][BENCH]["problems"] == 2
    evaluate.main(flags(saved, tmp_path))
    assert texts(tmp_path / BENCH).items() > first.items()
    assert averages(tmp_path)["benchmarks"][BENCH]["problems"] == 6


def test_ctrl_c_during_an_evaluation_prints_one_line(saved, tmp_path, monkeypatch, capsys):
    def pressed(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(evaluate, "generate", pressed)
    with pytest.raises(SystemExit) as stopped:
        evaluate.main(flags(saved, tmp_path))
    assert stopped.value.code == 130
    said = capsys.readouterr().err
    assert said == "evaluate.py: stopped by Ctrl-C: rerun the command to resume\n"


# ---- grades on several ranks ---------------------------------------------------------------------


RANDOM_REWARDS = """
import random
import sys

import train

right = train.training_rewards


def flipped(responses, problems, truncated):
    return [abs(r - (random.random() < 0.1)) for r in right(responses, problems, truncated)]


train.training_rewards = flipped
train.main(sys.argv[1:])
"""


def test_a_random_reward_is_the_same_on_two_ranks(tmp_path):
    """With different rewards, the ranks would wait for each other at different points."""
    script = tmp_path / "flipped.py"
    script.write_text(RANDOM_REWARDS)
    command = [*SMALL, "--eval-data", "", "--steps", "3", "--dynamic-sampling"]
    finished(torchrun(2, str(script), *command, "--output-dir", str(tmp_path / "run")))
    steps = [row["step"] for row in read_lines(tmp_path / "run" / "metrics.jsonl")]
    assert steps == [1, 2, 3]


def test_graded_once_grades_a_share_and_returns_all_rewards():
    problems = [{"answer": "1"}, {"answer": "2"}]
    assert graded_once(["\\boxed{1}", "\\boxed{1}"], problems, [False] * 2) == [1.0, 0.0]
    assert graded_once([1], [2], [3], lambda a, b, c: [a[0] + b[0] + c[0]]) == [6]
    assert graded_once([], [], []) == []


# ---- user errors ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "argv, message",
    [
        ([], "--model"),
        (["--model", "/no/such"], "/no/such"),
        (["compare", "a"], "two output folders"),
        (["compare", "/no/a", "/no/b"], "/no/a/averages.json cannot be read"),
        (["--sample", "3"], "--sample"),
        (["--model", "x", "--samples", "0"], "samples"),
        (["--benchmarks", "/no/such.jsonl"], "/no/such.jsonl"),
        (["--benchmarks", " , "], "--benchmarks is empty"),
    ],
)
def test_user_errors_are_one_line_and_exit_code_2(argv, message, capsys, saved):
    if argv == ["--model", "/no/such"]:
        argv = [*argv, "--benchmarks", str(saved / "bench.jsonl")]
    if argv[:1] == ["--benchmarks"]:
        argv = ["--model", str(saved / "model"), *argv]
    with pytest.raises(SystemExit) as stopped:
        evaluate.main(argv)
    error = capsys.readouterr().err
    assert stopped.value.code == 2
    assert message in error
    assert error.count("\n") == 1


def test_a_benchmark_with_a_prompt_over_the_limit_is_refused(saved, tmp_path, capsys):
    """The prompts have 8 and 12 tokens; the limit is 10."""
    short, long = toy.problems(1, k=3) + toy.problems(1, k=5)
    path = tmp_path / "mixed.jsonl"
    path.write_text(json.dumps(short) + "\n" + json.dumps(long) + "\n")
    with pytest.raises(SystemExit):
        evaluate.main(
            flags(saved, tmp_path / "out", "--benchmarks", path, "--max-prompt-tokens", "10")
        )
    error = capsys.readouterr().err
    assert "raise --max-prompt-tokens" in error
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mixed.jsonl"]  # nothing is written


def test_gold_answers_that_no_response_can_match_are_counted_and_shown(capsys):
    problems = [{"answer": r"\sum_{k=1}^{4} k"}, {"answer": "10"}, {"answer": "10"}]
    graded_otherwise = [{"answer": "B", "choice": True}, {"tests": [{"script": "assert f()"}]}]
    grading.report_unearnable(problems + graded_otherwise)
    assert capsys.readouterr().out.startswith("1 of 2 gold answers can never be matched")
    grading.report_unearnable(problems[1:])
    assert capsys.readouterr().out == ""
