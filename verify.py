r"""The reward of RLVR (App. I): find the final answer of a response, and decide if it is right.

The answer is *extracted* (answers/extraction.py), *normalised* to one spelling (answers/latex.py),
and *compared* with the gold answer: structures (lists, intervals, equations ...:
answers/structure.py) member by member, expressions by their values, which are taken at random
points where there are free variables (answers/expressions.py, answers/values.py).

Departures from the paper:
1. It grades with math-verify (sympy). Here nothing is solved or simplified symbolically, so no
   answer can hang the grader; RESULTS.md has both on the same labelled answers.
2. Its run script adds a penalty for long responses to the reward: `train.overlong_penalty`.

Rules of the comparison:
1. Rational values agree exactly, others to some thirty digits behind the last they could share.
2. A decimal stands for an irrational (never a rational) number from six significant digits on,
   if it is right within one unit of the last: 3.14159 for \pi, but not 0.333333 for 1/3. A gold
   decimal does from six digits behind the point on: 15300.75 is exact.
3. What cannot be read agrees with the same text only. What is undefined (0/0), or restates a
   question (\sum, \int, \lim, \max), agrees with nothing.
4. Nothing of a text is executed; length, tokens, depth, members, digits and operations are bounded.
"""

import itertools
import re
from fractions import Fraction

from answers import units
from answers.arithmetic import Unreadable
from answers.extraction import MAX_CHARS, extract_answer
from answers.intervals import halves, joint, solved
from answers.labels import (
    POINT,
    coordinates,
    difference,
    in_order,
    is_label,
    is_name,
    label_of,
    labels_among,
    name_several,
    sides_of,
)
from answers.latex import normalise
from answers.structure import WORD, Structure, readings, structure
from answers.tokens import TOKEN
from answers.values import Evaluator


def reward(response: str, gold: str) -> float:
    """1.0 if the response's final answer is equivalent to `gold`, else 0.0 (App. I)."""
    answer = extract_answer(response)
    if answer is None:
        return 0.0
    return float(is_equivalent(answer, gold))


SINGLE = re.compile(r"\{\s?(\w|\\[a-zA-Z]{1,20})\s?\}")

# A prediction with one of these restates a question, hides a part of itself, or is not a number.
# An index may be \max.
NEVER_RIGHT = re.compile(
    r"\\(?:sum|prod|i*o?int|lim|limsup|liminf|phantom|[hv]phantom|(?:text)?color(?:box)?|def)"
    r"(?![a-zA-Z])|(?<!_)(?<!_\{)\\(?:min|max|sup|inf)(?![a-zA-Z])|(?i:\bnan\b)"
)


def is_equivalent(prediction: str, gold: str, seed: str = "") -> bool:
    """Whether two answers are the same, by the rules above. Never raises.

    seed: of the points at which free variables are evaluated, beside the texts themselves.
    """
    if max(len(prediction), len(gold)) > MAX_CHARS:
        return False
    if NEVER_RIGHT.search(prediction):
        return False

    p = normalise(prediction)
    g = normalise(gold)
    if not p or not g:
        return False

    judge = Judge([p, g], seed)
    was_read = False
    for p_reading, g_reading in itertools.product(readings(p), readings(g)):
        try:
            if judge.same(p_reading, g_reading):
                return True
            was_read = True
        except Unreadable:
            continue
    return not was_read and written(p) == written(g)  # rule 3


def written(text: str) -> list[str]:
    r"""Its tokens, without braces around a single one: \pmod{4} is \pmod 4."""
    return TOKEN.findall(SINGLE.sub(r" \1 ", text))


# ---- compare: member by member, and by value -----------------------------------------------------

# Kinds whose members are compared in any order: 1, 2 is also the set {2, 1}.
UNORDERED = ({"list"}, {"set"}, {"∪"}, {"list", "set"}, {"list", "∪"})
PRODUCT = re.compile("[a-z]{3,4}")  # and not a word
CURVE = "xyz"  # x+y = 5 is a line, and a+b = 5 says what a+b is


class Judge:
    """Compares two answers, with one budget of work for both (rule 4).

    answers: both, from which the points of free variables are drawn.
    Every method has the prediction's part first, and raises Unreadable for what it cannot read.
    """

    def __init__(self, answers: list[str], seed: str = ""):
        self.evaluator = Evaluator(answers, seed)
        self.structures = {}  # text -> its structure

    def structure(self, text: str) -> Structure:
        self.evaluator.pay(1)
        if text not in self.structures:
            self.structures[text] = structure(text)
        return self.structures[text]

    def same(self, a: str, b: str) -> bool:
        """Whether two texts are the same answer.

        The kinds of structure are listed at `Structure` in answers/structure.py.
        """
        p = self.structure(a)
        g = self.structure(b)
        if p.kind == "≈" or g.kind == "≈":
            return self.same(self.exact_form(a), self.exact_form(b))

        p, g = self.as_coordinates(p, g), self.as_coordinates(g, p)
        kinds = {p.kind, g.kind}
        if "=" in kinds:
            return self.same_equation(sides_of(*p, a), sides_of(*g, b))
        if "quantity" in kinds:
            return self.same_quantity(a, b)
        if "∧" in kinds or "<" in kinds:
            return self.same_inequality(joint(p, self.structure), joint(g, self.structure))
        if kinds in UNORDERED:
            return self.same_members(p.members, g.members)
        if kinds == {"matrix", "()"}:
            return self.same_in_order(self.entries(p), self.entries(g))
        if kinds == {"()", "value"}:
            return self.same_in_order(self.point(p), self.point(g))
        if kinds == {"word", "value"}:
            return TOKEN.findall(a) == TOKEN.findall(b) or self.same_letters(a, b)
        if kinds == {"≠", "∪"}:
            return self.same_members(halves(p), halves(g))
        if p.kind != g.kind:
            return False

        if p.kind == "value":
            return self.same_value(p.members[0], g.members[0])
        if p.kind == "word":
            return p.members == g.members or self.same_letters(a, b)
        if p.kind == "≠":
            return self.evaluator.proportional(difference(p.members), difference(g.members))
        if p.kind == ":" and are_ratios(p.members, g.members):
            return self.same_ratio(p.members, g.members)
        return self.same_in_order(p.members, g.members)

    # ---- values ----------------------------------------------------------------------------------

    def same_value(self, p: str, g: str) -> bool:
        r"""Equal wherever both are defined. 90° is 90 and also \pi/2."""
        tolerance = max(tolerance_of_prediction(p), tolerance_of_gold(g))
        if self.evaluator.equal(p, g, tolerance):
            return True
        one_has_degrees = (r"\degree" in p) != (r"\degree" in g)
        return one_has_degrees and self.evaluator.equal(p, g, tolerance, radians=True)

    def same_letters(self, p: str, g: str) -> bool:
        """Whether what reads like a word may be a product, as mgh beside ghm and m g h."""
        words = [text for text in (p, g) if WORD.fullmatch(text)]
        return all(map(PRODUCT.fullmatch, words)) and self.same_value(p, g)

    def same_ratio(self, ps: list[str], gs: list[str]) -> bool:
        """2:4:6 is 1:2:3."""
        pairs = zip(ps[1:], gs[1:], strict=True)
        return all(self.same_value(f"({p})*({gs[0]})", f"({g})*({ps[0]})") for p, g in pairs)

    def same_quantity(self, a: str, b: str) -> bool:
        r"""5 cm is 5, and 5 centimeters, but not 5 m. 90\degree is \pi/2 radians, not 90."""
        p, p_unit = self.quantity(a)
        g, g_unit = self.quantity(b)
        for unit, other in ((p_unit, b), (g_unit, a)):
            if r"\degree" in other and units.is_angle(unit):
                return self.evaluator.equal(p, g, radians=True)
        if p_unit and g_unit:
            return units.agree(p_unit, g_unit) and self.same(p, g)
        if self.same(p, g):
            return True
        # What is a unit on one side may be a product on the other: 6 m and 6m.
        if p_unit:
            return g.endswith(p_unit) and self.same(p, without_letters(g, p_unit))
        return p.endswith(g_unit) and self.same(without_letters(p, g_unit), g)

    def quantity(self, text: str) -> tuple[str, str]:
        """The value and the unit, if there is one."""
        read = self.structure(text)
        return tuple(read.members) if read.kind == "quantity" else (text, "")

    # ---- members ---------------------------------------------------------------------------------

    def same_members(self, ps: list[str], gs: list[str]) -> bool:
        """The same members in any order."""
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

    def entries(self, p: Structure) -> list[str]:
        """Those of a matrix of one row or one column, which is like a tuple; or a tuple's."""
        if p.kind == "matrix" and len(p.members) == 1:
            return self.structure(p.members[0]).members
        return p.members

    def point(self, p: Structure) -> list[str]:
        """The coordinates of a tuple, or of P(2,-3), which is a way to write a point."""
        named = POINT.fullmatch(p.members[0]) if p.kind == "value" else None
        return self.structure(named[1]).members if named else p.members

    def as_coordinates(self, p: Structure, other: Structure) -> Structure:
        """The tuple (3,2) of a list y=2, x=3 beside a list or tuple without names.

        A list beside such a list has an order, too. Anything else is what it is.
        """
        values = self.named_values(p)
        other_values = self.named_values(other)
        if values and not other_values and other.kind in ("list", "()"):
            return Structure("()", values)
        if other_values and not values and p.kind == "list":
            return Structure("()", p.members)
        return p

    def named_values(self, p: Structure) -> list[str]:
        """3 and 2 of y=2, x=3; none of a list in which not every member has a letter of its own.

        So roots x=3, x=2 or x_1=3, x_2=2 stay a list.
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

    # ---- equations -------------------------------------------------------------------------------

    def same_equation(self, ps: list[str], gs: list[str]) -> bool:
        """Two answers as the sides of equations; one of the two may be no equation, a single side.

        2y = 4x is y - 2x = 0, as one is a multiple of the other. In S = 5 and S = 2 + 3 the left
        side only names the right one, and so it does in x = 5 beside 5.
        """
        if len(ps) > 1 and len(gs) > 1:
            p_label = label_of(ps)
            g_label = label_of(gs)
            if name_several(ps, gs):
                return self.same_system(ps, gs)
            if len(ps) == len(gs) == 2 and not (p_label and p_label == g_label):
                return self.evaluator.proportional(difference(ps), difference(gs))
            if p_label and g_label and p_label != g_label:
                return False

        p_answer = self.stated(ps, may_be_composed=True)
        g_answer = self.stated(gs, may_be_composed=False)
        if p_answer is None or g_answer is None:
            return False
        return self.same(p_answer, g_answer)

    def same_system(self, ps: list[str], gs: list[str]) -> bool:
        """x = y = 0 is y = x = 0: the same labels, and the same other sides."""
        if labels_among(ps) != labels_among(gs):
            return False
        p_others = [side for side in ps if not is_label(side)]
        g_others = [side for side in gs if not is_label(side)]
        return self.same_members(p_others, g_others)

    def stated(self, sides: list[str], may_be_composed: bool) -> str | None:
        r"""The last side of a chain, which is its answer if no side before it contradicts.

        Those of 2+3 = 5 must be equal. Behind a label there may be formulas, whose other variables
        have values that we do not know: V = \pi r^2 h = 12\pi.

        may_be_composed: m+n = 33 may state 33, as in a prediction. A gold answer is a condition.
        """
        *earlier, last = sides
        if not earlier:
            return last
        has_label = is_label(sides[0]) or (may_be_composed and self.is_quantity(sides))
        for side in earlier[1:] if has_label else earlier:
            if has_label and self.is_formula(side, last):
                continue
            if not self.same(side, last):
                return None

        names = coordinates(sides[0])
        values = self.structure(last)
        if names and values.kind == "()" and len(names) == len(values.members):
            return f"({','.join(in_order(names, values.members))})"
        return last

    def is_quantity(self, sides: list[str]) -> bool:
        r"""Whether a value is stated of several names, as in m+n = 33 or \frac{a}{b} = 3.

        Of one name it is an equation to be solved, as 2a = 6; between x, y and z it is a curve,
        unless it is computed: x+y = 2+3 = 5. So is what is 0: a+b+c = 0 is a condition.
        """
        first, *between, last = sides
        value = self.quantity(last)[0]
        try:
            names = self.evaluator.names(first)
            names_of_value = self.evaluator.names(value)
            is_zero = not names_of_value and self.evaluator.constant(value) == 0
        except Unreadable:
            return False
        is_curve = (is_zero or any(name[0] in CURVE for name in names)) and not between
        return len(names) > 1 and not names_of_value and not is_curve

    def is_formula(self, side: str, last: str) -> bool:
        """Whether `side` has names that `last` has not."""
        try:
            return not self.evaluator.names(side) <= self.evaluator.names(last)
        except Unreadable:
            return False

    def exact_form(self, text: str) -> str:
        r"""What stands before the decimal in x = \sqrt{2} ≈ 1.41, if it is a number and near it."""
        read = self.structure(text)
        if read.kind != "≈":
            return text
        exact, *decimals = read.members
        value, _ = self.quantity(sides_of(*self.structure(exact), exact)[-1])
        for member in decimals:
            decimal = re.fullmatch(r"-?\s?\d+(?:\.(\d*))?", self.quantity(member)[0])
            if not decimal:
                raise Unreadable
            number = self.evaluator.constant(value)
            if number is None or not is_rounded(decimal[0], number, len(decimal[1] or "")):
                raise Unreadable
        return exact

    # ---- inequalities ----------------------------------------------------------------------------

    def same_inequality(self, p: Structure, g: Structure) -> bool:
        """Two chains, side by side; two inequalities, as multiples; or the intervals they are."""
        if p.kind == g.kind == "∧":
            return self.same_members(p.members, g.members)
        if p.kind == g.kind and p.members[1::2] == g.members[1::2]:
            p_sides = p.members[::2]
            g_sides = g.members[::2]
            if self.same_in_order(p_sides, g_sides):
                return True
            if len(p_sides) == 2 and self.evaluator.proportional(
                difference(p_sides), difference(g_sides), positive=True
            ):
                return True

        return self.same_intervals(p, g)

    def same_intervals(self, p: Structure, g: Structure) -> bool:
        """The intervals that two inequalities are, or that one is beside the other's."""
        p_name, p_interval = solved(p, self.evaluator)
        g_name, g_interval = solved(g, self.evaluator)
        if not p_interval or not g_interval or p_interval.kind != g_interval.kind:
            return False
        if p_name and g_name and p_name != g_name:
            return False
        return self.same_in_order(p_interval.members, g_interval.members)


# ---- small questions about texts -----------------------------------------------------------------

DECIMAL = re.compile(r"\s*-?\s*(\d*)\.(\d+)\s*")
SIGNIFICANT = 6  # digits, from which on a decimal stands for an irrational number (rule 2)
EXACTLY = Fraction(0)  # no tolerance


def tolerance_of_prediction(text: str) -> Fraction:
    """One unit of the last of six significant digits or more; 0 if it is no such decimal."""
    decimal = DECIMAL.fullmatch(text)
    if not decimal or len((decimal[1] + decimal[2]).lstrip("0")) < SIGNIFICANT:
        return EXACTLY
    return Fraction(1, 10 ** len(decimal[2]))


def tolerance_of_gold(text: str) -> Fraction:
    """The same of a decimal with six digits or more behind the point."""
    decimal = DECIMAL.fullmatch(text)
    if not decimal or len(decimal[2]) < SIGNIFICANT:
        return EXACTLY
    return tolerance_of_prediction(text)


def is_rounded(decimal: str, number: Fraction, digits: int) -> bool:
    """Whether a decimal with so many digits is a number rounded, half up or down, or cut off."""
    written = Fraction(decimal.replace(" ", ""))
    if written * number < 0:
        return False
    unit = Fraction(1, 10**digits)
    error = abs(written) - abs(number)
    return -unit < error <= unit / 2


def without_letters(text: str, unit: str) -> str:
    """A number without the letters of a unit right behind it; any other text as it is."""
    number = text.removesuffix(unit).rstrip()
    return number if number[-1:].isdigit() else text


def are_ratios(ps: list[str], gs: list[str]) -> bool:
    """Whether both are like 2:3, and not times of the day like 2:30."""
    if len(ps) != len(gs):
        return False
    return not all(re.match(r"\d\d(?!\d)", member) for member in [*ps[1:], *gs[1:]])
