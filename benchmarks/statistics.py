"""Confidence intervals, paired t-tests, signed ranks and Holm's correction.

Student's t is integrated numerically: with t = √n tan θ, the density at n degrees of freedom is
proportional to cos^(n-1) θ, which is smooth between -π/2 and π/2.
"""

import math
from collections.abc import Sequence
from functools import cache

import numpy as np

NODES, WEIGHTS = np.polynomial.legendre.leggauss(200)  # Gauss-Legendre, on [-1, 1]


def t_tail(t: float, degrees: int) -> float:
    """P(T > t) for Student's t, with a small relative error even for small P."""
    low = math.atan(t / degrees**0.5)
    middle, half = (math.pi / 2 + low) / 2, (math.pi / 2 - low) / 2
    area = half * WEIGHTS @ np.cos(middle + half * NODES) ** (degrees - 1)
    constant = math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)
    return math.exp(constant) / math.pi**0.5 * float(area)


@cache
def t_quantile(share: float, degrees: int) -> float:
    """The t with P(T <= t) = share, by bisection on θ. share: in (0, 1)."""
    low, high = -math.pi / 2, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        if t_tail(degrees**0.5 * math.tan(middle), degrees) > 1 - share:
            low = middle
        else:
            high = middle
    return degrees**0.5 * math.tan(low)


def half_width(values: Sequence[float]) -> float:
    """Half the width of the 95 % t-interval for the mean over at least 2 independent runs."""
    values = np.asarray(values, dtype=float)  # [runs]
    return t_quantile(0.975, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5


def mean_interval(values: Sequence[float]) -> str:
    """`mean ± half-width` for the 95 % t-interval over at least 2 independent runs."""
    return f"{np.mean(values):.3f} ± {half_width(values):.3f}"


def p_value(differences: Sequence[float]) -> float:
    """Two-sided p-value of a paired t-test of zero mean, for at least 2 differences.

    If all differences are equal, p is 1 if they are 0, and 0 otherwise.
    """
    differences = np.asarray(differences, dtype=float)  # [runs]
    mean = abs(differences.mean())
    error = differences.std(ddof=1) / len(differences) ** 0.5
    if error == 0:
        return float(mean == 0)
    return 2 * t_tail(mean / error, len(differences) - 1)


def signed_rank_p(differences: Sequence[float]) -> float:
    """Exact two-sided p-value of Wilcoxon's signed-rank test for symmetry about 0.

    The absolute nonzero differences are ranked; ties share their mean rank. p is twice the share of
    the 2^n sign patterns whose sum of positive ranks is at least as extreme in the same direction,
    but at most 1. p is 1 if all differences are 0.
    """
    differences = np.asarray(differences, dtype=float)
    differences = differences[differences != 0]  # [n]
    size = np.abs(differences)
    below = (size[:, None] > size).sum(axis=1)
    alike = (size[:, None] == size).sum(axis=1)
    doubled = 2 * below + alike + 1  # twice the rank: an integer

    ways = np.zeros(doubled.sum() + 1)  # [sums] number of sign patterns for each sum
    ways[0] = 1
    for rank in doubled:
        ways[rank:] = ways[rank:] + ways[: len(ways) - rank]
    share = ways / ways.sum()
    found = doubled[differences > 0].sum()
    return min(1.0, 2 * float(min(share[: found + 1].sum(), share[found:].sum())))


def holm(p_values: dict[str, float]) -> dict[str, float]:
    """Holm's correction for m p-values: the smallest times m, the next times m - 1, and so on.

    The corrected p-values keep their order and do not exceed 1. Rejecting all up to 0.05 keeps the
    family-wise error rate at 5 %.
    """
    corrected = {}
    largest = 0.0
    for place, name in enumerate(sorted(p_values, key=p_values.get)):
        largest = max(largest, min(1.0, (len(p_values) - place) * p_values[name]))
        corrected[name] = largest
    return corrected
