"""Grades responses as 1.0 or 0.0: with verify.py, with programs/, or by multiple-choice letter.

Each response is graded once, by one rank. All ranks get the grade, so they make the same decisions.
"""

from collections.abc import Callable

import numpy as np

from answers.extraction import choice
from batch import Rollout
from infra.errors import UserError
from infra.ranks import shared_by_ranks, speaks
from programs import ProgramsError, verify_code
from rollout import Sampling, rollout
from verify import earnable, reward


def grade(response: str, problem: dict, truncated: bool = False) -> float:
    """1.0 if the response solves the problem, else 0.0. Multiple choice is graded by letter.

    truncated: whether the response was cut off at its limit (see verify.reward).
    """
    if problem.get("choice"):
        return float(choice(response) == problem["answer"])
    return reward(response, problem["answer"], truncated)


def grades(responses: list[str], problems: list[dict], truncated: list[bool]) -> list[float]:
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


def graded_once(grader: Callable[..., list[float]], *columns: list) -> list[float]:
    """grader(*columns), with the work split over the ranks; all ranks get all grades.

    columns: lists with one entry per response: texts, problems, whether each was cut off.
    """

    def of_share(share: list[tuple]) -> list[float]:
        return grader(*([each[i] for each in share] for i in range(len(columns))))

    return shared_by_ranks(list(zip(*columns, strict=True)), of_share)


def graded_rollouts(
    grader: Callable[..., list[float]], rollouts: list[Rollout], problems: list[dict]
) -> list[float]:
    """`graded_once` for rollouts and their problems."""
    texts = [each.text for each in rollouts]
    return graded_once(grader, texts, problems, [each.truncated for each in rollouts])


def sample_grades(
    lm,
    tokenizer,
    problems: list[dict],
    prompts: list[list[int]],
    samples: int,
    sampling: Sampling,
    stop: Callable[[], bool] | None = None,
) -> np.ndarray:
    """Grades [P, n] in {0, 1} for freshly sampled responses, for train.py's evaluation.

    prompts: token ids of the P problems. All ranks call this. Every call uses the same random
    numbers (those for step 0), so two evaluations differ only in the model. Raises Interrupted once
    stop() is true on any rank.
    """
    rollouts = rollout(lm, tokenizer, prompts, range(len(problems)), samples, sampling, stop=stop)
    asked = [problem for problem in problems for _ in range(samples)]
    found = graded_rollouts(grades, rollouts, asked)
    return np.array(found).reshape(len(problems), samples)


def report_unearnable(problems: list[dict]) -> None:
    """Print how many gold answers no response can match, such as those that restate the question.

    Ranks share the work, and the first one prints. All ranks call this.
    """
    golds = sorted({each["answer"] for each in problems if not is_graded_otherwise(each)})

    def can_be_earned(share: list[str]) -> list[bool]:
        return [earnable(gold) for gold in share]

    found = shared_by_ranks(golds, can_be_earned)
    unearnable = [gold for gold, earned in zip(golds, found, strict=True) if not earned]
    if unearnable and speaks():
        print(
            f"{len(unearnable)} of {len(golds)} gold answers can never be matched, for example "
            f"{unearnable[0][:80]!r}: drop these problems, or replace the answers with values",
            flush=True,
        )


def is_graded_otherwise(problem: dict) -> bool:
    """Whether the problem is graded by its tests or its letter, not by verify.py."""
    return bool(problem.get("tests") or problem.get("choice"))
