r"""The tokens of an expression, and the names among them.

A name before a bracket is an unknown function, as in f(2x), unless the same name also stands
alone: in a(b+c) beside ab+ac, a is a variable and the bracket a factor (`variables_in`).
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
# Names that are used for functions, also before a sum: f(x+1), where k(x+1) is a product.
FUNCTION_LETTERS = (
    *("f", "g", "h", "u", "v", "w", "y", "F", "G", "H", "P", "Q", "T", "I", "E"),
    *(r"\phi", r"\varphi", r"\psi", r"\Phi", r"\Psi", r"\Gamma", r"\zeta", r"\sigma", r"\mu"),
)
CONSTANTS = ("e", "i", r"\pi", r"\infty")

TEXT = re.compile(r"\\text\{[^{}]*\}")


def is_letter(token: str) -> bool:
    if token.startswith(r"\mathbb{"):
        return True
    return token in GREEK or (len(token) == 1 and token.isalpha())


def take_name(token: str, tokens: list[str]) -> str:
    """The name that begins with `token`, taking its primes and index from the stack: x, f', a_1.

    An index is a part of the name as it is written, and so x_{n+1} and x_{1+n} are two names.
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
    """Whether a bracket follows that can hold arguments.

    A sum in it is one of f, g, P ... only: f(x+1), but k(a-b) is k times a-b.
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
    """The names that are variables also before a bracket, where the bracket is a factor.

    Those stand alone somewhere, as n in n(n+1) and a in a(b+c) beside ab+ac. But f(3) and f(x)
    are values of f beside an answer f, too.
    """
    if not any("(" in answer or "[" in answer for answer in answers):
        return frozenset()
    alone = set()
    functions = set()
    for answer in answers:
        alone_here, applied_here = uses(answer)
        alone |= alone_here
        functions |= applied_here - alone_here
    return frozenset(alone - functions)


def uses(answer: str) -> tuple[set[str], set[str]]:
    """The names that stand alone somewhere, and those before a number or name in brackets."""
    tokens = ["", *reversed(TOKEN.findall(TEXT.sub(" ", answer)))]
    alone = set()
    applied = set()
    while tokens[-1]:
        token = tokens.pop()
        is_constant = token in CONSTANTS and tokens[-1] != "_"
        if is_constant or not is_letter(token):
            continue
        try:
            name = take_name(token, tokens)
        except Unreadable:
            break
        if not is_applied(name, tokens):
            alone.add(name)
        elif tokens[-3:-2] in ([")"], ["]"]):
            applied.add(name)
    return alone, applied


def substituted(text: str, name: str, replacement: str) -> str:
    """The text with `replacement` in the place of a name."""
    tokens = ["", *reversed(TOKEN.findall(text))]
    pieces = []
    while tokens[-1]:
        token = tokens.pop()
        piece = take_name(token, tokens) if is_letter(token) else token
        pieces.append(replacement if piece == name else piece)
    return " ".join(pieces)
