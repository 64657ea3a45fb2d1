"""Defines the toy's task: chains of operations on digits, and which tokens are decisive.

A problem and a response are plain text; `toy/__init__.py` shows one of each.
"""

import operator
import re

import numpy as np
import torch

from toy.tokenizer import VOCABULARY

OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul}  # each mod 10


def read(problem: str) -> tuple[int, list[tuple[str, int]]]:
    """The first digit of a problem and its k steps: `7*6+1=?` is 7 and [("*", 6), ("+", 1)]."""
    steps = re.findall(r"([-+*])(\d)", problem)
    return int(problem[0]), [(operation, int(digit)) for operation, digit in steps]


def chain(problem: str) -> list[int]:
    """A problem's k correct results, from left to right, mod 10; the last is the answer."""
    return work_on(*read(problem))


def work_on(current: int, steps: list[tuple[str, int]]) -> list[int]:
    """The steps' correct results, starting from the digit `current`."""
    results = []
    for operation, digit in steps:
        current = OPERATIONS[operation](current, digit) % 10
        results.append(current)
    return results


def problems(count: int, seed: int = 0, k: int = 5) -> list[dict[str, str]]:
    """`count` random problems with k operations, as {"problem": ..., "answer": ...}.

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


def is_right(problem: str, response: str) -> bool:
    """Whether the response's last box contains the problem's answer."""
    boxes = re.findall(r"\\boxed\{(\d+)", response)
    return bool(boxes) and boxes[-1] == str(chain(problem)[-1])


def decisive(problem: str, response_ids: torch.Tensor) -> torch.Tensor:
    """Which tokens decided the reward: bool [T] for the ids [T] of one response.

    In a right response every stated result is marked. In a wrong response one result is marked: the
    last one that made the answer unreachable by correct steps. Errors before the mark did no harm,
    because a later step, such as `*0`, undid them. Results after the mark only propagate the error.
    If the stated results give the answer but the box is wrong, the digit in the box is marked.
    """
    tokens = [VOCABULARY[i] for i in response_ids.tolist()]
    mark = torch.zeros(len(tokens), dtype=torch.bool)  # [T]
    mark[decisive_places(problem, tokens)] = True
    return mark


def decisive_places(problem: str, tokens: list[str]) -> list[int]:
    """The positions in `tokens` that `decisive` marks."""
    stated = digits_after("=", tokens)
    if is_right(problem, "".join(tokens)):
        return stated
    return fault(problem, tokens, stated)


def fault(problem: str, tokens: list[str], stated: list[int]) -> list[int]:
    """The position that `decisive` marks in a wrong response; empty if it marks no token.

    stated: the positions of the response's results.
    """
    _, steps = read(problem)
    answer = chain(problem)[-1]

    found = []
    for done, position in enumerate(stated[: len(steps)], start=1):
        result = int(tokens[position])
        leads_to = [result, *work_on(result, steps[done:])][-1]
        if leads_to == answer:
            found = []
        elif not found:
            found = [position]
    if found:
        return found

    boxed = digits_after("\\boxed{", tokens)[-1:]
    return [i for i in boxed if int(tokens[i]) != answer]


def digits_after(token: str, tokens: list[str]) -> list[int]:
    """The positions of the digits that directly follow a `token`."""
    return [i for i in range(1, len(tokens)) if tokens[i - 1] == token and tokens[i].isdigit()]
