r"""The reward of RLVR (App. I): find a response's final answer and decide whether it is right.

The answer is *extracted* from the response (answers/extraction.py), *normalised* to tokens in one
spelling (answers/latex.py), *parsed* into a tree (answers/parser.py), and *compared* with the gold
answer's tree (answers/comparison.py): structures such as lists, intervals and equations member by
member, expressions by value, at random points if they have free names.

Departures from the paper: it grades with math-verify (sympy), while nothing is solved symbolically
here, so no answer can hang the grader; and it adds a length penalty (`grpo.overlong_penalty`), off
by default here (--overlong-buffer).

Rules of comparison (more in docs/answers.md):
1. Rational values must be exactly equal; other values must agree to 150 digits.
2. A decimal of six or more significant digits equals an irrational number that rounds to it. A gold
   decimal counts as rounded only with six or more digits after the point: 15300.75 is exact.
3. An unreadable answer equals only the same tokens, an undefined one (0/0) nothing.
4. No text is executed; characters, tokens, depth, members, digits and operations are limited.
"""

from answers.comparison import earnable, is_equivalent
from answers.extraction import extract_answer

__all__ = ["earnable", "extract_answer", "is_equivalent", "reward"]


def reward(response: str, gold: str | float, truncated: bool = False) -> float:
    """1.0 if the response's final answer is equivalent to `gold`, else 0.0 (App. I).

    gold: text, or a number.
    truncated: whether the response was cut off. Then only an explicitly stated answer counts.
    """
    answer = extract_answer(response, truncated)
    if answer is None:
        return 0.0
    return float(is_equivalent(answer, gold))
