"""Ends a program early with one line and an exit code. Bugs keep their traceback."""

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from torch import OutOfMemoryError

from programs import ProgramsError

GRACE = 30  # seconds within which torchrun ends the other ranks after a failure

KNOBS = {  # the function that ran out of GPU memory -> the flag to lower
    "sample": "--rollout-rows",
    "evaluate": "--rollout-rows",
    "old_log_probabilities": "--micro-batch-tokens",
    "room_for": "--proxy-budget-gb",
    "delta_coefficients": "--proxy-budget-gb",
    "update": "--micro-batch-tokens",
}


class UserError(ValueError):
    """A user's mistake, in one line: what is wrong, where, and what to do. The exit code is 2."""


MISTAKES = (UserError, ProgramsError)  # programs/ raises ProgramsError for a user's mistake


class Stop(Exception):
    """Ends the run with a message and an exit code. No written file is lost."""

    def __init__(self, message: str, code: int):
        super().__init__(message)
        self.code = code


class Interrupted(Exception):
    """Raised at a safe point after a signal to stop. An unfinished step is abandoned."""


def first_line(error: Exception) -> str:
    """The first line of a library's error; the error's class if it has no text."""
    return str(error).partition("\n")[0] or type(error).__name__


@contextmanager
def one_line(name: object, trouble: str) -> Iterator[None]:
    """Turn any exception that a library raises in the block into a UserError with `trouble`.

    name: the model that the user named. Only library calls belong in the block, so that bugs in
    this project keep their traceback.
    """
    try:
        yield
    except (UserError, OutOfMemoryError):
        raise
    except Exception as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())
        if len(said) > 300:
            said = said[:300] + " ..."
        raise UserError(f"--model {name}: {trouble} ({said})") from error


# ---- early ends ----------------------------------------------------------------------------------


@contextmanager
def one_line_endings(program: str) -> Iterator[None]:
    """Turn errors a user can act on into one line: exit code 2 for invalid input, 1 for failure."""
    try:
        yield
    except MISTAKES as error:
        leave(f"{program}: {error}", 2)
    except Stop as stop:
        leave(f"{program}: {stop}", stop.code)
    except KeyboardInterrupt:
        leave(f"{program}: stopped by Ctrl-C: rerun the command to resume", 128 + signal.SIGINT)
    except FloatingPointError as error:  # the run diverged
        leave(f"{program}: stopped, {error}. The last checkpoint is untouched; try a lower --lr", 1)
    except OutOfMemoryError as error:
        leave(f"{program}: {out_of_memory(error)}", 1)


def out_of_memory(error: Exception) -> str:
    """One line that names the flag to lower."""
    frames = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    stage = next((name for name in reversed(frames) if name in KNOBS), "update")
    return (
        f"out of GPU memory in {stage}: lower {KNOBS[stage]}, or spread the model over "
        f"more GPUs (python bench.py plan estimates the memory). {first_line(error)}"
    )


def leave(message: str, code: int) -> NoReturn:
    """Print `message` to standard error and exit with `code`; under torchrun one rank prints it.

    The first rank prints at once. torchrun repeats the message at the end of its own report and
    ends the other ranks with SIGTERM, so they print nothing. If a rank still runs after GRACE
    seconds, it was the only one to fail, so it prints its own message. A code above 128 stands for
    a signal; signals reach all ranks, so only the first one prints.
    """
    is_first = int(os.environ.get("RANK", 0)) == 0
    if not is_first and code > 128:
        sys.exit(code)
    if not is_first and "WORLD_SIZE" in os.environ:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
        time.sleep(GRACE)
    print(message, file=sys.stderr, flush=True)
    report = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if report:
        error = {"message": message, "extraInfo": {"timestamp": str(int(time.time()))}}
        with open(report, "w") as file:
            json.dump({"message": error}, file)
    sys.exit(code)
