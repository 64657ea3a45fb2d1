"""Grades responses by their answer, their program or their letter, or by a user's own function.

Without this file verify.py alone would grade, and only answers. `grade_all` grades a list of
responses as 1.0 or 0.0. `grade_on_ranks` splits a list over the ranks, and uses --reward if it is
given: each response is graded once, and all ranks get the grades.
"""

import math
import traceback
from numbers import Real

from infra.errors import UserError, first_line
from infra.flags import function_of
from infra.ranks import shared_by_ranks
from verify import extract_answer, reward


def grade_all(texts: list[str], problems: list[dict], truncated: list[bool]) -> list[float]:
    """1.0 for each response text that solves its problem, else 0.0.

    A problem has tests, the letter of the right choice, or an answer. truncated: whether a response
    was cut off at its limit (see verify.reward). A letter must always be stated explicitly.
    """
    grades = [0.0] * len(texts)
    with_tests = []
    for i, (text, problem) in enumerate(zip(texts, problems, strict=True)):
        if problem.get("tests"):
            with_tests.append(i)
        elif problem.get("choice"):
            grades[i] = float(chosen(text, problem) == problem["answer"])
        else:
            grades[i] = reward(text, problem["answer"], truncated[i])

    if with_tests:
        from programs import ProgramsError, verify_code  # few runs need them

        programs = [texts[i] for i in with_tests]
        tests = [problems[i]["tests"] for i in with_tests]
        try:
            values = verify_code.rewards(programs, tests)
        except ProgramsError as error:
            raise UserError(error) from error
        for i, value in zip(with_tests, values, strict=True):
            grades[i] = value
    return grades


def chosen(text: str, problem: dict) -> str | None:
    """The letter that a response to a multiple-choice problem states, or None."""
    from answers.letters import choice  # few runs need it

    return choice(text, problem.get("problem", ""))


def graded(
    texts: list[str], problems: list[dict], truncated: list[bool], reward: str = ""
) -> list[float]:
    """The reward of each response text: by the function of --reward, else by `grade_all`."""
    if reward:
        return rewards_by(reward, texts, problems)
    return grade_all(texts, problems, truncated)


def rewards_by(flag: str, texts: list[str], problems: list[dict]) -> list[float]:
    """The rewards by the function of --reward. Raises UserError.

    The function gets a response's text and its problem: the whole record of the data set, with the
    problem and the answer as train.py reads them. It returns the reward, one finite number.
    """
    function = function_of("reward", flag)
    rewards = []
    for response, problem in zip(texts, problems, strict=True):
        record = problem.get("record", {}) | problem
        record.pop("record", None)
        try:
            given = function(response, record)
        except Exception as error:
            line = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{line.filename}, line {line.lineno}"
            reason = f"{type(error).__name__}: {first_line(error)}"
            raise UserError(f"--reward {flag} failed ({reason}; {where})") from error
        is_number = isinstance(given, Real) and not isinstance(given, bool)
        if not is_number or not math.isfinite(given):
            raise UserError(f"--reward {flag} returned {given!r:.80}: return a finite float")
        rewards.append(float(given))
    return rewards


def states_answer(text: str, problem: dict) -> bool:
    """Whether a response states an answer of its problem's kind, right or wrong.

    A program in a fence, a letter, or an answer that would count in a truncated response.
    """
    if problem.get("tests"):
        from programs.verify_code import extract_program

        return extract_program(text) is not None
    if problem.get("choice"):
        return chosen(text, problem) is not None
    return extract_answer(text, truncated=True) is not None


def grade_on_ranks(responses: list, problems: list[dict], reward: str = "") -> list[float]:
    """The reward of each response to its problem, with the work split over the ranks.

    responses: records with `text` and `truncated`. reward: --reward; without it verify.py, tests or
    letters decide. All ranks get all rewards. Raises UserError.
    """

    def grade_share(share: list[tuple]) -> list[float]:
        texts = [response.text for response, _ in share]
        truncated = [response.truncated for response, _ in share]
        return graded(texts, [problem for _, problem in share], truncated, reward)

    return shared_by_ranks(list(zip(responses, problems, strict=True)), grade_share)
