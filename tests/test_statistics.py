"""benchmarks/statistics.py: Student's t by integration, intervals and tests by hand."""

import math

import numpy as np
import pytest

from benchmarks.statistics import half_width, holm, mean_interval, p_value, t975, t_tail


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


@pytest.mark.parametrize("degrees", [1, 2, 4, 7, 15, 40])
def test_t_tail_is_a_fortieth_at_t975(degrees):
    assert t_tail(t975(degrees), degrees) == pytest.approx(0.025, rel=1e-3)
    assert t_tail(0, degrees) == pytest.approx(0.5)


def test_t_tail_in_closed_form():
    """One degree of freedom is Cauchy's law; for two there is a formula."""
    for t in (0.1, 1.0, 5.0, 300.0):
        assert t_tail(t, 1) == pytest.approx(math.atan(1 / t) / math.pi)
        # 1/2 - t / (2 sqrt(2 + t²)), without the cancellation
        root = math.sqrt(2 + t * t)
        assert t_tail(t, 2) == pytest.approx(1 / (root * (root + t)))


def test_p_value_by_hand():
    # mean 3, error 2 / sqrt(3): t = 2.598 at 2 degrees, tail 1/2 - t / (2 sqrt(2 + t²))
    t = 3 * 3**0.5 / 2
    assert p_value([1, 3, 5]) == pytest.approx(1 - t / math.sqrt(2 + t * t))
    assert p_value([-1, -3, -5]) == pytest.approx(p_value([1, 3, 5]))
    assert p_value([-1, 0, 1]) == pytest.approx(1)
    assert p_value([0.0, 0.0]) == 1
    assert p_value([0.5, 0.5]) == 0


def test_holm_by_hand():
    # 3 x 0.01, then 2 x 0.02 = 0.04, then 0.03, which may not fall below what came before
    assert holm([0.02, 0.01, 0.03]) == pytest.approx([0.04, 0.03, 0.04])
    assert holm([0.9, 0.4]) == pytest.approx([0.9, 0.8])
    assert holm([0.6, 0.7]) == pytest.approx([1.0, 1.0])
    assert holm([]) == []
