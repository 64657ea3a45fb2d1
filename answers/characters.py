"""One spelling for each sign and character that can be written in several ways."""

import re
import unicodedata

SPELLINGS = {
    "-": "− – ‐ ‑",
    "*": r"× · ∙ ⋅ \cdot \times \ast",
    " ": r"\thinspace \medspace \thickspace \enspace \enskip \negthinspace \nobreakspace",
    "/": r"÷ \div ∕",
    "±": r"\pm",
    "∓": r"\mp",
    "≤": r"<= \le \leq \leqslant \leqq",
    "≥": r">= \ge \geq \geqslant \geqq",
    "≠": r"!= \ne \neq",
    "<": r"\lt",
    ">": r"\gt",
    "≈": r"\approx",
    "∈": r"\in",
    "∪": r"\cup",
    "∖": r"\setminus \smallsetminus \backslash",
    "∅": r"\emptyset \varnothing",
    "‹": r"\{ \lbrace",
    "›": r"\} \rbrace",
    "(": r"\langle ⟨",
    ")": r"\rangle ⟩",
    "|": r"\vert \mid ∣",
    "'": r"\prime ′ ’",
    "^": "**",
    r"\sqrt ": "√",
    r"\infty ": "∞",
    r"\degree ": "° º",
    r"\pi ": "π",
    r"\alpha ": "α",
    r"\beta ": "β",
    r"\gamma ": "γ",
    r"\theta ": "θ",
    r"\lambda ": "λ",
    r"\mu ": "μ µ",
    r"\omega ": "ω",
    r"\mathbb{R}": r"ℝ \R \Reals",
    r"\frac{1}{2}": "½",
    r"\frac{1}{3}": "⅓",
    r"\frac{1}{4}": "¼",
    r"\frac{3}{4}": "¾",
    r"\text{USD} ": r"\$",
    r"\text{EUR} ": "€",
    r"\text{GBP} ": "£",
    r"\text{JPY} ": "¥",
    r"\text{INR} ": "₹",
}
SIGNS = {spelling: sign for sign, many in SPELLINGS.items() for spelling in many.split()}
SIGN = re.compile(r"\\[a-zA-Z]+|\\.|\*\*|<=|>=|!=|[^\x00-\x7f]", re.DOTALL)
# Variants of plain characters (full-width, mathematical italic ...), and zero-width characters.
TWINS = re.compile("[\uff01-\uff5e\U0001d400-\U0001d7ff\u2000-\u200a\u202f\u205f\u3000]")
NO_WIDTH = re.compile("[\u00ad\u200b-\u200f\u2060-\u2064\ufe00-\ufe0f\ufeff]")
RAISED_DIGITS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿⁱ⁽⁾", "0123456789+-ni()", strict=True))
LOWERED_DIGITS = dict(zip("₀₁₂₃₄₅₆₇₈₉₊₋ₙ", "0123456789+-n", strict=True))
RAISED_RUN = re.compile(f"[{''.join(RAISED_DIGITS)}]+")
LOWERED_RUN = re.compile(f"[{''.join(LOWERED_DIGITS)}]+")
ROOT_OF_DIGITS = re.compile(r"√\s?(\d{1,50})")
WIDE = re.compile(r"\\[hv]space\*?\s?\{[^{}]{0,20}\}")


def plain(text: str) -> str:
    """Replace variants with plain characters: x¹⁰ becomes x^{10}, and √21 becomes \\sqrt{21}."""
    text = WIDE.sub(" ", text) if "space" in text else text
    if text.isascii():
        return text
    text = NO_WIDTH.sub("", text)
    text = TWINS.sub(lambda found: unicodedata.normalize("NFKC", found[0]), text)
    text = RAISED_RUN.sub(lambda found: f"^{{{translated(found[0], RAISED_DIGITS)}}}", text)
    text = LOWERED_RUN.sub(lambda found: f"_{{{translated(found[0], LOWERED_DIGITS)}}}", text)
    return ROOT_OF_DIGITS.sub(r"\\sqrt{\1}", text)


def translated(text: str, characters: dict[str, str]) -> str:
    return "".join(characters[character] for character in text)


def one_sign(found: re.Match) -> str:
    return SIGNS.get(found[0], found[0])
