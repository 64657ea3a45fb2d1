"""Runs a job, which is a program or its judge, in a process of its own behind the wall.

Nothing in a program's process is trusted, because the program can read, change and call everything
in it. That process has only the program's text and input; the judge's calls arrive one by one.
"""

import atexit
import builtins
import json
import os
import random
import socket
import sys
import threading
import types

from . import judge
from .values import other, packed, unpacked

# The imports of contest programs, from LiveCodeBench's lcb_runner/evaluation/testing_util.py
# (import_string) and compute_code_generation_metrics.py in the same folder.
MODULES = (
    *("string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random"),
    *("statistics", "itertools", "functools", "operator", "io", "sys", "json"),
)
IMPORTS = [f"from {name} import *" for name in (*MODULES, "builtins", "typing")]
READY = compile("\n".join([*IMPORTS, "import " + ", ".join(MODULES)]), "imports.py", "exec")
RECURSION, DIGITS = 50_000, 50_000  # limits: nested calls, digits of an integer as text


def run(job: dict, calls: socket.socket | None) -> None:
    """Run a job in this process, then end the process as Python ends a script.

    job: "kind" is `run` (a program that reads standard input), `calls` (a program that answers the
    calls from `calls`) or one of judge.JUDGES; "text" is the code; "contest" adds the imports and
    limits of programming contests.
    """
    sys.argv = ["program.py"]
    os.environ.clear()
    random.seed(0)  # the same state in all children of all servers
    module = types.ModuleType("__main__" if job["kind"] == "run" else "program")
    sys.modules["__main__"] = sys.modules[module.__name__] = module
    code = 0
    try:
        if job["kind"] in judge.JUDGES:
            sys.set_int_max_str_digits(DIGITS)
            code = judge.JUDGES[job["kind"]](job, calls)
        else:
            run_program(job, calls, module)
    except SystemExit as end:
        code = end.code & 0xFF if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    try:
        threading._shutdown()  # wait for threads
        atexit._run_exitfuncs()
        flush(sys.stdout)
        vars(module).clear()  # closes open files, which writes what is left in their buffers
        flush(sys.__stdout__)
    except BaseException:
        code = code or 1
    os._exit(code)


def flush(stream) -> None:
    """Write what is left in the stream's buffer, unless the program has closed the stream."""
    if not getattr(stream, "closed", False):
        stream.flush()


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
    if calls:
        answer(calls, module)


def answer(calls: socket.socket, module: types.ModuleType) -> None:
    """Answer each JSON line [name, arguments, keywords] by calling the program.

    The function is a method of the program's class Solution, or one that it defines or imports. An
    answer is {"value": the returned value} or {"error": [the exception's classes, its text]}.
    """
    with calls.makefile("rw", encoding="utf-8", newline="\n") as lines:
        for line in lines:
            try:
                name, arguments, keywords = unpacked(json.loads(line))
                solution = getattr(module, "Solution", None)
                owner = solution() if hasattr(solution, name) else module
                value = getattr(owner, name)(*arguments, **keywords)
                reply = json.dumps({"value": packed(value)}, default=other)
            except Exception as error:
                classes = [each.__name__ for each in type(error).__mro__]
                reply = json.dumps({"error": [classes, str(error)[:300]]})
            lines.write(reply + "\n")
            lines.flush()
