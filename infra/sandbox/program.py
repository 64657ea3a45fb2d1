"""What happens inside the program's own process, behind the walls.

Nothing here is trusted: the program can read, change and call all of it. It holds the program and
its input; calls come one by one, and what goes back is a value that others compare.
"""

import ast
import atexit
import builtins
import io
import os
import random
import socket
import sys
import threading
import types

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
            run_script(job["text"], calls, vars(module))
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
    print(end.code, file=sys.stderr)
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
    """Call functions of the program as lines [name, arguments] ask; a line of JSON each.

    {"value": ...} is what a function returned, {"error": ...} the last line of its traceback.
    """
    with calls.makefile("rw", encoding="utf-8", newline="\n") as lines:
        for line in lines:
            try:
                name, arguments = values.loads(line)
                value = function_of(module, name)(*arguments)
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


def run_script(script: str, calls: socket.socket, namespace: dict) -> None:
    """Run an assertion script; its functions that it does not define are the program's.

    So the assertions, and what they expect, are in another process than what they judge.
    """
    lines = calls.makefile("rw", encoding="utf-8", newline="\n")
    for name in foreign_names(script):
        namespace[name] = proxy(name, lines)
    exec(compile(script, "tests.py", "exec"), namespace)


def foreign_names(script: str) -> set[str]:
    """Names that a script uses and neither defines nor imports."""
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


def proxy(name: str, lines: io.TextIOWrapper):
    """A function that has the program's process call its function of that name."""

    def call(*arguments):
        lines.write(values.dumps([name, arguments]) + "\n")
        lines.flush()
        line = lines.readline()
        if not line:
            raise CallFailed(f"the program ended in a call of {name}")
        reply = values.loads_reply(line)
        if "error" in reply:
            raise CallFailed(f"{name} raised {reply['error']}")
        return reply["value"]

    return call
