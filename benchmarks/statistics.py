"""Intervals and tests for paired runs: Student's t, Holm's correction."""

from collections.abc import Sequence
from functools import cache

import mpmath
import numpy as np


def two_sided_p(t: float, degrees: int) -> float:
    """P(|T| > |t|) for Student's t, an incomplete beta function."""
    share = degrees / (degrees + t * t)
    return float(mpmath.betainc(degrees / 2, 0.5, 0, share, regularized=True))


@cache
def critical_t(p: float, degrees: int) -> float:
    """The t > 0 with two_sided_p(t) = p."""

    def above(t: float) -> float:
        return two_sided_p(t, degrees) - p

    return float(mpmath.findroot(above, (0.0, 1e4), solver="pegasus", tol=1e-20, maxsteps=200))


def half_width(values: Sequence[float], level: float = 0.95) -> float:
    """Half the width of the t-interval for the mean over at least 2 independent runs."""
    values = np.asarray(values, dtype=float)  # [runs]
    return critical_t(1 - level, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5


def mean_interval(values: Sequence[float]) -> str:
    """`mean ± half-width` for the 95 % t-interval over at least 2 independent runs."""
    return f"{np.mean(values):.3f} ± {half_width(values):.3f}"


def p_value(differences: Sequence[float]) -> float:
    """Two-sided p-value of a paired t-test of zero mean, for at least 2 differences.

    If all differences are equal, p is 1 if they are 0, and 0 otherwise.
    """
    differences = np.asarray(differences, dtype=float)  # [runs]
    mean = differences.mean()
    error = differences.std(ddof=1) / len(differences) ** 0.5
    if error == 0:
        return float(mean == 0)
    return two_sided_p(mean / error, len(differences) - 1)


def holm(p_values: dict[str, float]) -> dict[str, float]:
    """Holm's correction for m p-values: the smallest times m, the next times m - 1, and so on.

    The corrected p-values keep their order and do not exceed 1. Rejecting all up to 0.05 keeps the
    family-wise error rate at 5 %.
    """
    names = sorted(p_values, key=p_values.get)
    products = [p_values[name] * (len(names) - rank) for rank, name in enumerate(names)]
    corrected = np.maximum.accumulate(products).clip(max=1)
    return dict(zip(names, corrected, strict=True))
