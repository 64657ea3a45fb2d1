"""Grades responses as 1.0 or 0.0: by their answer, their program or their letter.

`grade_all` grades a list of responses. `grade_on_ranks` splits it over the ranks: each response is
graded once, and all ranks get the grades.
"""

import math
import re
from collections.abc import Callable

from answers.letters import choice
from infra.errors import UserError
from infra.ranks import is_first_rank, shared_by_ranks
from programs import ProgramsError, verify_code
from verify import earnable, extract_answer, reward


def grade_all(texts: list[str], problems: list[dict], truncated: list[bool]) -> list[float]:
    """1.0 for each response text that solves its problem, else 0.0.

    A problem has tests, the letter of the right choice, or an answer. truncated: whether a response
    was cut off at its limit (see verify.reward). A letter has to be stated in any case.
    """
    grades = [0.0] * len(texts)
    with_tests = []
    for i, (text, problem) in enumerate(zip(texts, problems, strict=True)):
        if problem.get("tests"):
            with_tests.append(i)
        elif problem.get("choice"):
            grades[i] = float(choice(text, problem.get("problem", "")) == problem["answer"])
        else:
            grades[i] = reward(text, problem["answer"], truncated[i])

    if with_tests:
        programs = [texts[i] for i in with_tests]
        tests = [problems[i]["tests"] for i in with_tests]
        try:
            values = verify_code.rewards(programs, tests)
        except ProgramsError as error:
            raise UserError(error) from error
        for i, value in zip(with_tests, values, strict=True):
            grades[i] = value
    return grades


def states_answer(text: str, problem: dict) -> bool:
    """Whether a response states an answer of its problem's kind, right or wrong.

    A program in a fence, a letter, or an answer that would count in a truncated response.
    """
    if problem.get("tests"):
        return verify_code.extract_program(text) is not None
    if problem.get("choice"):
        return choice(text, problem.get("problem", "")) is not None
    return extract_answer(text, truncated=True) is not None


def grade_on_ranks(
    responses: list, problems: list[dict], grader: Callable[..., list[float]] = grade_all
) -> list[float]:
    """The grade of each response to its problem, with the work split over the ranks.

    responses: records with `text` and `truncated`. grader: such as grade_all. All ranks get all
    grades. Raises UserError unless the grader returns one finite number for each.
    """

    def grade_share(share: list[tuple]) -> list[float]:
        texts = [response.text for response, _ in share]
        its_problems = [problem for _, problem in share]
        truncated = [response.truncated for response, _ in share]
        given = grader(texts, its_problems, truncated)
        grades = [math.nan if grade is None else float(grade) for grade in given]
        if len(grades) != len(share) or not all(map(math.isfinite, grades)):
            raise UserError(f"{grader.__name__} must return one finite number for each response")
        return grades

    return shared_by_ranks(list(zip(responses, problems, strict=True)), grade_share)


def refuse_unmatchable(problems: list[dict], where: str) -> None:
    """Raise UserError, which names `where`, if no response can match most gold answers.

    If there are fewer of them, the first rank prints their number, and the first one with its
    problem. Ranks share the work; all call this.
    """
    # Others are graded by their tests or their letter.
    graded = [x for x in problems if not x.get("tests") and not x.get("choice")]
    golds = sorted({problem["answer"] for problem in graded})

    def reasons_of_share(share: list[str]) -> list[str]:
        return [why_unearnable(gold) for gold in share]

    reason = dict(zip(golds, shared_by_ranks(golds, reasons_of_share), strict=True))
    unearnable = [problem for problem in graded if reason[problem["answer"]]]
    if not unearnable:
        return
    first = unearnable[0]
    message = (
        f"{where}: {len(unearnable)} of {len(graded)} gold answers can never be matched; the first "
        f"{reason[first['answer']]}: {first['answer'][:80]!r}, for {first['problem'][:80]!r}"
    )
    if 2 * len(unearnable) > len(graded):
        remedy = 'name another --answer-column, or end the answers with "#### x" or \\boxed{x}'
        raise UserError(f"{message}: {remedy}")
    if is_first_rank():
        print(f"{message}: drop these problems, or replace the answers with values", flush=True)


WORD = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{2,}")
MOST_WORDS = 8  # more is a sentence, not an answer; the golds of tests/answers have at most 3
NEXT_SENTENCE = re.compile(r"(?<![A-Z][a-z])[.!?]\s+[A-Z\d$\\]")  # not "St. Louis"


def why_unearnable(gold: str) -> str:
    """Why no short answer can equal a gold answer; empty if one can."""
    if not earnable(gold):
        return "restates a question or is too long"
    if NEXT_SENTENCE.search(gold) or len(WORD.findall(gold)) > MOST_WORDS:
        return "is a text of several sentences or many words"
    if re.match(r"\[\s*['\"]", gold):
        return "is a list of texts"
    return ""
