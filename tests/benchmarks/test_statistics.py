"""studies/statistics.py, compared with closed forms and hand calculations."""

import math

import numpy as np
import pytest
from studies.statistics import (
    half_width,
    holm,
    mean_interval,
    p_value,
    signed_rank_p,
    smallest_seen,
    t975,
    t_quantile,
    t_tail,
)

# ---- Student's t ---------------------------------------------------------------------------------


@pytest.mark.parametrize("t", [-30.0, -1.0, 0.0, 0.5, 2.0, 40.0, 1e4])
def test_tail_matches_closed_forms_at_1_and_2_degrees_of_freedom(t):
    assert t_tail(t, 1) == pytest.approx(math.atan2(1, t) / math.pi, rel=1e-9)
    beyond = 1 / (t**2 + 2 + abs(t) * math.sqrt(t**2 + 2))  # P(T > |t|), without cancellation
    assert t_tail(abs(t), 2) == pytest.approx(beyond, rel=1e-9)


def test_tail_at_many_degrees_of_freedom_matches_the_normal_distribution():
    normal = math.erfc(1.5 / math.sqrt(2)) / 2
    assert t_tail(1.5, 10**6) == pytest.approx(normal, rel=1e-4)


@pytest.mark.parametrize("degrees", [1, 2, 5, 15, 63, 1000])
@pytest.mark.parametrize("share", [0.001, 0.2, 0.5, 0.8, 0.975, 0.9999])
def test_quantile_inverts_the_tail(share, degrees):
    assert t_tail(t_quantile(share, degrees), degrees) == pytest.approx(1 - share, rel=1e-8)


@pytest.mark.parametrize(
    "degrees, printed", [(1, 12.706), (2, 4.303), (5, 2.571), (15, 2.131), (30, 2.042)]
)
def test_t975_matches_printed_tables(degrees, printed):
    assert t975(degrees) == pytest.approx(printed, abs=5e-4)


# ---- intervals -----------------------------------------------------------------------------------


def test_half_width_matches_a_hand_calculation():
    # mean 3, deviation sqrt((4 + 0 + 4) / 2) = 2, three runs: 2 degrees of freedom
    assert half_width([1, 3, 5]) == pytest.approx(4.303 * 2 / 3**0.5, rel=1e-4)
    assert mean_interval([1, 3, 5]) == "3.000 ± 4.968"
    assert half_width(np.full(16, 0.25)) == 0


# ---- tests and their power -----------------------------------------------------------------------


def test_p_is_5_percent_where_the_interval_ends_at_0():
    values = np.array([0.3, -0.1, 0.4, 0.2, 0.5])
    at_0 = values - values.mean() + half_width(values)
    assert p_value(at_0) == pytest.approx(0.05)
    assert p_value(-at_0) == pytest.approx(0.05)
    assert p_value(values - values.mean()) == pytest.approx(1)


def test_p_is_0_or_1_if_all_differences_are_equal():
    assert p_value([0.0, 0.0]) == 1
    assert p_value([0.25, 0.25]) == 0


def test_holm_matches_a_hand_calculation():
    # 4 x 0.01, 3 x 0.02 = 0.06, 2 x 0.025 = 0.05 raised to 0.06, 1 x 0.9
    corrected = holm({"c": 0.025, "a": 0.01, "d": 0.9, "b": 0.02})
    assert corrected == pytest.approx({"a": 0.04, "b": 0.06, "c": 0.06, "d": 0.9})
    assert holm({"a": 0.6, "b": 0.7}) == {"a": 1, "b": 1}


@pytest.mark.parametrize("level", [0.05, 0.05 / 13])
def test_the_smallest_detectable_difference_is_found_four_times_in_five(level):
    random = np.random.default_rng(0)
    runs, experiments = 16, 4000
    noise = random.normal(size=(experiments, runs))
    # The spread varies between studies. `typical` has the true spread.
    typical = np.concatenate([np.ones(runs // 2), -np.ones(runs // 2)])
    typical /= typical.std(ddof=1)
    found = noise + smallest_seen(typical, level)
    error = found.std(axis=1, ddof=1) / runs**0.5
    seen = np.abs(found.mean(axis=1)) / error > t_quantile(1 - level / 2, runs - 1)
    assert seen.mean() == pytest.approx(0.8, abs=0.03)


# ---- signed ranks --------------------------------------------------------------------------------


def test_signed_ranks_match_a_hand_calculation():
    # all eight positive: one of the 2^8 sign patterns, and its mirror image
    assert signed_rank_p([1, 2, 3, 4, 5, 6, 7, 8.5]) == pytest.approx(2 / 256)
    # ranks 1 to 3, the smallest negative: two of the eight patterns have a sum of at least 5
    assert signed_rank_p([-0.1, 0.2, 0.7]) == pytest.approx(2 * 2 / 8)
    assert signed_rank_p([0.1, -0.2, -0.7]) == pytest.approx(2 * 2 / 8)
    # ranks 1.5, 1.5 and 3: three of the eight patterns have a sum of at least 4.5
    assert signed_rank_p([-1, 1, 2]) == pytest.approx(2 * 3 / 8)
    assert signed_rank_p([0, 0, 3, 4]) == pytest.approx(2 / 4)  # zeros are left out
    assert signed_rank_p([0.0, 0.0]) == 1


def test_signed_rank_p_is_uniform_for_noise():
    rng = np.random.default_rng(0)
    found = np.array([signed_rank_p(rng.normal(size=10)) for _ in range(400)])
    assert np.mean(found <= 0.05) == pytest.approx(0.05, abs=0.035)
    assert found.mean() > 0.45
