r"""Parses the tokens of an answer into a tree, with a Pratt parser.

A node is a tuple (kind, *children): `(\frac{1}{2}, x]` is ("(]", ("/", ("number", 1, 0), ("number",
2, 0)), ("name", "x")).

Expressions are number (a Fraction and its digits after the point), name, constant, call (of a known
function, \sin x), function (an unknown one, f(2x)), absolute, floor, ceil, binomial and the
operations + - * / ^ ! % ± ∓; -x is 0 - x. Structures are list, () [] (] [), ‹› for a set, matrix
with its rows, : for a ratio, minutes for the 05 of 2:05, ∧ for relations that all hold, relation
and ∪ with members and signs in turn (x, "<", y), quantity (a value and its unit), text (its words).
"""

import re
from fractions import Fraction

from . import Unreadable, units
from .latex import FUNCTIONS, GREEK, is_text

MAX_DEPTH = 40  # of nested brackets, arguments and operands

# How tightly tokens bind to the operand before them: each level, set apart by two spaces, binds
# tighter than the level before. "text" stands for a unit, "beside" for a factor without a sign.
BINDING = r"\\  &  , ; ∧  = < > ≤ ≥ ≠ ≈ ∈  ∪ ∖  :  text  + - ± ∓  * /  beside  ^ ! % °"
LEVEL = {token: i for i, level in enumerate(BINDING.split("  ")) for token in level.split()}
ROWS, CELLS, LIST, RELATION, UNION, RATIO, UNIT, SUM, PRODUCT, BESIDE, POWER = range(11)
END = -1  # of an expression
CHAINS = {ROWS: "matrix", CELLS: "()", LIST: "list", RELATION: "relation", UNION: "∪", RATIO: ":"}
CLOSING = {"(": ")]", "[": ")]", "{": "}", "‹": "›", "|": "|", "⌊": "⌋", "⌈": "⌉"}
KINDS = {"|": "absolute", "⌊": "floor", "⌈": "ceil", r"\frac": "/", r"\binom": "binomial"}
KINDS |= {r"\abs": "absolute", r"\floor": "floor", r"\ceil": "ceil"}
MATRIX = re.compile(r"\\begin\{(?:[bpB]?matrix|array)\}")  # the others are determinants
CONSTANTS = "eiπ∞"
APPLIED = frozenset("fghuvwyFGHPQTIE")  # functions before a bracket: f(x+1), but x(x+1)

ZERO = ("number", Fraction(0), 0)
ONE = ("number", Fraction(1), 0)
INFINITY = ("constant", "∞")
DEGREE = ("/", ("constant", "π"), ("number", Fraction(180), 0))


def parse(tokens: tuple[str, ...]) -> tuple:
    """The tree of an answer's tokens. Raises Unreadable."""
    parser = Parser(tokens)
    tree = parser.read(END)
    if parser.tokens:
        raise Unreadable
    return tree


def is_letter(token: str) -> bool:
    """Whether a token is a name or a constant."""
    is_single = len(token) == 1 and token.isalpha()
    return is_single or token == "∞" or token in GREEK or token.startswith(r"\mathbb")


class Parser:
    """Reads a tree from tokens, which are a stack: the next token is the last."""

    def __init__(self, tokens: tuple[str, ...]):
        self.tokens = list(reversed(tokens))
        self.last = ""  # the token taken last
        self.depth = 0
        self.bars = 0  # open bars of absolute values
        self.in_angle = False  # inside \sin and the like, where 30° is \pi/6

    def peek(self, ahead: int = 1) -> str:
        return self.tokens[-ahead] if len(self.tokens) >= ahead else ""

    def take(self, expected: str = "") -> str:
        if not self.tokens or (expected and self.tokens[-1] not in expected):
            raise Unreadable
        self.last = self.tokens.pop()
        return self.last

    def read(self, level: int) -> tuple:
        """An operand with all following operators that bind tighter than `level`."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Unreadable
        left = self.operand(self.take())
        while self.binding() > level:
            left = self.operation(left)
        self.depth -= 1
        return left

    def binding(self) -> int:
        """How tightly the next token binds; END if it ends the expression."""
        token = self.peek()
        if token in LEVEL:
            return LEVEL[token]
        if is_text(token):
            return UNIT
        if token[1:] in FUNCTIONS:
            return PRODUCT  # \sin x \cos x is (\sin x)(\cos x)
        if (token == "|" and self.bars) or (token == "{" and self.peek(2).isdecimal()):
            return END  # 5{7} is printed as 57
        starts = token in CLOSING or token in KINDS or token == r"\sqrt" or MATRIX.match(token)
        return BESIDE if starts or token[:1].isdecimal() or is_letter(token) else END

    def operation(self, left: tuple) -> tuple:
        """The operand `left` with the next operator and its right operand."""
        token = self.peek()
        level = self.binding()
        if level in CHAINS:
            return self.chain(left, level)
        if level == POWER:
            return self.postfix(left, self.take())
        if level == UNIT:
            return self.quantity(left)
        if token in LEVEL:
            self.take()
            return (token, left, self.read(SUM if level == SUM else BESIDE))
        return self.product(left)

    def product(self, left: tuple) -> tuple:
        r"""An implicit product, or the mixed number 1\frac{2}{3}."""
        token = self.peek()
        is_whole = left[0] == "number" and self.last.isdecimal()
        if left[0] == "text" or (token[0].isdecimal() and self.last not in ")!"):
            raise Unreadable  # "not 5", x 2, 1 2
        right = self.read(BESIDE)
        is_mixed = token == r"\frac" and is_whole and right[0] == "/"
        if is_mixed and right[1][0] == right[2][0] == "number":
            return ("+", left, right)
        return ("*", left, right)

    def chain(self, left: tuple, level: int) -> tuple:
        """A list or ratio, or a chain of relations or unions with its signs: x < y < 5."""
        members = [left]
        while self.binding() == level:
            sign = self.take()
            has_zero = re.match(r"0\d", self.peek()) is not None
            if level == LIST and has_zero:
                raise Unreadable  # 35,000 is not a list
            if level in (RELATION, UNION):
                members.append(sign)
            member = self.read(level)
            is_minutes = level == RATIO and has_zero
            members.append(("minutes", member) if is_minutes else member)  # 2:05 is not 2:5
        return ("∧" if sign == "∧" else CHAINS[level], *members)

    def postfix(self, left: tuple, token: str) -> tuple:
        if token == "^":
            power = self.argument()
            if left == ZERO and power[0] != "number":
                raise Unreadable  # its value depends on the exponent
            return ("^", left, power)
        if token == "°":
            return ("*", left, DEGREE) if self.in_angle else ("quantity", left, "degree")
        return (token, left)

    def quantity(self, left: tuple) -> tuple:
        r"""A value with its unit: 5\text{m/s}^2."""
        unit = self.take()[6:-1]
        if self.peek() == "^":
            unit += self.take() + self.spelled_group()
        if not units.is_counted(unit) or left[0] in ("text", "quantity"):
            raise Unreadable
        return ("quantity", left, unit)

    def spelled_group(self) -> str:
        """The text of the next group or token, such as an index: x_{n+1} is not x_{1+n}."""
        text = self.take()
        while text[0] == "{" and self.last != "}":
            text += self.take()
        return text.strip("{}")

    def operand(self, token: str) -> tuple:
        """The operand that begins with `token`, which is taken."""
        if token in "+-±∓":
            inside = self.read(PRODUCT)
            if token == "-" and inside[0] in ("quantity", "%"):  # -5°
                return (inside[0], ("-", ZERO, inside[1]), *inside[2:])
            if token == "-" and inside[0] == "number":
                return ("number", -inside[1], inside[2])
            return inside if token == "+" else (token, ZERO, inside)
        if token[0].isdecimal() or (token[0] == "." and token[1:].isdecimal()):
            digits = token.partition(".")[2]
            return ("number", Fraction(token.rstrip(".")), len(digits) if digits.isdecimal() else 0)
        if token in CLOSING:
            return self.bracket(token)
        if token in (r"\frac", r"\binom"):
            return (KINDS[token], self.argument(), self.argument())
        if token in KINDS:
            return (KINDS[token], self.argument())
        if token == r"\sqrt":
            degree = self.bracket(self.take()) if self.peek() == "[" else ("number", Fraction(2), 0)
            return ("^", self.argument(), ("/", ONE, degree))
        if token[1:] in FUNCTIONS:
            return self.call(token[1:])
        if token in CONSTANTS and self.peek() != "_":
            return ("constant", token)
        if MATRIX.match(token):
            inside = self.read(END)
            self.take(token.replace("begin", "end"))
            return inside if inside[0] == "matrix" else ("matrix", inside)
        if is_letter(token):
            return self.name(token)
        if is_text(token):
            if token[6:-1] in units.WORDS["currencies"]:
                return ("quantity", self.read(PRODUCT), token[6:-1])
            return ("text", *units.words_of(token[6:-1]))
        raise Unreadable

    def argument(self) -> tuple:
        r"""A group or a single digit, letter or command, as in \frac12 or x^2."""
        token = self.take()
        if token.isdecimal() and len(token) > 1:
            self.tokens.append(token[1:])
            token = token[0]
        return self.operand(token)

    def bracket(self, opening: str) -> tuple:
        """A group, an absolute value, a set, a tuple or an interval."""
        outer = self.bars
        self.bars = 1 if opening == "|" else 0
        inside = self.read(END)
        closing = self.take(CLOSING[opening])
        self.bars = outer
        members = inside[1:] if inside[0] == "list" else (inside,)
        if opening in KINDS:
            return (KINDS[opening], inside)
        if opening == "‹":
            return ("‹›", *members)
        if opening == "{" or (len(members) == 1 and opening + closing in ("()", "[]")):
            return inside
        return (opening + closing, *members)

    def call(self, function: str) -> tuple:
        r"""The call of a known function, such as \sin^2 x, \log_2 8 or \tan^{-1} x."""
        options = {}
        while self.peek() in ("^", "_"):
            mark = self.take()
            options[mark] = self.argument()
        power, base = options.get("^"), options.get("_")
        outer = self.in_angle
        self.in_angle = True
        has_brackets = self.peek() in CLOSING
        inside = self.argument() if has_brackets else self.read(PRODUCT)
        self.in_angle = outer
        if not has_brackets and inside[0] in ("*", "constant") and self.peek() == "/":
            raise Unreadable  # \sin 2\pi/3 has two readings
        result = ("call", "ln" if function in ("log", "lg") else function, inside)
        if base or function == "lg":
            result = ("/", result, ("call", "ln", base or ("number", Fraction(10), 0)))
        return ("^", result, power) if power else result

    def name(self, name: str) -> tuple:
        """A variable, a_1, or an unknown function with its arguments: f(x+1), N(0), V(t) = 5."""
        if self.peek() == "_":
            self.take()
            name += "_" + self.spelled_group()
        while self.peek() == "'":
            name += self.take()
        is_label = self.peek(3) == ")" and (self.peek(2).isdecimal() or self.peek(4) == "=")
        is_function = name[0] in APPLIED or name[-1] == "'" or is_label
        if self.peek() not in ("(", "[") or not is_function:
            return ("name", name)
        inside = self.bracket(self.take())
        return ("function", name, *(inside[1:] if inside[0] in ("()", "[]") else (inside,)))
