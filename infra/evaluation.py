r"""Whether two expressions have the same value: everywhere, as far as random points can tell.

Without free names an expression has one value. With them it is evaluated at points that are many
enough and wide enough for floors, absolute values and signs: both signs, both parities, small and
large, between and beyond the numbers that occur in the two answers (`Points`). A point where one
of the two is undefined is drawn again, so that \sqrt{1-x^2} is compared where |x| < 1.

All that one comparison of two answers computes has one budget, `FUEL`.
"""

import math
import random
from collections.abc import Iterator
from fractions import Fraction

from infra.arithmetic import (
    FIRST_BITS,
    Approximate,
    Arithmetic,
    TooLarge,
    Undefined,
    Unreadable,
    bits_for,
)
from infra.expressions import Expression, numbers_in, read, variables_in

FUEL = 8_000  # operations of one comparison
MIN_POINTS = 5  # at which two expressions have to be defined both
ATTEMPTS = 8  # for each point that is wanted
MAX_BREAKS = 7
POINT_BITS = 1 << 13  # of a rational number at a point, where a constant may have MAX_BITS
POINT_MAGNITUDE = 200
WHOLE = ("n", "k", "m")  # always integers; the other letters stand for any real number
PARTS = [Fraction(i, n) for n in (5, 7, 11) for i in range(1, n)]  # of a region
KEY_BITS = 64  # arguments of an unknown function that agree so far behind the point are the same


class Points:
    """Random values of free names. Point 0, 1, 2 ... are the same for both answers.

    The numbers c that occur in the two answers cut the positive numbers into regions, as does 1;
    beyond the last there are two more, up to 4 c and up to 1000 c. At two points of three every
    name is somewhere: it goes through all regions with both signs, in an order of its own. At the
    third all names are between 0 and 1, or all positive integers, in turn: roots, logarithms and
    binomial coefficients are often defined only there.
    """

    def __init__(self, seed: str, numbers: set[Fraction]):
        self.draw = random.Random(ascii(seed))
        breaks = sorted(c for c in numbers if 1 < c < 10**6)
        if len(breaks) > MAX_BREAKS:
            breaks = sorted(self.draw.sample(breaks, MAX_BREAKS))
        last = breaks[-1] if breaks else 3
        edges = [Fraction(0), Fraction(1), *breaks, Fraction(4 * last), Fraction(1000 * last)]
        self.regions = list(zip(edges, edges[1:], strict=False))
        self.decks = {}  # name -> its regions with signs, shuffled
        self.values = {}  # (name, point) -> its value there

    def wanted(self) -> int:
        """How many points it takes a name to go through all its regions, with both signs."""
        return 3 * len(self.regions)

    def variable(self, name: str, point: int) -> Fraction:
        key = (name, point)
        if key not in self.values:
            self.values[key] = self.drawn(name, point)
        return self.values[key]

    def drawn(self, name: str, point: int) -> Fraction:
        turn, third = divmod(point, 3)
        if third < 2:
            low, high, sign = self.card(name, 2 * turn + third)
            return sign * self.between(low, high, whole=third == 1 or name in WHOLE)
        if turn % 2 == 0:
            return self.between(Fraction(0), Fraction(1), whole=name in WHOLE)
        low, high = self.draw.choice(self.regions)
        return self.between(low, high, whole=True)

    def card(self, name: str, position: int) -> tuple[Fraction, Fraction, int]:
        """A region and a sign. The deck is shuffled for the first round, and then goes around."""
        if name not in self.decks:
            deck = [(low, high, sign) for low, high in self.regions for sign in (1, -1)]
            self.draw.shuffle(deck)
            self.decks[name] = deck
        deck = self.decks[name]
        rounds, place = divmod(position, len(deck))
        return deck[(place + rounds) % len(deck)]

    def between(self, low: Fraction, high: Fraction, whole: bool) -> Fraction:
        """A number between low and high, both >= 0: of a wide region more often a small one."""
        part = self.draw.choice(PARTS)
        if high > 100 * low > 0:
            value = round(low * 250 ** float(part)) + part
        else:
            value = low + (high - low) * part
        if not whole:
            return value

        integer = round(value)
        if integer == 0 or not low <= integer <= high:
            integer = max(1, math.ceil(low))
        return Fraction(integer)

    def function(self, name: str, arguments: tuple, point: int) -> Fraction:
        """The value of an unknown function, one for each of its arguments' values."""
        key = (name, arguments, point)
        if key not in self.values:
            self.values[key] = Fraction(self.draw.randint(-10_000, 10_000), 101)
        return self.values[key]


class Evaluator:
    """Compares expressions by value, with one budget for all that it computes.

    answers: both of them, which say where to look: their names and numbers.
    seed: of the points, beside the texts; what they are cannot be known beforehand.
    """

    def __init__(self, answers: list[str], seed: str = ""):
        self.fuel = FUEL
        self.variables = variables_in(answers)
        self.points = Points(" ".join([*answers, seed]), numbers_in(" ".join(answers)))
        self.expressions = {}  # (text, radians) -> its Expression
        self.computed = {}  # (text, radians, point, bits) -> (value, magnitude)

    def pay(self, work: int) -> None:
        """Take from the budget; refuse to go on when it is spent."""
        self.fuel -= work
        if self.fuel <= 0:
            raise Unreadable

    def expression(self, text: str, radians: bool = False) -> Expression:
        """The expression, read once. Raises Unreadable."""
        key = (text, radians)
        if key not in self.expressions:
            expression = read(text, self.variables, radians)
            self.pay(len(expression.tokens))
            self.expressions[key] = expression
        return self.expressions[key]

    # ---- comparing -------------------------------------------------------------------------------

    def pairs(self, a: Expression, b: Expression) -> Iterator[tuple]:
        """(value of a, value of b, the arithmetic of both) at every point where both are defined.

        Without free names there is one point. Raises Unreadable where a constant is too large to
        be computed.
        """
        if not a.names and not b.names:
            try:
                yield self.values_at(None, a, b)
            except TooLarge:
                raise Unreadable from None
            except Undefined:
                return
            return

        wanted = self.points.wanted()
        found = 0
        for point in range(ATTEMPTS * wanted):
            try:
                pair = self.values_at(point, a, b)
            except (Undefined, TooLarge):
                continue
            yield pair
            found += 1
            if found == wanted:
                return

    def values_at(self, point: int | None, *expressions: Expression) -> tuple:
        """The values of the expressions at a point, and the arithmetic to compare them with."""
        bits = FIRST_BITS
        while True:
            arithmetic = self.arithmetic(point, bits)
            values = [self.value(expression, point, arithmetic) for expression in expressions]
            if any(isinstance(value, Approximate) for value in values):
                for value in values:
                    if isinstance(value, Fraction):
                        arithmetic.approximate(value)  # how many digits it takes to compare it
            needed = bits_for(arithmetic.magnitude)
            if needed <= bits:
                return *values, arithmetic
            bits = needed

    def arithmetic(self, point: int | None, bits: int) -> Arithmetic:
        if point is None:
            return Arithmetic(bits)
        return Arithmetic(bits, POINT_BITS, POINT_MAGNITUDE)

    def value(self, expression: Expression, point: int | None, arithmetic: Arithmetic):
        """The value of one expression; what it costs is paid here."""
        if not expression.names:
            point = None
        key = (id(expression), point, arithmetic.bits)
        if key in self.computed:
            value, magnitude = self.computed[key]
            arithmetic.record(magnitude)
            return value

        self.pay(len(expression.steps))
        try:
            value = self.run(expression, point, arithmetic)
        finally:
            self.pay(arithmetic.work)
            arithmetic.work = 0
        self.computed[key] = (value, arithmetic.magnitude)
        return value

    def run(self, expression: Expression, point: int | None, arithmetic: Arithmetic):
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


def rounded(value, bits: int):
    """A key that is the same for values that agree."""
    if isinstance(value, float):
        raise Undefined
    if isinstance(value, Approximate):
        half = 1 << (bits - KEY_BITS - 1)
        return (value.re + half) >> (bits - KEY_BITS), (value.im + half) >> (bits - KEY_BITS)
    return round(value * (1 << KEY_BITS)), 0
