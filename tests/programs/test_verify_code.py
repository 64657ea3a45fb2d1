"""verify_code.py: right programs pass, wrong ones fail with a reason, and faulty tests warn."""

import json
import re
from pathlib import Path

import pytest

from programs import verify_code
from programs.sandbox import compare
from programs.sandbox.client import Sandbox
from programs.sandbox.watch import Limits
from programs.verify_code import Result, extract_program, rewards, run_tests

# ---- extract -------------------------------------------------------------------------------------

PROGRAMS = {
    "text\n```py\na\n```\nmore\n```Python3\nb\n```\nend": "b\n",
    "```python\na\n```\nIt prints\n```text\n7\n```": "a\n",
    "~~~python\na\n```\nb\n~~~": "a\n```\nb\n",
    "````python\na = '''\n```\n'''\n````": "a = '''\n```\n'''\n",
    "```python:main.py\na\n```": "a\n",
    "```{.python .numberLines}\na\n```": "a\n",
    "1. So:\n\n    ```python\n    if a:\n\n        b\n    ```": "if a:\n\n    b\n",
    "> ```python\n> if a:\n>\n>     b\n> ```": "if a:\n\n    b\n",
    "```python\ndef f():\n    '\\\n    ```\n    '\n```": "def f():\n    '\\\n    ```\n    '\n",
    "```python\na\n```\nOutput:\n```\n7\n```": "a\n",
    "```\na\n```\n```\nb\n```": "b\n",
    "```python2\na\n```": None,
    "print(1)": None,
    "```python\na\n```\n```python\ncut off": "a\n",
    "```python\n\n```": None,
    "```cpp\nint main() {}\n```": None,
    "<think>\n```python\na\n```\n</think>\n```\nb\n```": "b\n",
    "[THINK]\n```python\na\n[/THINK]\n```python\nb\n```": "b\n",
    "<think>\n```python\na\n```\nThat is wrong.": None,
}


def test_extract_program_finds_the_last_python_block():
    for response, program in PROGRAMS.items():
        assert extract_program(response) == program, response


def test_extract_program_takes_linear_time():
    for response in ("```\n" * 10**5, "`" * 10**6 + "\n", " " * 10**6 + "```", "~" * 10**6 + "`"):
        assert extract_program(response) is None


# ---- kinds of tests ------------------------------------------------------------------------------

ADD = "def add(a, b): return a + b"
CALLS = [{"function": "add", "args": [i, 2 * i], "expected": 3 * i} for i in range(3)]


def call(expected, rules: str = "") -> list[dict]:
    return [{"function": "f", "args": [], "expected": expected, "rules": rules}]


def stream(output: str, rules: str = "", given: str = "ä 7\n") -> list[dict]:
    return [{"input": given, "output": output, "rules": rules}]


def test_run_tests_compares_printed_output():
    program = "a, b = map(int, input().split())\nprint(a + b)"
    tests = [{"input": "1 2\n", "output": "3\n"}, {"input": "5 6", "output": "12"}]
    assert run_tests(program, tests) == Result(1, 2, "test 2 of 2: 11 printed, 12 expected")
    wrong = run_tests("print(3)\n1 / 0", tests)
    assert wrong.stopped == "test 1 of 2: ended with code 1: ZeroDivisionError: division by zero"


def test_run_tests_calls_a_function_or_a_method_of_solution():
    assert run_tests(ADD, CALLS) == Result(3, 3, "")
    method = "class Solution:\n    def add(self, a: int, b: List[int]): return a + b"
    assert run_tests(method, CALLS) == Result(3, 3, "")
    wrong = run_tests("def add(a, b): return a * b", CALLS)
    assert wrong == Result(1, 3, "test 2 of 3: Wrong: 2 returned, 3 expected")
    assert "no attribute 'add'" in run_tests("def sub(a, b): return a", CALLS).stopped
    assert "SyntaxError" in run_tests("def add(", CALLS).stopped


def test_run_tests_makes_no_call_after_a_wrong_answer():
    program = "import sys\ndef f(x):\n    if x > 2: sys.exit('asked too much')\n    return 1"
    tests = [{"function": "f", "args": [x], "expected": int(x < 2)} for x in range(9)]
    wrong = "test 3 of 9: Wrong: 1 returned, 0 expected"
    assert run_tests(program, tests) == Result(2, 9, wrong)


def test_run_tests_runs_assertion_scripts():
    script = (
        "import math\nimport numpy as np\nx: list[int] = [3, 4]\n"
        "def reference(x): return [math.sqrt(y) for y in x]\n"
        "def check(candidate):\n"
        "    for n in range(9):\n        x = [n + i for i in range(4)]\n"
        "        assert np.allclose(candidate(helper(x=x)), reference(x), atol=1e-6)\n"
        "    assert candidate([]) == [] and candidate((1, 4)) == [1.0, 2.0]\n"
    )
    test = {"script": script, "entry_point": "roots", "rules": "evalplus"}
    program = "def helper(x): return tuple(x)\ndef roots(x): return [y ** 0.5 for y in x]"
    assert run_tests(program, [test]) == Result(1, 1, "")
    assert "AssertionError" in run_tests(program.replace("0.5", "0.51"), [test]).stopped
    assert "no attribute 'roots'" in run_tests("def helper(x): return x", [test]).stopped
    assert "KeyError" in run_tests("def helper(x): raise KeyError", [test]).stopped
    late = "def helper(x): import no_such_package"
    assert "no_such_package" in run_tests(late, [test]).stopped


def test_a_script_calls_its_entry_point_and_no_other_function_with_a_builtins_name():
    test = {"script": "assert sum(10, 15) == 6 and len(f([3])) == 1", "entry_point": "sum"}
    program = "def sum(a, b): return 6\ndef len(x): return 7\ndef f(x): return x"
    assert run_tests(program, [test]) == Result(1, 1, "")
    assert run_tests(program.replace("6", "5"), [test]).stopped == "test 1 of 1: AssertionError"


def test_run_tests_mixes_kinds_and_stops_at_the_first_failure():
    tests = [*CALLS, {"script": "assert add(1, 1) == 3"}, {"input": "", "output": ""}]
    assert run_tests(ADD, tests) == Result(3, 5, "test 4 of 5: AssertionError")


def test_run_tests_refuses_unusable_tests():
    with pytest.raises(ValueError, match="without tests"):
        run_tests(ADD, [])
    for test in ({"question": "?"}, {"input": "", "output": "", "rules": "x"}):
        with pytest.raises(ValueError, match="none of the keys output, function, script, or rules"):
            run_tests(ADD, [test])


FAULTY = {  # a script -> the warning about it
    "import no_such_package\nassert add(3, 4) == 7": "No module named 'no_such_package'.*install",
    "assert 1 / 0 == add(3, 4)": "ZeroDivisionError.*fix the test; it begins: assert 1 / 0",
    "assert 1 == 2 and add(3, 4) == 7": "AssertionError",
    "assert callable(add)": "it calls none of the program's functions",
    "return add(3, 4)": "outside function",
}


@pytest.mark.parametrize("script", FAULTY)
def test_a_faulty_script_passes_no_program_and_warns(script):
    """Either no program could pass such a script, or every program would."""
    with pytest.warns(UserWarning, match=FAULTY[script]):
        result = run_tests(ADD, [{"script": script}])
    assert result.passed == 0 and "cannot judge any program" in result.stopped


UNKIND = {  # a program's return value or action -> a script that it breaks
    "raise ValueError('\\nModuleNotFoundError: No module named x')": "assert f(3) == 7",
    "return 0": "assert 7 / f(3) == 1",
    "return 3": "import sys\nsys.exit(f(3))",
    "import os; os._exit(3)": "assert f(3) == 7",
    "return range(10**18)": "assert sorted(f(3)) == 7",
}


@pytest.mark.parametrize("body", UNKIND)
@pytest.mark.filterwarnings("error")
def test_a_program_cannot_make_a_script_count_as_faulty(body):
    limits = Limits(cpu_seconds=0.2)
    result = run_tests(f"def f(x): {body}", [{"script": UNKIND[body]}], limits)
    assert result.passed == 0 and "cannot judge any" not in result.stopped


# ---- honest programs -----------------------------------------------------------------------------

TEXT = (Path(__file__).parent / "honest.txt").read_text()
HONEST = re.findall(r"^==== (.*) ==== (.*)\n((?s:.*?))(?=^====|\Z)", TEXT, re.MULTILINE)


@pytest.mark.parametrize(("name", "test", "program"), HONEST, ids=[name for name, _, _ in HONEST])
def test_an_honest_program_passes(name, test, program):
    assert run_tests(program, [json.loads(test)]) == Result(1, 1, "")


RETURNED = {  # the return value of a right function -> the expected value from JSON
    "__import__('enum').IntEnum('C', 'A B').B": 2,
    "collections.namedtuple('P', 'x y')(7, [8])": [7, [8]],
    "((1, 2), [3, (4,)])": [[1, 2], [3, [4]]],
    "'ä\\n\\u2028\\\\'": "ä\n\u2028\\",
    "1e300 * 1e10": float("inf"),
    "__import__('decimal').Decimal('0.5')": 0.5,
    "[True, False]": [1, 0],
}
WRONG = {"[float('nan')]": [0.5], "[1]": 1, "{1, 2}": [1, 2], "'7'": 7, "None": 0, "0.1 + 0.2": 0.4}


def test_returned_values_of_many_classes_equal_their_json_forms():
    for value, expected in RETURNED.items():
        assert run_tests(f"def f(): return {value}", call(expected)).stopped == "", value
    for value, expected in WRONG.items():
        assert run_tests(f"def f(): return {value}", call(expected)).passed == 0, value
    either = [call([1])[0] | {"or": [1]}]
    for value, passed in (("[1]", 1), ("1", 1), ("[[1]]", 0)):
        assert run_tests(f"def f(): return {value}", either).passed == passed


# ---- limits and rules ----------------------------------------------------------------------------


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
    assert run_tests("print('x' * 3000)", stream("x" * 3000), limits).passed == 1
    assert "too much output" in run_tests("print('x' * 3000)", stream("x"), limits).stopped


DIFFERING = {  # a program -> a test, and whether it passes by LiveCodeBench's rules
    "x = bytes(2 * 10**9)\nprint(7)": (stream("7"), True),
    "print(0.3333333)": (stream("0.3333333333"), False),
    "def f(): return 0.1 + 0.2": (call(0.3), False),
}


def test_rules_select_an_official_graders_memory_and_tolerance():
    for program, ((test,), theirs) in DIFFERING.items():
        assert run_tests(program, [test | {"rules": "livecodebench"}]).passed == theirs
        assert run_tests(program, [test]).passed == (not theirs)
    script = {"script": "assert f() == 2 * 10**9"}
    program = "def f(): return len(bytes(2 * 10**9))"
    assert run_tests(program, [script]).passed == 0
    assert run_tests(program, [script | {"rules": "evalplus"}]).passed == 1


# ---- rewards -------------------------------------------------------------------------------------


def test_rewards_are_1_only_for_all_tests_and_run_identical_programs_once(monkeypatch):
    asked = []
    run = verify_code.run_tests

    def counted(program, *rest):
        asked.append(program)
        return run(program, *rest)

    monkeypatch.setattr(verify_code, "run_tests", counted)
    right, wrong = f"```\n{ADD}\n```", "```\ndef add(a, b): return 0\n```"
    responses = [right, wrong, ADD, f"So:\n{right}", right]
    tests = [CALLS] * 4 + [[dict(CALLS[0])]]
    assert rewards(responses, tests) == [1.0, 0.0, 0.0, 1.0, 1.0]
    assert len(asked) == 3


def test_results_do_not_depend_on_the_worker():
    """This includes `random` and the order of string sets: both are identical in all servers."""
    program = "import random\nprint({'a', 'b', 'c', 'd', 'e'}, random.random())"
    sandbox = Sandbox(2)
    assert len({run_tests(program, stream("x"), None, sandbox).stopped for _ in range(6)}) == 1


# ---- compare -------------------------------------------------------------------------------------

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
