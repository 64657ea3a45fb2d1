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

The tests call the function with the digits that `inputs` returns.
"""

import operator
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

NAMES = list("abc")  # of arguments
CONSTANTS = list("123456789")
ARITHMETIC = ["+", "-", "*", "//", "%"]
BOUNDS = ["min", "max"]
COMPARISONS = ["<", "<=", ">", ">=", "==", "!="]

STEPS = 3  # operations per function
EXAMPLES = 2  # per problem
TESTS = 24

OPERATIONS = {
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


# ---- functions -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Chain:
    """A function: `min(a + b, 3)` is a, then ("+", "b"), then ("min", "3")."""

    arguments: int  # two or three, named a, b, c
    start: str
    steps: tuple[tuple[str, str], ...]  # (operation, operand), which is a name or a constant


@cache
def inputs(arguments: int) -> list[list[int]]:
    """A function's test inputs: TESTS lists with one digit per argument."""
    return np.random.default_rng(arguments).integers(10, size=(TESTS, arguments)).tolist()


def value(chain: Chain, arguments: list[int]) -> int | bool:
    """The function's value, worked step by step."""
    known = dict(zip(NAMES, arguments, strict=False))
    current = known[chain.start]
    for operation, operand in chain.steps:
        number = known[operand] if operand in NAMES else int(operand)
        current = OPERATIONS[operation](current, number)
    return current


def results(chain: Chain) -> list[int | bool]:
    """The function's value for each of its test inputs."""
    return [value(chain, arguments) for arguments in inputs(chain.arguments)]


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
            lines.append(f"f({', '.join(map(str, values))}) = {value(chain, values)}")
        found.append({"problem": "\n".join(lines) + "\n", "tests": tests(chain)})
    return found


def describe(chain: Chain, rng: np.random.Generator) -> str:
    """The function in words: `f(a, b): take a, add b, at most 3`."""
    phrases = [f"take {chain.start}"]
    for name, operand in chain.steps:
        phrases.append(str(rng.choice(PHRASES[name])) + operand)
    return f"f({', '.join(NAMES[: chain.arguments])}): {', '.join(phrases)}"


def tests(chain: Chain) -> list[dict]:
    """Calls of the function with their expected values, as programs/verify_code.py reads them."""
    calls = zip(inputs(chain.arguments), results(chain), strict=True)
    return [{"function": "f", "args": values, "expected": wanted} for values, wanted in calls]
