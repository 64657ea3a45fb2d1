r"""Normalises LaTeX: gives one spelling to everything that has several.

Each function applies one group of rewritings. `normalise` applies the groups in the order of this
file: `\left( \dfrac{1}{2},\, 3 \text{cm.} \right]` becomes `( \frac{1}{2}, 3\text{cm} ]`. Applying
a group again changes nothing. answers/structure.py parses the result.

The results of the groups, in order: every sign has one character or command; all spacing is one
space; upright text is \text; a quotient is \frac; commas separate members; units are \text directly
after their value; sets, matrices and intervals are in brackets; numbers are digits.
The patterns limit repetition, so that matching stays fast on hostile text.
"""

import re
import sys

from answers import units
from answers.characters import SIGN, one_sign, plain
from answers.expressions import CALLS, LOGS

MAX_CHARS = 4000  # in an answer
ROUNDS = 4  # a rule is applied at most this often while it still matches, as in nested groups

TEXT = r"\\text\{[^{}]*\}"
LETTER = r"(?:[a-zA-Z]|\\[a-zA-Z]{2,10}(?![a-zA-Z])\s?)"


ANYTHING = re.compile("")


def rewritings(*pairs: tuple) -> list[tuple]:
    """Compiled (pattern, replacement) pairs, applied in this order.

    In a pattern, # marks the end of a command's name: `\\le#` does not match `\\left`.
    """
    return [(re.compile(pattern.replace("#", "(?![a-zA-Z])")), new) for pattern, new in pairs]


def rewritten(text: str, rules: list[tuple], only_with: re.Pattern = ANYTHING) -> str:
    """The text after all rules have been applied.

    only_with: a pattern that matches every text that a rule can change. Other text is unchanged.
    """
    if not only_with.search(text):
        return text
    for pattern, replacement in rules:
        for _ in range(ROUNDS):
            text, count = pattern.subn(replacement, text)
            if count == 0:
                break
    return text


# ---- signs ---------------------------------------------------------------------------------------

CARET = re.compile(r"\^")
RAISED = rewritings(
    (r"\^\s?(?:\\(?:circ|degree)#|\{\s?\\(?:circ|degree)#\s?\})\s?", r"\\degree "),
    (r"\^\s?(?:\{\s?('{1,3})\s?\}|('))", r"\1\2"),
)


def signs(text: str) -> str:
    r"""One character or command for each sign: 2 \times π \leq x² is 2 * \pi ≤ x^{2}; $5 is 5."""
    text = SIGN.sub(one_sign, plain(text))
    return rewritten(text, RAISED, only_with=CARET)


# ---- spaces --------------------------------------------------------------------------------------

BACKSLASH = re.compile(r"\\")
LAYOUT = rewritings(
    (r",\\!", "{,}"),  # 1,\!000
    (r"\\(?:left|[bB]igg?l)#\s?\|", r"\\lvert "),
    (r"\\(?:right|[bB]igg?r)#\s?\|", r"\\rvert "),
    (r"\\(?:left|right|middle|[bB]igg?[lrm]?)#\s?\.?", " "),
    (
        r"\\(?:displaystyle|textstyle|limits|hfill|notag"
        r"|[lL]arge|LARGE|[hH]uge|normalsize|small|bf|it|rm|sf|bfseries)#",
        " ",
    ),
    (r"\\qquad#", r"\\quad "),  # may separate members: see structure.readings
    (r"(?<!\\)\\[)\]]\s?(?:\\\\)?\s?\\[(\[]", r"\\quad "),  # between two formulas
    (r"(?<!\\)\\[,;:!>~\s()\[\]]", " "),  # \, \! \( \] but not the comma after a new line, \\,
    (r"(?<!\\)\\$", " "),  # a single backslash at the end
)
GAP = re.compile(r"(?:[~\s]|(?<!\\)\$)+")


def spaces(text: str) -> str:
    r"""One space instead of size commands, spacing commands and dollars: $\left(5\,x\right)$.

    Braces around the whole answer are removed.
    """
    text = rewritten(text, LAYOUT, only_with=BACKSLASH)
    text = GAP.sub(" ", text).strip()
    while text.startswith("{") and closing_brace(text, 1) == len(text) - 1:
        text = text[1:-1].strip()
    return text


BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # \{ is not a brace


def closing_brace(text: str, start: int, end: int = sys.maxsize) -> int | None:
    """The index of the brace that closes the group beginning at `start`; None if beyond `end`."""
    depth = 1
    for brace in BRACE.finditer(text, start, end):
        if brace[0] == "{":
            depth += 1
        elif brace[0] == "}":
            depth -= 1
        if depth == 0:
            return brace.start()
    return None


# ---- fonts ---------------------------------------------------------------------------------------

FUNCTION = "|".join([*CALLS, *LOGS])
UPRIGHT = "mathrm|mathsf|operatorname|textbf|textit|textrm|textsf|textnormal|emph|mbox"


def command_outside_text(found: re.Match) -> str:
    return found[1] or f"\\{found[2]} "


BOLD = r"\\(?:mathbf|mathit|boldsymbol|bm|vec)#\s?"
FONT_OR_FUNCTION = re.compile(
    r"\\(?:text|math|operatorname|emph|mbox|boldsymbol|bm|vec)"
    rf"|(?<![a-zA-Z\\])(?:{FUNCTION}|sqrt|pi|infty)"
)
FONTS = rewritings(
    (BOLD + r"\{\s?(\\?[a-zA-Z]{1,9}|[-\d.,/]{1,50})\s?\}", r" \1 "),  # a letter or number
    (rf"\\(?:{UPRIGHT}|mathbf|mathit)#\*?\s?\{{", r"\\text{"),
    (rf"\\text\{{\s?\\?({FUNCTION})\s?\}}", r"\\\1 "),  # \mathrm{sin}
    # a bare sin; but \frac lg is l/g
    (rf"({TEXT})|(?<![a-zA-Z\\])(?<!\\frac )({FUNCTION}|sqrt|pi|infty)#", command_outside_text),
    (r"(\\text\{[^{}]{0,50}\^)\{(-?\d)\}", r"\1\2"),  # \text{cm^{2}}
    (r"\\text\{(?:\s+([^{}]*?)|([^{}]*?)(?:\s+|(?<!\.)\.))\}", r"\\text{\1\2}"),  # \text{ cm.}
)


def fonts(text: str) -> str:
    r"""\mathbf{v} is v; \mathrm{sin} and sin are \sin; other upright text is a trimmed \text."""
    return rewritten(text, FONTS, only_with=FONT_OR_FUNCTION)


# ---- fractions -----------------------------------------------------------------------------------

DIGITS = r"\d{1,50}"
GROUPED = r"(?:(?!\\(?:over|choose)#)[^{}]|\{[^{}]{0,50}\}){1,99}?"
WHOLE_PART = rf"(?<![\w.}}^_])({DIGITS})"
QUOTIENT = re.compile(r"frac|binom|over|choose|\d \d")
FRACTIONS = rewritings(
    (r"\\[dtc](frac|binom)#", r"\\\1"),
    (r"\\frac ?(\d) ?(\d)", r"\\frac{\1}{\2}"),
    (rf"(^|\{{)({GROUPED})\\over#({GROUPED})($|\}})", r"\1\\frac{\2}{\3}\4"),
    (rf"(^|\{{)({GROUPED})\\choose#({GROUPED})($|\}})", r"\1\\binom{\2}{\3}\4"),
    (WHOLE_PART + rf" ?\\frac ?\{{ ?({DIGITS}) ?\}} ?\{{ ?({DIGITS}) ?\}}", r"(\1+\2/\3)"),
    (WHOLE_PART + rf" ({DIGITS})/({DIGITS})(?!\d)", r"(\1+\2/\3)"),  # 1 2/3
)


def fractions(text: str) -> str:
    r"""\dfrac{a}{b} and {a \over b} are \frac{a}{b}; a mixed number 1\frac23 is (1+2/3)."""
    return rewritten(text, FRACTIONS, only_with=QUOTIENT)


# ---- separators ----------------------------------------------------------------------------------


def comma_outside_text(found: re.Match) -> str:
    return found[1] or ","


def joint_outside_text(found: re.Match) -> str:
    return found[1] or " ∧ "


# Between inequalities, "and" means that both hold; it does not make a list.
JOINT = rewritings(
    (r"\\text\{\s?,?\s?and\s?\}", " ∧ "),
    (rf"({TEXT})|(?<![a-zA-Z\\])and#|\\(?:land|wedge)#", joint_outside_text),
)
INEQUALITY = re.compile(r"[<>≤≥]")
SEPARATOR = re.compile(r"\\text|\\quad|and|or|,")
SEPARATORS = rewritings(
    (r"\\text\{\s?[,;]?\s?(?:and|or)?\s?[,;]?\s?\}", ","),
    (rf"({TEXT})|(?<![a-zA-Z\\])(?:and|or)#", comma_outside_text),
    (r",(?:\s?,)+", ","),
)
ENDS = rewritings(
    (r"^(?:[\s=:,]|\\quad#)+|(?:[\s,;:]|(?<!\.)\.|\\quad#)+$", ""),  # an ellipsis stays
)


def separators(text: str) -> str:
    r"""One comma between members and none at the ends: 1 \quad\text{and}\quad 2 is 1 , 2."""
    if INEQUALITY.search(text):
        text = rewritten(text, JOINT)
    text = rewritten(text, SEPARATORS, only_with=SEPARATOR)
    return rewritten(text, ENDS)


# ---- units ---------------------------------------------------------------------------------------


def letter_in_text(found: re.Match) -> str:
    r"""5\text{m} is a quantity, but in \text{A} and x+\text{C} the letter is a name."""
    before, letter = found[1] or "", found[2]
    if before and letter in units.SYMBOL:
        return found[0]
    return f"{before} {letter} "


def subject(found: re.Match) -> str:
    """Empty for "The number of ways is"; the match unchanged for "The answer is not"."""
    if not units.names_a_quantity(found[2]):
        return found[0]
    return found[1] or ""


def subject_in_text(found: re.Match) -> str:
    return "" if units.names_a_quantity(found[1]) else found[0]


def words_behind_number(found: re.Match) -> str:
    return f"{found[1]}\\text{{{found[2]}}}" if units.is_dropped(found[2]) else found[0]


UPRIGHT_WORD = re.compile(
    r"\\text|[\d)}] [a-zA-Z]|\\degree|USD|EUR|GBP|JPY|INR|Rs|^\(?[A-J][).:]|^[a-zA-Z]+ "
    r"|(?i:answer)"
)
# Text that only introduces an answer ("The answer is 116", "There are 116 ways"), and the letter of
# a choice, as in (B) 12.
LEAD = (
    r"(?i:so|thus|hence|therefore|there (?:are|is|were)|we (?:get|have|find|obtain))(?![a-zA-Z])"
    r",? ?"
)
CHOICE = r"(?i:(?:option|choice|answer) )?(?:\([A-J]\):?|[A-J][).:](?=[ }]))"
VALUE_NEXT = r"(?= ?(?:\d|-\d|\\(?:frac|sqrt|pi|binom)|\\text\{(?:USD|EUR)))"
NUMBER = r"-?(?:\d[\d.,]*|\\frac\{\d+\}\{\d+\})(?:/\d+|\\pi|\\sqrt\{\d+\})*"
CURRENCY = "(?:USD|EUR|GBP|JPY|INR|Rs)"
UNITS = rewritings(
    (rf"^\\text\{{{LEAD}\}}", ""),
    (rf"^(\\text\{{)?{LEAD}(?=[^\s{{}}])", r"\1"),
    (r"^(\\text\{)?((?:[a-zA-Z]{1,15} ){1,6}?)(?:is|are|equals|was) (?=[^\s{}])", subject),
    (r"^\\text\{((?:[a-zA-Z]{1,15} ){1,6}?)(?:is|are|equals|was)\}(?=.)", subject_in_text),
    (rf"^\\text\{{ ?{CHOICE} ?\}}{VALUE_NEXT}", ""),
    (rf"^(\\text\{{)?{CHOICE}{VALUE_NEXT} ?", r"\1"),
    (
        rf"\\text\{{({CURRENCY})\}}\s?"
        r"(-?\d(?:[\d.,{}]{0,50}\d)?)(?!\d|\s?\\text)",
        r"\2\\text{\1}",  # USD 5 is 5 USD
    ),
    (
        r"^(?:\\text\{)?(?i:(?:the )?(?:final )?answer)\s?"
        r"(?:\}\s?[:=]|[:=]\s?\}|:(?![^{}]*\}))\s?",
        "",
    ),
    (r"\\text\{\s?(-?\d[\d.,/]{0,50})\s?([^{}\d]{0,50})\}", r"\1\\text{\2}"),  # \text{5 cm}
    (r"\\text\{\}", " "),
    (rf"^({NUMBER}) ([a-zA-Z][a-zA-Z /^\d{{}}-]{{0,80}})\.?$", words_behind_number),
    (r"\\text\{([^{}]*)\}\s?\^\s?(?:\{\s?(-?\d)\s?\}|(-?\d))", r"\\text{\1^\2\3}"),  # \text{cm}^2
    (rf"(?<=[\d)}}])\s?\\frac\s?\{{({TEXT})\}}\s?\{{({TEXT})\}}", r"\1/\2"),
    (r"\\text\{([^{}]*)\}\s?/\s?\\text\{([^{}]*)\}", r"\\text{\1/\2}"),  # \text{m}/\text{s}
    (r"\\text\{deg(?:ree)?s?\}|(?<=\d) deg(?:ree)?s?#", r"\\degree "),
    (r"(?:([\w)}\]])\s?)?\\text\{\(?([a-zA-Z])\)?\}", letter_in_text),
)


def unit_marks(text: str) -> str:
    r"""A unit is \text directly after its value: 5 cm, 5 \text{ cm}, \text{5 cm} are 5\text{cm}."""
    return rewritten(text, UNITS, only_with=UPRIGHT_WORD)


# ---- collections ---------------------------------------------------------------------------------


def matrix(found: re.Match) -> str:
    r"""1 & 2 \\ 3 & 4 is ⟦(1,2),(3,4)⟧. A determinant is marked with \det and not computed."""
    rows = found[2].strip().removesuffix("\\\\").split("\\\\")
    texts = [f"({row.strip().replace('&', ',')})" for row in rows]
    name = "\\det" if found[1] in ("vmatrix", "Vmatrix") else ""
    return f"{name}⟦{','.join(texts)}⟧"


SET_OR_MATRIX = re.compile(r"[‹∈]|\\begin|\\mathbb|Z ?/")
COLLECTIONS = rewritings(
    (
        r"\\begin\s?\{([a-zA-Z]?matrix|array)\}\s?(?:\{[clr| ]{1,20}\})?"
        r"((?:(?!\\begin|\\end).){0,999})\\end\s?\{[a-zA-Z]{5,7}\}",
        matrix,
    ),
    # ‹x : x>0› is x>0, and x ∈ [0,1] is [0,1]
    (rf"‹\s?({LETTER})\s?(?:∈\s?\\mathbb\s?\{{?R\}}?\s?)?[:|]\s?([^‹›|:]{{1,200}})›", r"\2"),
    (rf"^({LETTER}) ?∈ ?\\mathbb ?\{{?R\}}? ?,? ?(?=\1 ?[≠<>≤≥])", ""),  # x ∈ R, x ≠ 0
    (rf"^(?:{LETTER}(?:_\w)?|\([a-z](?: ?, ?[a-z]){{1,5}}\))\s?∈\s?(?=[(\[‹∅\\])", ""),
    (r"\\mathbb\s?(?:\{\s?R\s?\}|R#)", r"(-\\infty,\\infty)"),
    (r"(\(-\\infty,\\infty\))\s?[-/]\s?(?=‹)", r"\1∖"),  # R without a set
    (r"(?<![a-zA-Z\\])Z ?/ ?(\w|\d{1,9}) ?Z(?![a-zA-Z])", r"\\mathbb{Z}_{\1}"),
    (r"\\mathbb ?([A-Z])#|\\mathbb \{ ?([A-Z]) ?\}", r"\\mathbb{\1\2}"),
    (r"\\mathbb\{Z\} ?/ ?(\w+|\([^()]{1,20}\)) ?\\mathbb\{Z\}", r"\\mathbb{Z}_{\1}"),
)


def collections(text: str) -> str:
    r"""Matrices, sets and intervals are brackets: x \in \mathbb{R} is (-\infty,\infty)."""
    return rewritten(text, COLLECTIONS, only_with=SET_OR_MATRIX)


# ---- numbers -------------------------------------------------------------------------------------


def without_marks(number: re.Match) -> str:
    return number[0].replace(" ", "").replace("{,}", "")


def repeating_decimal(found: re.Match) -> str:
    start, decimals, period = found.groups()
    return f"({start}0+{period}/({10 ** len(decimals)}*{10 ** len(period) - 1}))"


UNUSUAL_NUMBER = re.compile(r"\{,\}|\d \d|\\(?:overline|bar|dot)|%|p(?:er ?)?ce?n?t")
NUMBERS = rewritings(
    (r"(?<![\d.}])[1-9]\d{0,2}(?:\{,\}\d{3}){1,30}(?!\d|\{,\}\d)", without_marks),  # 1{,}234
    (r"(?<=\d)\{,\}(?=\d)", ","),  # 3{,}5: a comma is never a decimal point
    (r"(?<![\w.^_}])(?<!\d )[1-9]\d{0,2}(?: \d{3}){1,30}(?![\d/])(?! \d)", without_marks),
    (r"(\d{0,50}\.(\d{0,50}))\\(?:overline|bar|dot) ?\{ ?(\d{1,50}) ?\}", repeating_decimal),
    (r" ?(?:\\?%|\\text\{(?:per ?cent|pct)\}|(?<![a-zA-Z])(?:percent|pct)#)", "/100"),
)


def numbers(text: str) -> str:
    r"""Numbers are digits: 1{,}234 and 1 234 are 1234, 0.1\overline{6} is a sum, 5\% is 5/100."""
    return rewritten(text, NUMBERS, only_with=UNUSUAL_NUMBER)


GROUPS = (signs, spaces, fonts, fractions, separators, unit_marks, collections, numbers)


def normalise(answer: str) -> str:
    """The answer in one spelling, after all groups of rewritings.

    No group depends on a later one. An answer that grows beyond MAX_CHARS becomes empty.
    """
    if answer.isascii() and answer.isdigit():
        return answer  # nothing to rewrite
    for group in GROUPS:
        answer = group(answer)
        if len(answer) > MAX_CHARS:
            return ""
    return answer
