"""Tests programs/problems.py: rows of known data sets, and the user's tests."""

import base64
import json
import pickle
import zlib

import pytest

from programs import ProgramsError, problems
from programs.problems import LAYOUTS, checked_tests
from programs.verify_code import run_tests


def packed(tests: list[dict]) -> str:
    """Tests in LiveCodeBench's format for private tests."""
    return in_base64(zlib.compress(pickle.dumps(json.dumps(tests))))


def in_base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def eurus(truth: str) -> dict:
    chat = [{"role": "system", "content": "Think."}, {"role": "user", "content": "Add."}]
    return {"prompt": chat, "ability": "code", "reward_model": {"ground_truth": truth}}


def livecodebench(public: str, private: str, name: str = "") -> dict:
    starter = f"class Solution:\n    def {name}(self, a: int, b: int) -> int:\n" if name else ""
    return {
        **{"question_content": "Add.", "starter_code": starter},
        **{"public_test_cases": public, "private_test_cases": private},
        "metadata": json.dumps({"func_name": name} if name else {}),
    }


STREAM = {"input": "5 6", "output": "11", "testtype": "stdin"}
CALL = {"input": "5\n6", "output": "11", "testtype": "functional"}
ADD_STREAMS = "a, b = map(int, input().split())\nprint(a + b)"
ADD = "def add(a, b): return a + b"
ADD_METHOD = "class Solution:\n    def add(self, a, b): return a + b"
HUMANEVAL = (
    "import numpy as np\n\ndef check(candidate):\n    inputs = [[3, 4], [5, 6]]\n"
    "    for inp, exp in zip(inputs, [7, 11]):\n        assert np.allclose(candidate(*inp), exp)\n"
)
MBPP = "for inp, exp in zip([[3, 4], [5, 6]], [7, 11]):\n    assert math.isclose(add(*inp), exp)\n"
ROWS = {  # name -> (row, words of its prompt, number of tests, rules, right program)
    "Eurus, streams": (
        eurus(json.dumps({"inputs": ["3 4\n", "5 6\n"], "outputs": ["7\n", ["11"]]})),
        *("Think.\nAdd.", 2, None, ADD_STREAMS),
    ),
    "Eurus, a function": (
        eurus(json.dumps({"fn_name": "add", "inputs": [[3, 4], [1, 1]], "outputs": [[7], 2]})),
        *("Add.", 2, None, ADD),
    ),
    "HumanEval+": (
        {"prompt": "def add(a: int):\n    '''Sum.'''\n", "entry_point": "add", "test": HUMANEVAL},
        *("```python\ndef add(a: int):", 1, "evalplus", ADD),
    ),
    "MBPP+": (
        {"prompt": "Sum.", "test": MBPP, "test_list": ["assert add(3, 4) == 7", "?"]}
        | {"test_imports": ["import math"]},
        *("Sum.\nYour program should pass this test:\nassert add(3, 4) == 7", 1, "evalplus", ADD),
    ),
    "MBPP+, a builtin's name": (
        {"prompt": "Sum.", "test": MBPP.replace("add", "sum"), "test_imports": ["import math"]}
        | {"test_list": ["assert sum(3, 4) == 7"]},
        *("Sum.", 1, "evalplus", ADD.replace("add", "sum")),
    ),
    "LiveCodeBench, streams": (
        livecodebench(json.dumps([STREAM]), packed([STREAM])),
        *("standard input", 2, "livecodebench", ADD_STREAMS),
    ),
    "LiveCodeBench, a method": (
        livecodebench(json.dumps([CALL]), json.dumps([CALL]), "add"),
        *("class Solution:", 2, "livecodebench", ADD_METHOD),
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_known_rows_become_prompts_and_tests(name):
    row, words, count, rules, right = ROWS[name]
    (read,) = [read for columns, read in LAYOUTS if set(columns) <= set(row)]
    problem = read(row, 0)
    assert words in problem["problem"] and "?" not in problem["problem"]
    assert {test.get("rules") for test in problem["tests"]} == {rules}
    assert run_tests(right, problem["tests"]).passed == count == len(problem["tests"])
    assert run_tests(right.replace("a + b", "a - b"), problem["tests"]).passed == 0
    if "Eurus" in name:
        assert problem["chat"] == row["prompt"]


class Evil:
    def __reduce__(self):
        return print, ("called",)


WHOLE = packed([STREAM])
PICKLED = zlib.decompress(base64.b64decode(WHOLE))
DAMAGED = {
    "a call": zlib.compress(pickle.dumps(Evil())),
    "truncated": zlib.compress(PICKLED[:-9]),
    "a memo with 2 ** 31 entries": zlib.compress(b"\x80\x02r\xff\xff\xff\x7f."),
    "not base64": "\u0663",
    "tests without an output": packed([{"input": "5 6", "testtype": "stdin"}]),
    "a lone surrogate": json.dumps([STREAM | {"output": "\udfff"}]),
    "a deeply nested list": "[" * 10**5,
}


def test_unreadable_tests_leave_a_row_without_tests():
    for name, content in DAMAGED.items():
        private = in_base64(content) if isinstance(content, bytes) else content
        row = livecodebench(json.dumps([STREAM]), private)
        assert problems.livecodebench_problem(row, 0)["tests"] == [], name
    nan = json.dumps({"fn_name": "f", "inputs": [[1]], "outputs": [[float("nan")]]})
    for truth in ("no JSON", "7", nan):
        assert problems.eurus_problem(eurus(truth), 0)["tests"] == []


GOOD = [
    {"input": "1", "output": "2", "rules": "livecodebench"},
    {"function": "f", "args": [], "expected": float("inf"), "or": [1]},
    {"script": "assert f()", "entry_point": "f"},
]
BAD = {  # a cell -> the reason
    "x = 1": "is not valid JSON",
    '[{"input": "1", "output": "2"}, {"a": 1}]': "test 2, is not a dictionary with one of",
    '[{"output": "2"}]': "unknown or mistyped input: with output write input, output, rules",
    '[{"input": "1", "output": "\\ud800"}]': "surrogates not allowed",
    '[{"function": "f", "args": [], "expected": [{"a": NaN}]}]': "expects NaN",
    '[{"script": "assert f("}]': "cannot be run .'.' was never closed",
    '[{"input": "1", "output": "2", "rules": "x"}]': "unknown rules: use livecodebench, evalplus",
}


def test_checked_tests_names_the_flaw():
    assert checked_tests(GOOD, "row 1") == checked_tests(json.dumps(GOOD), "row 1") == GOOD
    assert checked_tests(None, "row 1") == []
    for cell, reason in BAD.items():
        with pytest.raises(ProgramsError, match=f"^row 1.*{reason}") as found:
            checked_tests(cell, "row 1")
        assert "\n" not in str(found.value)
