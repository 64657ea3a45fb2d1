"""The reward of RLVR: find the final answer in a response and compare it with the gold answer, by regex and numerics.

The paper's reward is binary (App. I): 1 if the final answer is right, else 0. Its released code also shapes overlong
responses; that is `overlong_penalty`, kept apart so that the reward stays binary unless asked otherwise.
"""
import re
from fractions import Fraction

NUMBER = re.compile(r"[-+]?\d[\d,]{0,300}(?:\.\d{1,300})?(?:/\d{1,300})?")


def extract_answer(response: str) -> str | None:
    """The content of the last \\boxed{} with balanced braces, else the last number of the text, else None."""
    start = response.rfind("\\boxed{")
    while start != -1:
        depth = 0
        for i in range(start + len("\\boxed"), len(response)):
            depth += (response[i] == "{") - (response[i] == "}")
            if depth == 0:
                return response[start + len("\\boxed{"):i].strip()
        start = response.rfind("\\boxed{", 0, start)  # this one never closes: take the box before it
    numbers = NUMBER.findall(response)
    return numbers[-1] if numbers else None


def normalise(answer: str) -> str:
    """Strip what does not change the value: dollar signs, spaces, a final full stop, thousands separators."""
    answer = re.sub(r"\s|\$|\\[,!;]", "", answer).rstrip(".")
    answer = re.sub(r"\\[dt]?frac\{([^{}]{1,300})\}\{([^{}]{1,300})\}", r"\1/\2", answer)
    return re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", answer)


def is_equivalent(prediction: str, gold: str) -> bool:
    """Whether two answers are equal: as exact fractions where both are numbers, else as normalised strings."""
    a, b = normalise(prediction), normalise(gold)
    try:
        return Fraction(a) == Fraction(b)
    except (ValueError, ZeroDivisionError):  # not both numbers
        return a != "" and a == b


def reward(response: str, gold: str) -> float:
    """1.0 if the response's final answer is equivalent to `gold`, else 0.0 (App. I)."""
    answer = extract_answer(response)
    return float(answer is not None and is_equivalent(answer, gold))


def overlong_penalty(length: int, max_length: int, buffer: int = 4096) -> float:
    """DAPO's soft length penalty: 0 up to `buffer` tokens before `max_length`, then linearly down to -1 at it.

    The paper's text has a binary reward; its run script adds this penalty. Lengths in tokens.
    """
    return min(0.0, -(length - (max_length - buffer)) / buffer) if buffer > 0 else 0.0
