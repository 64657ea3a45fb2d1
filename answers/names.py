r"""The tokens of an expression, and the names among them.

A name before a bracket is an unknown function, as in f(2x), unless it also occurs without a
bracket: if the other answer is (a+b)h, the h in h(a+b) is a variable (`variables_in`).
"""

import re

from answers.errors import Unreadable

TOKEN = re.compile(
    r"\s*("
    r"\d+(?:\.\d+)?[eE][-+]?\d{1,4}"  # 6.02e23, 2e-5, 3e8
    r"|\d+\.?\d*|\.\d+"  # 12, 12., 1.5, .5
    r"|!!|\\mathbb\{[A-Z]\}|\\[a-zA-Z]+|\S"
    r")"
)
GREEK_LETTERS = (
    r"\alpha \beta \gamma \delta \epsilon \varepsilon \zeta \eta \theta \vartheta \iota \kappa"
    r" \lambda \mu \nu \xi \rho \varrho \sigma \tau \upsilon \phi \varphi \chi \psi \omega"
    r" \Gamma \Delta \Theta \Lambda \Xi \Pi \Sigma \Upsilon \Phi \Psi \Omega \ell \hbar"
)
GREEK = frozenset(GREEK_LETTERS.split())
# Names that are functions even before a sum: f(x+1) is a call, k(x+1) is a product.
FUNCTION_LETTERS = (
    *("f", "g", "h", "u", "v", "w", "y", "F", "G", "H", "P", "Q", "T", "I", "E"),
    *(r"\phi", r"\varphi", r"\psi", r"\Phi", r"\Psi", r"\Gamma", r"\zeta", r"\sigma", r"\mu"),
)
TEXT = re.compile(r"\\text\{[^{}]*\}")
NAME = r"((?:\\[a-zA-Z]+|[a-zA-Z])(?:_(?:\w|\{\w+\}))?)"
ALONE = re.compile(NAME + r"(?!\s?[(\[_'])")
APPLIED = re.compile(NAME + r"\s?[(\[]\s?(?:\w|\d+|\\[a-zA-Z]+)\s?[)\]]")
CONSTANTS = ("e", "i", r"\pi", r"\infty")


def is_letter(token: str) -> bool:
    if token.startswith(r"\mathbb{"):
        return True
    return token in GREEK or (len(token) == 1 and token.isalpha())


def take_name(token: str, tokens: list[str]) -> str:
    """The name that begins with `token`; its primes and index are popped from the stack: f', a_1.

    The spelling of an index is part of the name: x_{n+1} and x_{1+n} are different names.
    """
    name = token
    while tokens[-1] == "'":
        name += tokens.pop()
    if tokens[-1] != "_":
        return name

    tokens.pop()
    if tokens[-1] != "{":
        index = tokens.pop()
        if index == "":
            raise Unreadable
        if index.isdigit() and len(index) > 1:  # x_12 is x_1 2
            tokens.append(index[1:])
            index = index[0]
        return f"{name}_{index}"

    index = []
    depth = 0
    while True:
        part = tokens.pop()
        if part == "":
            raise Unreadable
        depth += (part == "{") - (part == "}")
        index.append(part)
        if depth == 0:
            return f"{name}_{''.join(index[1:-1])}"


def is_applied(name: str, tokens: list[str]) -> bool:
    """Whether the next bracket holds arguments of `name`.

    Only f, g, P ... can have a sum as an argument: f(x+1) is a call, but k(a-b) is k times a-b.
    """
    opening = tokens[-1]
    if opening not in ("(", "["):
        return False
    if name.startswith(FUNCTION_LETTERS):
        return True
    depth = 0
    for token in reversed(tokens):
        depth += (token in ("(", "[", "{")) - (token in (")", "]", "}"))
        if depth == 1 and token in ("+", "-"):
            return False
        if depth == 0 or token == ",":
            return True
    return True


def variables_in(answers: list[str]) -> frozenset[str]:
    """The names that occur without a bracket, and never with a single number or letter in brackets.

    Such a name is a variable even before a bracket, which is then a factor.
    """
    text = TEXT.sub(" ", " ".join(answers))
    names = set(ALONE.findall(text)) - {*APPLIED.findall(text), *CONSTANTS}
    letters = {name for name in names if is_letter(name.partition("_")[0])}
    return frozenset(name.replace("{", "").replace("}", "") for name in letters)


def substituted(text: str, name: str, replacement: str) -> str:
    """The text with each `name` replaced by `replacement`."""
    tokens = ["", *reversed(TOKEN.findall(text))]
    pieces = []
    while tokens[-1]:
        token = tokens.pop()
        piece = take_name(token, tokens) if is_letter(token) else token
        pieces.append(replacement if piece == name else piece)
    return " ".join(pieces)
