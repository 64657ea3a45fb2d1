r"""Compares equations. A label is a left side that only names the right: x, f(3), \cos\theta.

The question already contains the label, so "x = 5" and "5" are the same answer.
"""

import re

from answers import units
from answers.errors import Unreadable
from answers.names import CONSTANTS, GREEK
from answers.structure import Structure

# ---- names: x, a_5, f', \theta, S_{10}, f_{\max}; AB and ABC; \text{area} ------------------------

GREEK_LETTER = "|".join(re.escape(letter) for letter in sorted(GREEK, key=len, reverse=True))
LETTER = rf"(?:[a-zA-Z]|(?:{GREEK_LETTER})(?![a-zA-Z]))"
WORDS = r"\\text\{[^{}]{1,50}\}"
INDEX = rf"(?:\s?_\s?(?:\w|{WORDS}|\{{(?:[^{{}}]|{WORDS}){{1,50}}\}}|\\[a-z]{{2,5}}))?"
SINGLE = rf"{LETTER}\s?'{{0,3}}{INDEX}'{{0,3}}"
POINTS = rf"(?:[A-Z]{INDEX}\s?){{2,6}}"
NAME = re.compile(rf"\s*(?:{SINGLE}|{POINTS}|{WORDS})\s*")

# ---- quantities that are not single names --------------------------------------------------------

# f(3), f^{-1}(x), P(A∪B), E[X], \gcd(12, 20)
ARGUMENT = r"[^()]{1,50}(?:\([^()]{1,50}\)[^()]{0,50})?"
FUNCTION = (
    rf"{SINGLE}(?:\^\s?\{{-1\}}\s?)?|\\mathbb\s?\{{[A-Z]\}}\s?|\\text\{{[a-zA-Z]{{2,20}}\}}\s?"
    r"|\\(?:gcd|lcm|det|deg|dim|arg|Pr|Re|Im)\s?"
)
APPLIED = rf"(?:{FUNCTION})(?:\({ARGUMENT}\)|\[{ARGUMENT}\])"
OPERATOR = rf"\\(?:det|deg|dim|arg|Re|Im)\s?{SINGLE}"
DERIVATIVE = r"\\frac\s?\{\s?d(?:\^\d)?\s?[a-zA-Z]?\s?\}\s?\{\s?d\s?[a-z](?:\^\d)?\s?\}"

# \angle ABC, |AB|, |z|, [ABC], \cos\theta, \sin 2A, \tan\frac{A}{2}, A:B
FIGURE = (
    r"m?\s?\\(?:angle|triangle|measuredangle|overline|widehat)\s?"
    r"(?:\{[^{}]{1,20}\}|(?:[A-Z]\s?){1,4}|\d)"
)
LENGTH = rf"(?:\||\\lvert|\\\|)\s?(?:{POINTS}|[A-Zabcuvwz])\s?(?:\||\\rvert|\\\|)"
AREA = rf"\[\s?(?:\\triangle\s?)?{POINTS}\]"
ONE_ANGLE = r"(?:[A-Z]|\\(?:alpha|beta|gamma|delta|theta|phi|varphi|angle\s?(?:[A-Z]\s?){1,3}))\s?"
ANGLE = rf"(?:(?:\d\s?)?{ONE_ANGLE}|\\frac\s?\{{\s?{ONE_ANGLE}\}}\s?\{{\s?\d\s?\}}\s?)"
TRIGONOMETRIC = rf"\\(?:sin|cos|tan|cot|sec|csc)\s?(?:\(\s?{ANGLE}\)|\{{\s?{ANGLE}\}}|{ANGLE})"
RATIO = rf"(?:{SINGLE}|{POINTS})(?:\s?:\s?(?:{SINGLE}|{POINTS})){{1,4}}"
QUANTITIES = (APPLIED, OPERATOR, DERIVATIVE, FIGURE, LENGTH, AREA, TRIGONOMETRIC, RATIO)
QUANTITY = re.compile(rf"\s*(?:{'|'.join(QUANTITIES)})\s*")

COORDINATES = re.compile(rf"\(\s?({SINGLE}(?:\s?,\s?{SINGLE}){{1,8}})\s?\)")  # (x,y)

BRACKETS = re.compile(r"\([^()]*\)|\[[^\[\]]*\]")
TEXT = re.compile(r"\\text\{([^{}]*)\}")
MAX_LABEL = 100  # characters


def is_name(text: str) -> bool:
    """Whether the text is a single name, such as x in x = 5."""
    return NAME.fullmatch(text) is not None and says_what(text)


def says_what(text: str) -> bool:
    r"""Whether the words of a label describe a quantity, unlike \text{not} in \text{not} = 5.

    Words in brackets are not checked: P(\text{no head}) = \frac{1}{8}.
    """
    outside = BRACKETS.sub("", text)
    return all(map(units.names_a_quantity, TEXT.findall(outside)))


def is_label(text: str) -> bool:
    """Whether the text is a label: a name, a quantity, or coordinates."""
    if len(text) > MAX_LABEL:
        return False
    patterns = (NAME, QUANTITY, COORDINATES)
    return any(pattern.fullmatch(text) for pattern in patterns) and says_what(text)


def in_order(names: list[str], values: list[str]) -> list[str]:
    """The values sorted by name, if the names are consecutive letters, such as x and y.

    Values for other names, such as (n,k), keep their order: the question's order is unknown.
    """
    letters = sorted(names)
    if any(len(letter) > 1 for letter in letters):
        return values
    neighbours = zip(letters, letters[1:], strict=False)
    if any(ord(second) - ord(first) != 1 for first, second in neighbours):
        return values
    return [value for _, value in sorted(zip(names, values, strict=True))]


# ---- the sides of equations ----------------------------------------------------------------------


def sides_of(p: Structure, text: str) -> list[str]:
    """The sides of an equation, with a name first: 8 = x gives x, 8. Other text is one side."""
    if p.kind != "=":
        return [text]
    sides = p.members
    name_is_last = is_name(sides[-1]) and sides[-1] not in CONSTANTS
    if len(sides) == 2 and name_is_last and not is_label(sides[0]):
        return sides[::-1]
    return sides


def label_of(sides: list[str]) -> str:
    """The left side if it is a label, else an empty string."""
    return sides[0].replace(" ", "") if is_label(sides[0]) else ""


def labels_among(sides: list[str]) -> set[str]:
    return {side.replace(" ", "") for side in sides if is_label(side)}


def name_several(ps: list[str], gs: list[str]) -> bool:
    """Whether either chain has more than one label: x = y = 0, |AB| = |CD| = 5."""
    is_chain = max(len(ps), len(gs)) > 2
    return is_chain and max(len(labels_among(ps)), len(labels_among(gs))) > 1


def difference(sides: list[str]) -> str:
    """The left side minus the right."""
    return f"({sides[0]})-({sides[1]})"


# ---- two equations ------------------------------------------------------------------------------

LETTERS = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{3,}")
CURVE = "xyz"  # x+y = 5 is a line, but a+b = 5 states the value of a+b


def same_equation(judge, ps: list[str], gs: list[str]) -> bool:
    """Whether two equations, each given as its sides, are equal. Either may be a single side.

    2y = 4x equals y - 2x = 0, because one is a multiple of the other. S = 5 equals S = 2 + 3, and
    x = 5 equals 5, because the left side is a label.
    """
    if len(ps) > 1 and len(gs) > 1:
        if len(ps) == len(gs) > 2 and judge.same_in_order(ps, gs):
            return True
        p_label = label_of(ps)
        g_label = label_of(gs)
        if name_several(ps, gs):
            return labels_among(ps) == labels_among(gs) and judge.same_members(ps, gs)
        if len(ps) == len(gs) == 2 and not (p_label and p_label == g_label):
            return judge.evaluator.proportional(difference(ps), difference(gs))
        if p_label and g_label and p_label != g_label:
            return False

    p_answer = stated(judge, ps, may_be_composed=True)
    g_answer = stated(judge, gs, may_be_composed=False)
    if p_answer is None or g_answer is None:
        return False
    return judge.same(p_answer, g_answer)


def stated(judge, sides: list[str], may_be_composed: bool) -> str | None:
    r"""The value that a chain states: its last side. None if another side contradicts it.

    The sides of 2+3 = 5 must be equal. After a label, formulas with unknown variables may follow:
    V = \pi r^2 h = 12\pi.

    may_be_composed: whether m+n = 33 may state 33. As a gold answer, m+n = 33 is a condition.
    """
    *earlier, last = sides
    if not earlier:
        return last
    has_label = is_label(sides[0]) or (may_be_composed and is_quantity(judge, sides))
    for side in earlier[1:] if has_label else earlier:
        if has_label and is_formula(judge, side, last):
            continue
        if not judge.same(side, last):
            return None
    return last


def is_quantity(judge, sides: list[str]) -> bool:
    r"""Whether a chain states the value of a combination of names: m+n = 33 or \frac{a}{b} = 3.

    2a = 6, with one name, is an equation to solve. x+y = 5 is a curve, and a+b+c = 0 a condition.
    Neither states a value, unless the value is computed: x+y = 2+3 = 5.
    """
    first, *between, last = sides
    if LETTERS.search(first):
        return False  # nope = 5
    value = judge.quantity(last)[0]
    try:
        names = judge.evaluator.names(first)
        names_of_value = judge.evaluator.names(value)
        is_zero = not names_of_value and judge.evaluator.constant(value) == 0
    except Unreadable:
        return False
    is_curve = (is_zero or any(name[0] in CURVE for name in names)) and not between
    return len(names) > 1 and not names_of_value and not is_curve


def is_formula(judge, side: str, last: str) -> bool:
    """Whether `side` has names that do not occur in `last`."""
    try:
        return not judge.evaluator.names(side) <= judge.evaluator.names(last)
    except Unreadable:
        return False
