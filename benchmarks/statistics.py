"""The mean over independent runs and how sure it is, for the studies."""

from collections.abc import Sequence

import numpy as np

# Student's t, quantile 0.975, at 1, 2, ..., 15 degrees of freedom
T975 = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306]
T975 += [2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131]


def half_width(values: Sequence[float]) -> float:
    """Half the 95 % t-interval of the mean over independent runs, 2 to 16 of them."""
    values = np.asarray(values, dtype=float)  # [runs]
    degrees = len(values) - 1
    return T975[degrees - 1] * values.std(ddof=1) / len(values) ** 0.5


def mean_interval(values: Sequence[float]) -> str:
    """`mean ± half-width` of the 95 % t-interval over independent runs, 2 to 16 of them."""
    return f"{np.mean(values):.3f} ± {half_width(values):.3f}"
