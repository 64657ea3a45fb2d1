r"""Turns an answer into tokens, so that an answer with several spellings has only one.

`\left( \dfrac12,\, 3 \text{ cm} \right]` becomes `(`, `\frac`, `12`, `,`, `3`, `\text{cm}`, `]`.
A token is a number, a sign, a letter, a command or a piece of text. Sizes, colours, fonts and gaps
are dropped. All patterns limit their repetitions, so hostile text cannot slow them down.
"""

import re
import unicodedata
from functools import lru_cache

from . import units

MAX_CHARS = 4000  # in an answer
MAX_TOKENS = 400

LISTED = units.sections("spellings.txt")
SIGNS = units.synonyms(LISTED["signs"].strip().splitlines())
GREEK = frozenset(LISTED["letters"].split())
PLAIN = units.synonyms(LISTED["plain"].strip().splitlines())
PLAIN |= {letter[1:]: letter for letter in GREEK if len(letter) > 3}  # mu may be m times u
MEANINGS = units.synonyms(LISTED["words"].strip().splitlines()) | PLAIN
DROPPED = frozenset([*LISTED["dropped"].split(), "\\ ", "\\\n", "\\"])
FUNCTIONS = frozenset(LISTED["functions"].split())
INEQUALITIES = frozenset("<>≤≥≠")

VULGAR = "[¼-¾⅐-⅞]"  # fractions that are one character
VARIANT = re.compile(
    f"[\u00a0\uff01-\uff5e\U0001d400-\U0001d7ff\u2000-\u200a\u202f\u205f\u3000]|{VULGAR}"
)
RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n")


def plain(text: str) -> str:
    """The text with variants of characters in one spelling: x¹⁰ is x^{10}, a full-width 5 is 5."""
    text = re.sub(rf"(?<=\d)(?={VULGAR})", " ", text)  # 2½ is a mixed number
    text = VARIANT.sub(lambda found: unicodedata.normalize("NFKC", found[0]), text)
    return re.sub("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ]+", lambda run: f"^{{{run[0].translate(RAISED)}}}", text)


BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # \{ is not a brace


def closing_brace(text: str, start: int, end: int) -> int | None:
    """The index of the brace that closes the group whose content begins at `start`, or None.

    None means that text[start:end] does not have the brace.
    """
    depth = 1
    for brace in BRACE.finditer(text, start, end):
        depth += (brace[0] == "{") - (brace[0] == "}")
        if depth == 0:
            return brace.start()
    return None


def words_behind(found: re.Match) -> str:
    return f"{found[1]}\\text{{{found[2]}}}" if units.is_counted(found[2]) else found[0]


def repeating(found: re.Match) -> str:
    r"""0.1\overline{6} as (0.10+6/90)."""
    whole, fixed, period = found.groups()
    return f"({whole}.{fixed}0+{period}/{'9' * len(period)}{'0' * len(fixed)})"


def degrees(found: re.Match) -> str:
    r"""12°30'15'' as (12+30/60+15/3600)°."""
    whole, minutes, seconds = found.groups()
    return f"({whole}+{minutes}/60+{seconds or 0}/3600)°"


def without_commas(found: re.Match) -> str:
    return found[0].replace(",", "")


CALLED = {each.__name__: each for each in (words_behind, repeating, degrees, without_commas)}
REWRITINGS = []
for line in LISTED["rewritings"].strip().splitlines():
    pattern, new = line.replace("#", "(?![a-zA-Z])").split(" =>")
    REWRITINGS.append((re.compile(pattern), CALLED.get(new.strip(), new.strip())))


def rewritten(answer: str) -> str:
    for pattern, new in REWRITINGS:
        answer = pattern.sub(new, answer)
    return answer


TOKEN = re.compile(
    r"(?P<gap>[\s~$]+|\\(?:text)?color\s?\{[^{}]{1,20}\}|\\[hv]space\*?\s?\{[^{}]{1,20}\})"
    # 1{,}234, 1 234; 6.02e23; 12, 12., 1.5, .5
    r"|(?P<number>[1-9]\d{0,2}(?:(?:(?:\{,\}|,\\!|\\!,)\s?|\\[,! ]|[ ~])\d{3}){1,30}"
    r"(?![\d/])(?! \d)(?:\.\d+)?"
    r"|(?:\d+\.\d+|\d+)[eE][-+]?\d{1,3}(?![\w.])|\d+\.?\d*|\.\d+)"
    r"|\\text\s?\{(?P<text>[^{}]{0,300})\}"
    r"|(?P<word>[a-zA-Z]+)"
    r"|(?P<sign>\\mathbb\{[A-Z]\}"
    r"|\\(?:begin|end)\{[a-zA-Z]{1,9}\}"
    r"|\\[a-zA-Z]+|\\.|[<>!]=|!!|\*\*|\.{2,}|.)",
    re.DOTALL,
)
NUMBER_IN_TEXT = re.compile(r"(?<![\w^.-])-?\.?\d")


@lru_cache(maxsize=256)  # a gold answer is compared with a group of responses
def normalise(answer: str) -> tuple[str, ...]:
    """The tokens of an answer; empty if it is too long."""
    answer = rewritten(plain(answer).strip(" \t\n$"))
    tokens = spelled_out(answer) if len(answer) <= MAX_CHARS else []
    return tuple(without_introduction(separated(tokens))) if len(tokens) <= MAX_TOKENS else ()


def spelled_out(answer: str) -> list[str]:
    tokens = []
    for found in TOKEN.finditer(answer):
        kind = found.lastgroup
        if kind == "sign":
            sign = SIGNS.get(found[0], found[0])
            if sign not in DROPPED:
                tokens.append(sign)
        elif kind == "number":
            tokens.append(re.sub(r"[^\d.eE+-]", "", found[0]))
        elif kind == "text":
            tokens.extend(upright(found["text"], tokens))
        elif kind == "word":
            tokens.extend(word(found[0], answer))
    return tokens


def word(letters: str, answer: str) -> list[str]:
    r"""The tokens of letters outside \text: a function, a word, or else separate letters."""
    if letters in FUNCTIONS:
        return ["\\" + letters]
    is_long = len(letters) > 2 or letters == answer.strip()
    if {letters, letters.lower()} & MEANINGS.keys() or (is_long and units.is_word(letters)):
        return upright(letters, [])
    return list(letters)


def upright(text: str, tokens: list[str]) -> list[str]:
    r"""The tokens of \text{...}: \text{5 cm} is 5\text{cm}, \text{A} is A, \text{ or } a comma."""
    stripped = text.replace("\\ ", " ").replace("$", "").strip(" ,;~")
    bare = stripped.strip(".()")
    meaning = MEANINGS.get(bare) or MEANINGS.get(bare.lower())
    if meaning or not stripped:
        return [meaning or ","] if meaning or "," in text else []
    if re.fullmatch(r"\(?[a-zA-Z]\)?", stripped):
        letter = stripped.strip("()")
        is_unit = tokens and (tokens[-1][-1].isdecimal() or tokens[-1] in ")}π")
        return [f"\\text{{{letter}}}" if is_unit and letter in units.UNITS else letter]
    if NUMBER_IN_TEXT.search(stripped):
        return spelled_out(rewritten(stripped))
    return [f"\\text{{{stripped}}}"]


def is_text(token: str) -> bool:
    return token.startswith("\\text{")


def separated(tokens: list[str]) -> list[str]:
    """The tokens with one separator between members, and none at the ends."""
    joint = "∧" if INEQUALITIES.intersection(tokens) else ","  # x > 1 and x < 5 hold together
    result = []
    for token in tokens:
        token = joint if token == "and" else token
        if token in (",", "∧") and result[-1:] in ([","], ["∧"]):
            result[-1] = token
        elif result or token not in "=:,":
            result.append(token)
    while result and result[-1] in ".,;:∧":
        result.pop()
    return result


def without_introduction(tokens: list[str]) -> list[str]:
    """The answer in "The area is 5" and in "So 5", without the words before it."""
    if len(tokens) < 2 or not is_text(tokens[0]) or tokens[1] in "=<>≤≥≠^/":
        return tokens
    text = tokens[0][6:-1]
    is_led = text.rpartition(" ")[2].lower() in units.WORDS["introductions"] or text[-1] == ":"
    return separated(tokens[1:]) if is_led and units.names_a_quantity(text) else tokens
