"""The mean over independent runs and how sure it is, for the studies."""

import math
from collections.abc import Sequence

import numpy as np

# Student's t, quantile 0.975, at 1, 2, ..., 15 degrees of freedom
T975 = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306]
T975 += [2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131]


def t975(degrees: int) -> float:
    """Student's t, quantile 0.975; above 15 degrees of freedom by its expansion about the normal's.

    The expansion (Cornish and Fisher's) is right to four digits there.
    """
    if degrees <= len(T975):
        return T975[degrees - 1]
    z = 1.959964
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / degrees + second / degrees**2


def half_width(values: Sequence[float]) -> float:
    """Half the 95 % t-interval of the mean over independent runs, at least 2 of them."""
    values = np.asarray(values, dtype=float)  # [runs]
    return t975(len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5


def mean_interval(values: Sequence[float]) -> str:
    """`mean ± half-width` of the 95 % t-interval over independent runs, at least 2 of them."""
    return f"{np.mean(values):.3f} ± {half_width(values):.3f}"


def p_value(values: Sequence[float]) -> float:
    """Two-sided, of the t-test that the mean over independent runs, at least 2 of them, is 0."""
    values = np.asarray(values, dtype=float)  # [runs]
    error = values.std(ddof=1) / len(values) ** 0.5
    if error == 0:
        return 1.0 if values.mean() == 0 else 0.0
    return 2 * t_tail(abs(values.mean()) / error, len(values) - 1)


def t_tail(t: float, degrees: int) -> float:
    """The chance that Student's t lies above t >= 0, by Simpson's rule.

    With x = √ν tan θ the density becomes cos(θ)^(ν - 1) up to a constant, on a bounded interval.
    """
    theta = np.linspace(math.atan(t / degrees**0.5), math.pi / 2, 2001)
    density = np.cos(theta) ** (degrees - 1)
    weight = np.where(np.arange(2001) % 2, 4.0, 2.0)
    weight[[0, -1]] = 1.0
    integral = (weight * density).sum() * (theta[1] - theta[0]) / 3
    constant = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2))
    return float(integral * constant / math.pi**0.5)


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values of several tests, adjusted for their number (Holm): in the order given.

    Each may be compared with 0.05; the chance of any false finding among them is then below it.
    """
    order = np.argsort(p_values)
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for place, i in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - place) * p_values[i]))
        adjusted[i] = highest
    return adjusted
