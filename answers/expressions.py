r"""Compiles an expression once into the steps that compute it, in postfix order.

`read(r"2x+1")` returns an `Expression` with the steps 2, x, multiply, 1, add. answers/values.py
runs the steps at many points. Text outside the grammar raises `Unreadable`.
answers/names.py distinguishes variables from functions.
"""

import re
from fractions import Fraction
from typing import NamedTuple

from answers import units
from answers.errors import Unreadable
from answers.names import (
    CONSTANTS,
    TOKEN,
    is_applied,
    is_letter,
    take_name,
)

LETTERS = re.compile(r"(?<![\\a-zA-Z_{])[a-zA-Z]{3,}")  # may be a word instead of a product
MAX_DEPTH = 40  # levels of nested brackets, arguments and operands
MAX_TOKENS = 1000
MAX_EXPONENT = 1000  # in numbers such as 3e8

# Precedences of operators.
SUM = 1
PRODUCT = 2  # explicit, such as 2*x
BESIDE = 3  # an implicit product, such as 2x: see `binding`
POWER = 5
ATOM = 9  # nothing binds tighter

# LEVEL: the precedence of an operator. RIGHT: only operators above this level belong to its right
# operand: a - b - c is (a - b) - c, a / 2x is (a / 2) x, and a^b^c is a^(b^c).
LEVEL = {
    "+": SUM,
    "-": SUM,
    "*": PRODUCT,
    "/": PRODUCT,
    "^": POWER,
    "!": POWER,
    "!!": POWER,
}
RIGHT = {"+": SUM, "-": SUM, "*": BESIDE, "/": BESIDE, "^": POWER - 1}
OPERATION = {
    "+": "add",
    "-": "subtract",
    "*": "multiply",
    "/": "divide",
    "!": "factorial",
    "!!": "double_factorial",
}

BARS = ("|", r"\lvert")
CLOSING = {
    "(": ")",
    "[": "]",
    "{": "}",
    "|": "|",
    r"\lvert": r"\rvert",
    r"\lfloor": r"\rfloor",
    r"\lceil": r"\rceil",
}
ROUNDED = {r"\lfloor": "floor", r"\lceil": "ceil"}

CONDITIONAL = "PE"  # P(A|B) has two arguments; otherwise a bar begins an absolute value
CALL_NAMES = "arcsin arccos arctan arccot sinh cosh tanh sin cos tan cot sec csc exp"
CALLS = tuple(CALL_NAMES.split())  # all are methods of Arithmetic
LOGS = {"log": None, "ln": None, "lg": Fraction(10)}  # the default base; None means e
COMMANDS = frozenset("\\" + name for name in [*CALLS, *LOGS])


class Step(NamedTuple):
    """One step: replaces the top `arity` values of the stack with their result.

    operation: a method of Arithmetic, or one of these with its `detail`: "number" (a Fraction),
    "variable" (its name), "function" (the name of an unknown function), "constant" (e, i, π, ∞).
    """

    operation: str
    arity: int
    detail: object = None


class Expression(NamedTuple):
    steps: list[Step]
    names: frozenset[str]  # of variables and unknown functions
    tokens: list[str]


def read(text: str, variables: frozenset[str] = frozenset(), radians: bool = False) -> Expression:
    """The expression in `text`. Raises Unreadable unless all of `text` is an expression.

    variables: names that are variables even before a bracket.
    radians: if true, 90° is π/2. Otherwise 90° is 90, except in arguments of \\sin and the like.
    """
    tokens = TOKEN.findall(text)
    if len(tokens) > MAX_TOKENS or any(map(units.is_word, LETTERS.findall(text))):
        raise Unreadable
    reader = Reader(tokens, variables, radians)
    reader.read()
    if reader.tokens != [""]:
        raise Unreadable
    return Expression(reader.steps, frozenset(reader.names), tokens)


# ---- reading -------------------------------------------------------------------------------------


class Reader:
    """A recursive-descent parser. The tokens are a stack with "" at the bottom."""

    def __init__(self, tokens: list[str], variables: frozenset[str], radians: bool):
        self.tokens = ["", *reversed(tokens)]
        self.variables = variables
        self.radians = radians
        self.steps = []
        self.names = set()
        self.last_name = -1  # the step of the last name
        self.last_degree = -1  # the step of the last degree sign outside \\sin and the like
        self.depth = 0
        self.open_bars = 0
        self.last = ""  # the previous token if it was a closing bracket

    def emit(self, operation: str, arity: int, detail: object = None) -> None:
        self.steps.append(Step(operation, arity, detail))

    def next_token(self) -> str:
        token = self.tokens.pop()
        if token == "":
            raise Unreadable
        self.last = ""
        return token

    def read(self, level: int = 0) -> None:
        """Read an operand and all following operators that bind tighter than `level`.

        For 2*x+1, read() reads everything, read(SUM) reads 2*x, and read(PRODUCT) reads 2.
        """
        if self.depth >= MAX_DEPTH:
            raise Unreadable
        self.depth += 1

        start = len(self.steps)
        token = self.next_token()
        if token in "+-":
            self.read(BESIDE)
            if token == "-":
                self.emit("negative", 1)
        else:
            self.atom(token)

        previous = ""
        while self.binding(previous) > level:
            previous = self.tokens[-1]
            sign = self.tokens.pop() if previous in LEVEL else "*"
            if sign in ("!", "!!"):
                self.refuse_degrees(start)
                self.emit(OPERATION[sign], 1)
            elif sign == "^":
                self.power(start)
                self.refuse_degrees(start)
            else:
                has_degrees = self.last_degree >= start
                middle = len(self.steps)
                self.read(RIGHT[sign])
                if sign == "/" or (sign == "*" and has_degrees):
                    self.refuse_degrees(middle)
                self.emit(OPERATION[sign], 2)

        self.depth -= 1

    def binding(self, previous: str) -> int:
        """The precedence of the next token; 0 if the token ends the expression.

        An implicit product binds tighter than an explicit one, unless the next factor is a
        function: sin 2x is sin(2x), but sin 2 * x is (sin 2) x, and sin x cos x is
        (sin x)(cos x).
        """
        token = self.tokens[-1]
        if token == "":
            return 0
        if token in LEVEL:
            return LEVEL[token]
        if not self.is_factor(token, previous):
            return 0
        if token in COMMANDS:
            return PRODUCT
        return BESIDE

    def is_factor(self, token: str, previous: str) -> bool:
        r"""Whether `token` is the next factor of an implicit product: 2x, 2(x+1), 3!4."""
        if token == "|":
            return self.open_bars == 0  # otherwise the token closes a bar
        if token[0] == "\\":
            return token not in CLOSING.values()
        if token[0].isdecimal():
            return previous in ("!", "!!", "^") or self.last == ")"
        return token.isalpha() or token in ("(", "[", "{")

    def power(self, base: int) -> None:
        """Read the exponent after ^: a group, or an operand with its powers (2^-1, 2^3^2).

        base: the first step of the base. If the base contains a name, the power must be real:
        \\sqrt{x} is undefined for x < 0, but \\sqrt{-4} is 2i. 0^n is refused: it depends on n.
        """
        exponent = len(self.steps)
        operation = "real_power" if self.is_free(base) else "power"
        if self.tokens[-1] == "{":
            self.argument()
        else:
            self.read(RIGHT["^"])
        if self.steps[base:exponent] == [Step("number", 0, Fraction(0))] and self.is_free(exponent):
            raise Unreadable
        if self.steps[base:exponent] == [Step("constant", 0, "e")]:
            del self.steps[base]
            self.last_name -= 1
            self.emit("exp", 1)
            return
        self.emit(operation, 2)

    def refuse_degrees(self, start: int) -> None:
        """Raise Unreadable for degrees in the steps from `start` on: (3°)^2 is not 9."""
        if self.last_degree >= start:
            raise Unreadable

    def is_free(self, start: int) -> bool:
        """Whether the steps from `start` on contain a name."""
        return self.last_name >= start

    def argument(self) -> None:
        r"""Read a LaTeX argument: a group, or the next digit or atom, as in \frac12 or x^\pi."""
        token = self.next_token()
        if token.isdigit() and len(token) > 1:
            self.tokens.append(token[1:])
            token = token[0]
        self.tokens.append(token)
        self.read(ATOM)

    def option(self, mark: str) -> list[Step]:
        r"""The steps of an optional argument after `mark`, as in \log_2, \sin^2 or \sqrt[3]."""
        if self.tokens[-1] != mark:
            return []
        if mark != "[":  # the bracket is a part of its argument
            self.tokens.pop()
        start = len(self.steps)
        self.argument()
        steps = self.steps[start:]
        del self.steps[start:]
        return steps

    def operand(self, radians: bool) -> None:
        """Read the operand of a function: a bracket, or the following product, as in sin 2x."""
        outer = self.radians
        self.radians = outer or radians
        if self.tokens[-1] in CLOSING:
            self.argument()
        else:
            self.read(PRODUCT)
        self.radians = outer

    def atom(self, token: str) -> None:
        """Read the number, bracket, command or name that begins with `token`."""
        if token[0].isdecimal() or token[0] == ".":
            self.number(token)
        elif token in CLOSING:
            self.bracket(token)
        elif token == r"\frac":
            self.argument()
            middle = len(self.steps)
            self.argument()
            self.refuse_degrees(middle)
            self.emit("divide", 2)
        elif token == r"\binom":
            start = len(self.steps)
            self.argument()
            self.argument()
            self.refuse_degrees(start)
            self.emit("binomial", 2)
        elif token == r"\sqrt":
            self.root()
        elif token in COMMANDS:
            self.call(token[1:])
        elif token == r"\degree":
            self.degree()
        elif token in CONSTANTS and self.tokens[-1] != "_":
            self.emit("constant", 0, token)
        elif is_letter(token):
            self.name(token)
        else:
            raise Unreadable

    def number(self, token: str) -> None:
        """Read a number. 204_5 is 54, written in base 5."""
        if self.tokens[-1] == "_":
            base = self.option("_")
            if [step.operation for step in base] != ["number"] or not 2 <= base[0].detail <= 36:
                raise Unreadable
            try:
                self.emit("number", 0, Fraction(int(token, int(base[0].detail))))
            except ValueError:  # 7 is not a digit in base 5
                raise Unreadable from None
            return

        if token.isdecimal():
            self.emit("number", 0, Fraction(int(token)))
            return
        exponent = re.split("[eE]", token)[1:]
        if token == "." or (exponent and abs(int(exponent[0])) > MAX_EXPONENT):
            raise Unreadable
        self.emit("number", 0, Fraction(token))

    def bracket(self, opening: str) -> None:
        """Read a group, an absolute value, a floor or a ceiling."""
        outer_bars = self.open_bars
        self.open_bars = outer_bars + 1 if opening == "|" else 0
        self.read()
        self.open_bars = outer_bars
        if self.tokens.pop() != CLOSING[opening]:
            raise Unreadable
        self.last = CLOSING[opening]
        if opening in BARS:
            self.emit("absolute", 1)
        if opening in ROUNDED:
            self.emit(ROUNDED[opening], 1)

    def root(self) -> None:
        degree = self.option("[") or [Step("number", 0, Fraction(2))]
        base = len(self.steps)
        self.argument()
        is_free = self.is_free(base)
        self.refuse_degrees(base)
        self.emit("number", 0, Fraction(1))
        self.steps.extend(degree)
        self.emit("divide", 2)
        self.emit("real_power" if is_free else "power", 2)

    def call(self, function: str) -> None:
        r"""Read a function call: \sin 30°, \sin^2 x, \log_2^3 x. \sin^{-1} is the arcsine."""
        power = self.option("^")
        base = self.option("_")
        power = power or self.option("^")
        if base and function not in LOGS:
            raise Unreadable

        minus_one = [("number", 0, Fraction(1)), ("negative", 1, None)]
        if power == minus_one and "arc" + function in CALLS:
            function = "arc" + function
            power = []

        start = len(self.steps)
        self.operand(radians=function not in LOGS)
        self.refuse_degrees(start)
        if function in LOGS:
            self.logarithm(function, base, start)
        else:
            self.emit(function, 1)
        if power:
            self.steps.extend(power)
            self.emit("power", 2)

    def logarithm(self, function: str, base: list[Step], start: int) -> None:
        """The logarithm of the operand that begins at step `start`."""
        self.emit("real_ln" if self.is_free(start) else "ln", 1)
        if not base and LOGS[function]:
            base = [Step("number", 0, LOGS[function])]
        if base:
            self.steps.extend(base)
            self.emit("ln", 1)
            self.emit("divide", 2)

    def degree(self) -> None:
        """The degree sign of 30° as a factor: 1, or π/180 in radians."""
        if not self.radians:
            self.last_degree = len(self.steps)
            self.emit("number", 0, Fraction(1))
            return
        self.emit("constant", 0, r"\pi")
        self.emit("number", 0, Fraction(180))
        self.emit("divide", 2)

    def name(self, token: str) -> None:
        """Read a variable, or an unknown function with its arguments: f(2x) or u(x,t)."""
        name = take_name(token, self.tokens)
        self.names.add(name)
        if name in self.variables or not is_applied(name, self.tokens):
            self.last_name = len(self.steps)
            self.emit("variable", 0, name)
            return

        arguments = self.arguments(name)
        self.last_name = len(self.steps)
        self.emit("function", arguments, name)

    def arguments(self, name: str) -> int:
        """Read the bracketed arguments of an unknown function. Returns how many there are."""
        closing = CLOSING[self.tokens.pop()]
        outer_bars = self.open_bars
        self.open_bars = 1 if name[0] in CONDITIONAL else 0
        self.read()
        count = 1
        while self.tokens[-1] == "," or (count == 1 and self.open_bars and self.tokens[-1] == "|"):
            self.tokens.pop()
            self.read()
            count += 1
        if self.tokens.pop() != closing:
            raise Unreadable
        self.open_bars = outer_bars
        return count
