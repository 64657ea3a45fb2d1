r"""Arithmetic on the values of expressions: exact where numbers are rational, else to many digits.

A value is one of three. A Fraction is exact: (2/3)^2, but also \sqrt{4/9}. An Approximate is a
complex number in fixed point (answers/fixed_point.py). Infinity is a float, with which nothing can
be computed.

Approximate numbers are right to about half of their bits in the least. What a sum or a function
leaves below that is rounding noise, and is an exact 0: \sqrt{8} - 2\sqrt{2}, or sin π. Whether
the bits suffice depends on how large and how small the numbers on the way are: `magnitude` records
it, and whoever computes looks at it and begins again with more (`bits_for`).
"""

import math
from fractions import Fraction

from answers import fixed_point
from answers.errors import TooLarge, Undefined
from answers.fixed_point import FIRST_BITS, Approximate, exact_root

MAX_BITS = 1 << 16  # of a rational number, numerator and denominator together
MAX_FACTORIAL = 3000
MAX_MAGNITUDE = 400  # an approximate number lies between 2^-400 and 2^400


def bit_length(x: Fraction) -> int:
    return x.numerator.bit_length() + x.denominator.bit_length()


def natural_number(x, most: int) -> int:
    """x as an int: undefined unless it is one of 0, 1, 2 ..., refused above `most`."""
    if not isinstance(x, Fraction) or x.denominator > 1 or x < 0:
        raise Undefined
    if x > most:
        raise TooLarge
    return int(x)


class Arithmetic:
    """The operations, to a number of bits. Each raises Undefined or TooLarge if it has no value."""

    def __init__(self, bits: int, max_bits: int = MAX_BITS, max_magnitude: int = MAX_MAGNITUDE):
        self.bits = bits
        self.max_bits = max_bits
        self.max_magnitude = max_magnitude
        self.magnitude = 0
        self.work = 0  # done so far, in units of about a microsecond

    # ---- values ----------------------------------------------------------------------------------

    def record(self, magnitude: int) -> None:
        """A number of about 2^magnitude or 2^-magnitude was met."""
        if abs(magnitude) > self.max_magnitude:
            raise TooLarge
        self.magnitude = max(self.magnitude, abs(magnitude))

    def record_digits(self, value) -> None:
        """A rational number is met by approximate ones: 1 + 1/10^50 has fifty digits."""
        if isinstance(value, Fraction):
            self.record(max(value.numerator.bit_length(), value.denominator.bit_length()))

    def exact(self, value: Fraction) -> Fraction:
        """A rational result, if it is not too long."""
        bits = bit_length(value)
        self.work += 1 + (bits >> 11) ** 2
        if bits > self.max_bits:
            raise TooLarge
        return value

    def approximate(self, value) -> Approximate:
        """A rational number to `bits` bits; of an infinite one there is none."""
        if isinstance(value, Approximate):
            return value
        if isinstance(value, float):
            raise Undefined  # ∞ - ∞ and the like
        self.record_digits(value)
        return Approximate((value.numerator << self.bits) // value.denominator)

    def as_fraction(self, value) -> Fraction | None:
        """A real value as a rational number; None if it is not real."""
        if isinstance(value, Fraction):
            return value
        if isinstance(value, float) or value.im != 0:
            return None
        return Fraction(value.re, 1 << self.bits)

    def cleaned(self, re: int, im: int, scale: int = 0):
        """re + im i without its noise: what is small beside `scale`, the other part, or 1.

        scale: the largest of the numbers from whose sum it comes.
        """
        noise = max(1 << self.bits, scale, abs(re), abs(im)) >> self.bits // 2
        if abs(re) <= noise:
            re = 0
        if abs(im) <= noise:
            im = 0
        if re == im == 0:
            return Fraction(0)
        return Approximate(re, im)

    def product(self, re: int, im: int) -> Approximate:
        """The same for a product or quotient, whose larger part is never noise."""
        noise = max(abs(re), abs(im)) >> self.bits // 2
        if abs(re) <= noise:
            re = 0
        if abs(im) <= noise:
            im = 0
        if re == im == 0:
            raise TooLarge  # an underflow
        return Approximate(re, im)

    def size(self, z: Approximate) -> int:
        """The power of two of z."""
        return max(abs(z.re), abs(z.im)).bit_length() - self.bits

    # ---- + - * / ---------------------------------------------------------------------------------

    def add(self, a, b):
        if isinstance(a, Fraction) and isinstance(b, Fraction):
            return self.exact(a + b)
        a = self.approximate(a)
        b = self.approximate(b)
        self.work += 1
        scale = max(abs(a.re), abs(a.im), abs(b.re), abs(b.im))
        return self.cleaned(a.re + b.re, a.im + b.im, scale)

    def negative(self, a):
        if isinstance(a, Approximate):
            return Approximate(-a.re, -a.im)
        return -a

    def subtract(self, a, b):
        return self.add(a, self.negative(b))

    def multiply(self, a, b):
        if isinstance(a, Fraction) and isinstance(b, Fraction):
            return self.exact(a * b)
        a_is_zero = a == 0
        b_is_zero = b == 0
        a = self.approximate(a)
        b = self.approximate(b)
        if a_is_zero or b_is_zero:
            return Fraction(0)
        self.work += 1
        self.record(self.size(a) + self.size(b))
        if a.im == b.im == 0:
            return self.product(a.re * b.re >> self.bits, 0)
        re = a.re * b.re - a.im * b.im >> self.bits
        im = a.re * b.im + a.im * b.re >> self.bits
        return self.product(re, im)

    def divide(self, a, b):
        if b == 0:
            raise Undefined
        if isinstance(a, Fraction) and isinstance(b, Fraction):
            return self.exact(a / b)
        b = self.approximate(b)
        self.record(self.size(b))
        square = b.re * b.re + b.im * b.im
        self.work += 1
        inverse = Approximate(
            (b.re << 2 * self.bits) // square,
            (-b.im << 2 * self.bits) // square,
        )
        return self.multiply(a, inverse)

    # ---- powers ----------------------------------------------------------------------------------

    def power(self, a, b):
        """a^b: of negative numbers the real odd roots, as (-8)^(1/3) = -2, else complex ones."""
        if isinstance(a, float) or isinstance(b, float):
            raise Undefined
        if a == 0:
            return self.power_of_zero(b)
        if isinstance(b, Fraction):
            return self.rational_power(a, b)
        return self.exp(self.multiply(b, self.ln(a)))

    def real_power(self, a, b):
        """The same, but undefined where it is not real."""
        whole = isinstance(b, Fraction) and b.denominator % 2 == 1
        if is_negative(a) and not whole:
            raise Undefined
        return self.power(a, b)

    def power_of_zero(self, b) -> Fraction:
        if isinstance(b, Approximate) and b.re <= 0:
            raise Undefined
        if isinstance(b, Fraction) and b <= 0:
            raise Undefined
        return Fraction(0)

    def rational_power(self, a, b: Fraction):
        if b.denominator == 1:
            return self.whole_power(a, b.numerator)
        if is_negative(a) and b.denominator % 2 == 1:
            sign = Fraction((-1) ** b.numerator)
            return self.multiply(sign, self.rational_power(self.negative(a), b))

        if isinstance(a, Fraction) and a > 0:
            self.work += 5
            root = exact_root(a, b.denominator)
            if root is not None:
                return self.whole_power(root, b.numerator)
        if b.denominator == 2:
            return self.whole_power(self.sqrt(a), b.numerator)
        return self.exp(self.multiply(b, self.ln(a)))

    def whole_power(self, a, n: int):
        if a == 1 or a == -1:
            return a ** (n % 2)
        if isinstance(a, Fraction):
            if abs(n) * bit_length(a) > 2 * self.max_bits:
                raise TooLarge
            return self.exact(a**n)
        if abs(n) > 64:
            return self.exp(self.multiply(Fraction(n), self.ln(a)))

        power = Fraction(1)
        for bit in f"{abs(n):b}":
            power = self.multiply(power, power)
            if bit == "1":
                power = self.multiply(power, a)
        return power if n >= 0 else self.divide(Fraction(1), power)

    def sqrt(self, a):
        """The root with a positive real part, or on the positive imaginary axis."""
        z = self.approximate(a)
        self.work += 2
        if z.im != 0:
            return self.exp(self.divide(self.ln(z), Fraction(2)))
        root = fixed_point.sqrt(abs(z.re), self.bits)
        return Approximate(root) if z.re > 0 else Approximate(0, root)

    # ---- functions -------------------------------------------------------------------------------

    def pay_for_a_series(self) -> None:
        self.work += 15 * (self.bits // FIRST_BITS) ** 2

    def constant(self, name: str):
        """π, e, i or ∞."""
        if name == r"\pi":
            return Approximate(fixed_point.pi(self.bits))
        if name == "e":
            return Approximate(fixed_point.e(self.bits))
        if name == "i":
            return Approximate(0, 1 << self.bits)
        return math.inf

    def exp(self, a):
        if a == 0:
            return Fraction(1)
        z = self.approximate(a)
        self.record(z.re * 3 // 2 >> self.bits)  # e^x is about 2^(1.44 x)
        self.pay_for_a_series()
        length = fixed_point.exp(z.re, self.bits)
        if z.im == 0:
            return Approximate(length)
        self.pay_for_a_series()
        sine, cosine = fixed_point.sin_cos(z.im, self.bits)
        return self.product(length * cosine >> self.bits, length * sine >> self.bits)

    def ln(self, a):
        """The principal logarithm."""
        if a == 0 or isinstance(a, float):
            raise Undefined
        self.pay_for_a_series()
        self.pay_for_a_series()
        if isinstance(a, Fraction) and a > 0:
            self.record_digits(a)
            numerator = fixed_point.ln(a.numerator << self.bits, self.bits)
            if a.denominator == 1:
                return self.cleaned(numerator, 0)
            denominator = fixed_point.ln(a.denominator << self.bits, self.bits)
            return self.cleaned(numerator - denominator, 0, numerator)

        z = self.approximate(a)
        length = fixed_point.ln(self.absolute(z).re, self.bits)
        angle = 0
        if z.im != 0 or z.re < 0:
            angle = fixed_point.arctan2(z.im, z.re, self.bits)
        return self.cleaned(length, angle)

    def real_ln(self, a):
        if is_negative(a):
            raise Undefined
        return self.ln(a)

    def sin_cos(self, a) -> tuple:
        """sin(x + yi) = sin x cosh y + i cos x sinh y, and cos x cosh y - i sin x sinh y."""
        z = self.approximate(a)
        self.pay_for_a_series()
        sine, cosine = fixed_point.sin_cos(z.re, self.bits)
        if z.im == 0:
            return self.cleaned(sine, 0), self.cleaned(cosine, 0)

        imaginary = Approximate(z.im)
        sinh = self.approximate(self.sinh(imaginary)).re
        cosh = self.approximate(self.cosh(imaginary)).re
        sine_of_z = self.cleaned(sine * cosh >> self.bits, cosine * sinh >> self.bits)
        cosine_of_z = self.cleaned(cosine * cosh >> self.bits, -sine * sinh >> self.bits)
        return sine_of_z, cosine_of_z

    def sin(self, a):
        return self.sin_cos(a)[0]

    def cos(self, a):
        return self.sin_cos(a)[1]

    def tan(self, a):
        return self.divide(*self.sin_cos(a))

    def cot(self, a):
        return self.divide(self.cos(a), self.sin(a))

    def sec(self, a):
        return self.divide(Fraction(1), self.cos(a))

    def csc(self, a):
        return self.divide(Fraction(1), self.sin(a))

    def sinh(self, a):
        return self.divide(self.subtract(self.exp(a), self.exp(self.negative(a))), Fraction(2))

    def cosh(self, a):
        return self.divide(self.add(self.exp(a), self.exp(self.negative(a))), Fraction(2))

    def tanh(self, a):
        return self.divide(self.sinh(a), self.cosh(a))

    def arcsin(self, a):
        return self.angle(a, self.leg(a))

    def arccos(self, a):
        return self.angle(self.leg(a), a)

    def arctan(self, a):
        return self.angle(a, Fraction(1))

    def arccot(self, a):
        return self.angle(Fraction(1), a)

    def leg(self, a):
        """sqrt(1 - a^2), for a real a between -1 and 1."""
        square = self.subtract(Fraction(1), self.multiply(a, a))
        if square == 0:
            return square
        if is_negative(square):
            raise Undefined
        return self.sqrt(square)

    def angle(self, y, x):
        """The angle of the point (x, y)."""
        y = self.approximate(y)
        x = self.approximate(x)
        if y.im != 0 or x.im != 0:
            raise Undefined
        self.pay_for_a_series()
        self.pay_for_a_series()
        return self.cleaned(fixed_point.arctan2(y.re, x.re, self.bits), 0)

    # ---- whole numbers ---------------------------------------------------------------------------

    def absolute(self, a):
        if not isinstance(a, Approximate):
            return abs(a)
        if a.im == 0:
            return Approximate(abs(a.re))
        return Approximate(math.isqrt(a.re * a.re + a.im * a.im))

    def floor(self, a) -> Fraction:
        r"""⌊a⌋. What is a hair's breadth from an integer is that integer: ⌊\log_2 8⌋ = 3."""
        self.work += 1
        if isinstance(a, Fraction):
            return Fraction(math.floor(a))
        a = self.approximate(a)
        if a.im != 0:
            raise Undefined
        half = 1 << (self.bits - 1)
        nearest = Fraction(a.re + half >> self.bits)
        if self.subtract(a, nearest) == 0:
            return nearest
        return Fraction(a.re >> self.bits)

    def ceil(self, a) -> Fraction:
        return -self.floor(self.negative(a))

    def factorial(self, a) -> Fraction:
        n = natural_number(a, MAX_FACTORIAL)
        return self.exact(Fraction(math.factorial(n)))

    def double_factorial(self, a) -> Fraction:
        """a (a - 2) (a - 4) ..."""
        n = natural_number(a, MAX_FACTORIAL)
        return self.exact(Fraction(math.prod(range(n, 0, -2))))

    def binomial(self, a, b) -> Fraction:
        n = natural_number(a, 10**12)
        k = natural_number(b, 10**12)
        if k <= n and min(k, n - k) * n.bit_length() > self.max_bits:
            raise TooLarge
        return self.exact(Fraction(math.comb(n, k)))


def is_negative(a) -> bool:
    """Whether `a` is real and below 0."""
    if isinstance(a, Approximate):
        return a.im == 0 and a.re < 0
    return a < 0
