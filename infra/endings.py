"""How a program ends early: in one line and with an exit code. A bug keeps its traceback."""

import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from infra import interrupts
from infra.errors import Stop, UserError
from infra.ranks import leave

KNOBS = {  # the function in which GPU memory ran out -> the flag to lower
    "sample": "--rollout-rows",
    "evaluate": "--rollout-rows",
    "old_log_probabilities": "--micro-batch-tokens",
    "room_for": "--proxy-budget-gb",
    "delta_coefficients": "--proxy-budget-gb",
    "update": "--micro-batch-tokens",
}


@contextmanager
def one_line_endings(program: str) -> Iterator[None]:
    """Turn what a user can act on into one line: 2 for wrong input, 1 for a run that failed."""
    if signal.getsignal(signal.SIGINT) is interrupts.end:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # the imports are over
    try:
        yield
    except UserError as error:
        leave(f"{program}: {error}", 2)
    except Stop as stop:
        leave(f"{program}: {stop}", stop.code)
    except KeyboardInterrupt:
        leave(f"{program}: stopped by Ctrl-C: the same command continues", 128 + signal.SIGINT)
    except FloatingPointError as error:  # the run diverged
        leave(f"{program}: stopped, {error}. The last checkpoint is untouched; try a lower --lr", 1)
    except torch.OutOfMemoryError as error:
        leave(f"{program}: {out_of_memory(error)}", 1)


def out_of_memory(error: torch.OutOfMemoryError) -> str:
    """One line on which flag to lower."""
    frames = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    stage = next((name for name in reversed(frames) if name in KNOBS), "update")
    return (
        f"out of GPU memory in {stage}: lower {KNOBS[stage]}, or spread the model over "
        f"more GPUs (python bench.py plan says what it needs). {str(error).splitlines()[0]}"
    )
