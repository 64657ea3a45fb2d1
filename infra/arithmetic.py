r"""Arithmetic on the values of expressions, bounded: a number may not grow beyond MAX_BITS.

A value is a Fraction where it is exact, else a complex number; infinity is a float, with which
nothing can be computed. So (2/3)^2 is exactly 4/9, and \sqrt{2} a complex number without an
imaginary part.
"""

import cmath
import math
import operator
from fractions import Fraction

MAX_BITS = 1 << 16  # of a number, numerator and denominator together
MAX_FACTORIAL = 3000

OPERATIONS = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "^": operator.pow,
}


class Unreadable(Exception):
    """Not in the grammar, or beyond a bound."""


class Undefined(ArithmeticError):
    """Well written, and without a value: 0/0, ∞ - ∞, (-1)!."""


def bit_length(x: Fraction) -> int:
    return x.numerator.bit_length() + x.denominator.bit_length()


def natural_number(x, most: int) -> int:
    """x as an int: undefined unless it is one of 0, 1, 2 ..., refused above `most`."""
    if not isinstance(x, Fraction) or x.denominator > 1 or x < 0:
        raise Undefined
    if x > most:
        raise Unreadable
    return int(x)


def factorial(x, step: int) -> Fraction:
    """x (x - step) (x - 2 step) ...: x! for a step of 1, x!! for 2."""
    return Fraction(math.prod(range(natural_number(x, MAX_FACTORIAL), 0, -step)))


def natural_log(x) -> complex:
    """ln x. math.log takes integers of any size, cmath.log only what fits a float."""
    if isinstance(x, Fraction) and x > 0:
        return complex(math.log(x.numerator) - math.log(x.denominator))
    return cmath.log(x)


def rounded(x, opening: str) -> Fraction:
    r"""⌊x⌋ or ⌈x⌉. What is a hair's breadth from an integer is that integer: ⌊\sqrt{2}^2⌋ = 2."""
    if isinstance(x, complex):
        x = round(x.real, 9)
    if opening == r"\lfloor":
        return Fraction(math.floor(x))
    return Fraction(math.ceil(x))


def is_odd_root(x, exponent) -> bool:
    """Whether x^exponent is a root like (-8)^(1/3)."""
    if not isinstance(x, Fraction) or not isinstance(exponent, Fraction):
        return False
    return x < 0 and exponent.denominator > 1 and exponent.denominator % 2 == 1


def odd_root(x: Fraction, exponent: Fraction) -> complex:
    """The real root of a negative number: (-8)^(1/3) = -2, and (-8)^(2/3) = 4."""
    return -(complex(-x) ** complex(exponent)) * (-1) ** (exponent.numerator + 1)


def check_power(x, exponent, real: bool) -> None:
    """Raise for powers that have no value (with `real`, no real value) or too many digits."""
    if x == 0 and not exponent.real > 0:
        raise Undefined
    if not isinstance(x, Fraction) or not isinstance(exponent, Fraction):
        return
    if abs(exponent) * bit_length(x) > 2 * MAX_BITS:
        raise Unreadable
    if real and x < 0 and exponent.denominator % 2 == 0:
        raise Undefined


def compute(sign: str, a, b, real: bool):
    """a + b, a - b, a * b, a / b or a ^ b. With `real`, roots of negative numbers are undefined."""
    if isinstance(a, float) or isinstance(b, float):
        raise Undefined  # ∞ - ∞ and the like
    if sign == "^":
        check_power(a, b, real)
        if is_odd_root(a, b):
            return odd_root(a, b)

    value = OPERATIONS[sign](a, b)
    if isinstance(value, float):  # a Fraction to the power of a Fraction
        value = complex(value)

    # Cancelled down to rounding noise: 0, if the noise of `a` itself is small.
    if sign in "+-" and isinstance(value, complex) and abs(value) < 1e-12 * abs(a):
        if abs(a) >= 1e6:
            raise Unreadable
        value = Fraction(0)

    underflow = value == 0 and a != 0 and not isinstance(value, Fraction)
    if underflow:
        raise Unreadable
    return value
