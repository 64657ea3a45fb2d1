"""Time and memory of a function, as the benches of speed report them.

Speed is compared inside one run, by alternating repetitions, because on shared cores two runs
differ by more than what is measured.
"""

import multiprocessing
import resource
import statistics
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

import torch

GB = 1e9
MAXRSS_BYTES = 1 if sys.platform == "darwin" else 1024  # the unit of ru_maxrss


def spread(values: list[float], digits: int = 3) -> str:
    """`median (smallest to largest)`."""
    middle = statistics.median(values)
    return f"{middle:.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def ratios(a: list[float], b: list[float], factor: float = 1.0) -> list[float]:
    """factor * a / b, repetition by repetition."""
    return [factor * x / y for x, y in zip(a, b, strict=True)]


def seconds_of(function: Callable[[], object]) -> float:
    """Seconds that one call takes, until the GPU has finished, too."""
    start = time.perf_counter()
    function()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def alternate(
    functions: dict[str, Callable[[], object]], repetitions: int
) -> dict[str, list[float]]:
    """Seconds of each function, called in turn `repetitions` times.

    One call of each goes before, and does not count.
    """
    for function in functions.values():
        function()

    seconds = {name: [] for name in functions}
    for _ in range(repetitions):
        for name, function in functions.items():
            seconds[name].append(seconds_of(function))
    return seconds


def peak_memory(prepare: Callable, *arguments) -> float:
    """GB by which the peak of a fresh process grows while it runs prepare(*arguments)().

    What `prepare` needs to build the function that it returns is not counted.
    """
    fork = multiprocessing.get_context("fork")
    here, there = fork.Pipe()
    process = fork.Process(target=send_growth, args=(there, prepare, arguments))
    process.start()
    there.close()  # so that a process that dies ends the wait below
    growth = here.recv()
    process.join()
    return growth / GB


def send_growth(pipe: Connection, prepare: Callable, arguments: tuple) -> None:
    """Send how many bytes the peak of this process grows by; peak_memory's process."""
    torch.set_num_threads(1)  # OpenMP's threads do not survive a fork
    function = prepare(*arguments)
    before = peak_bytes()
    function()
    pipe.send(peak_bytes() - before)


def peak_bytes() -> int:
    """The most memory that this process held so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * MAXRSS_BYTES
