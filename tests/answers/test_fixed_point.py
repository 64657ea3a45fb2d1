"""answers/fixed_point.py: known digits, identities to the last bits, and Python's floats."""

import math

import pytest

from answers import fixed_point

# 60 digits each, from tables.
PI = 3141592653589793238462643383279502884197169399375105820974944
E = 2718281828459045235360287471352662497757247093699959574966967
LN2 = 693147180559945309417232121458176568075500134360255254120680
DIGITS = 10**60
BITS = (128, 256, 700)


def fixed(x: float, bits: int) -> int:
    return round(x * 2**60) << (bits - 60)


@pytest.mark.parametrize("bits", BITS)
def test_constants_have_the_digits_of_tables(bits):
    bits = max(bits, 256)
    assert fixed_point.pi(bits) * DIGITS >> bits == PI
    assert fixed_point.e(bits) * DIGITS >> bits == E
    assert fixed_point.ln(2 << bits, bits) * DIGITS >> bits == LN2


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("x", [-40.0, -1.5, -1e-6, 0.0, 1e-9, 0.7, 3.0, 50.25])
def test_exp_is_pythons_and_the_inverse_of_ln(x, bits):
    power = fixed_point.exp(fixed(x, bits), bits)
    assert power / 2**bits == pytest.approx(math.exp(x), rel=1e-12)

    if x > -20:  # below there are too few bits left to come back
        lost = max(0, round(-x * 1.45)) + 8
        assert abs(fixed_point.ln(power, bits) - fixed(x, bits)) < 1 << lost


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("x", [1e-12, 0.3, 1.0, 2.0, 10.0, 1e15])
def test_ln_turns_products_into_sums(x, bits):
    factor = fixed(x, bits)
    product = factor * fixed(7.25, bits) >> bits
    total = fixed_point.ln(factor, bits) + fixed_point.ln(fixed(7.25, bits), bits)
    assert fixed_point.ln(factor, bits) / 2**bits == pytest.approx(math.log(x), rel=1e-6, abs=1e-12)
    assert abs(fixed_point.ln(product, bits) - total) < 1 << 48


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("x", [-1e6, -7.0, -0.5, 0.0, 1e-9, 1.0, math.pi, 12.5, 1e9])
def test_sin_cos_are_pythons_and_on_the_circle(x, bits):
    sine, cosine = fixed_point.sin_cos(fixed(x, bits), bits)
    assert sine / 2**bits == pytest.approx(math.sin(x), abs=1e-6)
    assert cosine / 2**bits == pytest.approx(math.cos(x), abs=1e-6)
    assert abs(sine * sine + cosine * cosine - (1 << 2 * bits)) < 1 << (bits + 6)


@pytest.mark.parametrize("bits", BITS)
def test_sin_cos_at_quarters_of_the_circle(bits):
    quarter = fixed_point.pi(bits) // 2
    corners = [(0, 1), (1, 0), (0, -1), (-1, 0)]
    for quarters in range(-4, 5):
        sine, cosine = fixed_point.sin_cos(quarters * quarter, bits)
        expected_sine, expected_cosine = corners[quarters % 4]
        assert abs(sine - (expected_sine << bits)) < 64
        assert abs(cosine - (expected_cosine << bits)) < 64


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("angle", [-3.1, -1.6, -0.2, 0.0, 1e-9, 0.8, 1.6, 3.1])
def test_arctan2_is_the_inverse_of_sin_cos(angle, bits):
    sine, cosine = fixed_point.sin_cos(fixed(angle, bits), bits)
    assert abs(fixed_point.arctan2(3 * sine, 3 * cosine, bits) - fixed(angle, bits)) < 64


def test_arctan2_of_the_negative_axis_is_pi():
    assert fixed_point.arctan2(0, -(1 << 256), 256) == fixed_point.pi(256)


@pytest.mark.parametrize("bits", BITS)
def test_sqrt_squared_is_the_number(bits):
    for x in (0, 1, 2 << bits, 10**40):
        root = fixed_point.sqrt(x, bits)
        assert root * root <= x << bits < (root + 1) ** 2
