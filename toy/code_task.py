"""The code toy: one-line functions and worked responses.

A problem describes a function of two or three arguments as a chain of operations, and gives two
examples. A response defines the function. In the definition the last operation can come first:

    problem   f(a, b, c): take a, add b, times 3, at most c
              f(2, 5, 9) = 9
              f(0, 1, 7) = 3
    response  ```python
              def f(a, b, c):
                  return min((a + b) * 3, c)
              ```

The tests call the function with the digits of `inputs`. No response is executed here.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

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
)

STEPS = 3  # operations per function
EXAMPLES = 2  # per problem
TESTS = 24


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


def function_of(chain: Chain) -> Callable:
    """The function, from its text: a definition of this file, never a model's program."""
    return eval(f"lambda {', '.join(NAMES[: chain.arguments])}: {''.join(expression(chain))}")


def results(chain: Chain) -> list[int | bool]:
    """The function's value for each of its test inputs."""
    function = function_of(chain)
    return [function(*values) for values in inputs(chain.arguments)]


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


# ---- problems ------------------------------------------------------------------------------------


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
            lines.append(f"f({', '.join(map(str, values))}) = {function_of(chain)(*values)}")
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
