"""Where expressions with free names are compared: points many enough and wide enough.

Floors, absolute values and signs tell two expressions apart only beyond some number, or at odd n,
or below 0. So the points have both signs, both parities, small and large numbers, and numbers
between and beyond those that occur in the two answers.
"""

import math
import random
from collections.abc import Callable
from fractions import Fraction
from functools import cached_property

from answers.expressions import Expression, Step

MAX_BREAKS = 7
MAX_BREAK = 10**12
LEAST_POINTS = 12
MORE_POINTS = 6  # with several names, whose signs and orders are to meet in all ways
WHOLE = ("n", "k", "m")  # always integers; the other letters stand for any real number
PARTS = [(part, whole) for whole in (5, 7, 11) for part in range(1, whole)]  # of a region


# One that is drawn has a number; one beside it is (that point, the name that moves, how far).
Point = int | tuple[int, str, Fraction | int]


class Points:
    """Random values of free names. Point 0, 1, 2 ... are the same for both answers.

    The numbers c that occur in the two answers cut the positive numbers into regions, as does 1;
    beyond the last there are two more, up to 4 c and up to 1000 c. At two points of three every
    name is somewhere: it goes through all regions with both signs, and through the places where
    what is rounded may jump, in an order of its own. At the third all names are between 0 and 1, or
    all positive integers, for roots, logarithms and binomial coefficients that are often defined
    only there; or they have signs that differ, in turn.

    jumps: whether something is rounded.
    """

    def __init__(self, seed: str, numbers: set[Fraction], jumps: bool = False):
        self.draw = random.Random(ascii(seed))
        self.jumps = jumps
        breaks = sorted(c for c in numbers if 0 < c < MAX_BREAK and c != 1)
        if len(breaks) > MAX_BREAKS:
            breaks = sorted(self.draw.sample(breaks, MAX_BREAKS))
        self.breaks = breaks
        last = max([Fraction(3), *breaks])
        edges = sorted({Fraction(0), Fraction(1), *breaks, 4 * last, 1000 * last})
        edges = [int(edge) if edge.denominator == 1 else edge for edge in edges]  # int is faster
        self.regions = list(zip(edges, edges[1:], strict=False))
        self.places = {}
        self.decks = {}  # name -> its regions with signs, shuffled
        self.values = {}  # (name, point) -> its value there

    def wanted(self, names: frozenset[str]) -> int:
        """How many points it takes a name to go through all its cards, at two points of three."""
        cards = max((len(self.cards(name)) for name in names), default=0)
        more = MORE_POINTS if len(names) > 1 else 0
        return max(LEAST_POINTS, 3 * cards // 2) + more

    def variable(self, name: str, point: Point) -> Fraction:
        if isinstance(point, tuple):
            point, moved, step = point
            return self.variable(name, point) + (step if name == moved else 0)
        key = (name, point)
        if key not in self.values:
            self.values[key] = self.drawn(name, point)
        return self.values[key]

    def function(self, name: str, arguments: tuple, point: Point) -> Fraction:
        """The value of an unknown function, one for each of its arguments' values."""
        key = (name, arguments, point)
        if key not in self.values:
            self.values[key] = Fraction(self.draw.randint(-10_000, 10_000), 101)
        return self.values[key]

    def drawn(self, name: str, point: int) -> Fraction:
        turn, third = divmod(point, 3)
        sign = 1
        if third < 2:
            low, high, sign = self.card(name, 2 * turn + third)
        elif turn % 2 == 0:
            low, high = Fraction(0), Fraction(1)
        else:
            low, high = self.draw.choice(self.regions)
        if third == 2 and turn % 4 == 3:
            signs = turn // 4 + 1  # a bit for each name: the first time the first name is below 0
            sign = -1 if signs >> self.place(name) & 1 else 1

        value = self.between(low, high)
        is_whole = third == 1 or (third == 2 and turn % 2 == 1)
        if name in WHOLE or (is_whole and max(1, math.ceil(low)) <= high):
            value = self.integer(value, low, high, odd=point % 2 == 1)
        return sign * value

    def place(self, name: str) -> int:
        """0, 1, 2 ... for the names in the order in which they are met."""
        return self.places.setdefault(name, len(self.places))

    def card(self, name: str, position: int) -> tuple[Fraction, Fraction, int]:
        """A region and a sign, from a deck that is shuffled once and then goes around.

        Every round begins one card later, so that a region gets fractions and integers in turn.
        """
        if name not in self.decks:
            deck = self.cards(name)
            self.draw.shuffle(deck)
            self.decks[name] = deck
        deck = self.decks[name]
        rounds, place = divmod(position, len(deck))
        return deck[(place + rounds) % len(deck)]

    def cards(self, name: str) -> list[tuple[Fraction, Fraction, int]]:
        """The regions with signs, and single numbers as regions of no width."""
        singles = set()
        if name in WHOLE:
            singles.update(range(1, 9 if self.jumps else 5))
        if self.jumps:
            for number in self.breaks:
                singles.update([number - 1, number, number + 1, 2 * number, number**2])
        if self.jumps and name not in WHOLE:
            singles.update([Fraction(1, 2), Fraction(3, 2), Fraction(-5, 2)])
        cards = [(low, high, sign) for low, high in self.regions for sign in (1, -1)]
        return cards + [(Fraction(n), Fraction(n), 1) for n in sorted(singles) if n != 0]

    def between(self, low: Fraction, high: Fraction) -> Fraction:
        """A number between low and high, both >= 0: of a wide region more often a small one."""
        part, whole = self.draw.choice(PARTS)
        if high > 100 * low > 0:
            ratio = min(float(high / low), 1e9)
            low = low * round(ratio ** (part / whole))
            high = low + 1
        return Fraction(low * (whole - part) + high * part, whole)

    def integer(self, value: Fraction, low: Fraction, high: Fraction, odd: bool) -> Fraction:
        """A positive integer near `value`, in the region and of that parity if there is one."""
        nearest = max(1, math.ceil(low), math.floor(value))
        if nearest % 2 == odd:
            return Fraction(nearest)
        if nearest + 1 <= high:
            return Fraction(nearest + 1)
        if nearest - 1 >= max(1, low):
            return Fraction(nearest - 1)
        return Fraction(nearest)


# ---- whether points tell something ---------------------------------------------------------------

# Steps whose results follow one formula everywhere, as x^2 and sin x do, but not |x|.
SMOOTH_NAMES = """
    number variable constant function add subtract multiply divide negative
    exp sin cos tan cot sec csc sinh cosh tanh arctan ln real_ln
"""
SMOOTH = frozenset(SMOOTH_NAMES.split())


def is_smooth(expression: Expression) -> bool:
    r"""Whether what holds near some points holds everywhere, as it is of one formula.

    Its powers have whole exponents, unlike \sqrt{x^2} and (-1)^n.
    """
    before = Step("number", 0)
    for step in expression.steps:
        is_power = step.operation in ("power", "real_power")
        if is_power and (before.detail is None or before.detail.denominator != 1):
            return False
        if not is_power and step.operation not in SMOOTH:
            return False
        before = step if step.operation == "number" else Step(step.operation, 0)
    return True


LITTLE = Fraction(1, 97)
OF_INTEGERS = ("factorial", "double_factorial", "binomial")


class Shared:
    r"""The points at which two expressions were found to agree, and whether they tell something.

    \sqrt{x-1} and \sqrt{1-x} agree wherever both are defined, which is at x = 1; \sqrt{a-b} and
    \sqrt{b-a} agree wherever a = b. That says nothing, however often such a point is drawn.

    domains_differ: whether a point was met at which only one of the two is defined.
    """

    def __init__(self, a: Expression, b: Expression):
        self.expressions = (a, b)
        self.points = []
        self.domains_differ = False

    @cached_property
    def names(self) -> list[str]:
        """Those of variables."""
        steps = [step for expression in self.expressions for step in expression.steps]
        return sorted({step.detail for step in steps if step.operation == "variable"})

    def place(self, point: Point, points: Points) -> tuple | Point:
        """The values of all names; without any the point itself, at which f(2) has a value."""
        return tuple(points.variable(name, point) for name in self.names) or point

    def has_place_of(self, point: Point, points: Points) -> bool:
        """Whether it is there already, under another number."""
        place = self.place(point, points)
        return any(self.place(other, points) == place for other in self.points)

    def are(self, count: int, points: Points, is_defined: Callable) -> bool:
        """Whether there are so many of them that tell something.

        If the domains differ, each place counts once, and only if it is no edge.

        is_defined: of an expression and a point.
        """
        if not self.domains_differ:
            return len(self.points) >= count
        inner = 0
        for point in {self.place(point, points): point for point in self.points}.values():
            inner += all(self.can_move(name, point, is_defined) for name in self.names)
            if inner == count:
                return True
        return False

    def can_move(self, name: str, point: Point, is_defined: Callable) -> bool:
        """Whether both are still defined when one name gets another value, in some direction.

        It moves a little; if that leaves the domains of both, by an integer. Integers come first
        where something is defined for them alone, and a little step may leave one domain only:
        r!/(r-2)! beside r(r-1).
        """
        steps = (1, 2, LITTLE) if self.have_integers else (LITTLE, 1, 2)
        for step in steps:
            is_edge = False
            for beside in ((point, name, step), (point, name, -step)):
                defined = [is_defined(expression, beside) for expression in self.expressions]
                if all(defined):
                    return True
                is_edge = is_edge or any(defined)
            if is_edge and not self.have_integers:
                return False
        return False

    @cached_property
    def have_integers(self) -> bool:
        """Whether one of them has a factorial or the like."""
        steps = [step for expression in self.expressions for step in expression.steps]
        return any(step.operation in OF_INTEGERS for step in steps)
