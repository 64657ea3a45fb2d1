"""Tests infra/grading.py: a response is graded by answer, by letter or by tests."""

import pytest
from tables import rows

from answers.letters import choice
from infra import grading
from infra.errors import UserError
from infra.grading import grade_all, is_matchable, refuse_unmatchable, states_answer

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


def test_gold_answers_that_no_response_can_match_are_counted_and_shown(capsys):
    question = {"problem": "1+2+3+4?", "answer": r"\sum_{k=1}^{4} k"}
    right = [{"problem": f"{i}?", "answer": "10"} for i in range(2)]
    graded_otherwise = [{"answer": "B", "choice": True}, {"tests": [{"script": "assert f()"}]}]
    refuse_unmatchable([question, *right, *graded_otherwise], "--data a")
    said = capsys.readouterr().out
    assert said.startswith("--data a: 1 of 3 gold answers can never be matched")
    assert "for '1+2+3+4?'" in said
    refuse_unmatchable(right, "--data a")
    assert capsys.readouterr().out == ""


ESSAY = "The cat sat on the mat because it was tired of running around"


@pytest.mark.parametrize("gold", ["48/2 = 24 in May.\nIn all 72.", ESSAY, "['72']", '["a", "b"]'])
def test_a_set_whose_golds_are_mostly_texts_is_refused(gold):
    problems = [{"problem": "p", "answer": "1"}, *({"problem": "q", "answer": gold},) * 2]
    with pytest.raises(UserError) as refused:
        refuse_unmatchable(problems, "--data a")
    said = str(refused.value)
    assert said.startswith("--data a: 2 of 3 gold answers can never be matched; the first is ")
    assert "--answer-column" in said and "\n" not in said


@pytest.mark.parametrize("table", ["golds", "contest", "outside"])
def test_labelled_golds_are_no_texts(table, monkeypatch):
    monkeypatch.setattr(grading, "earnable", bool)  # the real one takes long
    assert all(is_matchable(row["gold"]) for row in rows(table))


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
