"""The mean over independent runs and how sure it is, for the studies."""

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
