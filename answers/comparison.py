r"""Compares two answers: structures member by member, expressions by value.

| kind (see `Structure`)        | two answers are equal if                                      |
|-------------------------------|---------------------------------------------------------------|
| ≈, x = \sqrt{2} ≈ 1.41        | the sides before the decimal are equal                        |
| =                             | they state equal values, or one is a multiple of the other    |
| quantity, 5\text{cm}          | the values are equal and the units agree                      |
| <, ∧, interval                | they are the same interval                                    |
| list, set, ∪                  | they have the same members in any order                       |
| tuple, interval, matrix, word | they have the same members in the same order                  |
| :                             | the ratios (2:4, 1:2) or times of day (2:30) are equal        |
| value                         | the values are equal, at random points if there are names     |
"""

import re
from fractions import Fraction

from answers import units
from answers.equations import difference, in_order, is_name, same_equation, sides_of
from answers.errors import Unreadable
from answers.inequalities import all_unequal, intervals, same_inequality
from answers.structure import Structure, structure
from answers.values import Evaluator

# Kinds whose members are compared in any order: 1, 2 equals the set {2, 1}.
UNORDERED = ({"list"}, {"set"}, {"∪"}, {"list", "set"}, {"list", "∪"})


class Judge:
    """Compares two answers within one work budget.

    answers: both texts; their names and numbers determine the random points.
    Every method takes the prediction first, and raises Unreadable for text outside the grammar.
    """

    def __init__(self, answers: list[str], seed: str = ""):
        self.evaluator = Evaluator(answers, seed)
        self.structures = {}  # text -> its structure

    def structure(self, text: str) -> Structure:
        self.evaluator.arithmetic.pay(1)
        if text not in self.structures:
            self.structures[text] = structure(text)
        return self.structures[text]

    def same(self, a: str, b: str) -> bool:
        """Whether two texts are the same answer."""
        p = self.structure(a)
        g = self.structure(b)
        if p.kind == "≈" or g.kind == "≈":
            return self.same(self.exact_form(a), self.exact_form(b))

        p, g = self.as_coordinates(p, g), self.as_coordinates(g, p)
        kinds = {p.kind, g.kind}
        if "=" in kinds:
            return same_equation(self, sides_of(p, a), sides_of(g, b))
        if "quantity" in kinds:
            return self.same_quantity(a, b)
        if "∧" in kinds or "<" in kinds:
            return same_inequality(self, p, g)
        if "list" in kinds and kinds & {"∪", "∖"}:
            p, g = all_unequal(self, p), all_unequal(self, g)
            kinds = {p.kind, g.kind}
        if kinds in UNORDERED:
            return self.same_members(p.members, g.members)
        if kinds == {"matrix", "()"}:  # a column equals a tuple
            return self.same_in_order(p.members, g.members)
        if len(kinds) > 1 and kinds <= {"≠", "∪", "∖"}:
            return self.same_members(intervals(self, p), intervals(self, g))
        if p.kind != g.kind:
            return False

        if p.kind == "value":
            return self.same_value(p.members[0], g.members[0])
        if p.kind == "word":
            return p.members == g.members
        if p.kind == "≠":  # 2x ≠ 4 is x ≠ 2
            return self.evaluator.proportional(difference(p.members), difference(g.members))
        if p.kind == ":" and are_ratios(p.members, g.members):
            return self.same_ratio(p.members, g.members)
        return self.same_in_order(p.members, g.members)

    # ---- values ----------------------------------------------------------------------------------

    def same_value(self, p: str, g: str) -> bool:
        r"""Whether two expressions are equal where both are defined. 90° equals 90 and \pi/2."""
        tolerance = max(tolerance_of_prediction(p), tolerance_of_gold(g))
        if self.evaluator.equal(p, g, tolerance):
            return True
        one_has_degrees = (r"\degree" in p) != (r"\degree" in g)
        return one_has_degrees and self.evaluator.equal(p, g, tolerance, radians=True)

    def same_ratio(self, ps: list[str], gs: list[str]) -> bool:
        """Whether two ratios are equal, such as 2:4:6 and 1:2:3."""
        pairs = zip(ps[1:], gs[1:], strict=True)
        return all(self.same_value(f"({p})*({gs[0]})", f"({g})*({ps[0]})") for p, g in pairs)

    def same_quantity(self, a: str, b: str) -> bool:
        r"""5 cm equals 5 and 5 centimeters, but not 5 m. 90\degree equals \pi/2 radians, not 90."""
        p, p_unit = self.quantity(a)
        g, g_unit = self.quantity(b)
        for unit, other in ((p_unit, b), (g_unit, a)):
            if r"\degree" in other and units.is_angle(unit):
                return self.evaluator.equal(p, g, radians=True)
        if p_unit and g_unit:
            return units.agree(p_unit, g_unit) and self.same(p, g)
        return self.same(p, g)

    def quantity(self, text: str) -> tuple[str, str]:
        """(value, unit); the unit is empty if there is none."""
        read = self.structure(text)
        return tuple(read.members) if read.kind == "quantity" else (text, "")

    # ---- members ---------------------------------------------------------------------------------

    def same_members(self, ps: list[str], gs: list[str]) -> bool:
        """Whether two lists have the same members in any order."""
        if len(ps) != len(gs):
            return False
        left = list(gs)
        for member in ps:
            partner = next((other for other in left if self.same(member, other)), None)
            if partner is None:
                return False
            left.remove(partner)
        return True

    def same_in_order(self, ps: list[str], gs: list[str]) -> bool:
        return len(ps) == len(gs) and all(map(self.same, ps, gs))

    def as_coordinates(self, p: Structure, other: Structure) -> Structure:
        """The list y=2, x=3 as the tuple (3,2), if `other` is a list or tuple without names.

        A list without names becomes a tuple if `other` names its values. Any other p is unchanged.
        """
        values = self.named_values(p)
        other_values = self.named_values(other)
        if values and not other_values and other.kind in ("list", "()"):
            return Structure("()", values)
        if other_values and not values and p.kind == "list":
            return Structure("()", p.members)
        return p

    def named_values(self, p: Structure) -> list[str]:
        """The values of y=2, x=3 sorted by name: 3, 2.

        Empty unless all names have different letters: x=3, x=2 and x_1=3, x_2=2 stay lists.
        """
        if p.kind != "list":
            return []
        equations = [self.structure(member) for member in p.members]
        if any(e.kind != "=" or not is_name(e.members[0]) for e in equations):
            return []
        names = [equation.members[0] for equation in equations]
        letters = {name.split("_")[0].strip() for name in names}
        if len(letters) < len(names):
            return []
        return in_order(names, [equation.members[-1] for equation in equations])

    # ---- decimals ----------------------------------------------------------------------------

    def exact_form(self, text: str) -> str:
        r"""\sqrt{2} for \sqrt{2} ≈ 1.41. Raises Unreadable if the decimal does not match."""
        read = self.structure(text)
        if read.kind != "≈":
            return text
        exact, *decimals = read.members
        value, _ = self.quantity(sides_of(self.structure(exact), exact)[-1])
        for member in decimals:
            decimal = re.fullmatch(r"-?\s?\d+(?:\.(\d*))?", self.quantity(member)[0])
            if not decimal:
                raise Unreadable
            number = self.evaluator.constant(value)
            if number is None or not is_rounded(decimal[0], number, len(decimal[1] or "")):
                raise Unreadable
        return exact


# ---- helpers for decimals and ratios -------------------------------------------------------------


DECIMAL = re.compile(r"\s*-?\s*(\d*)\.(\d+)\s*")
SIGNIFICANT = 6  # digits that a decimal needs to match an irrational number
EXACTLY = Fraction(0)  # no tolerance


def tolerance_of_prediction(text: str) -> Fraction:
    """Half a unit in a decimal's last place; 0 if it has fewer than six significant digits."""
    decimal = DECIMAL.fullmatch(text)
    if not decimal or len((decimal[1] + decimal[2]).lstrip("0")) < SIGNIFICANT:
        return EXACTLY
    return Fraction(1, 2 * 10 ** len(decimal[2]))


def tolerance_of_gold(text: str) -> Fraction:
    """Half a unit in a decimal's last place; 0 if it has fewer than six digits after the point."""
    decimal = DECIMAL.fullmatch(text)
    if not decimal or len(decimal[2]) < SIGNIFICANT:
        return EXACTLY
    return tolerance_of_prediction(text)


def is_rounded(decimal: str, number: Fraction, digits: int) -> bool:
    """Whether a decimal is `number` rounded (half up or down) or truncated to `digits` places."""
    written = Fraction(decimal.replace(" ", ""))
    if written * number < 0:
        return False
    unit = Fraction(1, 10**digits)
    error = abs(written) - abs(number)
    return -unit < error <= unit / 2


def are_ratios(ps: list[str], gs: list[str]) -> bool:
    """Whether both are ratios like 2:3, not times of day like 2:30."""
    if len(ps) != len(gs):
        return False
    return not all(re.match(r"\d\d(?!\d)", member) for member in [*ps[1:], *gs[1:]])
