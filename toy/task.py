"""The task: chains of operations on digits, worked responses to them, and which tokens decided.

A problem and a response are plain text; `toy/__init__.py` shows one of each.
"""

import re

import numpy as np
import torch

from toy.tokenizer import CONNECTIVES, VOCABULARY


def plus(a: int, b: int) -> int:
    return (a + b) % 10


def minus(a: int, b: int) -> int:
    return (a - b) % 10


def times(a: int, b: int) -> int:
    return (a * b) % 10


OPERATIONS = {"+": plus, "-": minus, "*": times}


def read(problem: str) -> tuple[int, list[tuple[str, int]]]:
    """The first digit of a problem and its k steps: `7*6+1=?` is 7 and [("*", 6), ("+", 1)]."""
    steps = re.findall(r"([-+*])(\d)", problem)

    return int(problem[0]), [(operation, int(digit)) for operation, digit in steps]


def chain(problem: str) -> list[int]:
    """The k correct results of a problem, from left to right, mod 10; the last is the answer."""
    current, steps = read(problem)

    results = []
    for operation, digit in steps:
        current = OPERATIONS[operation](current, digit)
        results.append(current)

    return results


def problems(count: int, seed: int = 0, k: int = 5) -> list[dict[str, str]]:
    """`count` random problems of k operations, as {"problem": ..., "answer": ...}.

    The same arguments give the same list on every machine.
    """
    rng = np.random.default_rng([seed, k])
    digits = rng.integers(10, size=(count, k + 1))
    operations = rng.choice(list(OPERATIONS), size=(count, k))

    found = []
    for i in range(count):
        steps = [f"{operations[i, j]}{digits[i, j + 1]}" for j in range(k)]
        problem = f"{digits[i, 0]}{''.join(steps)}=?"
        found.append({"problem": problem, "answer": str(chain(problem)[-1])})

    return found


def demonstration(
    problem: str, rng: np.random.Generator, noise: float = 0.0, filler: int = 1
) -> str:
    """A worked response to `problem`.

    noise   the probability with which a result is replaced by a uniform digit, from which the
            chain then goes on (one time in ten that digit is the right one)
    filler  how many connectives, drawn at random, open each step
    """
    current, steps = read(problem)
    words = rng.integers(len(CONNECTIVES), size=(len(steps), filler))
    slips = rng.random(len(steps)) < noise
    uniform = rng.integers(10, size=len(steps))

    lines = []
    for i, (operation, digit) in enumerate(steps):
        result = int(uniform[i]) if slips[i] else OPERATIONS[operation](current, digit)
        opening = "".join(CONNECTIVES[word] for word in words[i])
        lines.append(f"{opening}{current}{operation}{digit}={result}\n")
        current = result

    return "".join(lines) + f"answer \\boxed{{{current}}}"


def is_right(problem: str, response: str) -> bool:
    """Whether the last box of the response holds the problem's answer."""
    boxes = re.findall(r"\\boxed\{(\d+)", response)

    return bool(boxes) and boxes[-1] == str(chain(problem)[-1])


def decisive(problem: str, response_ids: torch.Tensor) -> torch.Tensor:
    """Which tokens decided the reward: bool [T] for the ids [T] of one response.

    In a right response they are the digits that it states as results. In a wrong one it is the
    first wrong result alone: the right results before it did no harm, and those after it only
    carry the error on. Where every stated result is right but the box is not, it is the digit in
    the box.
    """
    tokens = [VOCABULARY[i] for i in response_ids.tolist()]
    truth = chain(problem)
    stated = digits_after("=", tokens)
    boxed = digits_after("\\boxed{", tokens)[-1:]

    if is_right(problem, "".join(tokens)):
        decided = stated
    else:
        expected = list(zip(stated, truth, strict=False))  # as many as there are of both
        expected += [(i, truth[-1]) for i in boxed]
        wrong = [i for i, result in expected if int(tokens[i]) != result]
        decided = wrong[:1]

    mark = torch.zeros(len(tokens), dtype=torch.bool)  # [T]
    mark[decided] = True

    return mark


def digits_after(token: str, tokens: list[str]) -> list[int]:
    """The positions of the digits that stand right after a `token`."""
    return [i for i in range(1, len(tokens)) if tokens[i - 1] == token and tokens[i].isdigit()]
