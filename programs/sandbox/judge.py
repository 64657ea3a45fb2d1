"""Judges a program from a separate process. Only the judge's process has the expected values.

A judge calls the program in the program's process. It compares each answer before the next call, or
runs an assertion script. A judge has its own wall and limits, so a hostile answer harms only that
judge. Its exit code is the verdict; the last line of its standard error is the reason.
"""

import builtins
import json
import socket
import sys
from contextlib import suppress
from functools import partial

from .compare import same_value
from .values import excerpt, packed, unpacked

RIGHT, WRONG, FAULT, ENDED = 0, 1, 3, 4  # verdicts; FAULT: the script cannot judge any program
PASSED = "passed"  # printed for each call with the expected value
LONGEST = 2**24  # characters in an answer
# A program's exceptions that a script can catch. StopIteration would end the script's loops.
CAUGHT = (AttributeError, IndexError, KeyError, NameError, NotImplementedError, OverflowError)
CAUGHT += (RecursionError, RuntimeError, TypeError, ValueError, ZeroDivisionError)
RAISED = {each.__name__: each for each in CAUGHT}


class Wrong(Exception):
    """The program's answer is wrong, or it raised an exception that is not in RAISED."""


class Ended(Exception):
    """The program ended or was killed before it answered."""


class Caller:
    """Calls functions in the program's process, one at a time."""

    def __init__(self, calls: socket.socket):
        self.lines = calls.makefile("rw", encoding="utf-8", errors="replace", newline="\n")
        self.called = False  # whether the program has received a call

    def ask(self, name: str, /, *arguments, **keywords):
        """What the function `name` returns. Raises Ended, its exception, or another Exception."""
        call = json.dumps(packed([name, arguments, keywords]))  # TypeError if not plain values
        self.called = True
        answer = ""
        with suppress(ConnectionError):
            self.lines.write(call + "\n")
            self.lines.flush()
            answer = self.lines.readline(LONGEST)
        if not answer:
            raise Ended(name)
        ((key, content),) = json.loads(answer).items()
        if key == "value":
            return unpacked(content)
        classes, text = content
        raise next((RAISED[each] for each in classes if each in RAISED), Wrong)(text)


def judge_values(job: dict, calls: socket.socket) -> int:
    """Call the program for each of job["tests"], up to the first wrong answer."""
    caller = Caller(calls)
    for name, arguments, golds in job["tests"]:
        try:
            value = caller.ask(name, *arguments)
            if not any(same_value(value, gold, job["tolerance"]) for gold in golds):
                raise Wrong(f"{excerpt(repr(value))} returned, {excerpt(repr(golds[0]))} expected")
        except Ended:
            return ENDED
        except Exception as error:  # any error that an answer causes counts against the program
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            return WRONG
        print(PASSED, flush=True)
    return RIGHT


def judge_script(job: dict, calls: socket.socket) -> int:
    """Run the assertion script job["script"]. Functions that it lacks come from the program.

    job["entry_point"], if any, names a function of the program even where Python has one of that
    name. If the script defines `check`, it is called with this function.

    A script is faulty if it raises before its first call to the program, ends without a call, or
    lacks a package. Every later error counts against the program, which may have caused it.
    """
    caller = Caller(calls)

    class Names(dict):
        """Python's builtins, and the program's functions under all other names."""

        def __missing__(self, name: str):
            return partial(caller.ask, name)

    namespace = vars(sys.modules["__main__"])
    namespace["__builtins__"] = names = Names(vars(builtins))
    entry_point = job["entry_point"]
    names[entry_point] = partial(caller.ask, entry_point)
    verdict = RIGHT
    try:
        exec(compile(job["script"], "tests.py", "exec"), namespace)
        if entry_point and "check" in namespace:
            namespace["check"](names[entry_point])
    except Ended:
        return ENDED
    except SystemExit as end:
        verdict = RIGHT if end.code in (None, 0) else WRONG
    except BaseException as error:
        sys.excepthook(*sys.exc_info())
        verdict = FAULT if isinstance(error, ModuleNotFoundError) else WRONG
    if not caller.called and verdict == RIGHT:
        print("it calls none of the program's functions", file=sys.stderr)
    return verdict if caller.called else FAULT


JUDGES = {"values": judge_values, "script": judge_script}
