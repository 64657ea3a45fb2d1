"""Tests infra/grading.py: a response is graded by answer, by letter or by tests."""

import pytest
from tables import rows

from answers.letters import choice
from infra.grading import grade_all, states_answer

CALLS = [{"function": "add", "args": [i, 2 * i], "expected": 3 * i} for i in range(3)]


def test_grades_judge_each_problem_by_its_kind():
    """In a truncated response only a stated answer counts."""
    program = "```\ndef add(a, b): return a + b\n```"
    letter = {"problem": "(A) 2 N\n(B) 4 N", "answer": "B", "choice": True}
    responses = ["\\boxed{1/2}", program, "\\boxed{4 N}", "\\boxed{C}"]
    responses += ["\\boxed{2}", "so it is 7", "so it is 7"]
    problems = [{"answer": "0.5"}, {"tests": CALLS}, letter, letter]
    problems += [{"answer": "3"}, {"answer": "7"}, {"answer": "7"}]
    found = grade_all(responses, problems, [False] * 6 + [True])
    assert found == [1.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.0]


@pytest.mark.parametrize("row", rows("letters"), ids=lambda row: row["response"][:60])
def test_choice(row):
    assert choice(row["response"]) == row["letter"]


@pytest.mark.parametrize(
    "text, problem, stated",
    [
        ("so \\boxed{8}", {"answer": "7"}, True),
        ("so it is 7", {"answer": "7"}, False),  # a text's last number is no statement
        ("```\nf = 1\n```", {"tests": CALLS}, True),
        ("so \\boxed{8}", {"tests": CALLS}, False),
        ("The answer is (C).", {"answer": "B", "choice": True}, True),
        ("Perhaps.", {"answer": "B", "choice": True}, False),
    ],
)
def test_an_answer_is_stated_whether_it_is_right_or_not(text, problem, stated):
    assert states_answer(text, problem) == stated
