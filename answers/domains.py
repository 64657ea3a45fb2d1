r"""Whether two expressions share a domain, or only the edge between their domains.

\sqrt{x-1} and \sqrt{1-x} agree wherever both are defined, which is at x = 1; \sqrt{a-b} and
\sqrt{b-a} agree wherever a = b. That says nothing, however often such a point is drawn.
"""

from collections.abc import Callable
from fractions import Fraction
from functools import cached_property

from answers.expressions import Expression
from answers.points import Point, Points

LITTLE = Fraction(1, 97)
OF_INTEGERS = ("factorial", "double_factorial", "binomial")


class Shared:
    """The points at which two expressions were found to agree.

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
