r"""The reward of RLVR (App. I): find the final answer of a response, and decide if it is right.

The answer is *extracted* (answers/extraction.py), *normalised* to one spelling (answers/latex.py),
and *compared* with the gold answer (answers/comparison.py): structures (lists, intervals,
equations ...) member by member, expressions by their values, which are taken at random points
where there are free variables.

Departures from the paper:
1. It grades with math-verify (sympy). Here nothing is solved or simplified symbolically, so no
   answer can hang the grader; RESULTS.md has both on the same labelled answers.
2. The paper's run script adds a length penalty to the reward: `grpo.overlong_penalty`, off here
   by default (--overlong-buffer).

Rules of the comparison; what was given up for them is in answers/README.md:
1. Rational values agree exactly, others to 77 significant digits.
2. A decimal stands for an irrational (never a rational) number from six significant digits on,
   if it is rounded right: 3.14159 for \pi, but not 0.333333 for 1/3. A gold
   decimal does from six digits behind the point on: 15300.75 is exact.
3. What cannot be read agrees with the same text only. What is undefined (0/0), or restates a
   question (\sum, \int, \lim, \max), agrees with nothing.
4. Nothing of a text is executed; length, tokens, depth, members, digits and operations are bounded.
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

    truncated: whether a limit cut the response off. Then it has an answer only if it stated one.
    """
    answer = extract_answer(response, truncated)
    if answer is None:
        return 0.0
    return float(is_equivalent(answer, gold))


# What restates a question. An index may be \max.
QUESTION = re.compile(
    r"\\(?:sum|prod|i*o?int|lim|limsup|liminf)(?![a-zA-Z])"
    r"|(?<!_)(?<!_\{)\\(?:min|max|sup|inf)(?![a-zA-Z])"
)
# Beside one of these, "=" states nothing: \lim f \neq 3 = 5.
DENYING = re.compile(r"\\(?:not|neq?|approx|sim|text\w*|mathrm|mbox)(?![a-zA-Z])")
# What hides a part of itself, or is not a number.
NEVER_RIGHT = re.compile(
    r"\\(?:phantom|[hv]phantom|(?:text)?color(?:box)?|def)(?![a-zA-Z])|(?i:\bnan\b)"
)


def is_equivalent(prediction: str, gold: str, seed: str = "") -> bool:
    """Whether two answers are the same, by the rules above. Never raises.

    seed: of the points at which free variables are evaluated, beside the texts themselves.
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

    # An answer may have two readings: 1,234 is a number, and also the list 1, 234.
    judge = Judge([p, g], seed)
    was_read = False
    g, ways = written_alike(p, g)
    p_readings = [reading for way in ways for reading in readings(way)]
    for p_reading, g_reading in itertools.product(p_readings, readings(g)):
        try:
            if judge.same(p_reading, g_reading):
                return True
            was_read = True
        except Unreadable:
            continue

    # Rule 3: the texts decide only where no pair of readings could be compared.
    return not was_read and spelled(ways[0]) == spelled(g)


def without_question(answer: str) -> str:
    r"""v of \int ... = v, which states v; any other answer as it is."""
    if not QUESTION.search(answer):
        return answer
    *sides, last = split(answer, "=")[::2] or [answer]
    is_stated = sides and not QUESTION.search(last) and not DENYING.search("".join(sides))
    return last if is_stated else answer


def earnable(gold: str) -> bool:
    """Whether some answer earns the reward for `gold`. One that restates a question has none."""
    return is_equivalent(gold, gold)


BRACED_TOKEN = re.compile(r"\{\s?(\w|\\[a-zA-Z]{1,20})\s?\}")


def spelled(text: str) -> list[str]:
    r"""Its tokens, without braces around a single one: \pmod{4} is \pmod 4."""
    return TOKEN.findall(BRACED_TOKEN.sub(r" \1 ", text))
