"""A program's judge, in a separate process. Only the judge's process has the expected values.

A judge compares the printed output, or calls the program in the other process and compares each
answer before the next call. A judge has the walls of a program and separate limits, so a hostile
answer can harm only that judge. A job's "kind" is one of JUDGES.
"""

import ast
import builtins
import json
import socket
import sys

from . import values
from .compare import same_output, same_value
from .messages import excerpt

FAULT = 3  # exit code of a script that cannot judge any program
PASSED, FAILED = "passed", "failed: "  # printed by judges of outputs and values


class Failed(Exception):
    """The program failed. The message is for people."""


class Ended(Exception):
    """The program ended or was killed before it answered."""


class Caller:
    """Calls functions in the program's process, one at a time."""

    def __init__(self, calls: socket.socket):
        self.lines = calls.makefile("rw", encoding="utf-8", errors="replace", newline="\n")
        self.called = False  # whether the program has received a call

    def ask(self, call: str) -> str:
        """The answer to a call, both as JSON text. Raises Ended."""
        self.called = True
        try:
            self.lines.write(call + "\n")
            self.lines.flush()
            answer = self.lines.readline()
        except ConnectionError:
            answer = ""
        if not answer:
            raise Ended("the program ended during a call")
        return answer


# ---- outputs and values --------------------------------------------------------------------------


def judge_output(job: dict, calls: socket.socket | None) -> int:
    """Print whether job["output"] agrees with job["expected"]."""
    if same_output(job["output"], job["expected"], job["tolerance"]):
        print(PASSED)
    else:
        output, expected = excerpt(job["output"]), excerpt(job["expected"])
        print(f"{FAILED}{output} printed, {expected} expected")
    return 0


def judge_values(job: dict, calls: socket.socket) -> int:
    """Call the program for each of job["tests"] and print the results, up to the first failure."""
    caller = Caller(calls)
    for test in job["tests"]:
        try:
            check_answer(caller.ask(test["call"]), test["golds"], job["tolerance"])
        except Ended:
            break  # the program's supervisor reports why
        except Failed as failure:
            print(f"{FAILED}{failure}")
            break
        except Exception as error:  # any other error that an answer causes counts as a failure
            print(f"{FAILED}returned a value that cannot be compared ({type(error).__name__})")
            break
        print(PASSED, flush=True)
    return 0


def check_answer(answer: str, golds: list, tolerance: float) -> None:
    """Raise Failed unless an answer is one of the expected values."""
    key, content = read_answer(answer)
    if key == "error":
        raise Failed(excerpt(str(content)))
    if not any(same_value(content, gold, tolerance) for gold in golds):
        raise Failed(f"{shown(content)} returned, {shown(golds[0])} expected")


def read_answer(answer: str) -> tuple[str, object]:
    """("value" or "error", content). Raises Failed if an answer is neither."""
    try:
        return values.split_reply(answer)
    except (ValueError, RecursionError):
        raise Failed("returned a value that cannot be read") from None


def shown(content) -> str:
    """The repr of a value, or its type if the repr is too long."""
    try:
        value = values.unpacked(content)
    except Exception:  # not a value; the message must not fail
        return "a value that cannot be read"
    try:
        return excerpt(repr(value))
    except (ValueError, RecursionError):  # too many digits in a number, or too deeply nested
        return f"a {type(value).__name__}"


# ---- assertion scripts ---------------------------------------------------------------------------


def judge_script(job: dict, calls: socket.socket) -> int:
    """Run the assertion script job["text"]. Functions it lacks come from the program.

    Returns the exit code: 0 if all assertions held, FAULT if the script is faulty, else 1.

    A script is faulty if it raises before its first call to the program, ends without a call, or
    lacks a package. Every later error counts against the program, which may have caused it.
    """
    script = job["text"]
    namespace = vars(sys.modules["__main__"])
    caller = Caller(calls)
    try:
        for name in foreign_names(script):
            namespace[name] = program_function(caller, name)
        exec(compile(script, "tests.py", "exec"), namespace)
        code = 0
    except SystemExit as end:
        code = 0 if end.code in (None, 0) else 1  # a script cannot return FAULT
    except BaseException as error:
        sys.excepthook(*sys.exc_info())
        code = FAULT if isinstance(error, ModuleNotFoundError) else 1
    if caller.called:
        return code
    if code == 0:
        print("it calls none of the program's functions", file=sys.stderr, flush=True)
    return FAULT


def program_function(caller: Caller, name: str):
    """The script's stand-in for a function of the program. Arguments are sent as copies."""

    def call(*arguments, **keywords):
        content = values.packed([name, arguments, keywords])
        if values.holds_other(content):
            raise TypeError(f"{name} takes only plain values, no functions or objects")
        key, answer = values.split_reply(caller.ask(json.dumps(content)))
        if key == "error":
            raise Failed(f"{name} raised {answer}")
        return values.read(answer)

    return call


def foreign_names(script: str) -> set[str]:
    """Names that a script uses but neither defines nor imports."""
    used = set()
    bound = set(dir(builtins))
    for node in ast.walk(ast.parse(script)):
        if isinstance(node, ast.Name):
            names = used if isinstance(node.ctx, ast.Load) else bound
            names.add(node.id)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef | ast.ExceptHandler):
            bound.add(node.name)
        elif isinstance(node, ast.alias):
            bound.add((node.asname or node.name).partition(".")[0])
    return used - bound


JUDGES = {"output": judge_output, "values": judge_values, "script": judge_script}
