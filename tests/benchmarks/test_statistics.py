"""Compares benchmarks/statistics.py with closed forms and with computations by hand."""

import math

import numpy as np
import pytest

from benchmarks.statistics import critical_t, half_width, holm, two_sided_p


@pytest.mark.parametrize("t", [-30.0, -1.0, 0.0, 0.5, 2.0, 40.0, 1e4])
def test_p_matches_closed_forms_at_1_and_2_degrees_of_freedom(t):
    assert two_sided_p(t, 1) == pytest.approx(2 * math.atan2(1, abs(t)) / math.pi, rel=1e-9)
    beyond = 1 / (t**2 + 2 + abs(t) * math.sqrt(t**2 + 2))  # P(T > |t|), without cancellation
    assert two_sided_p(t, 2) == pytest.approx(2 * beyond, rel=1e-9)


def test_half_width_matches_a_hand_calculation():
    # mean 3, deviation sqrt((4 + 0 + 4) / 2) = 2, three runs: 2 degrees of freedom
    assert critical_t(0.05, 2) == pytest.approx(4.302653, rel=1e-6)
    assert half_width([1, 3, 5]) == pytest.approx(4.302653 * 2 / 3**0.5, rel=1e-6)
    assert half_width(np.full(16, 0.25)) == 0


def test_holm_matches_a_hand_calculation():
    # 4 x 0.01, 3 x 0.02 = 0.06, 2 x 0.025 = 0.05 raised to 0.06, 1 x 0.9
    corrected = holm({"c": 0.025, "a": 0.01, "d": 0.9, "b": 0.02})
    assert corrected == pytest.approx({"a": 0.04, "b": 0.06, "c": 0.06, "d": 0.9})
    assert holm({"a": 0.6, "b": 0.7}) == {"a": 1, "b": 1}
