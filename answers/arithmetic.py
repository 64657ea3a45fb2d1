r"""Arithmetic on the values of expressions: exact for rational numbers, otherwise to BITS bits.

A value has one of three types. A Fraction is exact: (2/3)^2, and also \sqrt{4/9}. An mpmath number,
real or complex, has BITS bits. The lower half of its bits may be rounding noise, so a sum below the
noise becomes an exact 0: \sqrt{8} - 2\sqrt{2}, or sin π. Infinity is a float; an operation can only
change its sign.
"""

import math
from fractions import Fraction

from mpmath import libmp
from mpmath.ctx_mp import MPContext

from answers.errors import OutOfFuel, TooLarge, Undefined

BITS = 512
MAX_BITS = 1 << 16  # in a rational number's numerator and denominator together
MAX_FACTORIAL = 3000
MAX_MAGNITUDE = 1000  # an approximate number lies between 2^-1000 and 2^1000

context = MPContext()  # separate from mpmath.mp, so no other code can change the precision
context.prec = BITS
NOISE = context.mpf(2) ** (-BITS // 2)

# The cost of operations, in units of about a microsecond.
SUM = 8
FUNCTION = 40


def natural_number(x, most: int) -> int:
    """x as an int. Raises Undefined unless x is 0, 1, 2 ..., and TooLarge above `most`."""
    if not isinstance(x, Fraction) or x.denominator > 1 or x < 0:
        raise Undefined
    if x > most:
        raise TooLarge
    return int(x)


def is_negative(a) -> bool:
    """Whether `a` is real and below 0."""
    return not isinstance(a, context.mpc) and a < 0


def exact_root(x: int, n: int) -> int | None:
    """The n-th root of x >= 0 if it is an integer of at most BITS bits, else None."""
    root = math.isqrt(x) if n == 2 else int(context.nint(context.mpf(x) ** (context.mpf(1) / n)))
    return root if root**n == x else None


def as_fraction(value) -> Fraction | None:
    """A real value as a rational number; None for a complex or infinite value."""
    if isinstance(value, Fraction | int):
        return Fraction(value)
    if not isinstance(value, context.mpf):
        return None
    return Fraction(*libmp.to_rational(value._mpf_))


class Arithmetic:
    """The operations. Each raises Undefined if it has no result, and TooLarge above the limits.

    fuel: a budget shared by all operations; once it is spent, they raise OutOfFuel.
    """

    def __init__(self, fuel: int):
        self.fuel = fuel

    def pay(self, work: int) -> None:
        self.fuel -= work
        if self.fuel <= 0:
            raise OutOfFuel

    # ---- values ----------------------------------------------------------------------------------

    def exact(self, value: Fraction) -> Fraction:
        """The rational number unchanged. Raises TooLarge above MAX_BITS."""
        bits = value.numerator.bit_length() + value.denominator.bit_length()
        self.pay(1 + (bits >> 11) ** 2)
        if bits > MAX_BITS:
            raise TooLarge
        return value

    def approximate(self, value):
        """A number as an mpmath number of BITS bits. Raises Undefined for infinity."""
        if isinstance(value, float):
            raise Undefined  # ∞ - ∞ and the like
        if isinstance(value, Fraction):
            self.pay(SUM)
            return context.mpf(value.numerator) / value.denominator
        return value

    def cleaned(self, value, scale=0):
        """The value, with a real or imaginary part below the rounding noise set to 0.

        scale: the largest summand. The noise is relative to the larger of `scale` and the value.
        """
        noise = NOISE * max(scale, abs(value))
        re = value.real if abs(value.real) > noise else context.zero
        im = value.imag if abs(value.imag) > noise else context.zero
        if not re and not im:
            return Fraction(0)
        if abs(context.mag(value)) > MAX_MAGNITUDE:
            raise TooLarge
        return context.mpc(re, im) if im else re

    # ---- + - * / ---------------------------------------------------------------------------------

    def add(self, a, b):
        if isinstance(a, Fraction) and isinstance(b, Fraction):
            return self.exact(a + b)
        a = self.approximate(a)
        b = self.approximate(b)
        self.pay(SUM)
        return self.cleaned(a + b, max(abs(a), abs(b)))

    def negative(self, a):
        return -a

    def subtract(self, a, b):
        return self.add(a, -b)

    def multiply(self, a, b):
        if isinstance(a, Fraction) and isinstance(b, Fraction):
            return self.exact(a * b)
        product = self.approximate(a) * self.approximate(b)
        self.pay(SUM)
        return self.cleaned(product)

    def divide(self, a, b):
        if b == 0:
            raise Undefined
        if isinstance(a, Fraction) and isinstance(b, Fraction):
            return self.exact(a / b)
        quotient = self.approximate(a) / self.approximate(b)
        self.pay(SUM)
        return self.cleaned(quotient)

    # ---- powers ----------------------------------------------------------------------------------

    def power(self, a, b):
        """a^b. Odd roots of negative numbers are real, (-8)^(1/3) = -2; other roots are complex."""
        if isinstance(a, float) or isinstance(b, float):
            raise Undefined
        if a == 0:
            if isinstance(b, context.mpc) or b <= 0:
                raise Undefined
            return Fraction(0)
        if isinstance(b, Fraction):
            return self.rational_power(a, b)
        return self.exp(self.multiply(b, self.ln(a)))

    def real_power(self, a, b):
        """a^b. Raises Undefined if the result is not real."""
        whole = isinstance(b, Fraction) and b.denominator % 2 == 1
        if is_negative(a) and not whole:
            raise Undefined
        return self.power(a, b)

    def rational_power(self, a, b: Fraction):
        n = b.denominator
        if n == 1:
            return self.whole_power(a, b.numerator)
        if is_negative(a) and n % 2 == 1:
            return (-1) ** b.numerator * self.rational_power(-a, b)
        if isinstance(a, Fraction) and a > 0:
            self.pay(SUM if n == 2 else FUNCTION)
            root = exact_root(a.numerator, n), exact_root(a.denominator, n)
            if None not in root:
                return self.whole_power(Fraction(*root), b.numerator)
        if n == 2:
            self.pay(SUM)
            return self.whole_power(context.sqrt(self.approximate(a)), b.numerator)
        return self.exp(self.multiply(b, self.ln(a)))

    def whole_power(self, a, n: int):
        if a == 1 or a == -1:
            return a ** (n % 2)
        if isinstance(a, Fraction):
            if abs(n) * (a.numerator.bit_length() + a.denominator.bit_length()) > 2 * MAX_BITS:
                raise TooLarge
            return self.exact(a**n)
        if abs(n) > 64:
            return self.exp(self.multiply(Fraction(n), self.ln(a)))
        self.pay(2 * SUM)
        return self.cleaned(a**n)

    # ---- functions -------------------------------------------------------------------------------

    def constant(self, name: str):
        """π, e, i or ∞."""
        if name == r"\pi":
            return +context.pi
        if name == "e":
            return +context.e
        if name == "i":
            return context.mpc(0, 1)
        return math.inf

    def call(self, function, a, scale=1):
        """An mpmath function of `a`. Raises TooLarge for |a| > 2^64, except in ln and sqrt."""
        z = self.approximate(a)
        self.pay(3 * FUNCTION if isinstance(z, context.mpc) else FUNCTION)
        if function not in (context.ln, context.sqrt) and abs(z) > 2**64:
            raise TooLarge
        return self.cleaned(function(z), scale)

    def exp(self, a):
        if not isinstance(a, float) and abs(self.approximate(a).real) > MAX_MAGNITUDE:
            raise TooLarge
        return self.call(context.exp, a, scale=0) if a != 0 else Fraction(1)

    def ln(self, a):
        """The principal logarithm."""
        if a == 0:
            raise Undefined
        return self.call(context.ln, a)

    def real_ln(self, a):
        if is_negative(a):
            raise Undefined
        return self.ln(a)

    def sin(self, a):
        return self.call(context.sin, a)

    def cos(self, a):
        return self.call(context.cos, a)

    def tan(self, a):
        return self.divide(self.sin(a), self.cos(a))

    def cot(self, a):
        return self.divide(self.cos(a), self.sin(a))

    def sec(self, a):
        return self.divide(Fraction(1), self.cos(a))

    def csc(self, a):
        return self.divide(Fraction(1), self.sin(a))

    def sinh(self, a):
        return self.divide(self.subtract(self.exp(a), self.exp(-a)), Fraction(2))

    def cosh(self, a):
        return self.divide(self.add(self.exp(a), self.exp(-a)), Fraction(2))

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
        return self.real_power(self.subtract(Fraction(1), self.multiply(a, a)), Fraction(1, 2))

    def angle(self, y, x):
        """The angle of the point (x, y)."""
        y = self.approximate(y)
        x = self.approximate(x)
        if isinstance(y, context.mpc) or isinstance(x, context.mpc):
            raise Undefined
        self.pay(FUNCTION)
        return self.cleaned(context.atan2(y, x), 1)

    # ---- integers --------------------------------------------------------------------------------

    def absolute(self, a):
        return abs(a)

    def floor(self, a) -> Fraction:
        r"""⌊a⌋. A value within rounding noise of an integer is that integer: ⌊\log_2 8⌋ = 3."""
        if isinstance(a, context.mpc | float):
            raise Undefined
        if isinstance(a, Fraction):
            return Fraction(math.floor(a))
        nearest = Fraction(int(context.nint(a)))
        if self.subtract(a, nearest) == 0:
            return nearest
        return Fraction(int(context.floor(a)))

    def ceil(self, a) -> Fraction:
        return -self.floor(-a)

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
        if k <= n and min(k, n - k) * n.bit_length() > MAX_BITS:
            raise TooLarge
        self.pay(min(k, max(n - k, 0)))
        return self.exact(Fraction(math.comb(n, k)))
