r"""The reward of RLVR (App. I): find a response's final answer and decide whether it is right.

The answer is *extracted* (answers/extraction.py), *normalised* to one spelling (answers/latex.py),
and *compared* with the gold answer (answers/comparison.py): structures (lists, intervals,
equations ...) member by member, expressions by value, at random points if they have free variables.

Departures from the paper:
1. The paper grades with math-verify (sympy). Here nothing is solved or simplified symbolically, so
   no answer can hang the grader; docs/results/grading.md compares the two graders.
2. The paper's run script adds a length penalty to the reward: `grpo.overlong_penalty`, off by
   default here (--overlong-buffer).

Comparison rules (answers/README.md lists the known losses):
1. Rational values must be exactly equal. Other values must agree to 77 significant digits.
2. A decimal with six or more significant digits equals an irrational (never a rational) number
   that rounds to it: 3.14159 is \pi, but 0.333333 is not 1/3. A gold decimal counts as
   rounded only with six digits after the point: 15300.75 is exact.
3. An unreadable answer equals only identical text. An answer that is undefined (0/0) or restates a
   question (\sum, \int, \lim, \max) equals nothing.
4. No text is executed; length, tokens, depth, members, digits and operations are limited.
"""

import itertools
import re

from answers.comparison import Judge
from answers.errors import Unreadable
from answers.extraction import MAX_CHARS, extract_answer
from answers.latex import normalise
from answers.names import TOKEN
from answers.renaming import written_alike
from answers.structure import readings, split


def reward(response: str, gold: str, truncated: bool = False) -> float:
    """1.0 if the response's final answer is equivalent to `gold`, else 0.0 (App. I).

    truncated: whether the response was cut off. Then only an explicitly stated answer counts.
    """
    answer = extract_answer(response, truncated)
    if answer is None:
        return 0.0
    return float(is_equivalent(answer, gold))


# Commands that restate a question. An index may be \max.
QUESTION = re.compile(
    r"\\(?:sum|prod|i*o?int|lim|limsup|liminf)(?![a-zA-Z])"
    r"|(?<!_)(?<!_\{)\\(?:min|max|sup|inf)(?![a-zA-Z])"
)
# Next to one of these, "=" does not state a value: \lim f \neq 3 = 5.
DENYING = re.compile(r"\\(?:not|neq?|approx|sim|text\w*|mathrm|mbox)(?![a-zA-Z])")
# Commands that hide text, and NaN.
NEVER_RIGHT = re.compile(
    r"\\(?:phantom|[hv]phantom|(?:text)?color(?:box)?|def)(?![a-zA-Z])|(?i:\bnan\b)"
)


def is_equivalent(prediction: str, gold: str, seed: str = "") -> bool:
    """Whether two answers are equal by the rules above. Never raises.

    seed: together with both texts, determines the points at which free variables are evaluated.
    """
    if max(len(prediction), len(gold)) > MAX_CHARS:
        return False
    prediction = without_question(prediction)
    if NEVER_RIGHT.search(prediction) or QUESTION.search(prediction):
        return False

    p = normalise(prediction)
    g = normalise(without_question(gold))
    if not p or not g:
        return False

    # An answer may have two readings: 1,234 is a number or the list 1, 234.
    judge = Judge([p, g], seed)
    was_read = False
    # x+C is x+c. π/4 + kπ and π/4 - mπ are one family: both integers become n in p and g, and p
    # is also tried with -n, n+1, ... ways[0] is p, only renamed.
    g, ways = written_alike(p, g)
    p_readings = [reading for way in ways for reading in readings(way)]
    for p_reading, g_reading in itertools.product(p_readings, readings(g)):
        try:
            if judge.same(p_reading, g_reading):
                return True
            was_read = True
        except Unreadable:
            continue

    # Rule 3: the texts decide only if no pair of readings could be compared.
    return not was_read and spelled(ways[0]) == spelled(g)


def without_question(answer: str) -> str:
    r"""Returns v for an answer of the form \int ... = v, and any other answer unchanged."""
    if not QUESTION.search(answer):
        return answer
    pieces = split(answer, "=")  # [piece, "=", piece, ...], or [] if brackets do not match
    *sides, last = pieces[::2] or [answer]
    is_stated = sides and not QUESTION.search(last) and not DENYING.search("".join(sides))
    return last if is_stated else answer


def earnable(gold: str) -> bool:
    """Whether any answer can earn the reward for `gold`: not if `gold` restates a question."""
    return is_equivalent(gold, gold)


BRACED_TOKEN = re.compile(r"\{\s?(\w|\\[a-zA-Z]{1,20})\s?\}")


def spelled(text: str) -> list[str]:
    r"""The tokens of `text`, without braces around a single token: \pmod{4} is \pmod 4."""
    return TOKEN.findall(BRACED_TOKEN.sub(r" \1 ", text))
