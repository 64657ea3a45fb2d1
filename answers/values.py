r"""Compares expressions by their values: everywhere, as far as random points can tell.

Without free names an expression has one value. With them it is evaluated at random points
(answers/points.py). A point where one of the two is undefined is drawn again, so that \sqrt{1-x^2}
is compared where |x| < 1. All that one comparison of two answers computes has one budget, `FUEL`.
"""

import re
from collections.abc import Iterator
from fractions import Fraction
from functools import cached_property

from answers.arithmetic import Arithmetic
from answers.errors import TooLarge, Undefined, Unreadable
from answers.expressions import Expression, read
from answers.fixed_point import FIRST_BITS, Approximate, bits_for
from answers.names import numbers_in, variables_in
from answers.points import Point, Points, Shared, is_smooth

FUEL = 12_000  # operations of one comparison
MIN_POINTS = 5  # at which two expressions have to be defined both
SMOOTH_POINTS = 8  # for expressions of one formula
ENOUGH_POINTS = 10  # if more are hard to find, or the budget does not last
FEWER_ATTEMPTS = 5  # if none was found, or ENOUGH_POINTS
ATTEMPTS = 20  # for each point that is wanted
# Bits of a rational number at a point, where a constant may have MAX_BITS; magnitude of another.
POINT_LIMITS = (1 << 13, 200)
KEY_BITS = 64  # arguments of an unknown function that agree so far behind the point are the same
ROUNDING = re.compile(r"\\lfloor|\\lceil")
NEAR = Fraction(1, 2**60)  # ratios that agree so far are the same


class OutOfFuel(Unreadable):
    """The budget of a comparison is spent."""


class Evaluator:
    """Compares expressions by value, with one budget for all that it computes.

    answers: both of them, which say where to look: their names and numbers.
    seed: of the points, beside the texts; what they are cannot be known beforehand.
    Every method raises Unreadable for what is not in the grammar, or beyond a bound.
    """

    def __init__(self, answers: list[str], seed: str = ""):
        self.fuel = FUEL
        self.answers = answers
        self.seed = seed
        self.variables = variables_in(answers)
        self.expressions = {}  # (text, radians) -> its Expression
        self.computed = {}  # (id of an Expression, point, bits) -> (value or None, magnitude)

    @cached_property
    def points(self) -> Points:
        """Made when they are needed: most answers have no free names."""
        text = " ".join(self.answers)
        return Points(text + self.seed, numbers_in(text), jumps=ROUNDING.search(text) is not None)

    def pay(self, work: int) -> None:
        """Take from the budget; refuse to go on when it is spent."""
        self.fuel -= work
        if self.fuel <= 0:
            raise OutOfFuel

    def expression(self, text: str, radians: bool = False) -> Expression:
        """The expression, read once."""
        key = (text, radians)
        if key not in self.expressions:
            expression = read(text, self.variables, radians)
            self.pay(len(expression.tokens))
            self.expressions[key] = expression
        return self.expressions[key]

    def names(self, text: str) -> frozenset[str]:
        """The free names of an expression."""
        return self.expression(text).names

    # ---- questions -------------------------------------------------------------------------------

    def equal(
        self, p: str, g: str, tolerance: Fraction = Fraction(0), radians: bool = False
    ) -> bool:
        """The same value at all points where both have one, of which there have to be MIN_POINTS.

        If few points were enough, expressions could agree by chance, or at an edge (`Shared` in
        answers/points.py). The same text needs one only; and what is undefined everywhere agrees
        with nothing.

        tolerance: how far an irrational number may be from a rational one.
        """
        a = self.expression(p, radians)
        b = self.expression(g, radians)
        is_certain = a.tokens == b.tokens or not (a.names or b.names)
        shared = Shared(a, b)
        try:
            for point, p_value, g_value, arithmetic in self.pairs(a, b, shared):
                if not agree(p_value, g_value, arithmetic, tolerance):
                    return False
                if is_certain:
                    return True
                shared.points.append(point)
        except OutOfFuel:
            if len(shared.points) < ENOUGH_POINTS:
                raise
        return shared.are(MIN_POINTS, self.points, self.is_defined)

    def proportional(self, p: str, g: str, positive: bool = False) -> bool:
        """Whether p = c g at all points for one c != 0 (c > 0 if `positive`)."""
        a = self.expression(p)
        b = self.expression(g)
        first = None
        shared = Shared(a, b)
        for point, p_value, g_value, arithmetic in self.pairs(a, b, shared):
            if (p_value == 0) != (g_value == 0):
                return False  # x + |x| = 0 is not x = 0, though 2x and x agree where x > 0
            if p_value == 0:
                continue
            ratio = ratio_of(p_value, g_value, arithmetic)
            if ratio is None:
                return False
            if first is None:
                first = ratio
            if abs(ratio - first) > NEAR * abs(first):
                return False
            shared.points.append(point)
        if positive and first is not None and first < 0:
            return False
        return shared.are(MIN_POINTS, self.points, self.is_defined)

    def constant(self, text: str) -> Fraction | None:
        """The value of a real expression without names, as far as it is known; of others None."""
        expression = self.expression(text)
        if expression.names:
            return None
        shared = Shared(expression, expression)
        for _, value, _, arithmetic in self.pairs(expression, expression, shared):
            return arithmetic.as_fraction(value)
        return None

    # ---- values ----------------------------------------------------------------------------------

    def pairs(self, a: Expression, b: Expression, shared: Shared) -> Iterator[tuple]:
        """(point, value of a, value of b, their arithmetic) at every point where both are defined.

        Without free names there is one point, and a value that is too large is unreadable.

        shared: is told where only one of the two is defined.
        """
        if not a.names and not b.names:
            try:
                yield None, *self.values_at(None, a, b)
            except TooLarge:
                raise Unreadable from None
            except Undefined:
                pass
            return

        wanted = self.points.wanted(a.names | b.names)
        if is_smooth(a) and is_smooth(b):
            wanted = SMOOTH_POINTS
        found = 0
        for point in range(ATTEMPTS * wanted):
            if point > FEWER_ATTEMPTS * wanted and (found == 0 or found >= ENOUGH_POINTS):
                return
            try:
                pair = self.values_at(point, a, b)
            except Undefined:
                if not shared.domains_differ:
                    shared.domains_differ = self.is_defined(a, point) != self.is_defined(b, point)
                continue
            except TooLarge:
                continue
            if shared.domains_differ and shared.has_place_of(point, self.points):
                continue
            yield point, *pair
            found += 1
            if found == wanted:
                return

    def values_at(self, point: Point | None, a: Expression, b: Expression) -> tuple:
        """Both values at a point, with the arithmetic that has bits enough to compare them."""
        bits = FIRST_BITS
        while True:
            arithmetic = Arithmetic(bits) if point is None else Arithmetic(bits, *POINT_LIMITS)
            a_value = self.value(a, point, arithmetic)
            b_value = self.value(b, point, arithmetic)
            if isinstance(a_value, Approximate) or isinstance(b_value, Approximate):
                arithmetic.record_digits(a_value)
                arithmetic.record_digits(b_value)
            needed = bits_for(arithmetic.magnitude)
            if needed <= bits:
                return a_value, b_value, arithmetic
            bits = needed

    def is_defined(self, expression: Expression, point: Point) -> bool:
        """Whether it has a value at a point, be it too large."""
        try:
            self.value(expression, point, Arithmetic(FIRST_BITS, *POINT_LIMITS))
        except Undefined:
            return False
        except TooLarge:
            pass
        return True

    def value(self, expression: Expression, point: Point | None, arithmetic: Arithmetic):
        """The value of one expression; what it costs is paid here."""
        if not expression.names:
            point = None
        key = (id(expression), point, arithmetic.bits)
        if key in self.computed:
            value, magnitude = self.computed[key]
            if value is None:
                raise Undefined
            arithmetic.record(magnitude)
            return value

        self.pay(len(expression.steps))
        try:
            value = self.run(expression, point, arithmetic)
        except Undefined:
            self.computed[key] = (None, 0)
            raise
        finally:
            self.pay(arithmetic.work)
            arithmetic.work = 0
        self.computed[key] = (value, arithmetic.magnitude)
        return value

    def run(self, expression: Expression, point: Point | None, arithmetic: Arithmetic):
        """Every step takes its arguments from the stack of values and leaves its result there."""
        stack = []
        for operation, arity, detail in expression.steps:
            arguments = stack[len(stack) - arity :]
            del stack[len(stack) - arity :]
            if operation == "number":
                value = detail
            elif operation == "variable":
                value = self.points.variable(detail, point)
            elif operation == "constant":
                value = arithmetic.constant(detail)
            elif operation == "function":
                keys = tuple(rounded(argument, arithmetic.bits) for argument in arguments)
                value = self.points.function(detail, keys, point)
            else:
                value = getattr(arithmetic, operation)(*arguments)
            stack.append(value)
        return stack.pop()


def agree(p, g, arithmetic: Arithmetic, tolerance: Fraction) -> bool:
    """Whether two values are the same, an irrational and a rational one within `tolerance`."""
    if p == g:
        return True
    if isinstance(p, float) or isinstance(g, float):
        return False
    if isinstance(p, Fraction) and isinstance(g, Fraction):
        return False
    try:
        distance = arithmetic.absolute(arithmetic.subtract(p, g))
    except (TooLarge, Undefined):
        raise Unreadable from None
    return arithmetic.as_fraction(distance) <= tolerance


def ratio_of(p, g, arithmetic: Arithmetic) -> Fraction | None:
    """p / g if it is real."""
    try:
        return arithmetic.as_fraction(arithmetic.divide(p, g))
    except (TooLarge, Undefined):
        return None


def rounded(value, bits: int) -> tuple[int, int]:
    """A key that is the same for values that agree."""
    if isinstance(value, float):
        raise Undefined
    if isinstance(value, Fraction):
        return round(value * (1 << KEY_BITS)), 0
    half = 1 << (bits - KEY_BITS - 1)
    return (value.re + half) >> (bits - KEY_BITS), (value.im + half) >> (bits - KEY_BITS)
