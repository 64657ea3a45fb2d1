"""infra/arithmetic.py: exact where numbers are rational, bounded everywhere."""

import math
from fractions import Fraction

import pytest

from infra.arithmetic import (
    MAX_BITS,
    Undefined,
    Unreadable,
    compute,
    factorial,
    natural_log,
    natural_number,
    rounded,
)


def test_natural_number_is_undefined_below_0_and_between_and_refused_above_the_bound():
    assert natural_number(Fraction(7), most=7) == 7
    for x in (Fraction(-1), Fraction(1, 2), 2 + 0j, math.inf):
        with pytest.raises(Undefined):
            natural_number(x, most=7)
    with pytest.raises(Unreadable):
        natural_number(Fraction(8), most=7)


def test_factorial_steps_by_one_or_two():
    assert factorial(Fraction(7), step=1) == math.factorial(7)
    assert factorial(Fraction(7), step=2) == 7 * 5 * 3 * 1
    assert factorial(Fraction(0), step=1) == 1


def test_natural_log_takes_integers_beyond_floats():
    assert natural_log(Fraction(10**400)).real == pytest.approx(400 * math.log(10))
    assert natural_log(Fraction(1, 10**400)).real == pytest.approx(-400 * math.log(10))
    assert natural_log(Fraction(-1)) == pytest.approx(math.pi * 1j)


def test_rounded_ignores_rounding_noise():
    assert rounded(Fraction(7, 2), r"\lfloor") == 3
    assert rounded(Fraction(7, 2), r"\lceil") == 4
    assert rounded(complex(2 - 1e-12), r"\lfloor") == 2
    assert rounded(complex(2 + 1e-12), r"\lceil") == 2


def test_compute_is_exact_with_rational_numbers():
    a, b = Fraction(2, 3), Fraction(-5, 7)
    assert compute("+", a, b, real=False) == Fraction(-1, 21)
    assert compute("-", a, b, real=False) == Fraction(29, 21)
    assert compute("*", a, b, real=False) == Fraction(-10, 21)
    assert compute("/", a, b, real=False) == Fraction(-14, 15)
    assert compute("^", a, Fraction(-2), real=False) == Fraction(9, 4)


def test_compute_takes_the_real_odd_roots_of_negative_numbers():
    assert compute("^", Fraction(-8), Fraction(1, 3), real=False) == pytest.approx(-2)
    assert compute("^", Fraction(-8), Fraction(2, 3), real=True) == pytest.approx(4)
    assert compute("^", Fraction(-8), Fraction(-1, 3), real=False) == pytest.approx(-0.5)


def test_compute_takes_even_roots_of_negative_numbers_unless_all_is_real():
    assert compute("^", Fraction(-4), Fraction(1, 2), real=False) == pytest.approx(2j)
    with pytest.raises(Undefined):
        compute("^", Fraction(-4), Fraction(1, 2), real=True)


def test_compute_cancels_rounding_noise_to_an_exact_0():
    a = complex(math.sqrt(2))
    assert compute("-", a, a * (1 + 1e-15), real=False) == 0
    assert isinstance(compute("-", a, a, real=False), Fraction)
    with pytest.raises(Unreadable):  # as much noise as 1e-9: it may be a value of its own
        compute("-", a * 1e7, a * 1e7, real=False)


@pytest.mark.parametrize("sign", "+-*/^")
def test_compute_does_not_compute_with_infinity(sign):
    with pytest.raises(Undefined):
        compute(sign, math.inf, Fraction(1), real=False)
    with pytest.raises(Undefined):
        compute(sign, Fraction(1), math.inf, real=False)


def test_compute_refuses_underflow_and_long_powers():
    with pytest.raises(Unreadable):
        compute("*", complex(1e-200), complex(1e-200), real=False)
    with pytest.raises(Unreadable):
        compute("^", Fraction(2), Fraction(2 * MAX_BITS), real=False)
    for exponent in (Fraction(0), Fraction(-1)):
        with pytest.raises(Undefined):
            compute("^", Fraction(0), exponent, real=False)
