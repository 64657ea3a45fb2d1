"""Compares two answers, as trees: structures member by member, expressions by value."""

import math
import re
from collections import Counter
from fractions import Fraction

from . import Spent, Unreadable, units
from .latex import normalise
from .parser import INFINITY, ONE, ZERO, parse
from .values import BUDGET, VALUES, Evaluator, add, divide, multiply, names, order, walk

UNDECIDED = Counter()  # gold -> how many comparisons with it have used up their budget
BRACKETS = ("()", "[]", "(]", "[)")
UNORDERED = ({"list"}, {"‹›"}, {"list", "‹›"})
MIRRORED = {">": "<", "≥": "≤"}
HOLDS = {"<": (-1,), ">": (1,), "≤": (-1, 0), "≥": (0, 1), "=": (0,), "≠": (-1, 1)}  # see `order`
STEP = Fraction(1, 1 << 200)  # how far beside the end of an interval membership is tested
SIGNIFICANT = 6  # digits that a decimal needs to equal an irrational number
# Commands that restate a question, unless they are an index (V_\max); and NaN.
QUESTION = re.compile(
    r"\\(?:sum|prod|i*o?int|lim)(?![a-zA-Z])|\b(?i:nan)\b"
    r"|(?<!_)(?<!_\{)\\(?:min|max)(?![a-zA-Z])"
)

OPTION = re.compile(  # "(C) 12", "C: 12"
    r"\s*(?:\\(?:text[a-z]{0,6}|mathrm)\s?\{)?\(?([A-J])[).:]\s?\}?[\s~\\$]{0,4}"
    r"(?=[-\d.]|\\(?:frac|sqrt|pi))[^A-J]*$"
)

NONE = re.compile(  # golds that only say that there is no answer, as in NuminaMath
    r"proof|proved|not ?found|no answer|not (available|applicable)|n/a|null|nan|unknown|tbd|"
    r"see (the )?(solution|proof|explanation|above|below)|\?+|-+"
)
SUBJECTS = ("the", "this", "it", "there", "they")  # a sentence may begin with them
# "3 and 1/4" may be a list or a mixed number.
MIXED = re.compile(
    r"(?<=\d)\s?(?:and|\\text\s?\{\s?and\s?\})\s?(?=[1-9]\d{0,8}/\d|\\[dt]?frac(?![a-zA-Z]))"
)


def is_equivalent(prediction: str, gold: str | float) -> bool:
    """Whether two answers are equal by the rules of verify.py. Never raises."""
    if stands_for_none(str(gold)):
        return False
    if is_option_of(prediction, str(gold)) or is_option_of(str(gold), prediction):
        return True
    prediction, gold = without_question(prediction), without_question(str(gold))
    if QUESTION.search(prediction):
        return False
    if same_answer(prediction, gold):
        return True
    is_mixed = MIXED.search(prediction) or MIXED.search(gold)
    return bool(is_mixed) and same_answer(MIXED.sub(" ", prediction), MIXED.sub(" ", gold))


def stands_for_none(gold: str) -> bool:
    r"""Whether a gold only says that there is no answer: proof, \text{N/A}, "see solution", ???."""
    bare = re.sub(r"\\(?:text|mathrm|boxed)\b|[{}$().]", "", gold)
    return NONE.fullmatch(" ".join(bare.lower().split())) is not None


def is_option_of(letter: str, option: str) -> bool:
    """Whether an answer is the bare letter of an option that is written out, as C of (C) 12."""
    found = OPTION.match(option)
    return found is not None and normalise(letter) in ((found[1],), ("(", found[1], ")"))


def without_question(answer: str) -> str:
    r"""Returns v for an answer of the form \int ... = v, and any other answer unchanged."""
    question, _, value = answer.rpartition("=")
    is_stated = QUESTION.search(question) and "\\ne" not in question
    is_whole = value.count("{") == value.count("}") and not QUESTION.search(value)
    return value if is_stated and is_whole else answer


def earnable(gold: str | float) -> bool:
    """Whether any answer can earn the reward for `gold`.

    None can if `gold` restates a question, or stands for no answer: "proof", "N/A".
    """
    return is_equivalent(str(gold), gold)


def same_answer(prediction: str, gold: str, budget: int = BUDGET) -> bool:
    """Whether two answers are equal. Unreadable answers are equal if their tokens are.

    The prediction may lack the gold's base, as 204 for 204_5, or add the base 10.
    """
    p, g = normalise(prediction), normalise(gold)
    try:
        trees = [parse(p), parse(g)]
        return Judge(trees, budget=budget).same(*trees)
    except Spent:
        UNDECIDED[gold] += p != g and budget == BUDGET
        return p == g
    except Unreadable:
        return p == g != () or (*p, "\\base") == g[:-1] or p == (*g, "\\base", "10")


class Judge(Evaluator):
    """Compares two answers within one budget. In all methods the prediction p comes before g."""

    def same(self, p: tuple, g: tuple) -> bool:
        self.pay(5)
        p, g = self.plain(p), self.plain(g)
        if {p[0]} in UNORDERED and not any(map(is_equation, p[1:])) and values_by_name(g):
            return self.same_in_order(p[1:], [member[3] for member in g[1:]])  # 2, 3 for x=2, y=3
        p, g = coordinates(p, g), coordinates(g, p)
        p, g = unit_or_names(p, g), unit_or_names(g, p)
        kinds = {p[0], g[0]}
        if p[0] == "%" and g[0] == "number" and abs(g[1]) > 1 and self.same(p[1], g):
            return True  # 20% for 20, as 20 cm for 20
        if "quantity" in kinds:
            p, p_unit = p[1:] if p[0] == "quantity" else (p, "")
            g, g_unit = g[1:] if g[0] == "quantity" else (g, "")
            return "%" not in kinds and units.agree(p_unit, g_unit) and self.same(p, g)
        if is_equation(p) or is_equation(g):
            return self.same_equation(sides(p), sides(g))
        if kinds in UNORDERED:
            return self.same_members(p[1:], g[1:])
        if kinds == {"matrix", "()"} or p[0] == g[0] in BRACKETS:
            return self.same_in_order(p[1:], g[1:])  # a column is a tuple
        if kinds <= VALUES:
            return self.equal(p, g, max(tolerance(p, 0), tolerance(g, SIGNIFICANT)))
        if kinds == {"text"}:
            return says(p, g) or says(g, p)
        if p[0] == g[0] and self.same_in_order(p[1:], g[1:]):
            return True
        return (kinds == {"∪", "‹›"} or is_region(p) and is_region(g)) and self.same_region(p, g)

    def same_in_order(self, ps, gs) -> bool:
        if len(ps) != len(gs):
            return False
        pairs = zip(ps, gs, strict=True)
        return all(p == g if isinstance(p, str) else self.same(p, g) for p, g in pairs)

    def same_members(self, ps, gs) -> bool:
        """Whether two lists have the same members in any order. ±x is two members."""
        left = [signed for member in gs for signed in both_signs(member)]
        for member in [signed for each in ps for signed in both_signs(each)]:
            partner = next((other for other in left if self.same(member, other)), None)
            if partner is None:
                return False
            left.remove(partner)
        return not left

    def same_equation(self, ps: list, gs: list) -> bool:
        """Whether two equations, given as their sides, are equal. Either may be a single side.

        2y = 4x equals its multiple y - 2x = 0. S = 5 equals S = 2 + 3 and also 5: S is a name.
        """
        if len(ps) > 1 and len(gs) > 1:
            if max(len(ps), len(gs)) > 2 and (is_label(ps[-2]) or is_label(gs[-2])):
                return self.same_members(ps, gs)  # |AB| = |CD| = 5
            if len(ps) == len(gs) == 2 and (not is_label(ps[0]) or ps[0] != gs[0]):
                return self.proportional(("-", *ps), ("-", *gs))
        p = self.stated(ps, may_be_sum=True)
        g = self.stated(gs, may_be_sum=False)
        return p is not None and g is not None and self.same(p, g)

    def stated(self, chain: list, may_be_sum: bool) -> tuple | None:
        r"""The last side of a chain, V = \pi r^2 h = 12\pi. None if another side contradicts it.

        may_be_sum: whether m+n = 33 may state 33. In a gold answer, m+n = 33 is a condition.
        """
        *earlier, last = chain
        has_label = earlier and is_label(earlier[0])
        if has_label or (may_be_sum and earlier and is_sum(earlier[0], last)):
            earlier = earlier[1:]
        for side in earlier:
            is_formula = has_label and not names(side) <= names(last)
            if not is_formula and not self.same(side, last):
                return None
        return last

    def same_region(self, p: tuple, g: tuple) -> bool:
        """Whether two parts of the real line are the same, at and beside every end of either."""
        parts = [node for node in [*walk(p), *walk(g)] if node[0] in (*BRACKETS, "‹›", "relation")]
        variables = set().union(*(names(part) for part in parts if part[0] == "relation"))
        name = next(iter(variables), "")
        ends = [ZERO[1]]
        for part in parts:
            if part[0] != "relation":
                ends.extend(self.constant(end) for end in part[1:])
            for left, right in zip(part[1::2], part[3::2], strict=False):
                if part[0] == "relation":
                    ends.extend(self.roots(left, right, name))
        finite = [end for end in ends if abs(end) != math.inf]
        points = [add(end, step) for end in finite for step in (-STEP, ZERO[1], STEP)]
        pairs = ((self.contains(p, name, x), self.contains(g, name, x)) for x in points)
        return len(variables) < 2 and all(a == b for a, b in pairs)

    def roots(self, left: tuple, right: tuple, name: str) -> list:
        """The x at which two linear sides are equal. Raises Unreadable for other sides."""
        if INFINITY in (left, right):
            return []
        line = ("-", left, right)
        far = Fraction(1009, 7)
        b, near, there = (self.where(line, name, x) for x in (ZERO[1], ONE[1], far))
        a = add(near, -b)
        if a == 0 or order(there, add(multiply(a, far), b)) != 0:
            raise Unreadable
        return [divide(-b, a)]

    def where(self, tree: tuple, name: str, x):
        self.drawn[-1] = {name: x}
        return self.constant(tree, {name})

    def contains(self, part: tuple, name: str, x) -> bool:
        kind, *members = part
        if kind in BRACKETS and len(members) == 2:
            low, high = (order(self.constant(end), x) for end in members)
            above = low < 0 or (low == 0 and kind[0] == "[")
            return above and (high > 0 or (high == 0 and kind[1] == "]"))
        if kind == "‹›":
            return any(order(self.constant(member), x) == 0 for member in members)
        if kind == "relation":
            values = [self.where(side, name, x) for side in members[::2]]
            pairs = zip(values, members[1::2], values[1:], strict=False)
            return all(order(left, right) in HOLDS[sign] for left, sign, right in pairs)
        if kind in ("list", "∧"):
            inside = [self.contains(member, name, x) for member in members]
            return all(inside) if kind == "∧" else any(inside)
        if kind != "∪":
            raise Unreadable
        inside = self.contains(members[0], name, x)
        for sign, member in zip(members[1::2], members[2::2], strict=True):
            other = self.contains(member, name, x)
            inside = inside or other if sign == "∪" else inside and not other
        return inside

    def plain(self, p: tuple) -> tuple:
        r"""The tree without what does not matter: x ∈ S is S, 5 > x is x < 5."""
        if p[0] == "relation":
            if p[2] == "∈" and len(p) == 4 and p[3][0] != "name":
                return self.plain(p[3])
            if p[-2] == "≈" and p[-1][0] == "number" and self.is_rounded(p[-3], p[-1]):
                return self.plain(p[:-2] if len(p) > 4 else p[1])
            if set(p[2::2]) <= MIRRORED.keys():
                return ("relation", *(MIRRORED.get(side, side) for side in p[:0:-1]))
        if p[0] == "list" and len(names(p)) == 1 and any("≠" in member for member in p[1:]):
            return ("∧", *p[1:])  # 2 < x < 5, x ≠ 3
        if p[0] == "list" and self.is_one_value(p[1:]):
            return self.plain(p[1])  # 1/2 or 0.5
        signed = [p] if p[0] in ("list", "‹›") else both_signs(p)
        return ("list", *signed) if len(signed) > 1 else p

    def is_one_value(self, members: tuple) -> bool:
        """Whether members of a list are one value in several forms."""
        first, *others = members
        if not all(member[0] in VALUES and member != first for member in others):
            return False
        return first[0] in VALUES and all(self.equal(first, other) for other in others)

    def is_rounded(self, exact: tuple, decimal: tuple) -> bool:
        """Whether a decimal is the exact number, rounded or truncated to the places written."""
        unit = Fraction(1, 10 ** decimal[2])
        sign = -1 if decimal[1] < 0 else 1
        error = sign * add(decimal[1], -self.constant(exact))
        return order(-unit, error) < 0 <= order(unit / 2, error)


def says(sentence: tuple, words: tuple) -> bool:
    """Whether two texts have the same words, or the first states the second.

    "The statement is false" states False, and "Yes, it is" states Yes.
    """
    p = [units.known(word.casefold()) or word.casefold() for word in sentence[1:]]
    g = [units.known(word.casefold()) or word.casefold() for word in words[1:]]
    if p == g or len(p) <= len(g):
        return p == g
    if " ".join(g) in ("yes", "no", "true", "false") and p[0] == g[0]:
        return p[1] in SUBJECTS
    before = p[: -len(g)]
    is_denied = "'" in before or not units.is_harmless(" ".join(before))
    return p[-len(g) :] == g and before[0] in SUBJECTS and not is_denied


def is_equation(p: tuple) -> bool:
    return p[0] == "relation" and set(p[2::2]) == {"="}


def is_region(p: tuple) -> bool:
    """Whether a tree is an interval, an inequality, or a combination of them."""
    if p[0] in ("∧", "list"):
        return all(member[0] == "relation" and is_region(member) for member in p[1:])
    if p[0] == "relation":
        return set(p[2::2]) <= HOLDS.keys()
    return p[0] == "∪" or (p[0] in BRACKETS and len(p) == 3)


def coordinates(p: tuple, other: tuple) -> tuple:
    """The list y=2, x=3 as (3,2) if `other` is a tuple, or as 3, 2 if it is a list of values."""
    if other[0] not in ("()", "list") or any(map(is_equation, other[1:])):
        return p
    named = values_by_name(p)
    return (other[0], *(named[name] for name in sorted(named))) if named else p


def values_by_name(p: tuple) -> dict[str, tuple]:
    """{"x": 2, "y": 3} for the list x=2, y=3; empty unless each member names one letter's value."""
    if p[0] != "list":
        return {}
    named = {m[1][1]: m[3] for m in p[1:] if is_equation(m) and len(m) == 4 and m[1][0] == "name"}
    return named if len(named) == len(p) - 1 and all(len(name) == 1 for name in named) else {}


def unit_or_names(p: tuple, other: tuple) -> tuple:
    """5 t, a quantity of tons, as 5t if the letters of its unit are names in the other answer."""
    letters = re.findall("[a-zA-Z]", p[2]) if p[0] == "quantity" else []
    return ("*", p[1], parse(tuple(p[2]))) if letters and names(other) >= {*letters} else p


def both_signs(p: tuple) -> list[tuple]:
    """Both trees that ±x stands for. In ±1∓2 and (±1,±2) the upper signs belong together."""
    signs = [node[0] for node in walk(p) if node[0] in "±∓"]
    if signs.count("±") > 1 and "∓" not in signs and p[0] != "()":
        raise Unreadable  # ±1±2 has four values
    return [with_signs(p, "+-"), with_signs(p, "-+")] if signs else [p]


def with_signs(p: tuple, signs: str) -> tuple:
    kind = {"±": signs[0], "∓": signs[1]}.get(p[0], p[0])
    return (kind, *(with_signs(c, signs) if isinstance(c, tuple) else c for c in p[1:]))


def sides(p: tuple) -> list[tuple]:
    return list(p[1::2]) if is_equation(p) else [p]


def is_label(side: tuple) -> bool:
    r"""Whether a side only names a value: x, f(3), (x,y), \text{area}."""
    kind, *children = side
    if kind in ("name", "function"):
        word = re.search(r"\\text\{([^{}]*)", children[0])
        return not word or units.names_a_quantity(word[1])
    if kind == "text":
        return units.names_a_quantity(" ".join(children))
    return kind == "()" and children == sorted(children) and all(map(is_label, children))


def is_sum(side: tuple, last: tuple) -> bool:
    """Whether a side combines names to state a value: m+n = 33, but not x+y = 5, a curve."""
    found = names(side)
    if side[0] not in VALUES or last[0] not in VALUES or names(last) or last == ZERO:
        return False
    return len(found) > 1 and not any(name[0] in "xyz" for name in found)


def tolerance(p: tuple, places: int) -> Fraction:
    """Half a unit in the last place of a decimal with SIGNIFICANT digits; else 0.

    places: the fewest digits that the decimal must have after its point.
    """
    if p[0] != "number" or p[2] < max(places, 1):
        return Fraction(0)
    is_precise = abs(p[1]) * 10 ** p[2] >= 10 ** (SIGNIFICANT - 1)
    return Fraction(is_precise, 2 * 10 ** p[2])
