"""Tests verify_code.py: right programs pass, wrong ones fail with a reason, faulty tests warn."""

import json
import re
import shutil
import subprocess
import sys
import warnings
from unittest.mock import patch

import pytest
from conftest import ROOT
from listed import listed

from programs import verify_code
from programs.sandbox import compare
from programs.sandbox.client import Sandbox
from programs.sandbox.watch import Limits
from programs.verify_code import Result, extract_program, rewards, run_tests

BLOCKS = listed("blocks.txt")


@pytest.mark.parametrize("name", BLOCKS)
def test_extract_program_finds_the_last_python_block(name):
    response, _, program = BLOCKS[name][0].partition("\n----\n")
    assert extract_program(response) == (program or None)


def test_extract_program_takes_linear_time():
    for response in ("```\n" * 10**5, "`" * 10**6 + "\n", " " * 10**6 + "```", "~" * 10**6 + "`"):
        assert extract_program(response) is None
    assert extract_program('"""\n' + "```\n" * 10**5) is None
    assert extract_program("```" + " " * 10**6 + "x\n```") is None


ADD = "def add(a, b): return a + b"
CALLS = [{"function": "add", "args": [i, 2 * i], "expected": 3 * i} for i in range(3)]
RESULTS = listed("results.txt")


@pytest.mark.parametrize("name", RESULTS)
def test_run_tests_stops_at_the_first_failure(name):
    """A warning names a script that no program could pass, or that every program would pass."""
    passed, *reason, text = RESULTS[name]
    lines = text.split("\n")
    tests = [json.loads(line) for line in lines if line.startswith("{")]
    with warnings.catch_warnings(action="always", record=True) as warned:
        result = run_tests("\n".join(line for line in lines if not line.startswith("{")), tests)
    assert (result.passed, result.total) == (int(passed), len(tests)), result
    assert reason[0] in result.stopped if reason else result.stopped == ""
    assert bool(warned) == ("cannot judge any program" in result.stopped)


def test_run_tests_refuses_unusable_tests():
    with pytest.raises(ValueError, match="without tests"):
        run_tests(ADD, [])
    for test in ({"question": "?"}, {"input": "", "output": "", "rules": "x"}):
        with pytest.raises(ValueError, match="keys output, function, script, or its rules are not"):
            run_tests(ADD, [test])


UNKIND = {  # a program's return value or action -> a script that it breaks
    "raise ValueError('\\nModuleNotFoundError: No module named x')": "assert f(3) == 7",
    "return 0": "assert 7 / f(3) == 1",
    "return 3": "import sys\nsys.exit(f(3))",
    "import os; os._exit(3)": "assert f(3) == 7",
    "return range(10**18)": "assert sorted(f(3)) == 7",
}


@pytest.mark.parametrize("body", UNKIND)
def test_a_program_cannot_make_a_script_count_as_faulty(body):
    limits = Limits(cpu_seconds=0.2)
    result = run_tests(f"def f(x): {body}", [{"script": UNKIND[body]}], limits)
    assert result.passed == 0 and "cannot judge any" not in result.stopped


HONEST = listed("honest.txt")


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_program_passes(name):
    test, program = HONEST[name]
    assert run_tests(program, [json.loads(test)]) == Result(1, 1, "")


def test_limits_hold_for_each_call_and_grow_with_the_expected_output():
    program = "import time\ndef f(x):\n    end = time.process_time() + 0.2\n"
    program += "    while time.process_time() < end: pass\n    return x"
    calls = [{"function": "f", "args": [x], "expected": x} for x in range(4)]
    assert run_tests(program, calls, Limits(cpu_seconds=0.5)) == Result(4, 4, "")
    asleep = program.replace("process_time", "monotonic").replace("pass", "time.sleep(0.1)")
    assert run_tests(asleep, calls, Limits(cpu_seconds=0.1)) == Result(4, 4, "")
    busy = run_tests(program, calls, Limits(cpu_seconds=0.1))
    assert busy == Result(0, 4, "test 1 of 4: more than 0.1 s of CPU time")
    limits = Limits(output_bytes=1000)
    for expected, reason in (("x" * 3000, ""), ("x", "test 1 of 1: too much output")):
        result = run_tests("print('x' * 3000)", [{"input": "", "output": expected}], limits)
        assert result.stopped == reason


def test_rewards_are_1_only_for_all_tests_and_run_identical_programs_once():
    right, wrong = f"```\n{ADD}\n```", "```\ndef add(a, b): return 0\n```"
    responses = [right, wrong, ADD, f"So:\n{right}", right]
    tests = [CALLS] * 4 + [[dict(CALLS[0])]]
    with patch.object(verify_code, "run_tests", wraps=run_tests) as runs:
        assert rewards(responses, tests) == [1.0, 0.0, 0.0, 1.0, 1.0]
    assert runs.call_count == 3


def test_results_do_not_depend_on_the_worker():
    """`random` and the order of a set of strings, too, are identical in all servers."""
    program = "import random\nprint({'a', 'b', 'c', 'd', 'e'}, random.random())"
    test = [{"input": "", "output": "x"}]
    sandbox = Sandbox(2)
    assert len({run_tests(program, test, None, sandbox).stopped for _ in range(6)}) == 1


ONES = "1" * 5000
SAME_OUTPUT = {
    **{"3 \n\n": "3", "1  2\n3\n": "1 2\n3", "0.33333334": "0.3333333333", "3.0": "3"},
    **{"1000000.5": "1000000.0", "1e3": "1000.0", "03": "3", "": "\n", f"{ONES}.0": ONES},
}
OTHER_OUTPUT = {
    **{"3\n4": "3 4", "3\n\n4": "3\n4", "3.0000001": "3", "0.334": "0.3333", "yes": "Yes"},
    **{"1000000000000000000008": "1000000000000000000007", "nan": "0.5", "inf": "0.5"},
    **{"1_000.0": "1000.0", "": "3", "0x3": "3", "٣": "3", f"{ONES}.1": ONES, "7.5\0": "7.5"},
}


def test_same_output_agrees_by_line_and_token():
    for output, expected in SAME_OUTPUT.items():
        assert compare.same_output(output, expected, compare.TOLERANCE), output
    for output, expected in OTHER_OUTPUT.items():
        assert not compare.same_output(output, expected, compare.TOLERANCE), output


N = 400_000
LONG = [  # printed texts that an unlucky comparison would read for minutes
    *("9" * N + "x", "1" * N + "." + "1" * N + ".", "-" * N + "1", "9" * N + "e9999"),
    *("0." + "0" * N + "1", "1e1" * N, "7.5" + "\n" * N + "7.5", " " * N + "7.6"),
]


def test_same_output_takes_linear_time():
    for output in LONG:
        assert not compare.same_output(output, "7.5", compare.TOLERANCE)
    assert not compare.same_output("1e9999 " * 50_000, "7.5 " * 50_000, compare.TOLERANCE)


SAME_VALUES = [
    *[((1, [2, 3]), [1, [2, 3]]), (1, 1.0), (1.0, 1), (0.1 + 0.2, 0.3), ({"a": (1,)}, {"a": [1]})],
    *[({1: 2}, {"1": 2}), (None, None), ("a", "a"), (2**70, 2**70), (True, 1), ([1, 0.0], [1, 0])],
    (float("inf"), float("inf")),
]
OTHER_VALUES = [
    *[(True, 0), (2, True), (True, "True"), (None, 0), ([1], 1), ({1, 2}, [1, 2]), ("1", 1)],
    *[(0.31, 0.3), (float("nan"), 0.5), ({"a": 1}, {"a": 1, "b": 2}), ({True: 1}, {"True": 1})],
    *[([1, 2], [1, 2, 3]), (0.5, float("inf")), (0, float("inf")), (float("-inf"), float("inf"))],
    *[(object(), "object"), (10**400, float("inf")), ({1: "a", "1": "b"}, {"1": "b"})],
]


def test_same_value_agrees_with_json():
    for value, gold in SAME_VALUES:
        assert compare.same_value(value, gold, compare.TOLERANCE), value
    for value, gold in OTHER_VALUES:
        assert not compare.same_value(value, gold, compare.TOLERANCE), value


def test_a_copy_under_another_name_runs_its_readme_example(tmp_path):
    """The copy stands beside answers/thoughts.py, which it needs."""
    shutil.copytree(ROOT / "programs", tmp_path / "judge")
    (tmp_path / "answers").mkdir()
    shutil.copy(ROOT / "answers" / "thoughts.py", tmp_path / "answers")
    example = (ROOT / "programs/README.md").read_text().split("```python\n")[1].split("```\n")[0]
    promised = re.findall(r"^# (.*)$", example, re.MULTILINE)
    command = [sys.executable, "-c", example.replace("from programs.", "from judge.")]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert run.stdout.splitlines() == promised and promised, run.stderr
