"""Converts rows from known programming data sets to prompts and tests.

A problem is {"problem": text, "tests": [...]}; verify_code.py defines a test. A row whose tests are
missing or unreadable gets an empty list. The caller drops the row and counts it.
"""

import base64
import builtins
import io
import json
import pickle
import re
import zlib

from . import ProgramsError
from .verify_code import RULES

CODE_INSTRUCTION = (
    "Please reason step by step, and put your final Python program, imports included, in one "
    "block between ```python and ```."
)

KEYS = {  # the key that gives a test's kind -> (required keys, optional keys), with their types
    "output": ({"input": str, "output": str}, {"rules": str}),
    "function": ({"function": str, "args": list, "expected": object}, {"or": list, "rules": str}),
    "script": ({"script": str}, {"entry_point": str, "rules": str}),
}
DAMAGE = (ValueError, KeyError, TypeError, AttributeError, RecursionError, zlib.error)
INFINITE = {"Infinity": float("inf"), "-Infinity": -float("inf")}  # and not NaN


# ---- the known data sets: (cells, row number) -> problem -----------------------------------------


def eurus_problem(cells: dict, index: int) -> dict:
    """Eurus-2-RL-Data: a chat, with inputs and outputs for standard streams or for a function."""
    chat = [{"role": each["role"], "content": each["content"]} for each in cells["prompt"]]
    text = "\n".join(message["content"] for message in chat)
    return {"problem": text, "chat": chat, "tests": paired_tests(cells["reward_model"])}


def paired_tests(reward_model: dict) -> list[dict]:
    """The tests in {"inputs": [...], "outputs": [...], "fn_name": the function's name, if any}.

    The arguments are a list, or text with one JSON value per line. The output is the value, or a
    list with only this value. The data set does not say which, so both are accepted.
    """
    try:
        truth = json.loads(reward_model["ground_truth"])
        tests = []
        for given, wanted in zip(truth["inputs"], truth["outputs"], strict=True):
            if truth.get("fn_name"):
                test = call_test(truth["fn_name"], given, wanted)
                if isinstance(test["expected"], list) and len(test["expected"]) == 1:
                    test["or"] = test["expected"]
            else:
                test = {"input": lines_of(given), "output": lines_of(wanted)}
            tests.append(test)
        return checked_tests(tests, "a row")
    except DAMAGE:
        return []


def call_test(name: str, given, wanted) -> dict:
    """A test that calls a function. If the arguments are JSON text, so is the expected value."""
    if isinstance(given, str):
        given = [json.loads(line) for line in given.split("\n") if line.strip()]
        wanted = json.loads(wanted)
    return {"function": name, "args": given, "expected": wanted}


def lines_of(value) -> str:
    """A value as text: a list of lines is joined."""
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def humaneval_problem(cells: dict, index: int) -> dict:
    """HumanEval+: a function's signature and docstring, and a script with check(candidate)."""
    problem = f"Complete this Python function:\n```python\n{cells['prompt'].rstrip()}\n```"
    test = {"script": cells["test"], "entry_point": cells["entry_point"], "rules": "evalplus"}
    return {"problem": problem, "tests": [test]}


def mbpp_problem(cells: dict, index: int) -> dict:
    """MBPP+: a sentence and assertions. The first one, in the prompt, names the function."""
    example = cells["test_list"][0].strip()
    problem = f"{cells['prompt'].strip()}\nYour program should pass this test:\n{example}"
    script = "\n".join([*cells["test_imports"], cells["test"]])
    called = re.findall(r"(\w+)\(", example)
    own = [name for name in called if not hasattr(builtins, name)]
    name = (own or called)[0]  # only builtins are called in "assert sum(10, 15) == 6" (Mbpp/126)
    test = {"script": script, "entry_point": name, "rules": "evalplus"}
    return {"problem": problem, "tests": [test]}


def livecodebench_problem(cells: dict, index: int) -> dict:
    """LiveCodeBench: a contest problem on standard streams, or a method of class Solution."""
    starter = (cells.get("starter_code") or "").strip()
    how = "The program reads standard input and writes to standard output."
    if starter:
        how = f"Start your program with this code:\n```python\n{starter}\n```"
    text = f"{cells['question_content'].strip()}\n\n{how}"
    return {"problem": text, "tests": livecodebench_tests(cells)}


def livecodebench_tests(cells: dict) -> list[dict]:
    """Public and private tests. Each argument and each expected value is a line of JSON."""
    try:
        name = json.loads(cells["metadata"]).get("func_name")
        rows = json.loads(cells["public_test_cases"]) + unpacked(cells["private_test_cases"])
        tests = []
        for row in rows:
            test = {"input": row["input"], "output": row["output"]}
            if row["testtype"] == "functional":
                test = call_test(name, row["input"], row["output"])
            tests.append(test | {"rules": "livecodebench"})
        return checked_tests(tests, "a row")
    except DAMAGE:
        return []


def unpacked(text: str) -> list[dict]:
    """The private tests: JSON, or pickled and compressed JSON in base64. Raises one of DAMAGE."""
    try:
        return json.loads(text)
    except ValueError:
        content = zlib.decompress(base64.b64decode(text))
    try:
        return json.loads(Plain(io.BytesIO(content)).load())
    except Exception as error:  # damaged data raise many kinds of exceptions in pickle
        raise ValueError(f"unreadable private tests ({error})") from error


class Plain(pickle._Unpickler):
    """Reads pickled data, but no code. The C version would reserve any size that the data give."""

    def find_class(self, module: str, name: str):
        raise ValueError(f"{module}.{name} in pickled tests")


LAYOUTS = [  # (a known data set's columns, problem and tests first; reader)
    (("prompt", "reward_model", "ability"), eurus_problem),
    (("prompt", "test", "entry_point"), humaneval_problem),
    (("prompt", "test", "test_list", "test_imports"), mbpp_problem),
    (("question_content", "private_test_cases", "public_test_cases"), livecodebench_problem),
]


# ---- the user's data sets ------------------------------------------------------------------------


def checked_tests(tests, where: str) -> list[dict]:
    """The tests in a cell: a list, or its JSON text. Raises ProgramsError for an invalid test."""
    if isinstance(tests, str):
        try:
            tests = json.loads(tests)
        except ValueError as error:
            raise ProgramsError(f"{where} is not valid JSON ({error})") from error
    if tests is None:
        return []
    if not isinstance(tests, list):
        raise ProgramsError(f"{where} is of type {type(tests).__name__}: write a list of tests")
    for number, test in enumerate(tests, start=1):
        reason = flaw(test)
        if reason:
            raise ProgramsError(f"{where}, test {number}, {reason}")
    return tests


def flaw(test) -> str:
    """Why a test cannot be used; empty if it can."""
    kind = next((key for key in KEYS if isinstance(test, dict) and key in test), None)
    if kind is None:
        return f"is not a dictionary with one of the keys {', '.join(KEYS)}"
    needed, optional = KEYS[kind]
    types = needed | optional
    for key in {**needed, **test}:
        if key not in types or key not in test or not isinstance(test[key], types[key]):
            known = ", ".join(types)
            return f"has a missing, unknown or mistyped {key}: with {kind} write {known}"
    if test.get("rules", "") not in RULES:
        return f"has unknown rules: use {', '.join(filter(None, RULES))}"
    golds = [test.get("expected"), test.get("or")]
    if json.loads(json.dumps(golds), parse_constant=INFINITE.get) != golds:
        return "expects NaN, which equals nothing: remove this test"
    try:
        f"{test.get('input')}{test.get('output')}".encode()  # a lone surrogate has no UTF-8
        compile(test.get("script", ""), "script", "exec")
    except (SyntaxError, ValueError) as error:
        return f"cannot be run ({error})"
    return ""
