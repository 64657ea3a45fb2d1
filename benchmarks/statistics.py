"""Computes intervals and p-values by Student's t, and Holm's correction of p-values."""

from collections.abc import Callable, Sequence
from functools import cache

import mpmath
import numpy as np
import pandas as pd


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


def holm(p_values: dict[str, float]) -> dict[str, float]:
    """Holm's correction for m p-values: the smallest times m, the next times m - 1, and so on.

    The corrected p-values keep their order and do not exceed 1. Rejecting all up to 0.05 keeps the
    family-wise error rate at 5 %.
    """
    names = sorted(p_values, key=p_values.get)
    products = [p_values[name] * (len(names) - rank) for rank, name in enumerate(names)]
    corrected = np.maximum.accumulate(products).clip(max=1)
    return dict(zip(names, corrected, strict=True))


def with_interval(values: Sequence[float], digits: str = ".3f") -> str:
    """The mean over seeds and half the width of its 95 % interval, as text."""
    return f"{np.mean(values):{digits}} ± {half_width(values):{digits}}"


def p_of(differences: Sequence[float]) -> float:
    """p of a t-test of the differences against 0; 1 for a row that is dapo by another name."""
    differences = np.asarray(differences, dtype=float)
    if not differences.any():
        return 1.0
    t = differences.mean() / (differences.std(ddof=1) / len(differences) ** 0.5)
    return two_sided_p(t, len(differences) - 1)


def jackknife(number: Callable, table: pd.DataFrame) -> tuple[float, float]:
    """number(table), and half its 95 % interval by leaving out each line of the table once."""
    n = len(table)
    without = np.array([number(table.drop(index=x)) for x in table.index])
    error = (n - 1) ** 0.5 * without.std()
    return float(number(table)), float(critical_t(0.05, n - 1) * error)
