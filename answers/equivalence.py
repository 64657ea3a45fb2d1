r"""Whether two answers are equal, each given as text, and whether a gold answer can be matched.

The rules stand in verify.py.
"""

import re

from .comparison import same_answer
from .latex import MAX_CHARS, normalise

# Commands that restate a question, unless they are an index (V_\max); and NaN.
QUESTION = re.compile(
    r"\\(?:sum|prod|i*o?int|lim)(?![a-zA-Z])|\b(?i:nan)\b"
    r"|(?<!_)(?<!_\{)\\(?:min|max)(?![a-zA-Z])"
)
# Next to one of these, "=" does not state a value: \lim f \neq 3 = 5.
DENIAL = re.compile(r"\\neq?(?![a-zA-Z])")


def is_equivalent(prediction: str, gold: str | float, seed: str = "") -> bool:
    """Whether two answers are equal by the rules of verify.py. Never raises.

    gold: text, or a number.
    seed: together with both answers, determines the points at which names are evaluated.
    """
    gold = str(gold)
    if max(len(prediction), len(gold)) > MAX_CHARS:
        return False
    prediction = without_question(prediction)
    if QUESTION.search(prediction):
        return False
    return same_answer(normalise(prediction), normalise(without_question(gold)), seed)


def without_question(answer: str) -> str:
    r"""Returns v for an answer of the form \int ... = v, and any other answer unchanged."""
    question, _, value = answer.rpartition("=")
    is_stated = QUESTION.search(question) and not DENIAL.search(question)
    is_whole = value.count("{") == value.count("}") and not QUESTION.search(value)
    return value if is_stated and is_whole else answer


def earnable(gold: str | float) -> bool:
    """Whether any answer can earn the reward for `gold`: not if `gold` restates a question."""
    return is_equivalent(str(gold), gold)
