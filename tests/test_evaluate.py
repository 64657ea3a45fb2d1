"""Tests evaluate.py: averages and statistics by hand, and complete evaluations on the toy.

Correct and wrong responses are written by hand. Complete evaluations test only that responses are
saved, continued and graded correctly, whatever is sampled.
"""

import itertools
import shutil
from collections import Counter

import numpy as np
import pytest
from forked import finished, torchrun
from toy_runs import contents, read_lines, refusal

import evaluate
import toy
from evaluate import grade_benchmark, summary, whole_repetitions
from infra.errors import UserError
from infra.evaluation_files import saved_responses
from infra.folder import read_json, write_json, write_lines
from infra.significance import mann_whitney, paired_bootstrap

PROBLEMS = toy.problems(6, seed=9)  # the contents of bench.jsonl
BENCH = "bench.jsonl"  # its subfolder of an output folder

# Rows of Table 1: the seven benchmarks, and their average
TABLE_1 = """34.79 23.33 24.17 13.54 12.08 16.86 36.46 22.95
51.25 32.29 39.79 19.79 30.00 25.38 48.13 35.09
56.87 37.92 45.21 26.04 32.92 26.89 54.79 39.91
25.62 21.88 22.08 14.58 8.75 14.02 26.67 19.01"""


@pytest.mark.parametrize("row", TABLE_1.splitlines())
def test_whole_repetitions_reproduce_the_average_of_table_1(row):
    *benchmarks, average = (float(cell) for cell in row.split())
    sizes = [30, 30, 30, 30, 30, 33, 30]
    pairs = enumerate(zip(benchmarks, sizes, strict=True))
    saved = {i: {"repetitions": [cell, 0.0], "problems": size} for i, (cell, size) in pairs}
    ours = whole_repetitions({"benchmarks": saved}, list(saved))
    assert ours == [pytest.approx(average, abs=0.0101), 0]


def test_summary_by_hand():
    s = summary(np.array([[1.0, 0, 1, 0], [0, 0, 0, 0], [1, 1, 1, 0]]))
    assert s["problems"] == 3
    assert s["avg"] == pytest.approx(5 / 12)
    assert s["pass"] == pytest.approx(2 / 3)
    assert s["repetitions"] == pytest.approx([2 / 3, 1 / 3, 2 / 3, 0])
    assert s["by_problem"] == [0.5, 0, 0.75]
    # deviations from 5/12, in twelfths: 1, -5, 4
    assert s["stderr"] == pytest.approx((42 / 144 / 2 / 3) ** 0.5)
    assert summary(np.array([[1.0, 0]]))["stderr"] is None


def slow_u(a, b):
    """U, computed from all pairs."""
    return sum((x > y) + 0.5 * (x == y) for x in a for y in b)


@pytest.mark.parametrize("seed", range(2))
def test_mann_whitney_is_exact_with_ties(seed):
    """It is compared with an enumeration of all splits of the pooled values."""
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


def test_paired_bootstrap_uses_the_pairs():
    rng = np.random.default_rng(0)
    b = rng.random(40)
    a = b + 0.02 + 0.01 * rng.normal(size=40)  # b varies thirty times as much as a - b
    mean, low, high, p = paired_bootstrap(a, b)
    assert mean == pytest.approx((a - b).mean())
    error = (a - b).std() / 40**0.5  # standard error of the mean of 40 paired differences
    assert low == pytest.approx(mean - 1.96 * error, abs=0.2 * error)
    assert high == pytest.approx(mean + 1.96 * error, abs=0.2 * error)
    assert p < 0.001


def write_averages(folder, grades_by_benchmark, seed=0):
    """Write averages.json as `run` does, from each benchmark's grades [P, n]."""
    folder.mkdir()
    benchmarks = {}
    for name, grades in grades_by_benchmark.items():
        benchmarks[name] = summary(np.array(grades)) | {"hash": f"of {name}"}
    write_json(folder / "averages.json", {"sampling": {"seed": seed}, "benchmarks": benchmarks})
    return str(folder)


def test_compare_prints_what_differs_in_sampling_and_both_tests(tmp_path, capsys):
    # A's repetitions: 4/4, 3/4, 3/4; B's: 2/4, 2/4, 2/4; "only" is not in both
    ones, zeros = [1.0, 1, 1], [0.0, 0, 0]
    a = write_averages(tmp_path / "A", {"x": [ones, ones, [1, 0, 0]], "y": [ones]})
    of_b = {"only": [zeros], "x": [ones, zeros, zeros], "y": [ones]}
    b = write_averages(tmp_path / "B", of_b, seed=1)
    evaluate.main(["compare", a, b])
    sampling, averages, repetitions, problems = capsys.readouterr().out.splitlines()

    assert sampling == f"sampled differently: {a} {{'seed': 0}}, {b} {{'seed': 1}}"
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


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder: the base model is in model/, PROBLEMS in bench.jsonl, their evaluation in out/."""
    folder = tmp_path_factory.mktemp("evaluate")
    shutil.copytree(toy.BASES["sharpen"], folder / "model")
    write_lines(folder / BENCH, PROBLEMS)
    evaluate.main(flags(folder, folder / "out"))
    return folder


@pytest.fixture
def out(saved, tmp_path):
    """A copy of that evaluation."""
    return shutil.copytree(saved / "out", tmp_path / "out")


def flags(saved, output, *more):
    """The flags of an evaluation with three samples per problem, written to `output`."""
    words = ["--model", saved / "model", "--benchmarks", saved / BENCH, "--output-dir", output]
    words += ["--samples", 3, "--max-new-tokens", 12, "--top-p", 1.0, *more]
    return [str(word) for word in words]


def averages(folder):
    return read_json(folder / "averages.json")


def texts(folder):
    return {place: line["response"] for place, line in saved_responses(folder).items()}


def test_an_evaluation_continues_after_a_kill_and_grows(saved, out):
    path = out / BENCH / "responses.jsonl"
    whole, result = path.read_text(), averages(out)

    half = whole[: len(whole) // 2]  # in the middle of a line
    path.write_text(half)
    evaluate.main(flags(saved, out))
    continued = path.read_text()
    assert sorted(continued.splitlines()) == sorted(whole.splitlines())  # each line once
    assert averages(out) == result

    before = texts(out / BENCH)
    evaluate.main(flags(saved, out, "--samples", 4))
    assert before.items() < texts(out / BENCH).items()
    assert len(texts(out / BENCH)) == 24


def test_a_set_gets_the_same_responses_beside_another_set(saved, tmp_path):
    """A copy of the set gets different responses."""
    both = f"{saved / BENCH},{shutil.copy(saved / BENCH, tmp_path / 'other.jsonl')}"
    evaluate.main(flags(saved, tmp_path / "both", "--benchmarks", both, "--in-flight", "7"))
    one, two = (texts(tmp_path / "both" / name) for name in (BENCH, "other.jsonl"))
    assert one == texts(saved / "out" / BENCH) != two
    assert one.keys() == two.keys()


def test_comparisons_that_ended_by_their_budget_are_counted(saved, out, capsys, monkeypatch):
    monkeypatch.setattr(evaluate, "UNDECIDED", Counter(x=3))  # other tests count there too
    evaluate.main(flags(saved, out, "--regrade"))
    assert "3 answers earned 0 because their comparison ended at" in capsys.readouterr().out


def test_regrade_grades_the_saved_responses(saved, out, capsys):
    """Responses whose grades are known replace the samples. One of them is cut off."""
    path = out / BENCH / "responses.jsonl"
    asked = [problem["problem"] for problem in PROBLEMS]
    assert sorted(saved_responses(path.parent)) == sorted(itertools.product(asked, range(3)))

    lines = []
    for i, problem in enumerate(PROBLEMS):
        right, wrong = rf"\boxed{{{problem['answer']}}}", rf"\boxed{{1{problem['answer']}}}"
        unstated = f"so it is {problem['answer']}"
        for sample, response in enumerate([right, wrong, right if i < 2 else unstated]):
            line = {"asked": problem["problem"], "sample": sample, "response": response}
            lines.append(line | {"truncated": i > 2 and sample == 2})
    write_lines(path, lines)
    evaluate.main(flags(saved, out, "--regrade")[2:])  # without --model
    assert averages(out)["model"] == str(saved / "model")
    assert averages(out)["sampling"]["dtype"] != "auto"
    result = averages(out)["benchmarks"][BENCH]
    assert result["repetitions"] == pytest.approx([1, 0, 1 / 2])
    assert result["pass"] == 1
    assert averages(out)["average"] == pytest.approx(1 / 2)
    assert read_lines(path) == lines
    wrong = read_lines(out / BENCH / "wrong.jsonl")
    assert len(wrong) == 6 + 3
    assert wrong[0] == lines[1] | {"answer": PROBLEMS[0]["answer"]}
    assert f"| {BENCH} | 6 | 50.00% | 100.00% |" in capsys.readouterr().out
    with pytest.raises(UserError, match="lacks 6 of 24 responses: drop --regrade"):
        grade_benchmark(PROBLEMS, 4, out / BENCH)


def test_regrade_takes_the_samplings_flags_from_the_folder_or_refuses_others(saved, out, capsys):
    for other in (["--temperature", "0"], ["--top-p", "0.9"], ["--stop", "x"], ["--model", "m"]):
        said = refusal(evaluate.main, flags(saved, out, "--regrade", *other), capsys)
        assert "--regrade samples nothing, and " in said and f"drop {' '.join(other)}" in said
    before = averages(out)["sampling"]
    evaluate.main(["--regrade", *flags(saved, out)[2:6], "--samples", "3"])
    assert averages(out)["sampling"] == before and before["top_p"] == 1.0


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "chat_template.jinja"])
def test_an_evaluation_does_not_mix_two_models_of_one_name(name, saved, tmp_path, capsys):
    """A continued training run may have written the weights again."""
    copy = shutil.copytree(saved, tmp_path / "copy")
    moved = read_json(copy / "out/config.json") | {"model": str(copy / "model")}
    write_json(copy / "out/config.json", moved)
    path = copy / "model" / name
    content = path.read_bytes() if path.exists() else b"{{ messages[0].content }}"
    path.write_bytes((content[:-1] if name.endswith("safetensors") else content) + b"\n")
    before = contents(copy)
    said = refusal(evaluate.main, flags(copy, copy / "out"), capsys)
    assert "out holds another run or other files (other model files" in said
    assert contents(copy) == before


def test_an_evaluation_does_not_mix_prompts(saved, out, capsys):
    """Another version of this program or of transformers might ask in another way."""
    config = read_json(out / "config.json")
    write_json(out / "config.json", config | {"prompts_hash": "0123456789abcdef"})
    said = refusal(evaluate.main, flags(saved, out, "--samples", 4), capsys)
    assert f"(other prompts): choose another, such as {out}-2" in said


OTHER = {  # bench.jsonl of the same length
    "problems": toy.problems(6, seed=8),
    "order": PROBLEMS[::-1],
    "answers": [*PROBLEMS[:5], PROBLEMS[5] | {"answer": "0"}],
}


@pytest.mark.parametrize("change", OTHER)
def test_compare_refuses_the_same_number_of_other_problems(change, saved, tmp_path, capsys):
    one, two = str(saved / "out"), str(tmp_path / "two")
    write_lines(tmp_path / BENCH, OTHER[change])
    few = ["--samples", 1, "--max-new-tokens", 1]
    evaluate.main(flags(saved, two, "--benchmarks", tmp_path / BENCH, *few))
    said = refusal(evaluate.main, ["compare", one, two], capsys)
    assert f"{BENCH}: {one} and {two} have different problems, or order them differently" in said


def test_an_evaluation_does_not_depend_on_the_number_of_ranks(saved, tmp_path):
    one, two = saved / "out", tmp_path / "two"
    finished(torchrun(2, "evaluate.py", *flags(saved, two)))
    assert texts(two / BENCH) == texts(one / BENCH)
    assert averages(one) == averages(two)


@pytest.mark.parametrize(
    "argv, message",
    [
        ("compare a", "two output folders"),
        ("compare /no/a /no/b", "/no/a/averages.json cannot be read"),
        ("--model /no/m --benchmarks /no/b.jsonl", "--model /no/m: no model folder or hub id"),
        ("--model m --benchmarks sum.jsonl", "1 of 1 gold answers can never be matched"),
    ],
)
def test_user_errors_are_one_line_and_exit_code_2(
    argv, message, saved, tmp_path, monkeypatch, capsys
):
    """Nothing is written."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m").symlink_to(saved / "model")
    write_lines(tmp_path / "sum.jsonl", [{"problem": "1+2?", "answer": r"\sum_{k=1}^{2} k"}])
    assert message in refusal(evaluate.main, argv.split(), capsys)
    assert {path.name for path in tmp_path.iterdir()} == {"m", "sum.jsonl"}
