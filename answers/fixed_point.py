r"""Real functions to any precision: an integer x with `bits` stands for the number x / 2^bits.

The digits come from mpmath, which PyTorch installs. Every result is right within a few units of
the last bit, times the result if that is large.
"""

import math
from fractions import Fraction
from typing import NamedTuple

from mpmath import libmp

GUARD = 32  # bits beyond those that are asked for
FIRST_BITS = 256
MAX_ROOT = 64  # \sqrt[64]{x} is looked at for being rational


class Approximate(NamedTuple):
    """A complex number: (re + im i) / 2^bits, where the `Arithmetic` that made it knows bits."""

    re: int
    im: int = 0


def number(x: int, bits: int) -> tuple:
    """x / 2^bits as mpmath writes it."""
    return libmp.from_man_exp(x, -bits)


def pi(bits: int) -> int:
    return libmp.pi_fixed(bits)


def e(bits: int) -> int:
    return libmp.e_fixed(bits)


def sqrt(x: int, bits: int) -> int:
    """The root of x >= 0."""
    return math.isqrt(x << bits)


def exp(x: int, bits: int) -> int:
    bits_of_result = max(0, 3 * x // 2 >> bits)  # e^x is about 2^(1.44 x)
    power = libmp.mpf_exp(number(x, bits), bits + bits_of_result + GUARD)
    return libmp.to_fixed(power, bits)


def ln(x: int, bits: int) -> int:
    """ln x for x > 0."""
    return libmp.to_fixed(libmp.mpf_log(number(x, bits), bits + GUARD), bits)


def sin_cos(x: int, bits: int) -> tuple[int, int]:
    cosine, sine = libmp.mpf_cos_sin(number(x, bits), bits + GUARD)
    return libmp.to_fixed(sine, bits), libmp.to_fixed(cosine, bits)


def arctan2(y: int, x: int, bits: int) -> int:
    """The angle of the point (x, y), not both 0, in (-π, π]."""
    angle = libmp.mpf_atan2(number(y, bits), number(x, bits), bits + GUARD)
    return libmp.to_fixed(angle, bits)


def bits_for(magnitude: int) -> int:
    """How many bits numbers between 2^-magnitude and 2^magnitude need, at least FIRST_BITS.

    Twice the magnitude is lost in a difference of products of such numbers. Half of what is left
    may be noise, so that numbers that agree do to 96 bits behind the last they have in common.
    """
    needed = 192 + 4 * magnitude
    return max(FIRST_BITS, -(-needed // 64) * 64)


# ---- roots of rational numbers -------------------------------------------------------------------


def exact_root(x: Fraction, n: int) -> Fraction | None:
    """The n-th root of x >= 0 if it is rational."""
    numerator = integer_root(x.numerator, n)
    denominator = integer_root(x.denominator, n)
    if numerator is None or denominator is None:
        return None
    return Fraction(numerator, denominator)


def integer_root(x: int, n: int) -> int | None:
    """The n-th root of x >= 0 if it is a whole number."""
    if n == 2:
        root = math.isqrt(x)
        return root if root * root == x else None
    if n > MAX_ROOT:
        return x if x <= 1 else None

    # By bisection between two powers of two.
    low = 0
    high = 1 << (x.bit_length() // n + 1)
    while high - low > 1:
        middle = (low + high) // 2
        if middle**n <= x:
            low = middle
        else:
            high = middle
    return low if low**n == x else None
