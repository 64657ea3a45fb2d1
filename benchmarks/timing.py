"""Time of a function, as the benches of speed report them.

Speed is compared inside one run, by alternating repetitions, because on shared cores two runs
differ by more than what is measured.
"""

import statistics
import time
from collections.abc import Callable

import torch


def spread(values: list[float], digits: int = 3) -> str:
    """`median (smallest to largest)`."""
    middle = statistics.median(values)
    return f"{middle:.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def ratios(a: list[float], b: list[float], factor: float = 1.0) -> list[float]:
    """factor * a / b, repetition by repetition."""
    return [factor * x / y for x, y in zip(a, b, strict=True)]


def alternate(
    functions: dict[str, Callable[[], object]], repetitions: int
) -> dict[str, list[float]]:
    """Seconds of each function, until the GPU has finished, called in turn `repetitions` times.

    One call of each goes before, and does not count.
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
