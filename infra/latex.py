r"""The LaTeX of an answer: rewritings into plain symbols, then its structure.

`\left( \dfrac{1}{2},\, 3 \right]` is rewritten, group by group (`verify.normalise` says in which
order), to `(\frac{1}{2},3]`, whose structure is a "(]" with the members `\frac{1}{2}` and `3`.
What stands in the leaves of a structure is read by infra/expressions.py.
"""

import re
from typing import NamedTuple

from infra.arithmetic import Unreadable
from infra.expressions import CALLS, LOGS, MAX_DEPTH

MAX_MEMBERS = 64  # of a list or a bracket

# ---- rewritings: one spelling for what LaTeX spells in many ways ---------------------------------

CALL = "|".join(name.removeprefix("\\") for name in [*CALLS, *LOGS])

UNIT_SYMBOLS = (
    "[kcmdn]?m|[km]?g|[kmn]?s|[km]?[lLJWNVA]|k?Hz|Pa|mol|K|C|F|h|hr|in|ft|yd|mi|lb|oz|mph"
)
UNIT_WORDS = (
    "(?:kilo|centi|milli)?(?:met(?:er|re)s?|grams?)|inch(?:es)?|foot|feet|yards?|miles?|pounds?"
    "|ounces?|lit(?:er|re)s?|gallons?|degrees?|sec(?:ond)?s?|min(?:ute)?s?|hours?|hrs|days?"
    "|weeks?|months?|years?|dollars?|cents?|euros?|USD|rad(?:ian)?s?"
)
COUNTED = "people|persons?|students?|ways?|points?|times|items?|coins?|sides?"
UNIT = (
    r"(?:(?:square|cubic|sq\.?|cu\.?)\s?)?"
    rf"(?:units?|{UNIT_SYMBOLS}|{UNIT_WORDS}|{COUNTED})"
    r"(?:\s?\^?\s?\{?-?[23]\}?)?"  # cm^2, m^{-3}
)


def rewritings(*pairs: tuple[str, str]) -> list[tuple[re.Pattern, str]]:
    """(pattern, replacement) pairs, compiled, to be applied in this order.

    In a pattern # stands for the end of a command's name, so that `\\le#` doesn't match `\\left`;
    UNIT for a unit and CALL for a function's name. The quantifiers' bounds keep matching fast.
    """
    compiled = []
    for pattern, replacement in pairs:
        pattern = pattern.replace("#", "(?![a-zA-Z])")
        pattern = pattern.replace("UNIT", UNIT).replace("CALL", CALL)
        compiled.append((re.compile(pattern), replacement))
    return compiled


# Signs: −3 is -3, 2 × 3 and 2 \cdot 3 are 2 * 3, 6 ÷ 2 is 6 / 2, 2**3 is 2^3.
SIGNS = rewritings(
    (r"[−–]", "-"),
    (r"[×·]|\\(?:cdot|times)#", "*"),
    (r"÷|\\div#", "/"),
    (r"\*\*", "^"),
)

# Symbols: Unicode's become LaTeX's. Currency goes, and so do ‹ and ›, which stand for the brackets
# of a set from here on.
SYMBOLS = rewritings(
    ("√", r"\\sqrt "),
    ("π", r"\\pi "),
    ("∞", r"\\infty "),
    ("²", "^2"),
    ("³", "^3"),
    (r"°|\^\s?\\circ#|\^\s?\{\s?\\circ\s?\}", r"\\degree "),
    ("[€£¥₹‹›]", ""),
    (r"[~\u00a0]", " "),
)

# Thousands: 1\,234, 1{,}234 and 1,\!234 are 1234. Any other {,} is a decimal comma: 3{,}5 is 3.5.
THOUSANDS = rewritings(
    (r"(?<=\d)(?:(?<!\\)\\[,;:! ]|\{,\}|,\\!)(?=\d{3}(?!\d))", ""),
    (r"\{,\}", "."),
)

# Sizes: \left( and \Big( are (, the invisible \right. is nothing; \dfrac and \tfrac are \frac.
SIZES = rewritings(
    (r"\\(?:left|right|[bB]igg?[lrm]?)#\s{0,3}\.?", ""),
    (r"\\[dtc](frac|binom)#", r"\\\1"),
)

# Spaces, and the delimiters of mathematics: \quad, \, \( \) \[ \] $ are a space.
SPACES = rewritings(
    (r"\\(?:displaystyle|textstyle|limits|q?quad)#|(?<!\\)\\[,!;: ()\[\]]|\\\$|\$", " "),
)

# Fonts: \mathbf{v} is v, \operatorname{sin} and a bare sin are \sin; any other font is \text.
FONTS = rewritings(
    (
        r"\\(?:mathrm|mathbf|mathit|boldsymbol|bm|rm|operatorname)\*?\s?\{\s?([a-zA-Z])\s?\}",
        r" \1 ",
    ),
    (
        r"\\(?:mathrm|operatorname)\*?\s?\{\s?(CALL)\s?\}|(?<![a-zA-Z\\])(CALL|sqrt|pi|infty)#",
        r"\\\1\2 ",
    ),
    (r"\\(?:mathrm|mathbf|mathit|operatorname|textbf|textit|textrm|mbox)\*?\s?\{", r"\\text{"),
)

# Words: "1 or 2" and "1 \text{ and } 2" are 1, 2; "USD 5" is 5; \text{5 cm} is 5.
WORDS = rewritings(
    (r"\\text\{\s{0,3}(?:or|and)\s{0,3}\}|(?<![a-zA-Z\\])(?:or|and)#", ","),
    (r"^\s{0,3}(?:\\text\{\s?)?(?:USD|Rs\.?)\s?\}?\s?(?=\d)", ""),
    (r"\\text\{\s?([-\d.,]{1,50})\s?(?:UNIT)?\s?\}", r"\1"),
)

# Relations, one character each.
RELATIONS = rewritings(
    (r"<=|\\le(?:q|qslant)?#", "≤"),
    (r">=|\\ge(?:q|qslant)?#", "≥"),
    (r"!=|\\neq?#", "≠"),
    (r"\\lt#", "<"),
    (r"\\gt#", ">"),
)

# Operators and the brackets of a set, one character each: \{1\} is ‹1›, the empty set ‹›.
OPERATORS = rewritings(
    (r"\\[lr]?vert#", "|"),
    (r"\\pm#", "±"),
    (r"\\mp#", "∓"),
    (r"\\cup#", "∪"),
    (r"∅|\\(?:emptyset|varnothing)#", "‹›"),
    (r"\\(?:lbrace#|\{)", "‹"),
    (r"\\(?:rbrace#|\})", "›"),
)

# Collections: x \in [0,1] is [0,1], \mathbb{R} is an interval, a vector a tuple, and a matrix a
# tuple of its lines: \begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix} is ((1,2),(3,4)).
COLLECTIONS = rewritings(
    (r"^\s?[a-z]\s?(?:\\in#|∈)", ""),
    ("&", ","),
    (r"\\langle#", "("),
    (r"\\rangle#", ")"),
    (r"\\mathbb\{R\}", r"(-\\infty,\\infty)"),
    (r"\\begin\{(?:[a-zA-Z]?matrix|array)\}(?:\{[clr|]{1,20}\})?", "(("),
    (r"(?:\\\\\s{0,3})?\\end\{(?:[a-zA-Z]?matrix|array)\}", "))"),
    (r"\\\\", "),("),
)

# Units at the end go, and percent is a hundredth: 5 \text{ cm}^2 and 5 square meters are 5, 60
# km/h is 60, 50\% is 50/100. A letter in \text is the letter.
UNITS = rewritings(
    (
        r"(?<=[\w)}%])\s{0,3}\\text\{\s{0,3}UNIT(?:\s?(?:/|per|\*)\s?UNIT)?\s?\.?\}"
        r"(?:\^\{?[23]\}?)?\s{0,3}$",
        "",
    ),
    (r"\\?%|\\text\{\s?percent\s?\}|(?<![a-zA-Z])percent#", "/100"),
    (r"(?<=[\d)}])\s{0,3}(?=[a-zA-Z. ]{2})UNIT(?:\s?(?:/|per)\s?UNIT)?\s{0,3}$", ""),
    (r"\\text\{\s?\(?([a-zA-Z])\)?\s?\}", r" \1 "),
)

# Mixed numbers: 1\frac{2}{3}, 1\frac23 and 1 2/3 are (1+2/3).
MIXED_NUMBERS = rewritings(
    (
        r"(?<![\w.}])(\d{1,99})\s{0,3}\\frac\s{0,3}"
        r"(?:\{(\d{1,99})\}\{(\d{1,99})\}|(\d)(\d))",
        r"(\1+\2\4/\3\5)",
    ),
    (r"(?<![\w.}])(\d{1,99})\s{1,3}(\d{1,99})/(\d{1,99})(?!\d)", r"(\1+\2/\3)"),
)

# What spaces are left, unless a letter or digit stands on both sides: "\pi r" keeps its own.
LEFT_OVER_SPACES = rewritings(
    (r"(?<!\w)\s+|\s+(?!\w)", ""),
)

REPEATING = re.compile(r"(\d{0,50}\.(\d{0,50}))\\overline\s?\{(\d{1,50})\}")


def repeating_decimal(match: re.Match) -> str:
    r"""A match of REPEATING as a sum: 0.1\overline{6} is (0.10+6/(10*9))."""
    start, decimals, period = match.groups()
    return f"({start}0+{period}/({10 ** len(decimals)}*{10 ** len(period) - 1}))"


# ---- structure: lists, brackets, relations and words, with expressions as leaves -----------------


class Structure(NamedTuple):
    r"""What an answer is made of. Read from normalised text, by kind:

    | kind            | for example       | members                                 |
    |-----------------|-------------------|-----------------------------------------|
    | word            | \text{not prime}  | not, prime                              |
    | list            | 2, ±1             | 2, +1, -1                               |
    | set             | ‹1,2›             | 1, 2                                    |
    | ∪               | [0,1)∪(2,3)       | [0,1), (2,3)                            |
    | =               | x=y=3             | x, y, 3                                 |
    | :               | 2:3               | 2, 3                                    |
    | () [] (] [)     | (1,2]; 1<x≤2      | 1, 2: a tuple's, or an interval's ends  |
    | < ≤ ≠           | x+y<1             | (x+y)-(1): the left side minus the right|
    | value           | \frac{1}{2}+x     | the text itself: an expression          |
    """

    kind: str
    members: list[str]


# The left side of an equation that only names the answer, or the middle of an interval:
# x, \angle ABC, x_1, f(x), f^{-1}(x), (x,y), \text{area}.
NAME = re.compile(
    r"\s*(?:(?:\\angle )?\\?[a-zA-Z]{1,9}(?:_\{?\w\}?)?"
    r"|[fghpqFGHPQST](?:\^\{-1\})?\(\w{1,9}\)"
    r"|\((?:[a-z],){1,9}[a-z]\)"
    r"|\\text\{[^{}]{1,50}\})\s*"
)
WORD = re.compile(r"\\text\{([^{}]{1,200})\}|([a-zA-Z]{2}[a-zA-Z' -]{1,200}|[nN]o)")
VARIABLE = re.compile(r"(?<![\\a-zA-Z])(?![ei](?![a-zA-Z]))[a-zA-Z]")  # not the numbers e and i

BRACKETS = ("()", "[]", "(]", "[)", "‹›", "{}")
MIRRORED = {">": "<", "≥": "≤"}
UPPER_SIGNS = str.maketrans("±∓", "+-")
LOWER_SIGNS = str.maketrans("±∓", "-+")


def split(text: str, separators: str) -> list[str]:
    """The pieces between separators that are outside all brackets.

    split("1,(2,3)", ",;") is ["1", "(2,3)"]. It is empty if the brackets don't match.
    """
    depth = 0
    start = 0
    pieces = []
    for mark in re.finditer(rf"[\[\](){{}}‹›{separators}]", text):
        character = mark[0]
        if character in "([{‹":
            depth += 1
        elif character in ")]}›":
            depth -= 1
        if depth < 0 or depth > MAX_DEPTH or len(pieces) > MAX_MEMBERS:
            return []

        if depth == 0 and character in separators:
            pieces.append(text[start : mark.start()])
            start = mark.end()

    if depth != 0:
        return []
    return [*pieces, text[start:]]


def structure(text: str) -> Structure:
    """The outermost structure of a normalised answer; its members are texts."""
    text = text.strip()
    word = WORD.fullmatch(text)
    if word:
        letters = word[1] or word[2]
        return Structure("word", letters.casefold().replace(".", "").split())

    members = list_members(text)
    if len(members) > 1:
        return Structure("list", members)

    for kind in "=∪:":
        sides = split(text, kind)
        if len(sides) > 1:
            return Structure(kind, sides)

    sides = re.split("([<>≤≥≠])", text)
    if len(sides) > 1:
        return inequality(sides[::2], sides[1::2])

    return bracketed(text)


def list_members(text: str) -> list[str]:
    """The members of "2, ±1" are 2, +1 and -1; the one member of any other text is that text."""
    members = []
    for item in split(text, ",;"):
        upper = item.translate(UPPER_SIGNS)
        lower = item.translate(LOWER_SIGNS)
        members.append(upper)
        if lower != upper:
            members.append(lower)
    if not members:
        raise Unreadable
    return members


def bracketed(text: str) -> Structure:
    """A set, a tuple, an interval; or what one pair of brackets holds; or else an expression."""
    ends = text[:1] + text[-1:]
    members = split(text[1:-1], ",;")
    if ends not in BRACKETS or not members:
        return Structure("value", [text])
    if ends == "‹›" and members == [""]:
        return Structure("set", [])
    if ends == "‹›":
        return Structure("set", members)
    if len(members) > 1 and ends != "{}":
        return Structure(ends, members)
    return structure(text[1:-1])


def inequality(sides: list[str], signs: list[str]) -> Structure:
    r"""The structure of `sides` with `signs` between them.

    0<x≤1 is the interval (0,1], and x<5 is (-\infty,5), where x is a name and the bounds hold
    none. Others are a difference that is compared with 0: x+y<1 is (x+y)-(1) < 0.
    """
    if signs[0] in ">≥":
        sides = sides[::-1]
        signs = [MIRRORED.get(sign, "") for sign in signs[::-1]]

    if len(sides) == 2 and signs != ["≠"]:
        bound_first = not VARIABLE.search(sides[0])
        bound_last = not VARIABLE.search(sides[1])
        above = bound_first and NAME.fullmatch(sides[1])  # 5 < x
        below = bound_last and NAME.fullmatch(sides[0])  # x < 5
        if (above or below) and bound_first:
            sides = [*sides, r"\infty"]
            signs = [*signs, "<"]
        elif below:
            sides = [r"-\infty", *sides]
            signs = ["<", *signs]

    is_interval = len(sides) == 3 and set(signs) <= {"<", "≤"}
    if is_interval and NAME.fullmatch(sides[1]):
        opening = "(" if signs[0] == "<" else "["
        closing = ")" if signs[1] == "<" else "]"
        return Structure(opening + closing, [sides[0], sides[2]])

    if len(sides) != 2:
        raise Unreadable
    return Structure(signs[0], [f"({sides[0]})-({sides[1]})"])
