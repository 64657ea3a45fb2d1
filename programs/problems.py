"""Programming problems: how a row of each known set becomes a prompt and tests.

A problem is {"problem": text, "tests": [...]}; programs/verify_code.py tells what a test is.
Rows that hold no tests, or tests that cannot be read, get none, and are then dropped and counted
like a problem without an answer.
"""

import base64
import binascii
import io
import json
import pickle
import zlib

from . import ProgramsError

CODE_INSTRUCTION = (
    "Please reason step by step, and put your final Python program, imports included, in one "
    "block between ```python and ```."
)

KEYS = {  # the key that says a test's kind -> the keys that it needs, and may have
    "output": ({"input", "output"}, set()),
    "function": ({"function", "args", "expected"}, {"or"}),
    "script": ({"script"}, {"entry_point"}),
}
TEXTS = ("input", "output", "function", "script", "entry_point")
LISTS = ("args", "or")


# ---- the known sets: (cells, row number) -> problem ----------------------------------------------


def eurus_problem(cells: dict, index: int) -> dict:
    """Eurus-2-RL-Data: a chat, and inputs and outputs of standard streams or of a function."""
    chat = [{"role": each["role"], "content": each["content"]} for each in cells["prompt"]]
    text = "\n".join(message["content"] for message in chat)
    return {"problem": text, "chat": chat, "tests": eurus_tests(cells["reward_model"])}


def eurus_tests(reward_model: dict) -> list[dict]:
    """The tests of a row.

    An output of a function is the value itself or a list of that one value; the set does not say
    which, so either is right.
    """
    try:
        truth = json.loads(reward_model["ground_truth"])
        pairs = list(zip(truth["inputs"], truth["outputs"], strict=True))
    except (ValueError, KeyError, TypeError):
        return []

    name = truth.get("fn_name")
    tests = []
    for given, wanted in pairs:
        if name:
            test = {"function": name, "args": given, "expected": wanted}
            if isinstance(wanted, list) and len(wanted) == 1:
                test["or"] = wanted
            if not isinstance(given, list):
                return []
        else:
            test = {"input": lines_of(given), "output": lines_of(wanted)}
        tests.append(test)
    return [] if any(map(flaw, tests)) else tests


def lines_of(value) -> str:
    """A text, or a list of the lines of one."""
    if isinstance(value, list):
        return "\n".join(str(line) for line in value)
    return str(value)


def humaneval_problem(cells: dict, index: int) -> dict:
    """HumanEval+: the head of a function with its docstring, and a script with check(candidate)."""
    problem = f"Complete this Python function:\n```python\n{cells['prompt'].rstrip()}\n```"
    return {
        "problem": problem,
        "tests": [{"script": cells["test"], "entry_point": cells["entry_point"]}],
    }


def mbpp_problem(cells: dict, index: int) -> dict:
    """MBPP+: a sentence, of whose assertions the first is shown, for the function's name."""
    example = cells["test_list"][0].strip()
    problem = f"{cells['prompt'].strip()}\nYour program should pass this test:\n{example}"
    script = "\n".join([*cells["test_imports"], cells["test"]])
    return {"problem": problem, "tests": [{"script": script}]}


def livecodebench_problem(cells: dict, index: int) -> dict:
    """LiveCodeBench: a contest problem, on standard streams or as a method of class Solution."""
    parts = [cells["question_content"].strip()]
    starter = (cells["starter_code"] or "").strip()
    if starter:
        parts.append(f"Start your program with this code:\n```python\n{starter}\n```")
    else:
        parts.append("The program reads standard input and writes to standard output.")
    return {"problem": "\n\n".join(parts), "tests": livecodebench_tests(cells)}


def livecodebench_tests(cells: dict) -> list[dict]:
    """Public and private tests. An argument, and the value of a call, are each a line of JSON."""
    try:
        name = json.loads(cells["metadata"]).get("func_name")
        rows = json.loads(cells["public_test_cases"]) + unpacked(cells["private_test_cases"])
        tests = []
        for row in rows:
            if row["testtype"] == "functional":
                arguments = [json.loads(line) for line in row["input"].split("\n")]
                expected = json.loads(row["output"])
                tests.append({"function": name, "args": arguments, "expected": expected})
            else:
                tests.append({"input": row["input"], "output": row["output"]})
    except (ValueError, KeyError, TypeError, zlib.error, binascii.Error, pickle.UnpicklingError):
        return []
    return [] if any(map(flaw, tests)) else tests


def unpacked(text: str) -> list[dict]:
    """The private tests: JSON, or JSON pickled, compressed and in base 64."""
    try:
        return json.loads(text)
    except ValueError:
        content = zlib.decompress(base64.b64decode(text))
    return json.loads(TextUnpickler(io.BytesIO(content)).load())


class TextUnpickler(pickle.Unpickler):
    """Reads a pickled text; a pickle that names any class or function is refused."""

    def find_class(self, module, name):
        raise pickle.UnpicklingError(f"{module}.{name} in a pickle of tests")


# ---- sets of one's own ---------------------------------------------------------------------------


def checked_tests(tests, where: str) -> list[dict]:
    """The tests of a cell, a list or its JSON text. Raises ProgramsError where one is no test."""
    if isinstance(tests, str):
        try:
            tests = json.loads(tests)
        except ValueError as error:
            raise ProgramsError(f"{where} is no JSON ({error})") from error
    if tests is None:
        return []
    if not isinstance(tests, list):
        raise ProgramsError(f"{where} holds a {type(tests).__name__}: write a list of tests")
    for number, test in enumerate(tests, start=1):
        check_test(test, f"{where}, test {number},")
    return tests


def check_test(test, where: str) -> None:
    """Raise ProgramsError for a test with a key too many or too few, or a value of another kind."""
    if not isinstance(test, dict):
        raise ProgramsError(f"{where} is no dictionary")
    kind = next((key for key in KEYS if key in test), None)
    if kind is None:
        raise ProgramsError(f"{where} has none of the keys {', '.join(KEYS)}")
    needed, allowed = KEYS[kind]
    if needed - test.keys():
        raise ProgramsError(f"{where} lacks {', '.join(sorted(needed - test.keys()))}")
    if test.keys() - needed - allowed:
        unknown = ", ".join(sorted(test.keys() - needed - allowed))
        raise ProgramsError(f"{where} has {unknown}, which a test with {kind} has not")
    for key in test:
        if key in TEXTS and not isinstance(test[key], str):
            raise ProgramsError(f"{where} has a {key} that is no text")
        if key in LISTS and not isinstance(test[key], list):
            raise ProgramsError(f"{where} has {key} that is no list")
    if flaw(test):
        raise ProgramsError(f"{where} {flaw(test)}")
    if kind == "script":
        try:
            compile(test["script"], "script", "exec")
        except (SyntaxError, ValueError) as error:
            raise ProgramsError(f"{where} has a script that is no Python ({error})") from error


def flaw(test: dict) -> str:
    """Why no program can ever pass a test; empty where one can."""
    for key in ("input", "output"):
        try:
            test.get(key, "").encode()
        except UnicodeEncodeError:
            return f"has a lone surrogate in its {key}, which no stream carries"
    if holds_nan(test.get("expected")) or holds_nan(test.get("or")):
        return "expects NaN, which is equal to nothing"
    return ""


def holds_nan(value) -> bool:
    """Whether a value of JSON is, or holds, the number that differs from itself."""
    if isinstance(value, list):
        return any(map(holds_nan, value))
    if isinstance(value, dict):
        return any(map(holds_nan, value.values()))
    return value != value
