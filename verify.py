r"""The reward of RLVR (App. I): find the final answer of a response, and decide if it is right.

The answer is *extracted* (infra/extraction.py), *normalised* to one spelling (infra/latex.py), and
*compared* with the gold answer: structures (lists, intervals, equations ...: infra/structure.py)
member by member, expressions by their values, which are taken at random points where there are
free variables (infra/expressions.py, infra/evaluation.py).

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

from infra import latex, structure, units
from infra.arithmetic import Arithmetic, TooLarge, Undefined, Unreadable
from infra.evaluation import MIN_POINTS, Evaluator
from infra.expressions import CONSTANTS, TOKEN, substituted
from infra.extraction import MAX_CHARS, extract_answer
from infra.structure import Structure


def reward(response: str, gold: str) -> float:
    """1.0 if the response's final answer is equivalent to `gold`, else 0.0 (App. I)."""
    answer = extract_answer(response)
    if answer is None:
        return 0.0
    return float(is_equivalent(answer, gold))


# ---- normalise: one spelling for what LaTeX spells in many ways ----------------------------------


def normalise(answer: str) -> str:
    """The answer after each group of rewritings; none depends on a later one.

    Nothing is left of an answer that is longer than MAX_CHARS after a group.
    """
    if answer.isascii() and answer.isdigit():
        return answer  # nothing to rewrite, in more than a third of all answers
    for group in latex.GROUPS:
        answer = group(answer)
        if len(answer) > MAX_CHARS:
            return ""
    return answer


# ---- compare: member by member, and by value -----------------------------------------------------

# A prediction with one of these restates a question, hides a part of itself, or is not a number.
# An index may be \max.
NEVER_RIGHT = re.compile(
    r"\\(?:sum|prod|i*o?int|lim|limsup|liminf|phantom|[hv]phantom|(?:text)?color(?:box)?|def)"
    r"(?![a-zA-Z])|(?<!_)(?<!_\{)\\(?:min|max|sup|inf)(?![a-zA-Z])|(?i:\bnan\b)"
)
DECIMAL = re.compile(r"\s*-?\s*(\d*)\.(\d+)\s*")
COORDINATE = ("x", "y", "z", "t", r"\theta")  # between which bounds may be names: -a < x < a
SIGNIFICANT = 6  # digits

# Kinds whose members are compared in any order: 1, 2 is also the set {2, 1}.
UNORDERED = ({"list"}, {"set"}, {"∪"}, {"list", "set"}, {"list", "∪"})


def is_equivalent(prediction: str, gold: str, seed: str = "") -> bool:
    """Whether two answers are the same, by the rules above. Never raises.

    seed: beside the texts themselves, of the points at which free variables are evaluated.
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
    for p_reading, g_reading in itertools.product(structure.readings(p), structure.readings(g)):
        try:
            if judge.same(p_reading, g_reading):
                return True
            was_read = True
        except Unreadable:
            continue
    return not was_read and TOKEN.findall(p) == TOKEN.findall(g)  # rule 3


class Judge:
    """Compares two answers, with one budget of work for both (rule 4).

    answers: both, from which the points of free variables are drawn.
    """

    def __init__(self, answers: list[str], seed: str = ""):
        self.evaluator = Evaluator(answers, seed)
        self.structures = {}  # text -> its structure

    def structure(self, text: str) -> Structure:
        self.evaluator.pay(1)
        if text not in self.structures:
            self.structures[text] = structure.structure(text)
        return self.structures[text]

    def same(self, a: str, b: str) -> bool:
        """Whether two texts are the same answer. Raises Unreadable.

        The kinds of structure are listed at `Structure` in infra/structure.py.
        """
        p = self.structure(a)
        g = self.structure(b)
        kinds = {p.kind, g.kind}

        if p.kind == "≈":
            return self.same(self.exact_form(p.members), b)
        if g.kind == "≈":
            return self.same(a, self.exact_form(g.members))
        if p.kind == "list" or g.kind == "list":
            p, g = self.as_coordinates(p, g)
            kinds = {p.kind, g.kind}
        if "=" in kinds:
            return self.same_equation(sides_of(p, a), sides_of(g, b))
        if "quantity" in kinds:
            return self.same_quantity(p, g, a, b)

        if kinds in UNORDERED:
            return self.same_members(p.members, g.members)
        if "<" in kinds:
            return self.same_inequality(p, g)
        if kinds == {"matrix", "()"}:
            return self.same_vector(p, g)
        if kinds == {"word", "value"}:
            return self.same_value(a, b)  # xyz is a word, and x y z a product
        if kinds == {"()", "value"}:
            return self.same_point(p, g)
        if p.kind != g.kind:
            return False

        if p.kind == "value":
            return self.same_value(p.members[0], g.members[0])
        if p.kind == "word":
            return "".join(p.members) == "".join(g.members)
        if p.kind == "≠":
            return self.proportional(difference(p.members), difference(g.members))
        if p.kind == ":" and are_ratios(p.members, g.members):
            return self.same_ratio(p.members, g.members)

        if len(p.members) != len(g.members):
            return False
        return all(map(self.same, p.members, g.members))

    # ---- lists -----------------------------------------------------------------------------------

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

    def as_coordinates(self, p: Structure, g: Structure) -> tuple[Structure, Structure]:
        """Where one is a list like y=2, x=3 and the other has no names: tuples, as (3,2).

        The names are put in the order of the alphabet. Roots x=3, x=2 or x_1=3, x_2=2 stay a list.
        """
        p_values = self.named_values(p)
        g_values = self.named_values(g)
        if p_values and not g_values and g.kind in ("list", "()"):
            return Structure("()", p_values), Structure("()", g.members)
        if g_values and not p_values and p.kind in ("list", "()"):
            return Structure("()", p.members), Structure("()", g_values)
        return p, g

    def named_values(self, p: Structure) -> list[str]:
        """3 and 2 of x=3, y=2; none of a list in which not every member has a letter of its own."""
        if p.kind != "list":
            return []
        equations = [self.structure(member) for member in p.members]
        if any(e.kind != "=" or not structure.is_name(e.members[0]) for e in equations):
            return []
        names = [equation.members[0] for equation in equations]
        letters = {name.split("_")[0].strip() for name in names}
        if len(letters) < len(names):
            return []
        return structure.in_order(names, [equation.members[-1] for equation in equations])

    def same_vector(self, p: Structure, g: Structure) -> bool:
        """A matrix of one row or one column is the tuple of its numbers."""
        rows, coordinates = (p, g) if p.kind == "matrix" else (g, p)
        if len(rows.members) == 1:
            row = self.structure(rows.members[0])
            return row.kind == "()" and self.same_in_order(row.members, coordinates.members)
        return self.same_in_order(rows.members, coordinates.members)

    def same_point(self, p: Structure, g: Structure) -> bool:
        """P(2,-3) is a way to write the point (2,-3)."""
        value, coordinates = (p, g) if p.kind == "value" else (g, p)
        point = structure.POINT.fullmatch(value.members[0])
        if not point:
            return False
        return self.same_in_order(self.structure(point[1]).members, coordinates.members)

    def same_in_order(self, ps: list[str], gs: list[str]) -> bool:
        return len(ps) == len(gs) and all(map(self.same, ps, gs))

    # ---- equations -------------------------------------------------------------------------------

    def same_equation(self, ps: list[str], gs: list[str]) -> bool:
        """Two answers as the sides of equations; one of the two may be no equation, a single side.

        2y = 4x is y - 2x = 0, as one is a multiple of the other. In S = 5 and S = 2 + 3 the left
        side only names the right one, and so it does in x = 5 beside 5.
        """
        p_names = names_among(ps)
        g_names = names_among(gs)
        if max(len(ps), len(gs)) > 2 and len(ps) > 1 < len(gs) and len(p_names) + len(g_names) > 2:
            # Several names have the same value: x = y = 0.
            others_p = [side for side in ps if not structure.is_name(side)]
            others_g = [side for side in gs if not structure.is_name(side)]
            return p_names == g_names and self.same_members(others_p, others_g)

        # Two equations that do not name the same thing are moved to one side: 2y = 4x.
        p_label = label_of(ps)
        g_label = label_of(gs)
        if len(ps) == len(gs) == 2 and not (p_label and p_label == g_label):
            return self.proportional(difference(ps), difference(gs))

        if p_label and g_label and p_label != g_label:
            return False
        p_answer = self.stated(ps, may_be_composed=True)
        g_answer = self.stated(gs, may_be_composed=False)
        if p_answer is None or g_answer is None:
            return False
        return self.same(p_answer, g_answer)

    def stated(self, sides: list[str], may_be_composed: bool) -> str | None:
        r"""The last side of a chain, which is its answer if no side before it contradicts.

        Those of 2+3 = 5 must be equal. Behind a label there may be formulas, whose other variables
        have values that we do not know: V = \pi r^2 h = 12\pi.

        may_be_composed: m+n = 33 may state 33, as in a prediction. A gold answer is a condition.
        """
        *earlier, last = sides
        if not earlier:
            return last
        has_label = structure.is_label(sides[0]) or (may_be_composed and self.is_quantity(sides))
        for side in earlier[1:] if has_label else earlier:
            if has_label and self.is_formula(side, last):
                continue
            if not self.same(side, last):
                return None

        names = structure.coordinates(sides[0])
        values = self.structure(last)
        if names and values.kind == "()" and len(names) == len(values.members):
            return f"({','.join(structure.in_order(names, values.members))})"
        return last

    def is_quantity(self, sides: list[str]) -> bool:
        r"""Whether a value is stated of several names, as in m+n = 33 or \frac{a}{b} = 3.

        Of one name it is an equation to be solved, as 2a = 6; between x, y and z it is a curve,
        unless it is computed: x+y = 2+3 = 5.
        """
        first, *between, last = sides
        try:
            names = self.evaluator.expression(first).names
            number = self.evaluator.expression(self.without_unit(last))
        except Unreadable:
            return False
        is_curve = any(name[0] in "xyz" for name in names) and not between
        return len(names) > 1 and not is_curve and not number.names

    def is_formula(self, side: str, last: str) -> bool:
        """Whether `side` has names that `last` has not."""
        try:
            names = self.evaluator.expression(side).names
            return not names <= self.evaluator.expression(last).names
        except Unreadable:
            return False

    def exact_form(self, members: list[str]) -> str:
        r"""What stands before the decimal in \sqrt{2} ≈ 1.41, if it is a number and is near it."""
        exact = members[0]
        value = self.structure(exact).members[-1] if "=" in exact else exact
        for member in members[1:]:
            text = self.without_unit(member)
            decimal = re.fullmatch(r"\s*-?\s*\d+(?:\.(\d*))?\s*", text)
            if not decimal:
                raise Unreadable
            tolerance = Fraction(1, 10 ** len(decimal[1] or ""))
            error = self.constant(f"{self.without_unit(value)}-({text})")
            if error is None or abs(error) > tolerance:
                raise Unreadable
        return exact

    # ---- inequalities ----------------------------------------------------------------------------

    def same_inequality(self, p: Structure, g: Structure) -> bool:
        """Two chains side by side; two inequalities as multiples; or the intervals that they are."""
        if p.kind == g.kind and p.members[1::2] == g.members[1::2]:
            if all(map(self.same, p.members[::2], g.members[::2])):
                return True
            if len(p.members) == 3:
                ps = difference(p.members[::2])
                gs = difference(g.members[::2])
                if self.proportional(ps, gs, positive=True):
                    return True

        p_name, p_interval = self.interval(p)
        g_name, g_interval = self.interval(g)
        if not p_interval or not g_interval or p_interval.kind != g_interval.kind:
            return False
        if p_name and g_name and p_name != g_name:
            return False
        return self.same_in_order(p_interval.members, g_interval.members)

    def interval(self, p: Structure) -> tuple[str, Structure | None]:
        r"""The interval of 0<x≤1, x<5 or -2x>4, with the name of the variable; itself if it is one."""
        if p.kind in ("()", "[]", "(]", "[)"):
            return "", p
        if p.kind != "<" or len(p.members) > 5:
            return "", None

        sides = p.members[::2]
        signs = p.members[1::2]
        names = [self.evaluator.expression(side).names for side in sides]
        if len(sides) == 2:
            first, second = sides
            if structure.is_label(first) and not names[1]:
                return first.strip(), interval_between("-\\infty", "<", signs[0], second)
            if structure.is_label(second) and not names[0]:
                return second.strip(), interval_between(first, signs[0], "<", "\\infty")
            free = names[0] | names[1]
            return self.half_line(sides, signs[0], *free) if len(free) == 1 else ("", None)

        low, middle, high = sides
        ends_are_known = not names[0] | names[2]
        is_coordinate = middle in COORDINATE and not names[1] & (names[0] | names[2])
        if structure.is_label(middle) and (ends_are_known or is_coordinate):
            return middle.strip(), interval_between(low, *signs, high)
        return "", None

    def half_line(self, sides: list[str], sign: str, name: str) -> tuple[str, Structure | None]:
        """The solutions of left < right where left - right is a x + b; of others there is none."""
        left_minus_right = difference(sides)
        b = substituted(left_minus_right, name, "(0)")
        a = f"({substituted(left_minus_right, name, '(1)')})-({b})"
        if not self.same_value(left_minus_right, f"({a})*{name}+({b})"):
            return "", None

        bound = f"-({b})/({a})"
        slope = self.constant(a) or 0
        if slope > 0:
            return name, interval_between("-\\infty", "<", sign, bound)
        if slope < 0:
            return name, interval_between(bound, sign, "<", "\\infty")
        return "", None

    # ---- quantities ------------------------------------------------------------------------------

    def same_quantity(self, p: Structure, g: Structure, a: str, b: str) -> bool:
        """5 cm is 5, and 5 centimeters, but not 5 m."""
        if p.kind == g.kind:
            return units.agree(p.members[1], g.members[1]) and self.same(p.members[0], g.members[0])
        (value, unit), other = (p.members, b) if p.kind == "quantity" else (g.members, a)
        if self.same(value, other):
            return True
        # What is a unit here may be written as a product there: 6m.
        if not other.endswith(unit):
            return False
        number = other.removesuffix(unit).rstrip()
        return number[-1:].isdigit() and self.same(value, number)

    def without_unit(self, text: str) -> str:
        read = self.structure(text)
        return read.members[0] if read.kind == "quantity" else text

    def same_ratio(self, ps: list[str], gs: list[str]) -> bool:
        """2:4:6 is 1:2:3."""
        return all(
            self.same_value(f"({p})*({gs[0]})", f"({g})*({ps[0]})")
            for p, g in zip(ps[1:], gs[1:], strict=True)
        )

    # ---- values ----------------------------------------------------------------------------------

    def same_value(self, p: str, g: str) -> bool:
        r"""Equal wherever both are defined. 90° is 90 and also \pi/2."""
        tolerance = max(
            unit_of_last_digit(p, of_prediction=True), unit_of_last_digit(g, of_prediction=False)
        )
        if self.equal(p, g, tolerance):
            return True
        one_has_degrees = ("\\degree" in p) != ("\\degree" in g)
        return one_has_degrees and self.equal(p, g, tolerance, radians=True)

    def equal(self, p: str, g: str, tolerance: Fraction, radians: bool = False) -> bool:
        """The same value at all points where both have one, of which there have to be MIN_POINTS.

        If few points were enough, expressions could agree by chance. The same text needs one, as
        it cannot; and what is undefined everywhere agrees with nothing (rule 3).
        """
        a = self.evaluator.expression(p, radians)
        b = self.evaluator.expression(g, radians)
        enough = MIN_POINTS if a.names or b.names else 1
        if a.tokens == b.tokens:
            enough = 1
        points = 0
        for p_value, g_value, arithmetic in self.evaluator.pairs(a, b):
            if not agree(p_value, g_value, arithmetic, tolerance):
                return False
            points += 1
            if enough == 1:
                break
        return points >= enough

    def proportional(self, p: str, g: str, positive: bool = False) -> bool:
        """Whether p = c g at all points for one c != 0 (c > 0 if `positive`)."""
        a = self.evaluator.expression(p)
        b = self.evaluator.expression(g)
        first = None
        points = 0
        for p_value, g_value, arithmetic in self.evaluator.pairs(a, b):
            if (p_value == 0) != (g_value == 0):
                return False  # x + |x| = 0 is not x = 0, though 2x and x agree where x > 0
            if p_value == 0:
                continue
            ratio = arithmetic.as_fraction(arithmetic.divide(p_value, g_value))
            if ratio is None or (first is not None and not near(ratio, first)):
                return False
            first = ratio
            points += 1
        return points >= MIN_POINTS and not (positive and first < 0)

    def constant(self, text: str) -> Fraction | None:
        """The value of a real expression without names, as far as it is known; of others None."""
        expression = self.evaluator.expression(text)
        if expression.names:
            return None
        for value, _, arithmetic in self.evaluator.pairs(expression, expression):
            return arithmetic.as_fraction(value)
        return None


# ---- small questions about values and texts ------------------------------------------------------


def agree(p, g, arithmetic: Arithmetic, tolerance: Fraction) -> bool:
    """Whether two values are the same (rules 1 and 2)."""
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


def near(a: Fraction, b: Fraction) -> bool:
    return abs(a - b) <= abs(b) / 2**60


def unit_of_last_digit(text: str, of_prediction: bool) -> Fraction:
    """How near an irrational number has to be to a decimal that stands for it, else 0 (rule 2)."""
    decimal = DECIMAL.fullmatch(text)
    if not decimal:
        return Fraction(0)
    digits = decimal[1] + decimal[2] if of_prediction else decimal[2]
    if len(digits.lstrip("0")) < SIGNIFICANT:
        return Fraction(0)
    return Fraction(1, 10 ** len(decimal[2]))


def sides_of(structure_: Structure, text: str) -> list[str]:
    """The sides of an equation, with its name first; of anything else the one side that it is."""
    if structure_.kind != "=":
        return [text]
    sides = structure_.members
    is_reversed = structure.is_name(sides[1]) and sides[1] not in CONSTANTS
    if len(sides) == 2 and is_reversed and not structure.is_label(sides[0]):
        return sides[::-1]
    return sides


def label_of(sides: list[str]) -> str:
    """What the left side names the right side, if that is all it does."""
    if len(sides) < 2 or not structure.is_label(sides[0]):
        return ""
    return sides[0].replace(" ", "")


def names_among(sides: list[str]) -> set[str]:
    return {side.replace(" ", "") for side in sides if structure.is_name(side)}


def difference(sides: list[str]) -> str:
    """The left side minus the right."""
    return f"({sides[0]})-({sides[1]})"


def interval_between(low: str, low_sign: str, high_sign: str, high: str) -> Structure:
    opening = "(" if low_sign == "<" else "["
    closing = ")" if high_sign == "<" else "]"
    return Structure(opening + closing, [low, high])


def are_ratios(ps: list[str], gs: list[str]) -> bool:
    """Whether both are like 2:3, and not times of the day like 2:30."""
    if len(ps) != len(gs):
        return False
    return not all(re.match(r"\d\d(?!\d)", member) for member in [*ps[1:], *gs[1:]])
