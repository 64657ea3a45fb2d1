"""What happens inside the program's own process, behind the walls.

Nothing here is trusted: the program can read, change and call all of it. It holds the program and
its input; calls come one by one, and what goes back is a value that others compare.
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

# What a program of a contest finds, as in LiveCodeBench's lcb_runner/evaluation/testing_util.py
# (import_string) and compute_code_generation_metrics.py beside it.
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
DIGITS = 50_000  # of an integer that is read or written

READY = compile(IMPORTS, "imports.py", "exec")
OURS = __package__  # modules that are put out of the way


def run(job: dict, calls: socket.socket | None) -> None:
    """Run a job in this process, and end it as Python ends a script.

    job: "kind" is `run` (a program reads standard input), `calls` (a program answers the calls
    that come through `calls`) or one of judge.JUDGES; "text" is the code; "contest" says whether a
    program finds what contests have ready.
    """
    open_streams()
    random.seed(0)  # all children of a server have the same state, and two servers have the same
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
    """Run its text, with what is promised to it, and then answer calls, if it is to."""
    if job["contest"]:
        names = {}
        exec(READY, names)
        # Like builtins: nothing of them counts as a function that the program has.
        vars(module)["__builtins__"] = names | vars(builtins)
        sys.setrecursionlimit(RECURSION)
        sys.set_int_max_str_digits(DIGITS)
    exec(compile(job["text"], "program.py", "exec"), vars(module))
    if job["kind"] == "calls":
        answer(calls, module)


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
    """A method of the program's class Solution, or a function; its imports bring functions, too."""
    solution = getattr(module, "Solution", None)
    if hasattr(solution, name):
        return getattr(solution(), name)
    if hasattr(module, name):
        return getattr(module, name)
    raise NameError(f"the program has no function {name}")


def description(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:300]
