r"""Computes expressions, and compares them at random points if they have names.

A value is a Fraction, which is exact; an mpmath number of 700 bits, real or complex; or an infinite
float. A result below the rounding noise is an exact 0: \sqrt{8}-2\sqrt{2}. Magnitudes are limited,
so no two values differ by less than the noise: 1 is not \tanh(100), \tanh(1000) has no value.
"""

import math
import operator
import random
from collections.abc import Callable, Iterator, Set
from fractions import Fraction
from functools import partial

from mpmath.ctx_mp import MPContext

from . import Spent, Undefined, Unreadable

mp = MPContext()  # separate from mpmath.mp, so no other code can change the precision
mp.prec = 700
NEAR = mp.mpf(2) ** -500  # relative difference of equal values
MAX_MAGNITUDE = 480  # an approximate number lies between 2^-480 and 2^480
SMALLEST, LARGEST = mp.mpf(2) ** -240, 160  # arguments of functions
MAX_BITS = 1 << 15  # in a Fraction
BUDGET = 8000  # operations in a comparison, each of which takes some 2 microseconds

POINTS = 32  # fewer, down to MIN_POINTS, if points are rare or would cost a third of the budget
MIN_POINTS = 6
ATTEMPTS = 120
WHOLE = ("n", "k", "m")  # names that are always integers
SIZES = (10, -10, 100, -100, 10**9, -(10**9), 10**54, 10**200)  # of the values of a name
COMMON = math.lcm(*range(1, 61)) * 10**9  # a multiple of most numbers under a floor


def checked(a, scale=0):
    """A value without parts below the noise of `scale`. Raises Undefined beyond the limits."""
    if isinstance(a, Fraction):
        if a.numerator.bit_length() + a.denominator.bit_length() > MAX_BITS:
            raise Undefined
        return a
    real = 0 if abs(a.real) <= NEAR * scale else a.real
    imaginary = 0 if abs(a.imag) <= NEAR * scale else a.imag
    if real == imaginary == 0:
        return Fraction(0)
    if not abs(mp.mag(a)) <= MAX_MAGNITUDE:  # also if it is not a number
        raise Undefined
    return mp.mpc(real, imaginary) if imaginary else real


def approximate(a):
    """A value with 700 bits. Raises Undefined for infinity, as in ∞ - ∞."""
    if isinstance(a, float):
        raise Undefined
    if not isinstance(a, Fraction):
        return a
    a = mp.mpf(a.numerator) / a.denominator
    return checked(a) or a  # 0 stays an mpmath number


def on_both(operation: Callable) -> Callable:
    """An operation on two fractions, or else on two approximate numbers."""

    def apply(a, b):
        if isinstance(a, Fraction) and isinstance(b, Fraction):
            return checked(operation(a, b))
        is_sum = operation in (operator.add, operator.sub)
        if is_sum and (a == 0 or b == 0):
            return operation(0, b) if a == 0 else a
        a = approximate(a)
        b = approximate(b)
        result = operation(a, b)
        return checked(result, max(abs(a), abs(b)) if is_sum else abs(result))

    return apply


add = on_both(operator.add)
subtract = on_both(operator.sub)
multiply = on_both(operator.mul)
divide = on_both(operator.truediv)  # ZeroDivisionError is an ArithmeticError, like Undefined


def power(a, b):
    """a^b. Odd roots of negative numbers are real, (-8)^(1/3) = -2; other roots are complex."""
    if a == 0:
        if not isinstance(b, Fraction) or b <= 0:
            raise Undefined
        return a
    if isinstance(a, Fraction) and isinstance(b, Fraction) and b.denominator == 1:
        if abs(b) * (a.numerator.bit_length() + a.denominator.bit_length()) > MAX_BITS:
            raise Undefined
        return a**b
    is_odd_root = isinstance(b, Fraction) and b.denominator % 2 == 1 < b.denominator
    if is_odd_root and isinstance(a, Fraction | mp.mpf) and a < 0:
        return (-1) ** b.numerator * power(-a, b)
    return checked(mp.power(approximate(a), approximate(b)))


def call(function: str, a):
    z = approximate(a)
    if a != 0 and function != "ln" and not SMALLEST < abs(z) < LARGEST:
        raise Undefined
    value = getattr(mp, function.replace("arc", "a"))(z)
    # A function of a rational number is 0 only where that is exact: \sin 0, \ln 1.
    return checked(value, 0 if isinstance(a, Fraction) or function == "exp" else max(1, abs(value)))


def whole(a, most: int) -> int:
    if not isinstance(a, Fraction) or a.denominator > 1 or not 0 <= a <= most:
        raise Undefined
    return int(a)


def floor(a) -> Fraction:
    r"""⌊a⌋. A value within rounding noise of an integer is that integer: ⌊\log_2 8⌋ = 3."""
    if isinstance(a, mp.mpc | float):
        raise Undefined
    if isinstance(a, Fraction):
        return Fraction(math.floor(a))
    nearest = Fraction(int(mp.nint(a)))
    return nearest - 1 if subtract(a, nearest) < 0 else nearest


def ceil(a) -> Fraction:
    return -floor(-a)


def binomial(a, b) -> Fraction:
    n = whole(a, 10**9)
    k = whole(b, 10**9)
    if min(k, abs(n - k)) * n.bit_length() > MAX_BITS:
        raise Undefined
    return Fraction(math.comb(n, k))


def factorial(a) -> Fraction:
    return Fraction(math.factorial(whole(a, 3000)))


OPERATIONS = {"+": add, "-": subtract, "*": multiply, "/": divide, "^": power, "!": factorial}
OPERATIONS |= {"binomial": binomial, "absolute": abs, "floor": floor, "ceil": ceil}
OPERATIONS |= {"%": partial(multiply, Fraction(1, 100))}
CONSTANTS = {"π": +mp.pi, "e": +mp.e, "i": mp.mpc(0, 1), "∞": math.inf}
VALUES = frozenset(["number", "constant", "name", "function", "call", *OPERATIONS])


def order(a, b) -> int:
    """-1 for a < b, 0 for a = b, 1 for a > b; real numbers or infinite."""
    if isinstance(a, float) or isinstance(b, float):
        return (a > b) - (a < b)
    difference = subtract(a, b)
    return (difference > 0) - (difference < 0)


def agree(a, b, tolerance: Fraction) -> bool:
    """Whether two values are equal, or within `tolerance` unless both are rational."""
    is_exact = isinstance(a, Fraction) and isinstance(b, Fraction)
    if is_exact or isinstance(a, float) or isinstance(b, float):
        return a == b
    return order(abs(subtract(a, b)), tolerance) <= 0


def walk(tree: tuple) -> Iterator[tuple]:
    stack = [tree]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(child for child in node[1:] if isinstance(child, tuple))


def names(tree: tuple) -> set[str]:
    """The names of variables and unknown functions."""
    return {node[1] for node in walk(tree) if node[0] in ("name", "function")}


def must_be_real(tree: tuple) -> bool:
    """Whether only real values of an expression count: it has names, and no i."""
    return bool(names(tree)) and ("constant", "i") not in walk(tree)


class Evaluator:
    """Compares expressions of two answers, `trees`, within one budget."""

    def __init__(self, trees: list[tuple], seed: str = "", budget: int = BUDGET):
        self.budget = budget
        self.is_real = False  # whether a complex value counts as undefined
        self.draw = random.Random(ascii(trees) + seed)
        self.sizes = self.draw.sample(SIZES, len(SIZES))
        self.drawn = {}  # point -> {name: value}

    def pay(self, operations: int) -> None:
        self.budget -= operations
        if self.budget < 0:
            raise Spent

    def variable(self, name: str, point: int) -> Fraction:
        """A name's value at a point: by turns below 1, small, of any size, near some n * COMMON."""
        drawn = self.drawn.setdefault(point, {})
        if name in drawn:
            return drawn[name]
        turn, kind = divmod(point, 4)
        part, small = self.draw.randint(1, 96), self.draw.randint(1, 9)
        sign = self.draw.choice((1, -1)) if turn % 2 else 1
        if kind == 0:
            value = Fraction(sign * part, 97)
        elif kind == 1:
            value = Fraction(small)
        elif kind == 2:
            value = Fraction(self.sizes[(turn + ord(name[-1])) % len(SIZES)] * (97 + part), 194)
        else:
            value = Fraction(sign * small * COMMON - turn % 2)
        if name in WHOLE:
            value = Fraction(round(value) or self.draw.randint(1, 9))
        while value in drawn.values():
            value += self.draw.randint(1, 5)
        drawn[name] = value
        return value

    def value(self, node: tuple, point: int):
        """The value at a point. Raises Undefined, Spent, or Unreadable for what has no value."""
        kind = node[0]
        if kind == "number":
            return node[1]
        if kind == "name":
            return self.variable(node[1], point)
        if kind == "constant":
            return CONSTANTS[node[1]]
        if kind not in VALUES:
            raise Unreadable
        arguments = [self.value(child, point) for child in node[1:] if isinstance(child, tuple)]
        if kind == "function":  # a random value, the same for equal arguments
            texts = [mp.nstr(approximate(argument), 50) for argument in arguments]
            return self.variable(f"{node[1]}{texts}", point)

        self.pay(1)
        result = call(node[1], *arguments) if kind == "call" else OPERATIONS[kind](*arguments)
        if isinstance(result, Fraction):
            self.pay((result.denominator.bit_length() >> 9) ** 2)
        else:
            self.pay(20 if kind in ("call", "^") else 2)
        if self.is_real and isinstance(result, mp.mpc):
            raise Undefined
        return result

    def at(self, node: tuple, point: int, is_real: bool = False):
        """The value, or None where it is undefined, or complex although `is_real` is set."""
        self.pay(1)
        self.is_real = is_real
        try:
            return self.value(node, point)
        except ArithmeticError:
            return None

    def constant(self, node: tuple, known: Set[str] = frozenset()):
        """The value of a real number, `known` names as drawn at point -1. Raises Unreadable."""
        value = self.at(node, -1, must_be_real(node)) if names(node) <= known else None
        if value is None or isinstance(value, mp.mpc):
            raise Unreadable
        return value

    def pairs(self, p: tuple, g: tuple, enough: int = POINTS) -> Iterator[tuple]:
        """Yields both values at up to `enough` points. Raises Undefined if there are too few."""
        free = bool(names(p) | names(g))
        p_is_real, g_is_real = must_be_real(p), must_be_real(g)
        found = []
        alone = 0
        before = self.budget
        for point in range(ATTEMPTS if free else 1):
            a = self.at(p, point, p_is_real)
            b = self.at(g, point, g_is_real)
            if a is None or b is None:
                alone += a is not b
                continue
            yield a, b
            found.append(str(self.drawn.get(point)))
            if len(found) == 1 and free:
                enough = min(enough, max(MIN_POINTS, self.budget // (3 * (before - self.budget))))
            if len(found) == enough:
                break
        least = MIN_POINTS if free and p != g else 1
        if min(len(found), 2 * len(set(found))) < least or 6 * len(found) <= alone:
            raise Undefined

    def equal(self, p: tuple, g: tuple, tolerance: Fraction = Fraction(0)) -> bool:
        """Whether two expressions are equal where both are defined."""
        enough = 1 if p == g else POINTS
        try:
            return all(agree(a, b, tolerance) for a, b in self.pairs(p, g, enough))
        except Undefined:
            return False

    def proportional(self, p: tuple, g: tuple) -> bool:
        """Whether p = c g, where c is the ratio at the first point where g is not 0."""
        try:
            a, b = next(pair for pair in self.pairs(p, g) if pair[1] != 0)
            return a != 0 and self.equal(p, ("*", ("number", divide(a, b), 0), g))
        except (Undefined, StopIteration) as end:
            return p == g and isinstance(end, StopIteration)  # 2+3 = 5: both are 0
