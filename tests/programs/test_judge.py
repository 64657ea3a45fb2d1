"""The judge under attack: hostile output fails its own program's test and affects nothing else."""

import sys

import pytest

from programs import verify_code
from programs.sandbox import client
from programs.sandbox.client import Limits
from programs.verify_code import Result, reward, rewards, run_tests

# The judge has 5 times this CPU time: enough to read one megabyte once, but not several times.
LIMITS = Limits(cpu_seconds=1, wall_seconds=60, memory_mb=512)

# ---- printed output ------------------------------------------------------------------------------

LONG = 400_000
PRINTED = {  # name: (Python expression for the printed text, expected output)
    "digits and a letter": ("'9' * N + 'x'", "7.5"),
    "digits": ("'9' * N", "7.5"),
    "digits for an integer": ("'9' * N", "7"),
    "digits, a point, digits": ("'1' * (N // 2) + '.' + '1' * (N // 2)", "7.5"),
    "two points": ("'1' * (N // 2) + '.' + '1' * (N // 2) + '.'", "7.5"),
    "a small number": ("'0.' + '0' * N + '1'", "7.5"),
    "many signs": ("'-' * N + '1'", "7.5"),
    "an exponent above decimal's maximum": ("'9' * 990_001 + 'e9999'", "7.5"),
    "an exponent below decimal's minimum": ("'0.' + '0' * 990_001 + '1e-9999'", "7.5"),
    "zero with a small exponent": ("'0.' + '0' * N + 'e-9999'", "7.5"),
    "a long exponent": ("'1e' + '9' * N", "7.5"),
    "many exponents": ("'1e1' * (N // 3)", "7.5"),
    "numbers": ("'1e9999 ' * (N // 7)", "7.5 " * (LONG // 7)),
    "lines": ("'7.5' + '\\n' * N + '7.5'", "7.5"),
    "blanks": ("' ' * N + '7.6'", "7.5"),
    "unusual line separators": ("'7\\x0b\\x1c\\u2028' * 9", "7.5"),
    "NaN": ("'nan'", "7.5"),
    "signalling NaN": ("'sNaN'", "7.5"),
    "infinity": ("'-Infinity'", "1e9999"),
    "an underscore": ("'7_0.0'", "70.5"),
    "other digits": ("'\\u0667.\\u0665'", "7.5"),
    "a NUL": ("'7.5\\0'", "7.5"),
    "a lone surrogate": ("'\\udcff7.5'", "7.5"),
    "hexadecimal": ("'0x7.8p0'", "7.5"),
    "nothing": ("''", "7.5"),
}


@pytest.mark.parametrize("name", PRINTED)
def test_no_output_overloads_the_judge(name):
    text, expected = PRINTED[name]
    program = f"N = {LONG}\nprint({text})"
    result = run_tests(program, [{"input": "", "output": expected}], LIMITS)
    assert result.passed == 0 and result.stopped.endswith("expected"), result.stopped


def test_numbers_with_many_digits_are_compared_to_the_last_digit():
    ones = "1" * 5000
    for printed, expected, same in (
        (f"0{ones}", ones, 1),
        (f"{ones}.0", ones, 1),
        (f"{ones}.1", ones, 0),
        (f"{ones[:-1]}2", ones, 0),
        (f"{ones}.5", f"{ones}.0", 1),
        ("1e4000", "1" + "0" * 4000, 1),
        ("1e4000", "1" + "0" * 3999 + "1", 0),
    ):
        tests = [{"input": "", "output": expected}]
        assert run_tests(f"print('{printed}')", tests).passed == same


# ---- returned values -----------------------------------------------------------------------------

MANY = 20_000
# Sets and dictionaries that are cheap to send but take hours to rebuild, because all keys have the
# same hash: Python's hash of an integer is its remainder modulo P.
COLLIDING = f"""
from fractions import Fraction
P = 2**61 - 1
COUNT = range({MANY})
class Members(set):
    def __init__(self, members): self.members = members
    def __iter__(self): return iter(self.members)
class Colliding(dict):
    def items(self): return ((k * P, 0) for k in COUNT)
"""
RETURNED = {  # name: (returned expression, expected value)
    "an integer with many digits": ("1 << 10**6", 7),
    "many digits for a decimal": ("1 << 10**6", 7.5),
    "many digits for a string": ("1 << 10**6", "7"),
    "many digits as a key": ("{10 ** 5000: 7}", {"7": 7}),
    "keys with the same hash": ("Colliding()", {str(k): 0 for k in range(MANY)}),
    "members with the same hash": ("Members(k * P for k in COUNT)", [7]),
    "pairs with the same hash": ("Members((k * P, 0) for k in COUNT)", [7]),
    "fractions with the same hash": ("Members(Fraction(k * P, 1) for k in COUNT)", 7),
    "keys that are equal in JSON": ("{1: 7, '1': 7}", {"1": 7, "2": 7}),
    "NaN": ("float('nan')", 7.5),
    "NaN in a list": ("[float('nan')]", [7.5]),
    "a decimal NaN": ("__import__('decimal').Decimal('sNaN')", 7.5),
    "a huge decimal": ("__import__('decimal').Decimal('1e999999')", 7.5),
    "a complex NaN": ("complex('inf+nanj')", 7.5),
    "a huge range": ("range(2 ** 200)", [0]),
    "many lists": ("[[]] * 200000", [[]]),
    "a nested list": ("__import__('functools').reduce(lambda a, _: [a], range(400), 7)", [[7]]),
    "a lone surrogate": ("'\\ud800'", "7"),
    "a number as a string": ("'7'", 7),
    "true": ("True", 2),
    "nothing": ("None", 0),
}


@pytest.mark.parametrize("name", RETURNED)
def test_no_value_overloads_the_judge(name):
    text, expected = RETURNED[name]
    tests = [{"function": "f", "args": [], "expected": expected}]
    result = run_tests(f"{COLLIDING}\ndef f(): return {text}", tests, LIMITS)
    assert result.passed == 0 and "CPU time" not in result.stopped, result.stopped
    assert "returned" in result.stopped


REPLIES = [  # what a program writes to its connection instead of an answer
    "[" * 100_000,
    "9" * 100_000,
    '{"value": ' + "[" * 100_000,
    '{"value": ' + "9" * 100_000 + "}",
    '{"value": {"int": ""}}',
    '{"value": {"int": "0x"}}',
    '{"value": {"int": 7.5}}',
    '{"value": {"int": "' + "f" * 400_000 + '"}}',
    '{"value": {"dict": [1]}}',
    '{"value": {"dict": [["7"]]}}',
    '{"value": {"dict": {"7": 7}}}',
    '{"value": {"dict": [[{"dict": []}, 7]]}}',
    '{"value": {"dict": [[{"int": "x"}, 7]]}}',
    '{"value": {"tuple": 7}}',
    '{"value": {"tuple": "7"}}',
    '{"value": {"decimal": "' + "9" * 400_000 + '"}}',
    '{"value": {"fraction": "1/' + "9" * 400_000 + '"}}',
    '{"value": {"complex": [1]}}',
    '{"value": {"complex": ["7", {}]}}',
    '{"value": {"iterator": {"set": [[]]}}}',
    '{"value": {"no such": 7}}',
    '{"value": {}}',
    '{"value": 1, "error": 2}',
    '{"error": {"error": [' + "1," * 1000 + "1]}}",
    '{"value": Infinity}',
    "\\ud800",
    "",
]
EXPECTED = [7, 7.5, "7", None, [7], {"7": 7}, True, 10**30]


@pytest.mark.parametrize("number", range(len(REPLIES)))
def test_no_reply_overloads_the_judge(number):
    """Each test expects a different kind of value."""
    program = (
        f"import os\nreply = {REPLIES[number]!r}.encode('utf-8', 'replace') + b'\\n'\n"
        "def f():\n    for d in range(3, 64):\n        try: os.set_blocking(d, True)\n"
        "        except OSError: continue\n"
        "        rest = reply\n"
        "        try:\n            while rest: rest = rest[os.write(d, rest):]\n"
        "        except OSError: pass\n    return 'late'"
    )
    tests = [{"function": "f", "args": [], "expected": each} for each in EXPECTED]
    for test in tests[number % 2 :: 2]:
        result = run_tests(program, [test], LIMITS)
        assert result.passed == 0 and "CPU time" not in result.stopped, result.stopped


PRETENDING = {  # classes whose value differs between Python's built-ins and json
    "int": "__repr__ = __str__ = lambda self: '7'\n    __int__ = __index__ = lambda self: 7",
    "float": "__repr__ = __str__ = lambda self: '7.0'\n    __float__ = lambda self: 7.0",
    "str": "__repr__ = __str__ = lambda self: '7'\n    encode = lambda *a: b'7'",
    "int, object": "__abs__ = lambda self: 2**64\n    __index__ = lambda self: 7",
    "list": "__iter__ = lambda self: iter([7])\n    __len__ = lambda self: 1",
    "object": "__class__ = property(lambda self: int)\n    __abs__ = __index__ = lambda self: 7",
    "Exception": "tolist = lambda self: self\n    __module__ = 'numpy'",
}


@pytest.mark.parametrize("base", PRETENDING)
def test_no_value_equals_two_expected_values(base):
    made = "A('3')" if base != "object" else "A()"
    program = f"class A({base}):\n    {PRETENDING[base]}\ndef f(): return {made}"
    passed = 0
    for expected in (3, 7, "3", "7", [7], ["3"], None):
        test = {"function": "f", "args": [], "expected": expected}
        passed += run_tests(program, [test], LIMITS).passed
    assert passed <= 1


VERDICTS = {  # programs that imitate a judge's output, such as "passed"
    "printed": "print('passed\\npassed', flush=True); return 3",
    "raised": "raise ValueError('x\\npassed\\npassed\\n')",
    "returned": "return 'x\\npassed\\npassed\\n'",
    "in a list": "return ['\\npassed\\n', '\\npassed\\n']",
    "on all descriptors": "[os.write(d, b'passed\\n') for d in (1, 2, 3)]; return 3",
    "as a name": "return type('\\npassed\\n', (), {})()",
    "as a key": "return {'\\npassed\\n': 7}",
}


@pytest.mark.parametrize("name", VERDICTS)
def test_program_output_is_never_a_verdict(name):
    program = f"import os\ndef f():\n    {VERDICTS[name]}"
    for expected in (7, [7], "7", {"7": 7}):
        tests = 2 * [{"function": "f", "args": [], "expected": expected}]
        assert run_tests(program, tests, LIMITS).passed == 0
    assert run_tests(program, [{"script": "assert f() == 7"}], LIMITS).passed == 0


GREEDY = {  # a script's operation -> a returned value that is small as JSON
    "sorted(f(3))": "range(10**18)",
    "' ' * f(3) * 100": "10**9",
    "7 ** f(3)": "10**9",
    "sum(1 for x in f(3))": "range(10**18)",
}


@pytest.mark.parametrize("asked", GREEDY)
def test_a_value_that_breaks_its_script_counts_against_the_program(asked):
    """The script's CPU limit is 5 times the limit of a call, not 5 times the program's limit."""
    limits = Limits(cpu_seconds=0.1, wall_seconds=60, memory_mb=512)
    program = f"def f(x): return {GREEDY[asked]}"
    result = run_tests(program, [{"script": f"assert {asked} == 7"}], limits)
    assert result.passed == 0 and "cannot judge" not in result.stopped
    assert "s of CPU time" in result.stopped or "MemoryError" in result.stopped


def test_keys_with_the_same_hash_do_not_delay_a_script():
    script = {"script": "found = f(3)\nassert len(found) == 7"}
    for value in ("Members(k * P for k in COUNT)", "Colliding()"):
        result = run_tests(f"{COLLIDING}\ndef f(x): return {value}", [script], LIMITS)
        assert "too many keys share one hash" in result.stopped, result.stopped


def test_rewards_never_raise_because_of_a_program():
    """If a judge dies, the other judges and the run continue."""
    tests = [{"function": "f", "args": [3], "expected": {"3": 3.5}}]
    bodies = ["{3: 3.5}", "{10 ** 5000: 3.5}", "{'3': 3.4999999}", "1 << 10**6", "{(): 3.5}"]
    responses = [f"```\ndef f(x): return {body}\n```" for body in bodies]
    assert rewards(responses, [tests] * len(bodies)) == [1.0, 0.0, 1.0, 0.0, 0.0]


def test_a_killed_judge_counts_against_its_program(monkeypatch):
    monkeypatch.setattr(verify_code, "SCRIPT", 0.0)  # no CPU time for the judge
    test = {"input": "", "output": "7.250 " * 10**5}
    printed = run_tests("print('7.25 ' * 10**5)", [test], LIMITS)
    assert printed == Result(0, 1, "test 1 of 1: printed output that cannot be compared")
    call = {"function": "f", "args": [[1] * 10**5] * 9, "expected": 7}
    returned = run_tests("def f(*x): return 8", [call], LIMITS)
    assert returned.passed == 0 and returned.stopped


# ---- order of calls, and clocks ------------------------------------------------------------------


LATE = {  # answers that are incomplete, sent in parts, sent before the call, or sent late
    "half": "os.write(D, b'{\"value\": 7'); time.sleep(1000)",
    "parts": "[os.write(D, bytes([c])) for c in b'{\"value\": 3}\\n']; time.sleep(1000)",
    "twice": 'os.write(D, b\'{"value": 3}\\n{"value": 7}\\n{"value": 7}\\n\'); return 7',
    "later": "threading.Timer(0.2, os.write, (D, b'{\"value\": 7}\\n')).start(); return 3",
}
CONNECTION = """
import os, stat, threading, time
for D in range(3, 64):
    try:
        if stat.S_ISSOCK(os.fstat(D).st_mode): break
    except OSError: pass
"""


@pytest.mark.parametrize("name", LATE)
def test_the_first_line_after_a_call_is_its_answer(name):
    limits = Limits(cpu_seconds=0.5, wall_seconds=1, load=1)
    tests = [{"function": "f", "args": [x], "expected": 7} for x in range(2)]
    result = run_tests(f"{CONNECTION}def f(x): {LATE[name]}", tests, limits)
    assert result.passed == 0
    expected = "not finished after" if name == "half" else "3 returned, 7 expected"
    assert expected in result.stopped, result.stopped


def test_no_call_is_made_after_a_failed_call(monkeypatch):
    """The program prints the calls that it receives."""
    printed = []
    outcome = client.Job.outcome

    def recorded(job):
        answer = outcome(job)
        printed.append(answer.output)
        return answer

    monkeypatch.setattr(client.Job, "outcome", recorded)
    program = "def f(x):\n    print('call', x, flush=True)\n    return 1"
    tests = [{"function": "f", "args": [x], "expected": int(x < 2)} for x in range(9)]
    assert run_tests(program, tests) == Result(2, 9, "test 3 of 9: 1 returned, 0 expected")
    assert "call 0\ncall 1\ncall 2\n" in printed


def test_a_programs_wall_clock_is_paused_while_its_script_computes():
    limits = Limits(cpu_seconds=1, wall_seconds=1, load=0)
    script = (
        "import time\nassert add(1, 1) == 2\n"
        "end = time.process_time() + 1.2\nwhile time.process_time() < end: pass\n"
        "assert add(3, 4) == 7"
    )
    result = run_tests("def add(a, b): return a + b", [{"script": script}], limits)
    assert result == Result(0, 1, "test 1 of 1: not finished after 1 s of idle time")
    patient = Limits(cpu_seconds=1, wall_seconds=2, load=10)
    slow = script.replace("+ 1.2", "+ 3")  # within the script's limit, beyond the program's
    result = run_tests("def add(a, b): return a + b", [{"script": slow}], patient)
    assert result == Result(1, 1, "")


def test_a_program_that_sleeps_in_a_call_is_killed():
    limits = Limits(cpu_seconds=0.5, wall_seconds=1, load=1)
    program = "import time\ndef f(x): time.sleep(1000)"
    for test in (
        {"script": "assert f(3) == 7"},
        {"function": "f", "args": [3], "expected": 7},
    ):
        assert "not finished after 1 s" in run_tests(program, [test], limits).stopped


# ---- official graders' rules ---------------------------------------------------------------------

LCB = "livecodebench"


def stream(output: str, rules: str = LCB, given: str = "") -> list[dict]:
    return [{"input": given, "output": output, "rules": rules}]


def call(expected, rules: str = LCB) -> list[dict]:
    return [{"function": "f", "args": [], "expected": expected, "rules": rules}]


ALLOWED = {  # a program, and a test that it passes here, in LiveCodeBench, in PRIME and in APPS
    "imports": ("print(mean([1, 3]), datetime.date(2024, 1, 1).year)", stream("2 2024")),
    "bare streams": ("print(stdin.readline())", stream("7", given="7")),
    "recursion": ("def f(n): return n and 1 + f(n - 1)\nprint(f(40000))", stream("40000")),
    "digits": ("print(len(str(10 ** 40000)), int('7' * 9999) > 1)", stream("40001 True")),
    "a leading blank line": ("print()\nprint(7)", stream("7")),
    "one": ("def f(): return True", call(1)),
    "true": ("def f(): return 1", call(True)),
    "ones in a list": ("def f(): return [True, False]", call([1, 0])),
    "a redefined name": ("def mean(x): return 7\nprint(mean(3))", stream("7")),
}
DIFFERING = {  # a program, a test, and whether it passes under LiveCodeBench's rules
    "memory": ("x = bytes(2 * 10**9)\nprint(7)", stream("7"), True),
    "nearly equal decimals": ("print(0.3333333)", stream("0.3333333333"), False),
    "nearly equal floats": ("def f(): return 0.1 + 0.2", call(0.3), False),
}


def by_our_rules(tests: list[dict]) -> list[dict]:
    return [{key: value for key, value in test.items() if key != "rules"} for test in tests]


@pytest.mark.parametrize("name", ALLOWED)
def test_programs_that_official_graders_accept_pass(name):
    program, tests = ALLOWED[name]
    for each in (tests, by_our_rules(tests)):
        assert run_tests(program, each) == Result(1, 1, "")


@pytest.mark.parametrize("name", DIFFERING)
def test_differences_from_livecodebench(name):
    program, tests, theirs = DIFFERING[name]
    assert run_tests(program, tests).passed == theirs
    assert run_tests(program, by_our_rules(tests)).passed == (not theirs)


@pytest.mark.parametrize("name", ["add", "gcd", "print", "Counter"])
def test_preset_imports_do_not_count_as_the_programs_functions(name):
    """A program that defines no function passes no test."""
    test = {"function": name, "args": [3, 0], "expected": 3}
    assert f"no function {name}" in run_tests("x = 1", [test]).stopped
    assert run_tests(f"from math import gcd as {name}", [test]).passed == 1


def test_evalplus_allows_4_gb():
    program = "def f(): return len(bytes(2 * 10**9))"
    script = {"script": "assert f() == 2 * 10**9"}
    assert run_tests(program, [script]).passed == 0
    assert run_tests(program, [script | {"rules": "evalplus"}]).passed == 1


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="Python itself limits calls through C")
def test_the_stack_is_large():
    program = (
        "import functools, sys\nsys.setrecursionlimit(10**6)\n"
        "@functools.lru_cache(None)\ndef f(n): return n and 1 + f(n - 1)\nprint(f(45000))"
    )
    assert run_tests(program, stream("45000", "")) == Result(1, 1, "")


def test_unknown_rules_are_refused():
    with pytest.raises(ValueError, match="has unknown rules 'x'"):
        run_tests("print(7)", stream("7", "x"))


def test_a_method_of_solution_is_called():
    method = "class Solution:\n    def add(self, a, b): return {}"
    tests = [{"function": "add", "args": [3, 4], "expected": 7, "rules": LCB}]
    assert run_tests(method.format("a + b"), tests).passed == 1
    assert run_tests(method.format("a - b"), tests).passed == 0
    assert reward(f"```\n{method.format('a - b')}\n```", tests) == 0.0
