"""What happens inside the program's own process, behind the walls.

Nothing here is trusted: the program can read, change and call all of it. It holds the program and
its input; calls come one by one, and what goes back is a value that others compare.
"""

import ast
import atexit
import builtins
import io
import json
import os
import random
import socket
import sys
import threading
import types
import typing

import values

# Names that the sites which such problems come from have ready, and their programs do not import.
PRELUDE = """
import bisect, collections, copy, datetime, functools, heapq, itertools, json, math, operator
import random, re, string, sys, time
from typing import *
from collections import *
from heapq import *
from bisect import *
from itertools import *
from functools import *
from math import *
from builtins import *
"""
READY = {}
exec(PRELUDE, READY)
del READY["__builtins__"]

# Names of types that a script's annotations may have without an import.
TYPES = {name: getattr(typing, name) for name in typing.__all__ if name[0].isupper()}
FAULT = 3  # exit code of a script that cannot judge any program

OURS = (
    "messages",
    "program",
    "seccomp",
    "supervisor",
    "syscalls",
    "values",
    "walls",
)  # modules, out of the way


def run(job: dict, calls: socket.socket | None) -> None:
    """Run a job in this process, and end it as Python ends a script.

    job: "kind" is `run` (a program reads standard input), `calls` (a program answers the calls
    that come through `calls`) or `script` (its calls go out through `calls`); "text" is the code;
    "prelude" says whether the names of PRELUDE are there.
    """
    open_streams()
    random.seed(0)  # all children of a server have the same state, and two servers have the same
    module = types.ModuleType("__main__" if job["kind"] == "run" else "program")
    sys.modules["__main__"] = sys.modules[module.__name__] = module
    for name in OURS:
        sys.modules.pop(name, None)
    if job["prelude"]:
        vars(module).update(READY)
    code = 1
    try:
        if job["kind"] == "script":
            code = run_script(job["text"], calls, vars(module))
        else:
            exec(compile(job["text"], "program.py", "exec"), vars(module))
            if job["kind"] == "calls":
                answer(calls, module)
            code = 0
    except SystemExit as end:
        code = exit_code(end)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        leave(code)


def open_streams() -> None:
    """Standard streams on descriptors 0, 1 and 2, as Python opens them."""
    sys.stdin = stream(0, "r", "surrogateescape")
    sys.stdout = stream(1, "w", "surrogateescape")
    sys.stderr = stream(2, "w", "backslashreplace")
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    sys.argv = ["program.py"]
    os.environ.clear()


def stream(descriptor: int, mode: str, errors: str) -> io.TextIOWrapper:
    return open(descriptor, mode, encoding="utf-8", errors=errors, closefd=False)


def exit_code(end: SystemExit) -> int:
    """What Python makes of sys.exit(code)."""
    if end.code is None:
        return 0
    if isinstance(end.code, int):
        return end.code & 0xFF
    print(end.code, file=sys.stderr, flush=True)
    return 1


def leave(code: int) -> None:
    """Wait for threads, call what is registered, flush, and end."""
    try:
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
    except BaseException:
        code = code or 1
    os._exit(code)


# ---- calls ---------------------------------------------------------------------------------------


def answer(calls: socket.socket, module: types.ModuleType) -> None:
    """Call functions of the program as lines [name, arguments, keywords] ask; a line of JSON each.

    {"value": ...} is what a function returned, {"error": ...} the last line of its traceback.
    """
    with calls.makefile("rw", encoding="utf-8", newline="\n") as lines:
        for line in lines:
            try:
                name, arguments, keywords = values.loads(line)
                value = function_of(module, name)(*arguments, **keywords)
                reply = '{"value": ' + values.dumps(value) + "}"
            except Exception as error:
                reply = '{"error": ' + values.dumps(description(error)) + "}"
            lines.write(reply + "\n")
            lines.flush()


def function_of(module: types.ModuleType, name: str):
    """A function of the program, or a method of its class Solution."""
    if hasattr(module, name):
        return getattr(module, name)
    if hasattr(module, "Solution"):
        return getattr(module.Solution(), name)
    raise NameError(f"the program has no function {name}")


def description(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:300]


# ---- assertion scripts ---------------------------------------------------------------------------


class CallFailed(Exception):
    """The program raised, or ended."""


def run_script(script: str, calls: socket.socket, namespace: dict) -> int:
    """Run an assertion script; its functions that it does not define are the program's.

    So the assertions, and what they expect, are in another process than what they judge. Returns
    the exit code: 0 if all held, FAULT if the script failed by itself, else 1.

    It failed by itself where it did before its first call of the program, where it ended without
    one, and where it imports a package that is missing. Any later error counts against the program,
    which may have caused it: no value that it returns can bring about FAULT.
    """
    caller = Caller(calls)
    namespace.update(TYPES)
    try:
        for name in foreign_names(script):
            namespace[name] = caller.function(name)
        exec(compile(script, "tests.py", "exec"), namespace)
        code = 0
    except SystemExit as end:
        code = min(exit_code(end), 1)  # its own codes do not mean ours
    except BaseException as error:
        sys.excepthook(*sys.exc_info())
        code = FAULT if lacks_package(script, error) else 1
    if caller.called:
        return code
    if code == 0:
        print("it calls no function of the program", file=sys.stderr, flush=True)
    return FAULT


def foreign_names(script: str) -> set[str]:
    """Names that a script uses and neither defines nor imports."""
    used = set()
    bound = {*dir(builtins), *TYPES}
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


def lacks_package(script: str, error: BaseException) -> bool:
    """Whether an error says that a package is missing which the script itself imports."""
    if not isinstance(error, ModuleNotFoundError):
        return False
    imported = set()
    for node in ast.walk(ast.parse(script)):
        if isinstance(node, ast.Import):
            imported.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").partition(".")[0])
    return (error.name or "").partition(".")[0] in imported


class Caller:
    """Has the program's process call its functions, one at a time."""

    def __init__(self, calls: socket.socket):
        self.lines = calls.makefile("rw", encoding="utf-8", newline="\n")
        self.called = False  # whether the program has heard, and may have said, anything

    def function(self, name: str):
        """What stands for a function of the program in a script. Its arguments go as copies."""

        def call(*arguments, **keywords):
            return self.call(name, arguments, keywords)

        return call

    def call(self, name: str, arguments: tuple, keywords: dict):
        content = values.packed([name, arguments, keywords])
        if values.holds_other(content):
            raise TypeError(f"{name} takes plain values from a script: no functions or objects")
        self.called = True
        self.lines.write(json.dumps(content) + "\n")
        self.lines.flush()
        line = self.lines.readline()
        if not line:
            raise CallFailed(f"the program ended in a call of {name}")
        reply = values.loads_reply(line)
        if "error" in reply:
            raise CallFailed(f"{name} raised {reply['error']}")
        return reply["value"]
