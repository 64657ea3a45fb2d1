"""Without this file a mistyped flag would end in a traceback, and so would Ctrl-C.

Programs end early with one line and an exit code. Bugs keep their traceback.
"""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from torch import OutOfMemoryError

RESUME = ": rerun the command to resume"
MEMORY = "lower --micro-batch-tokens, or --in-flight if it was sampling"
GRACE = 30  # seconds within which torchrun ends the other ranks after a failure


class UserError(ValueError):
    """A user's mistake, in one line: what is wrong, where, and what to do. The exit code is 2."""


class Stop(Exception):
    """Stop(message, exit code) ends the run. No written file is lost."""


def first_line(error: Exception) -> str:
    """The first line of a library's error; the error's class if it has no text."""
    return str(error).partition("\n")[0] or type(error).__name__


@contextmanager
def one_line(name: object, trouble: str) -> Iterator[None]:
    """Turn any exception that a library raises in the block into a UserError with `trouble`."""
    try:
        yield
    except (UserError, OutOfMemoryError):
        raise
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"--model {name}: {trouble} ({reason:.300})") from error


@contextmanager
def one_line_endings(program: str, resume: str = RESUME, memory: str = MEMORY) -> Iterator[None]:
    """Turn errors a user can act on into one line: exit code 2 for invalid input, 1 for failure.

    resume: how to go on after Ctrl-C, empty if the program cannot. memory: what saves memory.
    """
    try:
        yield
        return
    except UserError as error:
        message, code = error, 2
    except Stop as error:
        message, code = error.args
    except KeyboardInterrupt:
        message, code = f"stopped by Ctrl-C{resume}", 130
    except FloatingPointError as error:  # the run diverged
        safe = "the checkpoints are untouched, " if resume else ""
        message, code = f"stopped, {error}: {safe}try a lower --lr", 1
    except OutOfMemoryError as error:
        message, code = f"{first_line(error)}: {memory}", 1
    if int(os.environ.get("RANK", 0)) > 0:  # the first rank prints for all
        if code > 128:
            sys.exit(code)  # a signal, which reaches every rank
        time.sleep(GRACE)  # torchrun ends this rank meanwhile, unless it failed alone
    print(f"{program}: {message}", file=sys.stderr, flush=True)
    sys.exit(code)
