"""answers/arithmetic.py: exact for rational numbers, high precision otherwise, bounded work."""

import cmath
import math
from fractions import Fraction

import pytest

from answers.arithmetic import (
    MAX_BITS,
    MAX_MAGNITUDE,
    Arithmetic,
    context,
    exact_root,
    natural_number,
)
from answers.errors import OutOfFuel, TooLarge, Undefined

TWO = Fraction(2)
HALF = Fraction(1, 2)
I = context.mpc(0, 1)  # noqa: E741


@pytest.fixture
def arithmetic():
    return Arithmetic(fuel=100_000)


def test_natural_number_refuses_non_naturals_and_numbers_above_the_limit():
    assert natural_number(Fraction(7), most=7) == 7
    for x in (Fraction(-1), Fraction(1, 2), I, math.inf):
        with pytest.raises(Undefined):
            natural_number(x, most=7)
    with pytest.raises(TooLarge):
        natural_number(Fraction(8), most=7)


def test_exact_root_finds_integer_roots_only():
    for n in (2, 3, 5, 12):
        for root in (0, 1, 7, 10**20):
            assert exact_root(root**n, n) == root
        assert exact_root(3**n + 1, n) is None
    assert exact_root(2, 10**6) is None


def test_operations_on_rational_numbers_are_exact(arithmetic):
    a, b = Fraction(2, 3), Fraction(-5, 7)
    assert arithmetic.add(a, b) == Fraction(-1, 21)
    assert arithmetic.subtract(a, b) == Fraction(29, 21)
    assert arithmetic.multiply(a, b) == Fraction(-10, 21)
    assert arithmetic.divide(a, b) == Fraction(-14, 15)
    assert arithmetic.power(a, Fraction(-2)) == Fraction(9, 4)
    assert arithmetic.power(Fraction(4, 9), Fraction(1, 2)) == a


def test_operations_on_complex_numbers_agree_with_python(arithmetic):
    a = arithmetic.add(arithmetic.power(TWO, HALF), I)  # 1.41 + i
    b = arithmetic.subtract(Fraction(1, 3), arithmetic.multiply(TWO, I))  # 0.33 - 2i
    for name, expected in [
        ("add", complex(a) + complex(b)),
        ("subtract", complex(a) - complex(b)),
        ("multiply", complex(a) * complex(b)),
        ("divide", complex(a) / complex(b)),
        ("power", complex(a) ** complex(b)),
    ]:
        assert complex(getattr(arithmetic, name)(a, b)) == pytest.approx(expected, rel=1e-14)
    for name in ("exp", "sin", "cos", "tan", "sinh", "cosh", "tanh"):
        expected = getattr(cmath, name)(complex(b))
        assert complex(getattr(arithmetic, name)(b)) == pytest.approx(expected, rel=1e-13)
    assert complex(arithmetic.ln(b)) == pytest.approx(cmath.log(complex(b)), rel=1e-14)


@pytest.mark.parametrize("name", ["arcsin", "arccos", "arctan"])
@pytest.mark.parametrize("x", [Fraction(-1), Fraction(-1, 3), Fraction(0), Fraction(1)])
def test_inverse_functions_and_their_domains_agree_with_python(arithmetic, name, x):
    expected = getattr(math, name.replace("arc", "a"))(x)
    assert complex(getattr(arithmetic, name)(x)) == pytest.approx(expected, abs=1e-14)
    if name != "arctan":
        with pytest.raises(Undefined):
            getattr(arithmetic, name)(TWO)


def test_odd_roots_of_negative_numbers_are_real(arithmetic):
    for power in (arithmetic.power, arithmetic.real_power):
        assert power(Fraction(-8), Fraction(1, 3)) == -2
        assert power(Fraction(-8), Fraction(2, 3)) == 4
        assert power(Fraction(-8), Fraction(-1, 3)) == Fraction(-1, 2)
        tiny = Fraction(-1, 10**90)
        assert power(tiny, Fraction(1, 3)) == Fraction(-1, 10**30)
    assert complex(arithmetic.power(Fraction(-2), Fraction(1, 3))) == pytest.approx(-(2 ** (1 / 3)))


def test_even_roots_of_negative_numbers_are_complex_and_refused_by_real_power(arithmetic):
    assert complex(arithmetic.power(Fraction(-4), Fraction(1, 2))) == pytest.approx(2j)
    with pytest.raises(Undefined):
        arithmetic.real_power(Fraction(-4), Fraction(1, 2))
    with pytest.raises(Undefined):
        arithmetic.real_ln(Fraction(-4))


@pytest.mark.parametrize("exponent", [Fraction(0), Fraction(-1)])
def test_power_of_zero_is_undefined_unless_the_exponent_is_positive(arithmetic, exponent):
    assert arithmetic.power(Fraction(0), Fraction(1, 2)) == 0
    with pytest.raises(Undefined):
        arithmetic.power(Fraction(0), exponent)


def test_rounding_noise_becomes_an_exact_0(arithmetic):
    root_8 = arithmetic.power(Fraction(8), HALF)
    twice_root_2 = arithmetic.multiply(TWO, arithmetic.power(TWO, HALF))
    pi = arithmetic.constant(r"\pi")
    zeros = [
        arithmetic.subtract(root_8, twice_root_2),
        arithmetic.sin(pi),
        arithmetic.ln(arithmetic.exp(Fraction(0))),
        arithmetic.cos(arithmetic.divide(pi, TWO)),
    ]
    for zero in zeros:
        assert isinstance(zero, Fraction)
        assert zero == 0
    with pytest.raises(Undefined):
        arithmetic.divide(Fraction(1), zeros[0])


def test_all_operations_share_one_budget(arithmetic):
    arithmetic.power(TWO, HALF)
    assert 0 < arithmetic.fuel < 100_000
    with pytest.raises(OutOfFuel):
        arithmetic.pay(100_000)


def test_values_that_are_too_large_are_refused(arithmetic):
    with pytest.raises(TooLarge):
        arithmetic.power(TWO, Fraction(2 * MAX_BITS))
    with pytest.raises(TooLarge):
        arithmetic.exp(Fraction(MAX_MAGNITUDE))
    with pytest.raises(TooLarge):
        arithmetic.exp(Fraction(-MAX_MAGNITUDE))
    with pytest.raises(TooLarge):
        arithmetic.factorial(Fraction(10**6))
    with pytest.raises(TooLarge):
        arithmetic.binomial(Fraction(10**9), Fraction(10**8))


@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "divide", "power"])
def test_operations_on_infinity_are_undefined(arithmetic, name):
    for arguments in ((math.inf, TWO), (TWO, math.inf)):
        with pytest.raises(Undefined):
            getattr(arithmetic, name)(*arguments)


def test_floor_and_ceil_ignore_rounding_noise(arithmetic):
    log_2_of_8 = arithmetic.divide(arithmetic.ln(Fraction(8)), arithmetic.ln(TWO))
    assert arithmetic.floor(log_2_of_8) == arithmetic.ceil(log_2_of_8) == 3
    assert arithmetic.floor(Fraction(-7, 2)) == -4
    assert arithmetic.ceil(Fraction(-7, 2)) == -3
    assert arithmetic.floor(arithmetic.constant(r"\pi")) == 3
    assert arithmetic.ceil(arithmetic.negative(arithmetic.constant(r"\pi"))) == -3
    with pytest.raises(Undefined):
        arithmetic.floor(I)


def test_factorials_double_factorials_and_binomials(arithmetic):
    assert arithmetic.factorial(Fraction(7)) == math.factorial(7)
    assert arithmetic.double_factorial(Fraction(7)) == 7 * 5 * 3
    assert arithmetic.factorial(Fraction(0)) == 1
    assert arithmetic.binomial(Fraction(5), TWO) == 10
    assert arithmetic.binomial(TWO, Fraction(5)) == 0
    assert arithmetic.absolute(context.mpc(3, -4)) == 5
