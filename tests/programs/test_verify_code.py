"""verify_code.py: extracting programs, running tests, comparing values."""

from decimal import Decimal
from fractions import Fraction

import pytest

import grading
from programs import verify_code
from programs.sandbox import compare
from programs.sandbox.client import Limits
from programs.sandbox.compare import TOLERANCE
from programs.sandbox.values import packed
from programs.verify_code import (
    Result,
    extract_program,
    reward,
    rewards,
    run_tests,
)

# ---- extract -------------------------------------------------------------------------------------

PROGRAMS = {
    "```python\nprint(1)\n```": "print(1)\n",
    "```\nprint(1)\n```": "print(1)\n",
    "text\n```py\na\n```\nmore\n```Python3\nb\n```\nend": "b\n",
    "```python\na\n```\nIt prints\n```text\n7\n```": "a\n",
    "```python\na\n```\nRun it:\n```bash\npython a.py\n```\n": "a\n",
    "~~~python\na\n```\nb\n~~~": "a\n```\nb\n",
    "````python\na = '''\n```\n'''\n````": "a = '''\n```\n'''\n",
    "  ```python  title\n  a\n  ```": "a\n",
    "```python:main.py\na\n```": "a\n",
    "```{python}\na\n```": "a\n",
    "```{.python .numberLines}\na\n```": "a\n",
    "```python3.11\na\n```": "a\n",
    "1. So:\n\n    ```python\n    if a:\n\n        b\n    ```": "if a:\n\n    b\n",
    "> ```python\n> if a:\n>\n>     b\n> ```": "if a:\n\n    b\n",
    "    ```python\na\n    ```": "a\n",
    "```python\ndef f():\n    '\\\n    ```\n    '\n```": "def f():\n    '\\\n    ```\n    '\n",
    "```python\na\n```\nOutput:\n```\n7\n```": "a\n",
    "```\n7\n```\n```python\na\n```": "a\n",
    "```\na\n```\n```\nb\n```": "b\n",
    "```pycon\n>>> a\n```": None,
    "```python-repl\n>>> a\n```": None,
    "```python2\na\n```": None,
    "```pypy\na\n```": None,
    "```python\r\na\r\n```": "a\r\n",
    "no program": None,
    "print(1)": None,
    "`print(1)`": None,
    "```python print(1)```": None,
    "```python\ncut off": None,
    "```python\na\n```\n```python\ncut off": "a\n",
    "```python\n\n```": None,
    "```cpp\nint main() {}\n```": None,
    "": None,
}


@pytest.mark.parametrize("response", PROGRAMS)
def test_extract_program(response):
    assert extract_program(response) == PROGRAMS[response]


def test_extract_program_terminates_on_hostile_responses():
    assert extract_program("```python\n" + "x" * 10**6 + "\n```") is None
    assert extract_program("```" * 10**5) is None
    assert extract_program("```\n" * 10**5) is None
    assert extract_program("`" * 10**6 + "\n") is None
    assert extract_program(" " * 10**6 + "```") is None
    assert extract_program("~" * 10**6 + "`") is None
    assert extract_program("```" + " " * 10**6 + "`") is None
    assert extract_program("~~~" + "x~" * 10**6 + "`") is None
    assert extract_program("> " * 10**6) is None
    assert extract_program("> " * 10**5 + "```\n" + "> " * 10**4 + "7\n```") is not None


# ---- run -----------------------------------------------------------------------------------------

ADD = "def add(a, b): return a + b"
CALLS = [{"function": "add", "args": [i, 2 * i], "expected": 3 * i} for i in range(3)]


def test_standard_input_and_output():
    program = "a, b = map(int, input().split())\nprint(a + b)"
    tests = [{"input": "1 2\n", "output": "3\n"}, {"input": "5 6", "output": "11"}]
    assert run_tests(program, tests) == Result(2, 2, "")
    tests[1]["output"] = "12"
    assert run_tests(program, tests) == Result(1, 2, "test 2 of 2: 11 printed, 12 expected")


def test_calls_to_a_function_or_a_method_of_solution():
    assert run_tests(ADD, CALLS) == Result(3, 3, "")
    method = "class Solution:\n    def add(self, a: int, b: List[int]): return a + b"
    assert run_tests(method, CALLS) == Result(3, 3, "")
    wrong = run_tests("def add(a, b): return a * b", CALLS)
    assert wrong == Result(1, 3, "test 2 of 3: 2 returned, 3 expected")
    assert "no function add" in run_tests("def sub(a, b): return a", CALLS).stopped


RETURNED = {  # the return value of a correct function -> the expected value from JSON
    "numpy.int64(7)": 7,
    "numpy.float32(1.5)": 1.5,
    "numpy.bool_(True)": True,
    "numpy.str_('7')": "7",
    "numpy.array([[7, 1.0]])": [[7, 1]],
    "[numpy.int64(1), numpy.float64(2)]": [1, 2.0],
    "enum.IntEnum('C', 'A B').B": 2,
    "enum.Enum('C', {'A': '7'}, type=str).A": "7",
    "collections.namedtuple('P', 'x y')(7, [8])": [7, [8]],
    "collections.defaultdict(list, {3: [7]})": {"3": [7]},
    "collections.Counter('aab')": {"a": 2, "b": 1},
    "((1, 2), [3, (4,)])": [[1, 2], [3, [4]]],
    "'ä\\n\\u2028\\\\'": "ä\n\u2028\\",
    "1e300 * 1e10": float("inf"),
    "10**30": 10**30,
}


@pytest.mark.parametrize("value", RETURNED)
def test_values_of_many_classes_equal_their_json_forms(value):
    imports = "import collections, enum\n" + "import numpy\n" * value.count("numpy.", 0, 9)
    call = {"function": "f", "args": [], "expected": RETURNED[value]}
    assert run_tests(f"{imports}def f(): return {value}", [call]) == Result(1, 1, "")


def test_a_function_may_return_any_of_several_expected_values():
    call = {"function": "f", "args": [[1]], "expected": [1], "or": [1]}
    for program, passed in (("return x", 1), ("return x[0]", 1), ("return [x]", 0)):
        assert run_tests(f"def f(x): {program}", [call]).passed == passed


def test_assertion_scripts():
    assert run_tests(ADD, [{"script": "assert add(3, 4) == 7"}]) == Result(1, 1, "")
    assert "AssertionError" in run_tests(ADD, [{"script": "assert add(3, 4) == 8"}]).stopped
    missing = run_tests("x = 1", [{"script": "assert add(3, 4) == 7"}])
    assert "no function add" in missing.stopped
    wrong = run_tests("def add(a, b): 1 / 0", [{"script": "assert add(3, 4) == 7"}])
    assert "add raised ZeroDivisionError" in wrong.stopped
    assert "SyntaxError" in run_tests("def add(", [{"script": "assert add(3, 4) == 7"}]).stopped


def test_a_script_may_compute_what_it_expects_and_call_several_functions():
    script = (
        "import math\nimport numpy as np\n"
        "def reference(x): return [math.sqrt(y) for y in x]\n"
        "def check(candidate):\n"
        "    for n in range(50):\n"
        "        x = [n + i for i in range(4)]\n"
        "        assert np.allclose(candidate(helper(x)), reference(x), atol=1e-6)\n"
        "    assert candidate([]) == [] and candidate((1, 4)) == [1.0, 2.0]\n"
    )
    test = {"script": script, "entry_point": "roots"}
    program = "def helper(x): return tuple(x)\ndef roots(x): return [y ** 0.5 for y in x]"
    assert run_tests(program, [test]) == Result(1, 1, "")
    worse = program.replace("0.5", "0.51")
    assert "AssertionError" in run_tests(worse, [test]).stopped


FAULTY = {  # a script -> the warning about it
    "import no_such_package\nassert add(3, 4) == 7": "No module named 'no_such_package'.*install",
    "def late():\n    import no_such\nassert add(3, 4) == 7\nlate()": "No module named 'no_such'",
    "assert 1 / 0 == add(3, 4)": "ZeroDivisionError.*fix the test; it begins: assert 1 / 0",
    "import math\nassert math.no_such(3) == add(3, 4)": "no attribute 'no_such'",
    "assert 1 == 2 and add(3, 4) == 7": "AssertionError",
    "assert add(3, lambda x: x) == 7": "add takes only plain values",
    "import sys\nsys.exit(1)": "cannot judge any program",
    "def check(add): assert add(3, 4) == 8": "it calls none of the program's functions",
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
    "return '\\nModuleNotFoundError: No module named x'": "import os\nassert f(3) == 7, f(3)",
    "return '7'": "assert f(3) + 1 == 8",
    "return 0": "assert 7 / f(3) == 1",
    "return object()": "assert f(3).size == 7",
    "return print": "assert f(f(3)) == 7",
    "return 3": "import sys\nsys.exit(f(3))",
    "import os; os._exit(3)": "assert f(3) == 7",
    "raise SystemExit(3)": "assert f(3) == 7",
}


@pytest.mark.parametrize("body", UNKIND)
@pytest.mark.filterwarnings("error")
def test_a_program_cannot_make_a_script_count_as_faulty(body):
    result = run_tests(f"def f(x): {body}", [{"script": UNKIND[body]}])
    assert result.passed == 0 and "cannot judge" not in result.stopped


def test_a_missing_function_counts_against_the_program():
    lacking = f"import no_such_package\n{ADD}"
    assert "ModuleNotFoundError" in run_tests(lacking, [{"script": "assert add(3, 4)"}]).stopped
    late = "def add(a, b): import no_such_package"
    assert "ModuleNotFoundError" in run_tests(late, [{"script": "assert add(3, 4)"}]).stopped


def test_scripts_may_use_keyword_arguments_and_annotations():
    script = "x: list[int] = [3, 4]\nassert add(a=x[0], b=4) == add(3, b=x[1]) == 7"
    assert run_tests(ADD, [{"script": script}]) == Result(1, 1, "")
    wrong = run_tests(ADD, [{"script": "assert add(a=3, c=4) == 7"}]).stopped
    assert "unexpected keyword arg" in wrong


def test_a_program_receives_copies_of_a_scripts_arguments():
    """A program that changes its arguments does not affect the script."""
    script = "x = [2, 1]\nassert f(x) == sorted(x) == [1, 2]"
    assert run_tests("def f(x):\n    x.clear()\n    return x", [{"script": script}]).passed == 0
    assert run_tests("def f(x):\n    x.sort()\n    return x", [{"script": script}]).passed == 1


ITERATED = {  # the body of f -> a value that f(3) equals, and a value that it does not equal
    "return range(x)": ("range(3)", "[0, 1, 2]"),
    "return map(int, '012')": ("[0, 1, 2]", None),
    "yield from range(x)": ("[0, 1, 2]", None),
    "import numpy; return numpy.arange(x)": ("[0, 1, 2]", "[0, 1, 3]"),
    "from fractions import Fraction; return Fraction(1, x)": ("Fraction(1, 3)", "1 / 3"),
    "from decimal import Decimal; return Decimal('0.1') * x": ("Decimal('0.3')", "0.3"),
}


@pytest.mark.parametrize("body", ITERATED)
def test_returned_iterables_and_numbers_behave_as_in_python(body):
    right, wrong = ITERATED[body]
    imports = "from fractions import Fraction\nfrom decimal import Decimal\n"
    got = "list(f(3))" if body.startswith(("return map", "yield")) else "f(3)"
    program = f"def f(x):\n    {body}"
    assert run_tests(program, [{"script": f"{imports}assert {got} == {right}"}]).stopped == ""
    assert run_tests(program, [{"script": f"{imports}assert f(3) == {wrong}"}]).passed == 0


def test_values_of_many_types_pass_between_script_and_program():
    script = (
        "assert f((1, 2)) == (1, 2) and f({1, 2}) == {1, 2} and f({(1, 2): [3]}) == {(1, 2): [3]}\n"
        "assert f(None) is None and f(True) is True and f(2 ** 200) == 2 ** 200\n"
        "assert f(1j) == 1j and f(b'a') == b'a' and f(float('inf')) == float('inf')\n"
        "assert f('ä\\ud800') == 'ä\\ud800'\n"
    )
    assert run_tests("def f(x): return x", [{"script": script}]) == Result(1, 1, "")
    found = run_tests("import re\ndef f(x): return re.match('a', x)", [{"script": "assert f('a')"}])
    assert found == Result(1, 1, "")


def test_kinds_may_be_mixed_and_the_first_failure_ends_the_run():
    tests = [*CALLS, {"script": "assert add(1, 1) == 3"}, {"input": "", "output": ""}]
    result = run_tests(ADD, tests)
    assert (result.passed, result.total) == (3, 5)
    assert result.stopped.startswith("test 4 of 5: ")


def test_an_error_after_the_right_output_fails():
    program = "print(3)\n1 / 0"
    result = run_tests(program, [{"input": "", "output": "3"}])
    assert result.stopped == "test 1 of 1: ended with code 1: ZeroDivisionError: division by zero"


def test_missing_and_unknown_tests_raise():
    with pytest.raises(ValueError, match="without tests"):
        run_tests(ADD, [])
    with pytest.raises(ValueError, match="none of the keys"):
        run_tests(ADD, [{"question": "?"}])


# ---- rewards -------------------------------------------------------------------------------------


def test_reward_is_1_only_if_all_tests_pass():
    assert reward(f"So:\n```python\n{ADD}\n```", CALLS) == 1.0
    assert reward("So:\n```python\ndef add(a, b): return 0\n```", CALLS) == 0.0
    assert reward(ADD, CALLS) == 0.0  # not in a block


def test_rewards_run_identical_programs_once(monkeypatch):
    asked = []
    run = verify_code.run_tests

    def counted(program, *rest):
        asked.append(program)
        return run(program, *rest)

    monkeypatch.setattr(verify_code, "run_tests", counted)
    right, wrong = f"```\n{ADD}\n```", "```\ndef add(a, b): return a\n```"
    responses = [right, wrong, "none", right, right]
    others = [dict(CALLS[0])]
    assert rewards(responses, [CALLS] * 4 + [others]) == [1.0, 0.0, 0.0, 1.0, 1.0]
    assert len(asked) == 3
    assert rewards([], []) == []


def test_each_problem_is_graded_by_its_kind():
    responses = ["\\boxed{1/2}", f"```\n{ADD}\n```", "\\boxed{B}", "\\boxed{2}"]
    problems = [
        {"answer": "0.5"},
        {"tests": CALLS},
        {"answer": "B", "choice": True},
        {"answer": "3"},
    ]
    assert grading.grades(responses, problems, [False] * 4) == [1.0, 1.0, 1.0, 0.0]


def test_limits_apply_to_the_program():
    limits = Limits(cpu_seconds=0.3)
    assert "0.3 s of CPU time" in run_tests("while True: pass", [CALLS[0]], limits).stopped


# ---- compare -------------------------------------------------------------------------------------


def same_output(output: str, expected: str) -> bool:
    return compare.same_output(output, expected, TOLERANCE)


def same_value(value, gold) -> bool:
    return compare.same_value(packed(value), packed(gold), TOLERANCE)


SAME_OUTPUT = [
    ("3", "3\n"),
    ("3 \n\n", "3"),
    ("1  2\n3\n", "1 2\n3"),
    ("0.33333334", "0.3333333333"),
    ("1000000.5", "1000000.0"),
    ("1e3", "1000.0"),
    ("3.0", "3"),
    ("03", "3"),
    ("+3", "3"),
    ("Yes", "Yes"),
    ("", "\n"),
    ("-0.0", "0.0"),
    ("\n \n3", "3"),
    ("  3\n4", "\n3\n4"),
]
OTHER_OUTPUT = [
    ("3", "4"),
    ("3\n4", "3 4"),
    ("3\n\n4", "3\n4"),
    ("3.0000001", "3"),
    ("1000000000000000000008", "1000000000000000000007"),
    ("0.334", "0.3333"),
    ("yes", "Yes"),
    ("nan", "0.5"),
    ("inf", "0.5"),
    ("1_000.0", "1000.0"),
    ("", "3"),
    ("3", ""),
    ("0x3", "3"),
    ("3 4", "3"),
    ("٣", "3"),
]


@pytest.mark.parametrize(("output", "expected"), SAME_OUTPUT)
def test_same_output(output, expected):
    assert same_output(output, expected)


@pytest.mark.parametrize(("output", "expected"), OTHER_OUTPUT)
def test_other_output(output, expected):
    assert not same_output(output, expected)


SAME_VALUES = [
    ((1, [2, 3]), [1, [2, 3]]),
    (1, 1.0),
    (1.0, 1),
    (0.1 + 0.2, 0.3),
    ({"a": (1,)}, {"a": [1]}),
    ({1: 2}, {"1": 2}),
    (None, None),
    ("a", "a"),
    (2**70, 2**70),
    (float("inf"), float("inf")),
    (True, 1),
    ([1, 0.0], [True, False]),
]
OTHER_VALUES = [
    (True, 0),
    (2, True),
    (True, "True"),
    (None, 0),
    ([1], 1),
    ({1, 2}, [1, 2]),
    ("1", 1),
    (0.31, 0.3),
    (10**400, 0.5),
    (float("nan"), 0.5),
    (object(), "object"),
    ({"a": 1}, {"a": 1, "b": 2}),
    ({True: 1}, {"True": 1}),
    ([1, 2], [1, 2, 3]),
    (0.5, float("inf")),
    (0, float("inf")),
    (float("-inf"), float("inf")),
    (float("nan"), float("inf")),
    (10**400, float("inf")),
    ({1: "a", "1": "b"}, {"1": "b"}),
]


@pytest.mark.parametrize(("value", "gold"), SAME_VALUES)
def test_same_value(value, gold):
    assert same_value(value, gold)


@pytest.mark.parametrize(("value", "gold"), OTHER_VALUES)
def test_other_value(value, gold):
    assert not same_value(value, gold)


# ---- encoding values -----------------------------------------------------------------------------

VALUES = [
    *(None, True, 7, -(2**63), 2**63, 10**5000, 1.5, float("-inf"), "ä\n", "\ud800"),
    *([], [1, [2]], (), (1, (2,)), set(), {1, "a"}, {}, {1: (2,)}, {(1,): {2: 3}}),
    *(range(3, 9, 2), range(2**63), Fraction(-1, 3), Decimal("-1.50"), Decimal("1E+5")),
    *(b"\x00", 1 + 2j, {"tuple": 1}, {"value": {"error": 2}}),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: str(type(value)))
def test_values_survive_the_round_trip(value):
    back = loads(dumps(value))
    assert back == value and type(back) is type(value)


def test_other_objects_return_as_objects_equal_to_nothing():
    back = loads(dumps([object(), print]))
    assert back != [object(), print] and back[0] != back[0] and bool(back[0])
    assert repr(back) == "[<object>, <builtin_function_or_method>]"


def test_numbers_with_too_many_digits_are_not_numbers():
    for number in (Fraction(1, 10**60), Fraction(10**60), Fraction(10**4000, 7)):
        assert repr(loads(dumps(number))) == "<Fraction>"
    for text in ("NaN", "-Infinity", "sNaN", "1e60", "1e-61", "1e999999"):
        assert repr(loads(dumps(Decimal(text)))) == "<Decimal>"


BAD = ["", "{", "7", "[]", '{"value": 1, "error": 2}', '{"code": 1}', '{"value": {"set": [[1]]}}']
BAD += ['{"value": {"int": 7}}', '{"value": {"dict": [1]}}', '{"value": {"a": 1}}', '{"value": {}}']
BAD += [
    '{"value": {"complex": ["a", 1]}}',
    '{"value": {"range": [0, 1, 0]}}',
    '{"value": {"range": ["a"]}}',
    '{"value": {"decimal": "sNaN"}}',
    '{"value": {"decimal": "1e9"}}',
    '{"value": {"decimal": "1/2"}}',
    '{"value": {"decimal": 1}}',
    '{"value": {"fraction": "1/0"}}',
    '{"value": {"fraction": "' + "9" * 61 + '/7"}}',
    '{"value": {"bytes": "x"}}',
    '{"value": ' + "9" * 9999 + "}",
]


@pytest.mark.parametrize("line", BAD)
def test_malformed_replies_are_refused(line):
    with pytest.raises(ValueError):
        read(split_reply(line)[1])
