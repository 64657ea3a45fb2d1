"""Times functions for the speed benchmarks.

Functions are compared within one run, in alternating repetitions. On shared cores, two runs of the
same function may differ by more than the measured effect.
"""

import statistics
import time
from collections.abc import Callable

import torch


def spread(values: list[float], digits: int = 3) -> str:
    """`median (smallest to largest)`."""
    middle = statistics.median(values)
    return f"{middle:.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def ratios(a: list[float], b: list[float]) -> list[float]:
    """a / b, repetition by repetition."""
    return [x / y for x, y in zip(a, b, strict=True)]


def alternate(
    functions: dict[str, Callable[[], object]], repetitions: int
) -> dict[str, list[float]]:
    """Seconds per call, including GPU work. Calls the functions in turn, `repetitions` times.

    Each function is first called once without timing.
    """
    for function in functions.values():
        function()

    seconds = {name: [] for name in functions}
    for _ in range(repetitions):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            seconds[name].append(time.perf_counter() - start)
    return seconds
