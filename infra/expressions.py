r"""The value of an expression: recursive descent over its tokens, computing as it reads.

`Evaluator(seed).values(r"\frac{1}{3}x")` is what the expression is worth at each of four points: a
Fraction where it is exact, else a complex number; infinity is a float; None where undefined.

Nothing of a text is executed, and tokens, depth, bits and operations are all bounded: whatever is
not in the grammar or passes a bound raises `Unreadable`.
"""

import cmath
import math
import random
import re
from fractions import Fraction

from infra.arithmetic import (
    MAX_BITS,
    Undefined,
    Unreadable,
    bit_length,
    compute,
    factorial,
    natural_log,
    natural_number,
    rounded,
)

MAX_DEPTH = 40  # of brackets, arguments and operands within each other
FUEL = 3000  # operations of one comparison
POINTS = 4  # at which an expression with free variables is evaluated

TOKEN = re.compile(
    r"\s*("
    r"\d+\.\d+[eE][-+]?\d{1,4}|1[eE]-\d{1,4}|\d+[eE]\+?\d{1,4}"  # 6.02e23, 1e-5, 3e8
    r"|\d+\.?\d*|\.\d+"  # 12, 12., 1.5, .5
    r"|!!|\\[a-zA-Z]+|\S"
    r")"
)

# How tightly operators bind.
SUM = 1
PRODUCT = 2  # with a sign
BESIDE = 3  # a product without a sign, as 2x: see `binding`
POWER = 5
ATOM = 9  # nothing binds tighter

# What an operator binds on its left, and what its right side is read with: only what binds
# tighter belongs to it. So a - b - c is (a - b) - c, a / 2x is (a / 2) x, and a^b^c is a^(b^c).
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
CLOSING = {"(": ")", "[": "]", "{": "}", "|": "|", r"\lfloor": r"\rfloor", r"\lceil": r"\rceil"}

ONE = Fraction(1)
CONSTANTS = {
    "e": complex(math.e),
    "i": 1j,
    r"\pi": complex(math.pi),
    r"\infty": math.inf,
}
GREEK_LETTERS = (
    r"\alpha \beta \gamma \delta \epsilon \varepsilon \zeta \eta \theta \lambda \mu \nu \rho"
    r" \sigma \tau \phi \varphi \psi \omega"
)
GREEK = set(GREEK_LETTERS.split())
INTEGER_VARIABLES = ("n", "k", "m")  # the others stand for fractions


def cot(z):
    return 1 / cmath.tan(z)


def sec(z):
    return 1 / cmath.cos(z)


def csc(z):
    return 1 / cmath.sin(z)


CALLS = {
    r"\arcsin": cmath.asin,
    r"\arccos": cmath.acos,
    r"\arctan": cmath.atan,
    r"\sinh": cmath.sinh,
    r"\cosh": cmath.cosh,
    r"\tanh": cmath.tanh,
    r"\sin": cmath.sin,
    r"\cos": cmath.cos,
    r"\tan": cmath.tan,
    r"\cot": cot,
    r"\sec": sec,
    r"\csc": csc,
    r"\exp": cmath.exp,
}
# The base of a logarithm that is written without one.
LOGS = {r"\log": CONSTANTS["e"], r"\ln": CONSTANTS["e"], r"\lg": Fraction(10)}


# ---- reading -------------------------------------------------------------------------------------


def is_factor(token: str, previous: str) -> bool:
    r"""Whether a product goes on with `token` though no sign precedes it: 2x, 2(x+1), 2\pi, 3!4."""
    if token.isalpha() or token in ("(", "[", "{"):
        return True
    if token[0] == "\\":
        return not token.startswith(r"\r")  # \rfloor and \rceil close a bracket
    return token[0].isdecimal() and previous == "!"


def binding(token: str, previous: str) -> int:
    """How tightly `token` binds what is on its left; 0 if it ends the expression.

    A product without a sign binds tighter than one with a sign, unless the factor is a function:
    sin 2x is sin(2x), but sin 2 * x is (sin 2) x, and sin x cos x is (sin x)(cos x).
    """
    if token == "":
        return 0
    if token in LEVEL:
        return LEVEL[token]
    if not is_factor(token, previous):
        return 0
    if token in CALLS or token in LOGS:
        return PRODUCT
    return BESIDE


class Reader:
    """One reading of an expression at one point. The tokens are a stack with "" at its bottom."""

    def __init__(self, text: str, point: int, evaluator: "Evaluator"):
        self.tokens = ["", *reversed(TOKEN.findall(text))]
        self.point = point
        self.evaluator = evaluator
        self.depth = 0
        self.degree = ONE  # what 1° is worth: π/180 within a function
        self.free = False  # whether a free variable was met

    def value(self):
        """The value of the whole text."""
        value = self.read()
        if self.tokens != [""]:
            raise Unreadable
        return value

    def next_token(self) -> str:
        token = self.tokens.pop()
        if token == "":
            raise Unreadable
        return token

    def compute(self, sign: str, a, b):
        # With free variables only points where all is real count: √x is undefined at x < 0.
        return self.evaluator.checked(compute(sign, a, b, real=self.free))

    def read(self, level: int = 0):
        """The value of what comes next, as far as operators bind tighter than `level`.

        Of 2*x+1, read() takes all, read(SUM) takes 2*x and read(PRODUCT) takes 2.
        """
        if self.depth >= MAX_DEPTH:
            raise Unreadable
        self.depth += 1

        token = self.next_token()
        if token == "-":
            value = -self.read(BESIDE)
        elif token == "+":
            value = self.read(BESIDE)
        else:
            value = self.atom(token)

        previous = ""
        while binding(self.tokens[-1], previous) > level:
            previous = self.tokens[-1]
            sign = self.tokens.pop() if previous in LEVEL else "*"
            if sign in ("!", "!!"):
                value = self.evaluator.checked(factorial(value, step=len(sign)))
            elif sign == "^" and self.tokens[-1] == "{":
                value = self.compute(sign, value, self.argument())
            else:
                value = self.compute(sign, value, self.read(RIGHT[sign]))

        self.depth -= 1
        return value

    def argument(self):
        r"""A LaTeX argument: a group, or the next digit or atom, as in \frac12 or x^\pi."""
        token = self.next_token()
        if token.isdigit() and len(token) > 1:
            self.tokens.append(token[1:])
            token = token[0]
        self.tokens.append(token)
        return self.read(ATOM)

    def option(self, mark: str, otherwise):
        r"""The argument after `mark`, as in \log_2, \sin^2 or \sqrt[3], if there is one."""
        if self.tokens[-1] != mark:
            return otherwise
        if mark != "[":  # a bracket is a part of its argument
            self.tokens.pop()
        return self.argument()

    def operand(self, degree: Fraction = ONE):
        """What a function applies to: a bracket, or the product that follows, as in sin 2x."""
        self.degree = degree
        value = self.argument() if self.tokens[-1] in CLOSING else self.read(PRODUCT)
        self.degree = ONE
        return value

    def atom(self, token: str):
        """The value that begins with `token`: a number, a bracket, a command or a variable."""
        if token[0].isdecimal() or token[0] == ".":
            return self.number(token)
        if token in CLOSING:
            return self.bracket(token)
        if token == r"\frac":
            return self.compute("/", self.argument(), self.argument())
        if token == r"\binom":
            return self.binomial()
        if token == r"\sqrt":
            return self.root()
        if token in LOGS:
            return self.logarithm(token)
        if token in CALLS:
            return self.call(token)
        if token in CONSTANTS:
            return CONSTANTS[token]
        if token == r"\degree":
            return self.degree
        return self.variable(token)

    def number(self, token: str) -> Fraction:
        """A number; 204_5 is 54, written in base 5."""
        if self.tokens[-1] != "_":
            return self.evaluator.checked(Fraction(token))
        base = natural_number(self.option("_", None), 36)
        return Fraction(int(token, base))

    def bracket(self, opening: str):
        """A group, an absolute value, or what is rounded down or up."""
        value = self.read()
        if self.tokens.pop() != CLOSING[opening]:
            raise Unreadable
        if opening in ("(", "[", "{"):
            return value
        if opening != "|":
            return rounded(value, opening)
        if isinstance(value, complex):
            return complex(abs(value))
        return abs(value)

    def binomial(self) -> Fraction:
        n = natural_number(self.argument(), 10**12)
        k = natural_number(self.argument(), 10**12)
        if min(k, abs(n - k)) * n.bit_length() > MAX_BITS:
            raise Unreadable
        return self.evaluator.checked(Fraction(math.comb(n, k)))

    def root(self):
        exponent = self.compute("/", ONE, self.option("[", Fraction(2)))
        return self.compute("^", self.argument(), exponent)

    def logarithm(self, token: str):
        base = self.option("_", LOGS[token])
        x = self.operand()
        if x == 0:
            raise Undefined
        if self.free and not x.real > 0:
            raise Undefined
        return self.compute("/", natural_log(x), natural_log(base))

    def call(self, token: str):
        r"""A function's value: \sin 30°, \sin^2 x; \sin^{-1} is the inverse function."""
        power = self.option("^", ONE)
        if power == -1:
            token = r"\arc" + token[1:]
            power = ONE

        x = self.operand(degree=Fraction(math.pi) / 180)
        if token not in CALLS:
            raise Unreadable
        value = CALLS[token](x)
        if abs(value) > 1e-14:
            return self.compute("^", value, power)
        return self.compute("^", Fraction(0), power)  # sin π is 0

    def variable(self, token: str) -> Fraction:
        """A free variable: a letter, with or without an index as in x_1."""
        if not token.isalpha() and token not in GREEK:
            raise Unreadable
        name = token + str(self.option("_", ""))
        self.free = True
        return self.evaluator.checked(self.evaluator.variable(name, self.point))


# ---- values --------------------------------------------------------------------------------------


class Evaluator:
    """Values of expressions, with one budget of work for all that one comparison evaluates."""

    def __init__(self, seed: str):
        self.seed = ascii(seed)
        self.fuel = FUEL
        self.variables = {}  # (name, point) -> its value there
        self.evaluated = {}  # text -> its values

    def pay(self, units: int) -> None:
        """Take from the budget; refuse to go on when it is spent."""
        self.fuel -= units
        if self.fuel <= 0:
            raise Unreadable

    def checked(self, value):
        """Pay for an operation with this result; numbers too long or not finite are refused."""
        if not isinstance(value, Fraction):
            self.pay(1)
            if not cmath.isfinite(value):
                raise Unreadable
            return value

        bits = bit_length(value)
        self.pay(1 + (bits // 1024) ** 2)
        if bits > MAX_BITS:
            raise Unreadable
        return value

    def variable(self, name: str, point: int) -> Fraction:
        """A random small number, fixed by the variable's name, the point and the seed.

        x is a fraction, above 0 at two of the four points and below 0 at the others, where roots
        and logarithms of x drop out; n, k and m are positive integers at all of them.
        """
        key = (name, point)
        if key not in self.variables:
            draw = random.Random(f"{key}{self.seed}")
            sign = 1 if point < POINTS // 2 else -1
            value = Fraction(sign * draw.randint(5, 60), draw.randint(7, 13))
            if name in INTEGER_VARIABLES:
                value = Fraction(draw.randint(2, 13))
            if name == "n":  # n is above k and m, so that \binom{n}{k} is not 0
                value += 20
            self.variables[key] = value
        return self.variables[key]

    def values(self, text: str) -> list:
        """The expression at each of the four points, None where it is undefined.

        Without a free variable it is evaluated once: "1/3" gives the same Fraction four times.
        """
        results = self.evaluated.setdefault(text, [])
        while len(results) < POINTS:
            reader = Reader(text, point=len(results), evaluator=self)
            try:
                value = reader.value()
            except (Undefined, ZeroDivisionError, ValueError):
                value = None
            repeats = 1 if reader.free else POINTS
            results.extend([value] * repeats)
        return results
