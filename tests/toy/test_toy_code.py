"""Tests toy/code_task.py: functions, their words and their tests."""

import numpy as np
from toy_runs import read_lines

import train
from programs.verify_code import rewards
from toy.by_name import problem_set
from toy.code_task import BOUNDS, NAMES, draw_any, inputs, problems, results

# A recorded problem, which the generator must reproduce.
FIRST = "f(a, b): take b, times b, plus b, add a\nf(0, 4) = 20\nf(2, 7) = 58\n"
FIRST_TEST = {"function": "f", "args": [8, 2], "expected": 14}
RIGHT = "\n```python\ndef f(a, b):\n    return b * b + b + a\n```"
WRONG = RIGHT.replace("b + a", "b")


def test_results_apply_one_operation_after_another():
    """Every step is evaluated by itself, so no parenthesis is missing in the whole expression."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        chain = draw_any(rng)  # a random function, sound or not
        for values, found in zip(inputs(chain.arguments), results(chain), strict=True):
            named = dict(zip(NAMES, values, strict=False))
            current = eval(chain.start, None, named)
            for operation, operand in chain.steps:
                text = f"current {operation} {operand}"
                if operation in BOUNDS:
                    text = f"{operation}(current, {operand})"
                current = eval(text, None, {**named, "current": current})
            assert found == current


def test_problems_are_the_same_on_every_machine_and_their_tests_are_of_the_described_function():
    (first,) = problems(1)
    assert first["problem"] == FIRST
    assert first["tests"][0] == FIRST_TEST
    assert rewards([RIGHT, WRONG], 2 * [first["tests"]]) == [1.0, 0.0]


def test_train_grades_programs_by_their_tests(tmp_path):
    """One step of the real loop. Each reward matches its program, and the model is updated."""
    size = ["--steps", "1", "--prompts", "8", "--group-size", "4", "--mini-batch", "4"]
    sets = ["--data", "toy-code-held-out", "--eval-data", ""]  # fewer problems than toy-code
    train.main(["--model", "toy-code", *sets, "--output-dir", str(tmp_path), *size])

    (row,) = read_lines(tmp_path / "metrics.jsonl")
    assert row["truncated"] < 0.5
    assert row["grad_norm"] > 0
    samples = read_lines(tmp_path / "samples.jsonl")
    assert len(samples) == 4 * 2  # of four groups
    tests = {each["problem"]: each["tests"] for each in problem_set("toy-code-held-out")}
    for sample in samples:
        assert [sample["reward"]] == rewards([sample["response"]], [tests[sample["problem"]]])
