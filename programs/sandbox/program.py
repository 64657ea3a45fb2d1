"""Runs in the program's process, behind the walls.

Nothing in this process is trusted: the program can read, change and call everything. The process
has the program and its input. It receives calls one by one and returns values to the judge.
"""

import atexit
import builtins
import io
import os
import random
import socket
import sys
import threading
import types

from . import judge, values

# The imports of contest programs, from LiveCodeBench's lcb_runner/evaluation/testing_util.py
# (import_string) and compute_code_generation_metrics.py in the same folder.
IMPORTS = """
from string import *
from re import *
from datetime import *
from collections import *
from heapq import *
from bisect import *
from copy import *
from math import *
from random import *
from statistics import *
from itertools import *
from functools import *
from operator import *
from io import *
from sys import *
from json import *
from builtins import *
from typing import *
import string, re, datetime, collections, heapq, bisect, copy, math, random, statistics
import itertools, functools, operator, io, sys, json
"""
RECURSION = 50_000
DIGITS = 50_000  # in an integer that is read or written

READY = compile(IMPORTS, "imports.py", "exec")
OURS = __package__  # its modules are removed from sys.modules


def run(job: dict, calls: socket.socket | None) -> None:
    """Run a job in this process, then end the process as Python ends a script.

    job: "kind" is `run` (a program that reads standard input), `calls` (a program that answers the
    calls from `calls`) or one of judge.JUDGES; "text" is the code; "contest" adds the imports and
    limits of programming contests.
    """
    open_streams()
    random.seed(0)  # the same state in all children of all servers
    module = types.ModuleType("__main__" if job["kind"] == "run" else "program")
    sys.modules["__main__"] = sys.modules[module.__name__] = module
    for name in [name for name in sys.modules if name.partition(".")[0] == OURS]:
        del sys.modules[name]
    code = 1
    try:
        if job["kind"] in judge.JUDGES:
            code = judge.JUDGES[job["kind"]](job, calls)
        else:
            run_program(job, calls, module)
            code = 0
    except SystemExit as end:
        code = exit_code(end)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        leave(code)


def run_program(job: dict, calls: socket.socket | None, module: types.ModuleType) -> None:
    """Run the program, in the contest environment if requested, and then answer calls, if any."""
    if job["contest"]:
        names = {}
        exec(READY, names)
        # As builtins, imported functions do not count as functions of the program.
        vars(module)["__builtins__"] = names | vars(builtins)
        sys.setrecursionlimit(RECURSION)
        sys.set_int_max_str_digits(DIGITS)
    exec(compile(job["text"], "program.py", "exec"), vars(module))
    if job["kind"] == "calls":
        answer(calls, module)


def open_streams() -> None:
    """Open standard streams on descriptors 0, 1 and 2, as Python does."""
    sys.stdin = stream(0, "r", "surrogateescape")
    sys.stdout = stream(1, "w", "surrogateescape")
    sys.stderr = stream(2, "w", "backslashreplace")
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    sys.argv = ["program.py"]
    os.environ.clear()


def stream(descriptor: int, mode: str, errors: str) -> io.TextIOWrapper:
    return open(descriptor, mode, encoding="utf-8", errors=errors, closefd=False)


def exit_code(end: SystemExit) -> int:
    """The exit code that Python derives from sys.exit(code)."""
    if end.code is None:
        return 0
    if isinstance(end.code, int):
        return end.code & 0xFF
    print(end.code, file=sys.stderr, flush=True)
    return 1


def leave(code: int) -> None:
    """Wait for threads, run exit handlers, flush, and end."""
    try:
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
    except BaseException:
        code = code or 1
    os._exit(code)


# ---- calls ---------------------------------------------------------------------------------------


def answer(calls: socket.socket, module: types.ModuleType) -> None:
    """Answer each JSON line [name, arguments, keywords] by calling the program.

    An answer is {"value": the returned value} or {"error": the last line of the traceback}.
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
    """A method of the program's class Solution, or a function that it defines or imports."""
    solution = getattr(module, "Solution", None)
    if hasattr(solution, name):
        return getattr(solution(), name)
    if hasattr(module, name):
        return getattr(module, name)
    raise NameError(f"the program has no function {name}")


def description(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:300]
