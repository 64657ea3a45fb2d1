r"""Real functions to any precision: an integer x with `bits` stands for the number x / 2^bits.

Python's integers have no limit, so a number of 320 bits is one of 96 digits. Every function works
with GUARD more bits than it is asked for and rounds down: its result is right within a few units
of the last bit, times the result if that is large.
"""

import math
from functools import lru_cache

GUARD = 32
HALVINGS = 8  # of an argument, before its series is summed: it then ends three times sooner
FLOAT_BITS = 50  # that Python's own functions get right


@lru_cache(maxsize=64)
def pi(bits: int) -> int:
    """Machin's formula: π = 16 arctan(1/5) - 4 arctan(1/239)."""
    work = bits + GUARD
    machin = 16 * inverse_series(5, work, sign=-1) - 4 * inverse_series(239, work, sign=-1)
    return machin >> GUARD


@lru_cache(maxsize=64)
def ln2(bits: int) -> int:
    """ln 2 = 2 artanh(1/3)."""
    return 2 * inverse_series(3, bits + GUARD, sign=1) >> GUARD


def inverse_series(n: int, bits: int, sign: int) -> int:
    """1/n + sign/(3 n^3) + 1/(5 n^5) + ...: artanh(1/n), or with -1 arctan(1/n)."""
    power = (1 << bits) // n
    total = 0
    i = 0
    while power:
        total += sign**i * (power // (2 * i + 1))
        power //= n * n
        i += 1
    return total


@lru_cache(maxsize=64)
def e(bits: int) -> int:
    return exp(1 << bits, bits)


def sqrt(x: int, bits: int) -> int:
    """The root of x >= 0."""
    return math.isqrt(x << bits)


def exp(x: int, bits: int) -> int:
    """e^x = 2^k e^r with r < ln 2: the series is summed for r / 2^HALVINGS, then squared back."""
    k = (x // ln2(bits)).bit_length()
    work = bits + GUARD + k
    powers_of_two, r = divmod(x << (work - bits), ln2(work))
    r >>= HALVINGS

    term = 1 << work
    total = term
    n = 1
    while term:
        term = (term * r >> work) // n
        total += term
        n += 1
    for _ in range(HALVINGS):
        total = total * total >> work

    shift = powers_of_two - (work - bits)
    return total << shift if shift > 0 else total >> -shift


def ln(x: int, bits: int) -> int:
    """ln x for x > 0. With x = m 2^k, ln m is found by Halley's method: a step triples digits."""
    k = x.bit_length() - bits
    work = bits + GUARD
    shift = GUARD - k
    m = x << shift if shift > 0 else x >> -shift  # 1/2 <= m < 1

    y = from_float(math.log(to_float(m, work)), work)
    accuracy = FLOAT_BITS
    while accuracy < work:
        power = exp(y, work)
        y += (2 * (m - power) << work) // (m + power)
        accuracy *= 3
    return (y + k * ln2(work)) >> GUARD


def sin_cos(x: int, bits: int) -> tuple[int, int]:
    """sin x and cos x: x is turned by quarters of the circle to r, |r| <= π/4."""
    work = bits + GUARD + max(0, x.bit_length() - bits)
    quarter = pi(work) >> 1
    x <<= work - bits
    quarters = (2 * x + quarter) // (2 * quarter)
    r = (x - quarters * quarter) >> HALVINGS

    # sin r, and 1 - cos r rather than cos r: near 0 it keeps its digits.
    square = r * r >> work
    term = r
    sine = 0
    n = 1
    while term:
        sine += term
        term = -(term * square >> work) // ((n + 1) * (n + 2))
        n += 2
    one = 1 << work
    cosine = math.isqrt((one << work) - sine * sine)
    for _ in range(HALVINGS):
        sine, cosine = 2 * sine * cosine >> work, one - (2 * sine * sine >> work)

    for _ in range(quarters % 4):
        sine, cosine = cosine, -sine
    return sine >> (work - bits), cosine >> (work - bits)


def arctan2(y: int, x: int, bits: int) -> int:
    """The angle of the point (x, y), not both 0, in (-π, π]; a step triples its digits."""
    work = bits + GUARD
    length = math.isqrt(x * x + y * y)
    sine = (y << work) // length
    cosine = (x << work) // length

    angle = from_float(math.atan2(to_float(sine, work), to_float(cosine, work)), work)
    accuracy = FLOAT_BITS
    while accuracy < work:
        near_sine, near_cosine = sin_cos(angle, work)
        angle += (sine * near_cosine - cosine * near_sine) >> work
        accuracy *= 3
    return angle >> GUARD


def to_float(x: int, bits: int) -> float:
    return (x >> (bits - 64)) / 2**64


def from_float(x: float, bits: int) -> int:
    return round(x * 2**64) << (bits - 64)
