r"""Compares expressions by value, at random points if they have variables or unknown functions.

An expression without such names has one value. Points at which either expression is undefined are
skipped, so \sqrt{1-x^2} is compared where |x| < 1. One budget, `FUEL`, limits all computations in a
comparison of two answers.
"""

import random
import re
from collections.abc import Iterator, Sequence
from fractions import Fraction

from answers.arithmetic import Arithmetic, as_fraction
from answers.errors import OutOfFuel, TooLarge, Undefined, Unreadable
from answers.expressions import Expression, read
from answers.names import variables_in

FUEL = 15_000  # per comparison, in units of about a microsecond
POINTS = 16  # points per comparison; MIN_POINTS are enough if more are hard to find
MIN_POINTS = 6
ATTEMPTS = 120  # points to try at most
WHOLE = ("n", "k", "m")  # always integers; other letters may be any real number
SMALL = range(1, 10)
NEAR = Fraction(1, 2**60)  # relative difference below which two ratios are equal


class Points:
    """Random values for names. Points 0, 1, 2 ... are the same for both answers.

    The points alternate between four kinds:
    1. numbers between 0 and 1, for roots and inverse functions; every other one has a random sign;
    2. small positive integers, for factorials;
    3. fractions of both signs and four sizes, some larger than all numbers in the answers;
    4. multiples of the numbers in the answers, some minus 1, where floors and ceilings may jump.
    """

    def __init__(self, texts: list[str], seed: str):
        text = " ".join(texts)
        self.draw = random.Random(ascii(text + seed))
        numbers = sorted({*map(int, re.findall(r"\d{1,8}", text))} - {0, 1}) or [1]
        sizes = (2, 10, 4 * numbers[-1], 10**9)
        self.signed_sizes = tuple(sign * size for sign in (1, -1) for size in sizes)
        self.steps = tuple((number, before) for number in numbers for before in (0, 1))
        self.decks = {}  # (name, cards) -> the cards, shuffled
        self.values = {}  # (name, point) -> value
        self.taken = {}  # point -> the values of all names

    def variable(self, name: str, point: int) -> Fraction:
        """The value of a name at a point. Different names have different values."""
        key = (name, point)
        if key not in self.values:
            taken = self.taken.setdefault(point, set())
            value = self.drawn(name, point)
            while value in taken:
                value += self.draw.randint(1, len(taken))
            taken.add(value)
            self.values[key] = value
        return self.values[key]

    def drawn(self, name: str, point: int) -> Fraction:
        turn, kind = divmod(point, 4)
        if kind < 2 and (kind == 1 or name in WHOLE):
            return Fraction(self.card(name, SMALL, 2 * turn + kind))
        part = Fraction(self.draw.randint(1, 96), 97)
        if kind == 0:
            return -part if turn % 2 and self.draw.random() < 0.5 else part

        signed_size = self.card(name, self.signed_sizes, 2 * turn + kind - 2)
        if kind == 2 and name not in WHOLE:
            return signed_size * part
        step, before = self.card(name, self.steps, 2 * turn + kind - 2)
        return Fraction(step * round(signed_size * part) - before)

    def card(self, name: str, cards: Sequence, place: int):
        """A card from a name's deck. The deck is shuffled once; rounds start one card later."""
        key = (name, cards)
        if key not in self.decks:
            self.decks[key] = self.draw.sample(cards, len(cards))
        rounds, place = divmod(place, len(cards))
        return self.decks[key][(rounds + place) % len(cards)]

    def function(self, name: str, arguments: tuple, point: int) -> Fraction:
        """The value of an unknown function for the given arguments."""
        key = (name, arguments, point)
        if key not in self.values:
            self.values[key] = Fraction(self.draw.randint(-10_000, 10_000), 101)
        return self.values[key]


class Evaluator:
    """Compares expressions by value, with one budget for all computations.

    answers: both texts; their names and numbers determine the points.
    seed: mixed into the points' seed, to make the points unpredictable.
    Every method raises Unreadable for text outside the grammar or beyond a limit.
    """

    def __init__(self, answers: list[str], seed: str = ""):
        self.arithmetic = Arithmetic(FUEL)
        self.points = Points(answers, seed)
        self.variables = variables_in(answers)
        self.expressions = {}  # (text, radians) -> its Expression
        self.computed = {}  # (id of an Expression, point) -> its value or its error's type

    def expression(self, text: str, radians: bool = False) -> Expression:
        """The parsed text, from a cache."""
        key = (text, radians)
        if key not in self.expressions:
            expression = read(text, self.variables, radians)
            self.arithmetic.pay(len(expression.tokens))
            self.expressions[key] = expression
        return self.expressions[key]

    def names(self, text: str) -> frozenset[str]:
        """The names of the variables and unknown functions in an expression."""
        return self.expression(text).names

    # ---- questions -------------------------------------------------------------------------------

    def equal(
        self, p: str, g: str, tolerance: Fraction = Fraction(0), radians: bool = False
    ) -> bool:
        """Whether two expressions are equal at all points where both are defined (>= MIN_POINTS).

        Identical texts need only one such point. An expression undefined everywhere equals nothing.

        tolerance: the largest difference accepted between an irrational and a rational number.
        """
        a = self.expression(p, radians)
        b = self.expression(g, radians)
        for p_value, g_value in self.pairs(a, b):
            if not self.agree(p_value, g_value, tolerance):
                return False
            if a.tokens == b.tokens:
                return True
        return self.was_enough

    def proportional(self, p: str, g: str, positive: bool = False) -> bool:
        """Whether p = c g at all points for one c != 0 (c > 0 if `positive`)."""
        first = None
        for p_value, g_value in self.pairs(self.expression(p), self.expression(g)):
            if (p_value == 0) != (g_value == 0):
                return False  # x + |x| = 0 is not x = 0, although 2x = c x for x > 0
            if p_value == 0:
                continue
            ratio = self.ratio(p_value, g_value)
            if ratio is None or (positive and ratio < 0):
                return False
            if first is None:
                first = ratio
            if abs(ratio - first) > NEAR * abs(first):
                return False
        return self.was_enough and first is not None

    def constant(self, text: str) -> Fraction | None:
        """The value of an expression, to BITS bits; None if it has names or is not real."""
        expression = self.expression(text)
        if expression.names:
            return None
        for value, _ in self.pairs(expression, expression):
            return as_fraction(value)
        return None

    # ---- values ----------------------------------------------------------------------------------

    def pairs(self, a: Expression, b: Expression) -> Iterator[tuple]:
        """(value of a, value of b) at every point where both are defined.

        Without names there is one point, and a value that is too large raises Unreadable.
        Afterwards `was_enough` says whether there were enough points. There are too few if only one
        of the two is defined at six times as many points: \\sqrt{x-1} and \\sqrt{1-x} are both
        defined only at 1.
        """
        has_names = bool(a.names or b.names)
        found = 0
        alone = 0
        self.was_enough = False
        for point in range(ATTEMPTS if has_names else 1):
            try:
                values = [self.value(expression, point) for expression in (a, b)]
            except OutOfFuel:
                if found < MIN_POINTS:
                    raise
                break
            if TooLarge in values:
                if not has_names:
                    raise Unreadable
                continue
            if Undefined in values:
                alone += values != [Undefined, Undefined]
                continue
            yield tuple(values)
            found += 1
            if found == POINTS:
                break
        self.was_enough = found >= (MIN_POINTS if has_names else 1) and 6 * found > alone

    def value(self, expression: Expression, point: int):
        """The value of one expression at a point, or the type of its error."""
        key = (id(expression), point)
        if key not in self.computed:
            try:
                self.computed[key] = self.run(expression, point)
            except (Undefined, TooLarge) as error:
                self.computed[key] = type(error)
        return self.computed[key]

    def run(self, expression: Expression, point: int):
        """Run the steps: each pops its arguments from a stack of values and pushes its result."""
        self.arithmetic.pay(len(expression.steps))
        stack = []
        for operation, arity, detail in expression.steps:
            arguments = stack[len(stack) - arity :]
            del stack[len(stack) - arity :]
            if operation == "number":
                value = detail
            elif operation == "variable":
                value = self.points.variable(detail, point)
            elif operation == "constant":
                value = self.arithmetic.constant(detail)
            elif operation == "function":
                keys = tuple(map(rounded, arguments))
                value = self.points.function(detail, keys, point)
            else:
                value = getattr(self.arithmetic, operation)(*arguments)
            stack.append(value)
        return stack.pop()

    def agree(self, p, g, tolerance: Fraction) -> bool:
        """Whether two values are equal, or within `tolerance` unless both are rational."""
        if p == g:
            return True
        if isinstance(p, float) or isinstance(g, float):
            return False
        if isinstance(p, Fraction) and isinstance(g, Fraction):
            return False
        try:
            distance = as_fraction(abs(self.arithmetic.subtract(p, g)))
        except TooLarge:
            return False
        return distance <= tolerance

    def ratio(self, p, g) -> Fraction | None:
        """p / g if the quotient is real, else None."""
        try:
            return as_fraction(self.arithmetic.divide(p, g))
        except (TooLarge, Undefined):
            return None


def rounded(value):
    """A dictionary key that is equal for equal values."""
    if isinstance(value, float):
        raise Undefined
    return tuple(round(as_fraction(part) * 2**64) for part in (value.real, value.imag))
