"""benchmarks/statistics.py: Student's t by integration, and an interval by hand."""

import math

import numpy as np
import pytest

from benchmarks.statistics import half_width, mean_interval, t975


@pytest.mark.parametrize("degrees", [*range(1, 21), 30, 63, 1000])
def test_t975_leaves_a_fortieth_on_the_right(degrees):
    quantile = t975(degrees)
    x = np.linspace(0, quantile, 100_001)
    constant = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2))
    constant /= math.sqrt(degrees * math.pi)
    density = constant * (1 + x**2 / degrees) ** (-(degrees + 1) / 2)
    from_0_to_quantile = density.mean() * quantile
    assert from_0_to_quantile == pytest.approx(0.475, abs=5e-5)


def test_half_width_by_hand():
    # mean 3, deviation sqrt((4 + 0 + 4) / 2) = 2, three runs: 2 degrees of freedom
    assert half_width([1, 3, 5]) == pytest.approx(4.303 * 2 / 3**0.5)
    assert mean_interval([1, 3, 5]) == "3.000 ± 4.969"
    assert half_width(np.full(16, 0.25)) == 0
