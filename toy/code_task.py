"""The code toy: one-line functions, worked responses, and the tokens that decide the reward.

A problem describes a function of two or three arguments as a chain of operations, and gives two
examples. A response opens with connectives, which carry no information, and then defines the
function. In the definition the last operation can come first:

    problem   f(a, b, c): take a, add b, times 3, at most c
              f(2, 5, 9) = 9
              f(0, 1, 7) = 3
    response  So Now
              ```python
              def f(a, b, c):
                  return min((a + b) * 3, c)
              ```

The tests call the function with the digits of `inputs`. No program is executed here: `evaluate`
computes the operations of this task from the syntax tree.
"""

import ast
import operator
import re
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch

from toy.code_tokenizer import (
    ARITHMETIC,
    BOUNDS,
    CLOSING,
    COMPARISONS,
    CONSTANTS,
    HEAD,
    NAMES,
    OPENING,
    RETURN,
    SPECIAL,
    VOCABULARY,
)
from toy.task import check_regime
from toy.tokenizer import CONNECTIVES

STEPS = 3  # operations per function
FILLER = 2  # connectives that open a response
EXAMPLES = 2  # per problem
TESTS = 24

REGIMES = ("learn", "sharpen")
MISTAKE = 0.7  # in the regime `learn`, the probability of `min` for `max` and vice versa

FUNCTIONS = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "min": min,
    "max": max,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
PHRASES = {  # two phrases for each operation, which problems use
    "+": ("add ", "plus "),
    "-": ("subtract ", "minus "),
    "*": ("times ", "multiply by "),
    "//": ("divide by ", "over "),
    "%": ("modulo ", "remainder by "),
    "min": ("at most ", "cap at "),
    "max": ("at least ", "raise to "),
    "<": ("is it below ", "is it less than "),
    "<=": ("is it at most ", "is it not above "),
    ">": ("is it above ", "is it more than "),
    ">=": ("is it at least ", "is it not below "),
    "==": ("is it equal to ", "is it "),
    "!=": ("is it not equal to ", "is it not "),
}
OPERATION = {phrase: name for name, phrases in PHRASES.items() for phrase in phrases}


# ---- functions -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Chain:
    """A function: `min(a + b, 3)` is a, then ("+", "b"), then ("min", "3")."""

    arguments: int  # two or three, named a, b, c
    start: str
    steps: tuple[tuple[str, str], ...]  # operation and operand: a name or a constant


@cache
def inputs(arguments: int) -> list[list[int]]:
    """A function's test inputs: TESTS lists with one digit per argument."""
    return np.random.default_rng(arguments).integers(10, size=(TESTS, arguments)).tolist()


def result(chain: Chain, values: list[int]) -> int | bool:
    """The function's value at these arguments."""
    current = value_of(chain.start, values)
    for operation, operand in chain.steps:
        current = FUNCTIONS[operation](current, value_of(operand, values))
    return current


def value_of(operand: str, values: list[int]) -> int:
    if operand in NAMES:
        return values[NAMES.index(operand)]
    return int(operand)


def results(chain: Chain) -> list[int | bool]:
    """The function's value for each of its test inputs."""
    return [result(chain, values) for values in inputs(chain.arguments)]


def program(chain: Chain) -> list[str]:
    """The function's definition in a fenced block, as tokens."""
    names = ", ".join(NAMES[: chain.arguments])
    return [OPENING, HEAD, *re.findall(r"\w|, ", names), RETURN, *expression(chain), CLOSING]


def expression(chain: Chain) -> list[str]:
    """The function in Python, such as `min((a + b) * 3, c)`, as tokens."""
    tokens = [chain.start]
    is_infix = False
    for operation, operand in chain.steps:
        if operation in BOUNDS:
            tokens = [f"{operation}(", *tokens, ", ", operand, ")"]
            is_infix = False
            continue
        if is_infix:
            tokens = ["(", *tokens, ")"]
        tokens = [*tokens, f" {operation} ", operand]
        is_infix = True
    return tokens


def draw(rng: np.random.Generator) -> Chain:
    """A random function that uses all its arguments and has no step without effect."""
    while True:
        chain = draw_any(rng)
        if is_sound(chain):
            return chain


def draw_any(rng: np.random.Generator) -> Chain:
    """STEPS random operations on two or three arguments. One chain in four ends in a comparison."""
    arguments = int(rng.integers(2, 4))
    operations = rng.choice(ARITHMETIC + BOUNDS, size=STEPS).tolist()
    if rng.random() < 0.25:
        operations[-1] = str(rng.choice(COMPARISONS))

    names = rng.choice(NAMES[:arguments], size=STEPS + 1).tolist()
    constants = rng.choice(CONSTANTS[1:], size=STEPS).tolist()  # 1 would often have no effect
    prefers_name = rng.random(STEPS) < 0.5
    steps = []
    for i, operation in enumerate(operations):
        by_name = prefers_name[i] and operation not in ("//", "%")  # an argument may be 0
        steps.append((operation, names[i] if by_name else constants[i]))
    return Chain(arguments, names[-1], tuple(steps))


def is_sound(chain: Chain) -> bool:
    """Whether all arguments occur and the tests detect any omitted step."""
    operands = {chain.start, *(operand for _, operand in chain.steps)}
    if not operands.issuperset(NAMES[: chain.arguments]):
        return False

    expected = results(chain)
    for i in range(len(chain.steps)):
        without = replace(chain, steps=chain.steps[:i] + chain.steps[i + 1 :])
        if results(without) == expected:
            return False
    return len(set(expected)) > 1


# ---- problems and demonstrations -----------------------------------------------------------------


def problems(count: int, seed: int = 0) -> list[dict]:
    """`count` random problems, as {"problem": ..., "tests": ...}.

    The same arguments give the same list on every machine.
    """
    rng = np.random.default_rng([seed, STEPS])

    found = []
    for _ in range(count):
        chain = draw(rng)
        lines = [describe(chain, rng)]
        for values in rng.integers(10, size=(EXAMPLES, chain.arguments)).tolist():
            lines.append(f"f({', '.join(map(str, values))}) = {result(chain, values)}")
        found.append({"problem": "\n".join(lines) + "\n", "tests": tests(chain)})
    return found


def describe(chain: Chain, rng: np.random.Generator) -> str:
    """The function in words: `f(a, b): take a, add b, at most 3`."""
    phrases = [f"take {chain.start}"]
    for name, operand in chain.steps:
        phrases.append(str(rng.choice(PHRASES[name])) + operand)
    return f"f({', '.join(NAMES[: chain.arguments])}): {', '.join(phrases)}"


def read(problem: str) -> Chain:
    """The function that a problem describes."""
    names, description = re.match(r"f\((.*?)\): take (.*)", problem).groups()
    start, *phrases = description.split(", ")
    steps = tuple((OPERATION[phrase[:-1]], phrase[-1]) for phrase in phrases)
    return Chain(len(names.split(", ")), start, steps)


def tests(chain: Chain) -> list[dict]:
    """Calls of the function with their expected values, as programs/verify_code.py reads them."""
    calls = zip(inputs(chain.arguments), results(chain), strict=True)
    return [{"function": "f", "args": values, "expected": wanted} for values, wanted in calls]


def demonstration(
    problem: str,
    rng: np.random.Generator,
    noise: float = 0.0,
    filler: int = FILLER,
    regime: str = "sharpen",
) -> str:
    """A response to `problem`.

    noise   probability that an operator, a name or a constant is replaced by a random one of the
            same kind (sometimes by itself)
    filler  number of random connectives that open the response
    regime  `sharpen`: there are no other errors, so the most likely token is right. `learn`: `min`
            and `max` do not slip; each is replaced by the other with probability MISTAKE, so the
            more likely choice is wrong

    Raises ValueError for an unknown regime.
    """
    check_regime(regime, REGIMES)
    chain = read(problem)
    steps = []
    for operation, operand in chain.steps:
        if regime == "learn" and operation in BOUNDS:
            written = mistake(operation, rng)
        else:
            written = slip(operation, chain, rng, noise)
        steps.append((written, slip(operand, chain, rng, noise)))
    chain = replace(chain, start=slip(chain.start, chain, rng, noise), steps=tuple(steps))

    words = rng.integers(len(CONNECTIVES), size=filler)
    return "".join([CONNECTIVES[word] for word in words] + program(chain))


def slip(token: str, chain: Chain, rng: np.random.Generator, noise: float) -> str:
    """The token, or with probability `noise` a random one of its kind."""
    kinds = (ARITHMETIC, BOUNDS, COMPARISONS, NAMES[: chain.arguments], CONSTANTS)
    if rng.random() >= noise:
        return token
    kind = next(kind for kind in kinds if token in kind)
    return str(rng.choice(kind))


def mistake(bound: str, rng: np.random.Generator) -> str:
    """The other of `min` and `max` with probability MISTAKE."""
    if rng.random() >= MISTAKE:
        return bound
    return BOUNDS[1 - BOUNDS.index(bound)]


# ---- decisive tokens -----------------------------------------------------------------------------

CHOICES = {f" {name} " for name in ARITHMETIC + COMPARISONS}
CHOICES |= {f"{name}(" for name in BOUNDS} | {*NAMES, *CONSTANTS}

SYMBOLS = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
}


def is_right(problem: str, response: str) -> bool:
    """Whether the program in the last fenced block returns the values that the tests expect.

    The expression may contain the problem's arguments, numbers, and FUNCTIONS of two operands. Any
    other program counts as wrong.
    """
    chain = read(problem)
    blocks = re.findall(r"```python\n(.*?)\n``` *(?:\n|$)", response, re.DOTALL)
    function = re.fullmatch(r"def f\((.*)\):\n    return (.*)", blocks[-1]) if blocks else None
    if not function:
        return False

    names = NAMES[: chain.arguments]
    if function[1] != ", ".join(names):
        return False

    given = []
    try:
        body = ast.parse(function[2], mode="eval").body
        for values in inputs(chain.arguments):
            given.append(evaluate(body, dict(zip(names, values, strict=True))))
    except (SyntaxError, ValueError, KeyError, ZeroDivisionError):
        return False

    return given == results(chain)  # 1 == True, as programs/ compares them


def evaluate(node: ast.expr, values: dict[str, int]) -> int | bool:
    """The value of an expression. Raises ValueError if the expression contains an unknown node."""
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.Name(id=name):
            return values[name]
        case ast.BinOp(left=left, op=symbol, right=right):
            pass
        case ast.Compare(left=left, ops=[symbol], comparators=[right]):
            pass
        case ast.Call(func=ast.Name(id="min" | "max" as symbol), args=[left, right]):
            pass
        case _:
            raise ValueError(ast.dump(node))
    operation = symbol if isinstance(symbol, str) else SYMBOLS[type(symbol)]
    return FUNCTIONS[operation](evaluate(left, values), evaluate(right, values))


def decisive(problem: str, response_ids: torch.Tensor) -> torch.Tensor:
    """Which tokens decided the reward: bool [T] for the ids [T] of one response.

    In a right response the operators, names and constants of the expression are marked. In a wrong
    response the first token that differs from the problem's own program is marked. No token is
    marked in a response without a program, or in one that was cut off before its first error.
    """
    tokens = [VOCABULARY[i] for i in response_ids.tolist()]
    mark = torch.zeros(len(tokens), dtype=torch.bool)  # [T]
    if OPENING not in tokens:
        return mark

    start = tokens.index(OPENING)
    text = "".join(token for token in tokens if token not in SPECIAL)
    if is_right(problem, text):
        body = len(tokens) - 1 - tokens[::-1].index(RETURN)  # the last one
        decided = [i for i in range(body, len(tokens)) if tokens[i] in CHOICES]
    else:
        expected = [*program(read(problem)), "<eos>"]
        pairs = enumerate(zip(tokens[start:], expected, strict=False), start)
        decided = [i for i, (token, wanted) in pairs if token != wanted][:1]
    mark[decided] = True
    return mark
