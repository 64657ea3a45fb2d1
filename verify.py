r"""The reward of RLVR (App. I): answers/ finds the final answer and decides whether it is right.

Departures from the paper: it grades with math-verify (sympy), while nothing is solved symbolically
here, so no answer can hang the grader; and its run script adds a length penalty
(`grpo.overlong_penalty`), off by default here (--overlong-buffer). docs/answers.md says what is
read and what is equal.
"""

from answers.comparison import earnable, is_equivalent
from answers.extraction import extract_answer

__all__ = ["earnable", "extract_answer", "is_equivalent", "reward"]


def reward(response: str, gold: str | float, truncated: bool = False) -> float:
    """1.0 if the response's final answer is equivalent to `gold`, else 0.0 (App. I).

    truncated: whether the response was cut off. Then only an explicitly stated answer counts.
    """
    answer = extract_answer(response, truncated)
    return float(answer is not None and is_equivalent(answer, gold))
