r"""The reward of RLVR (App. I): answers/ finds the final answer and decides whether it is right.

The paper grades with math-verify (sympy). This grader solves nothing symbolically, so no answer can
hang it. The paper's run script also adds a length penalty below 0 (`grpo.overlong_penalty`), which
is off by default here (--overlong-buffer). docs/answers.md lists which answers are read and which
count as equal.
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
