"""Grades responses as 1.0 or 0.0: with verify.py, with programs/, or by multiple-choice letter.

`grade` takes one response to a problem without tests, `grade_all` a list. `grade_on_ranks` splits a
list over the ranks: each response is graded once, and all ranks get the grades.
"""

import math
import re
from collections.abc import Callable

from answers.extraction import TAIL, boxes, without_thoughts
from batch import Rollout
from infra.errors import UserError
from infra.ranks import is_first_rank, shared_by_ranks
from programs import ProgramsError, verify_code
from verify import earnable, reward


def grade(response: str, problem: dict, truncated: bool = False) -> float:
    """1.0 if the response solves the problem, else 0.0. Multiple choice is graded by letter.

    truncated: whether the response was cut off at its limit (see verify.reward). A letter has to be
        stated in any case.
    """
    if problem.get("choice"):
        return float(choice(response) == problem["answer"])
    return reward(response, problem["answer"], truncated)


def grade_all(responses: list[str], problems: list[dict], truncated: list[bool]) -> list[float]:
    """1.0 or 0.0 for each response: by the problem's tests if it has any, else by `grade`."""
    result = [0.0] * len(responses)
    programs = []
    for i, (response, problem) in enumerate(zip(responses, problems, strict=True)):
        if problem.get("tests"):
            programs.append(i)
        else:
            result[i] = grade(response, problem, truncated[i])

    if programs:
        texts = [responses[i] for i in programs]
        tests = [problems[i]["tests"] for i in programs]
        try:
            values = verify_code.rewards(texts, tests)
        except ProgramsError as error:
            raise UserError(error) from error
        for i, value in zip(programs, values, strict=True):
            result[i] = value
    return result


def grade_on_ranks(
    responses: list[str],
    problems: list[dict],
    truncated: list[bool],
    grader: Callable[..., list[float]] = grade_all,
) -> list[float]:
    """grader(responses, problems, truncated), with the work split over the ranks.

    All ranks get all grades. Raises UserError unless the grader returns one finite number for each
    response.
    """

    def of_share(share: list[tuple]) -> list[float]:
        columns = [list(column) for column in zip(*share, strict=True)] or [[], [], []]
        rewards = [float(value) for value in grader(*columns)]
        if len(rewards) != len(share) or not all(map(math.isfinite, rewards)):
            raise UserError(f"{grader.__name__} must return one finite number for each response")
        return rewards

    return shared_by_ranks(list(zip(responses, problems, truncated, strict=True)), of_share)


def add_rewards(
    rollouts: list[Rollout], problems: list[dict], grader: Callable[..., list[float]] = grade_all
) -> list[Rollout]:
    """The rollouts with their problems and rewards. All ranks call this. Raises UserError."""
    texts = [response.text for response in rollouts]
    truncated = [response.truncated for response in rollouts]
    rewards = grade_on_ranks(texts, problems, truncated, grader)
    return [
        response._replace(problem=problem, reward=reward)
        for response, problem, reward in zip(rollouts, problems, rewards, strict=True)
    ]


def report_unearnable(problems: list[dict], where: str) -> None:
    """Print how many gold answers no response can match, and the first one with its problem.

    Ranks share the work, and the first one prints. All ranks call this. Raises UserError, which
    names `where`, if most are like that.
    """
    # Others are graded by their tests or their letter.
    graded = [x for x in problems if not x.get("tests") and not x.get("choice")]
    golds = sorted({problem["answer"] for problem in graded})

    def troubles(share: list[str]) -> list[str]:
        return [trouble_with(gold) for gold in share]

    trouble = dict(zip(golds, shared_by_ranks(golds, troubles), strict=True))
    unearnable = [problem for problem in graded if trouble[problem["answer"]]]
    if not unearnable:
        return
    first = unearnable[0]
    message = (
        f"{where}: {len(unearnable)} of {len(graded)} gold answers can never be matched; the first "
        f"{trouble[first['answer']]}: {first['answer'][:80]!r}, for {first['problem'][:80]!r}"
    )
    if 2 * len(unearnable) > len(graded):
        remedy = 'name another --answer-column, or end the answers with "#### x" or \\boxed{x}'
        raise UserError(f"{message}: {remedy}")
    if is_first_rank():
        print(f"{message}: drop these problems, or replace the answers with values", flush=True)


WORD = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{2,}")
MOST_WORDS = 8  # the golds of tests/answers have at most 3
NEXT_SENTENCE = re.compile(r"(?<![A-Z][a-z])[.!?]\s+[A-Z\d$\\]")  # not "St. Louis"


def trouble_with(gold: str) -> str:
    """Why no short answer can equal a gold answer; empty if one can."""
    if not earnable(gold):
        return "restates a question or is too long"
    if NEXT_SENTENCE.search(gold) or len(WORD.findall(gold)) > MOST_WORDS:
        return "is a text of several sentences or many words"
    if re.match(r"\[\s*['\"]", gold):
        return "is a list of texts"
    return ""


# ---- multiple choice -----------------------------------------------------------------------------

# A letter with what may enclose it, but no formula, no "A or B" and no beginning of a sentence.
LETTER = (
    r"(?:[\s*_$({\[\"]|\\(?:text|math)[a-z]{0,6}\b|\\boxed\b){0,9}([A-J])(?![\w'’-])"
    r"(?!\s*(?:[=+/^]|,?\s?(?:or|and|\\text\{\s?(?:or|and))\b|,\s?[A-J]\b))"
    r"(?!(?<=[AI])\s+(?!because|since|as\b)[a-z])"
)
IN_BOX = re.compile(
    rf"(?i:option|choice)?{LETTER}(?:[\s$*]*[)}}\]]+[.,:]?(?!\s*[=+/^_\\-])|[.,:]|[\s$*.]*$)"
)
IS = (
    r"(?i:\b(?:is|be)\b|(?<=answer)['’]s|[:=>])"
    r"(?i:\s+(?:the|option|choice|letter|therefore|thus|indeed|most|\w+ly)\b){0,3}:?"
)
STATED_LETTERS = (  # "The answer must be (A)"; "A is the correct answer"; "I choose A"; "option A"
    re.compile(
        rf"(?i:answer|choice|option|letter)\b(?:(?!not\b|n't|options|choices)[^.\n:=>]){{0,40}}?"
        rf"{IS}{LETTER}"
    ),
    re.compile(
        rf"{LETTER}[\s*)}}\]$]*(?:is|must be) (?:(?!not)\w+ ){{0,2}}?(?:correct|right|best|answer)"
    ),
    re.compile(
        r"(?i:\b(?:choose|pick|select|with|think|say|must be|so|thus|hence|leaves|it is)\b|it['’]s)"
        rf",?{LETTER}"
    ),
    re.compile(rf"(?i:answer|choice|option){LETTER}"),
    re.compile(r"(?<![\w)])\(([A-J])\)"),
)
LETTER_LINE = re.compile(r"(?m)^[\s*$\[]{0,5}\(?([A-J])(?:[.):]{1,2}\**(?:\s.*)?|[*$\]]*)\s{0,5}$")


def choice(response: str) -> str | None:
    """The letter A-J of a multiple-choice response: in its last box, else the last one stated."""
    response = without_thoughts(response)
    found = boxes(response)
    boxed = IN_BOX.match(found[-1][2]) if found else None
    if boxed:
        return boxed[1]
    tail = response[-TAIL:]
    for letters in STATED_LETTERS:
        stated = letters.findall(tail)
        if stated:
            return stated[-1]
    lines = set(LETTER_LINE.findall(tail))  # several are the list of options
    return lines.pop() if len(lines) == 1 else None
