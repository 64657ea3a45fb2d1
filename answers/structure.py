r"""Parses an answer into lists, brackets, relations and quantities, with expressions as leaves.

`structure("(\\frac{1}{2}, 3 ]")` is a "(]" with the members `\frac{1}{2}` and `3`, as strings. The
input is the output of `latex.normalise`; answers/expressions.py parses the leaves.
"""

import re
from functools import lru_cache
from typing import NamedTuple

from answers import units
from answers.errors import Unreadable
from answers.expressions import MAX_DEPTH

MAX_MEMBERS = 64  # in a list or a bracket


class Structure(NamedTuple):
    r"""The members of a normalised text, by kind:

    | kind            | for example       | members                                 |
    |-----------------|-------------------|-----------------------------------------|
    | word            | \text{not prime}  | not, prime                              |
    | list            | 2, ±1             | 2, +1, -1                               |
    | ∧               | x>1 ∧ x<5         | x>1, x<5                                |
    | ≈               | \sqrt{2} ≈ 1.41   | \sqrt{2}, 1.41                          |
    | =               | x=y=3             | x, y, 3                                 |
    | <               | 1≥x>0             | 0, <, x, ≤, 1: ascending, with signs    |
    | ≠               | x≠5               | x, 5                                    |
    | ∪               | [0,1)∪(2,3)       | [0,1), (2,3)                            |
    | ∖               | \mathbb{R}∖‹1›    | (-\infty,\infty), ‹1›                   |
    | :               | 2:3               | 2, 3                                    |
    | quantity        | 5\text{cm}        | 5, cm                                   |
    | set             | ‹1,2›             | 1, 2                                    |
    | matrix          | ⟦(1,2),(3,4)⟧     | (1,2), (3,4): its rows                  |
    | () [] (] [)     | (1,2]             | 1, 2: a tuple's members or the ends     |
    | value           | \frac{1}{2}+x     | the text itself: an expression          |
    """

    kind: str
    members: list[str]


TEXT = re.compile(r"\\text\{([^{}]{1,200})\}")
BARE_WORDS = re.compile(r"[a-zA-Z]{2}[a-zA-Z' -]{0,200}")
ZEROS_BEFORE = re.compile(r"[-+]?\s?0\d+(?:\.\d*)?")
QUANTITY = re.compile(r"(.*[^\s+*/^=<>≤≥(\[{,-])\s*\\text\{([^{}]*)\}", re.DOTALL)

# |x-1|, but not the |z| of complex numbers.
ABSOLUTE = re.compile(r"(?:\||\\lvert(?![a-zA-Z]))([^|zw]{1,50}?)(?:\||\\rvert(?![a-zA-Z]))")
OPENING = "([{‹⟦"
CLOSING = ")]}›⟧"
BRACKETS = ("()", "[]", "(]", "[)", "‹›", "{}", "⟦⟧")
RELATIONS = "<>≤≥"
CONNECTIONS = ("∧", "≈", "=", RELATIONS, "≠", "∪", "∖", ":")  # loosest binding first
CONNECTED = re.compile(f"[{''.join(CONNECTIONS)}]")
MIRRORED = {">": "<", "≥": "≤"}
UPPER_SIGNS = str.maketrans("±∓", "+-")
LOWER_SIGNS = str.maketrans("±∓", "-+")
ESCAPED = "".join(re.escape(bracket) for bracket in OPENING + CLOSING)


@lru_cache
def marks(separators: str) -> re.Pattern:
    return re.compile(f"[{ESCAPED}{separators}]")


def split(text: str, separators: str) -> list[str]:
    """The pieces between separators outside all brackets, alternating with the separators.

    split("1,(2,3);4", ",;") is ["1", ",", "(2,3)", ";", "4"]. The list is empty if the brackets do
    not match.
    """
    depth = 0
    start = 0
    pieces = []
    for mark in marks(separators).finditer(text):
        character = mark[0]
        if character in OPENING:
            depth += 1
        elif character in CLOSING:
            depth -= 1
        if depth < 0 or depth > MAX_DEPTH or len(pieces) > 2 * MAX_MEMBERS:
            return []

        if depth == 0 and character in separators:
            pieces.extend([text[start : mark.start()].strip(), character])
            start = mark.end()

    if depth != 0:
        return []
    return [*pieces, text[start:].strip()]


def structure(text: str) -> Structure:
    """The outermost structure of a normalised answer; its members are strings."""
    text = text.strip()
    upright = TEXT.fullmatch(text)
    if upright:
        return Structure("word", words(units.without_dots(upright[1])))
    if BARE_WORDS.fullmatch(text) and all(map(units.is_word, text.split())):
        return Structure("word", words(text))

    members = list_members(text)
    if len(members) > 1:
        return Structure("list", members)

    if CONNECTED.search(text):
        for kind in CONNECTIONS:
            sides = split(text, kind)
            if len(sides) > 1:
                return rising(sides) if kind == RELATIONS else Structure(kind, sides[::2])

    quantity = QUANTITY.fullmatch(text) if text.endswith("}") else None
    if quantity:
        if not units.is_dropped(quantity[2]):
            raise Unreadable
        return Structure("quantity", [quantity[1], quantity[2]])
    return bracketed(text)


def words(text: str) -> list[str]:
    """The words of a text in lower case. Raises Unreadable if the text contains a dot."""
    if "." in text:
        raise Unreadable
    return text.casefold().split()


def refuse_zeros_before(members: list[str]) -> None:
    """Raise Unreadable if a list member has leading zeros: 35,000 and 35,00 are not lists."""
    if len(members) > 1 and any(map(ZEROS_BEFORE.fullmatch, members)):
        raise Unreadable


def list_members(text: str) -> list[str]:
    """The members of a list: 2, +1 and -1 for "2, ±1". Text without commas is the only member."""
    members = []
    items = split(text, ",;")[::2]
    refuse_zeros_before(items)
    for item in items:
        has_signs = "±" in item or "∓" in item
        if not has_signs or item.startswith("‹"):  # a set with ±1 remains one set
            members.append(item)
        elif item.count("±") > 1 and "∓" not in item and not item.startswith("("):
            # ±1±2 has four values; in ±1∓2 and (±1,±2) the upper signs belong together.
            if item.count("±") > 3:
                raise Unreadable
            for sign in "+-":
                members.extend(list_members(item.replace("±", sign, 1)))
        else:
            members.extend([item.translate(UPPER_SIGNS), item.translate(LOWER_SIGNS)])
    if not members:
        raise Unreadable
    return members


def rising(sides: list[str]) -> Structure:
    """A chain of inequalities, sides and signs alternating, reversed if it falls."""
    signs = set(sides[1::2])
    if signs <= {">", "≥"}:
        sides = [MIRRORED.get(side, side) for side in reversed(sides)]
    elif not signs <= {"<", "≤"}:
        raise Unreadable
    return distance(sides) if len(sides) == 3 else Structure("<", sides)


def distance(sides: list[str]) -> Structure:
    """|x-1|<2 as -2<x-1<2, and |x|>2 as a union; other inequalities unchanged."""
    left, sign, right = sides
    name = ABSOLUTE.fullmatch(left)
    if name:
        return Structure("<", [f"-({right})", sign, name[1].strip(), sign, right])
    name = ABSOLUTE.fullmatch(right)
    if name:
        inner = name[1].strip()
        return Structure("∪", [f"{inner}{sign}-({left})", f"{left}{sign}{inner}"])
    return Structure("<", sides)


def bracketed(text: str) -> Structure:
    """A set, a matrix, a tuple, an interval, the content of redundant brackets, or a value."""
    if text.endswith("⟧") and not text.startswith("⟦"):
        return multiplied(text)
    ends = text[:1] + text[-1:]
    if text == "∅":
        return Structure("set", [])
    members = split(text[1:-1], ",;")[::2]
    if ends not in BRACKETS or not members:
        return Structure("value", [text])
    if ends == "‹›":
        return Structure("set", [] if members == [""] else list_members(text[1:-1]))
    if ends == "⟦⟧":
        return Structure("matrix", members)
    if len(members) > 1 and ends != "{}":
        refuse_zeros_before(members)
        return Structure(ends, members)
    return structure(text[1:-1])


FACTOR = re.compile(r"(-|[^A-Z⟦⟧]*[^A-Z⟦⟧\s*])\s?\*?\s?⟦([^⟦⟧]*)⟧")


def multiplied(text: str) -> Structure:
    """The matrix 2⟦(1,2),(3,4)⟧ with its factor multiplied into every entry."""
    product = FACTOR.fullmatch(text)
    if not product or product[1].endswith(r"\det"):
        return Structure("value", [text])
    factor = "-1" if product[1] == "-" else product[1]
    rows = []
    for row in split(product[2], ",")[::2]:
        entries = split(row[1:-1], ",")[::2]
        rows.append(f"({','.join(f'({factor})*({entry})' for entry in entries)})")
    return Structure("matrix", rows)


# ---- readings of a comma -------------------------------------------------------------------------

QUAD = re.compile(r"\\quad(?![a-zA-Z])")
THOUSANDS = re.compile(
    r"(?:[^,=]{1,60}=)?\s?[-+]?[1-9]\d{0,2}(?:,\d{3}){1,30}(?:\.\d{1,50})?\s?"
    r"(?:/100|\\degree|\\text\{[^{}]{1,50}\})?\s?"
)


SCIENTIFIC = re.compile(r"(\de)(?=-\d)")  # 2e-3 is 0.002 or 2e - 3


def readings(text: str) -> list[str]:
    """The possible readings of an answer's commas: 1,234 is the number 1234 or the list 1, 234.

    Commas separate thousands only if the whole answer is one number in groups of three digits
    without spaces. The number may have a name and a unit. A comma is never a decimal point. A wide
    space (\\quad) has two readings: a comma, and a space.
    """
    if "\\quad" in text:
        return [QUAD.sub(",", text), QUAD.sub(" ", text)]
    if THOUSANDS.fullmatch(text):
        return [text.replace(",", ""), text]
    if SCIENTIFIC.search(text):
        return [text, SCIENTIFIC.sub(r"\1 ", text)]
    return [text]
