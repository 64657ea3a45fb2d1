"""tests/notebooks/course.py, which examines notebooks, on cells written for this test."""

import sys

import course
import pytest
from conftest import ROOT
from course import Cell
from mutations import Mutation

sys.path.insert(0, str(ROOT / "notebooks"))

CELLS = [
    Cell(
        "<cell 0>",
        "from helpers import check, leaderboard\nx = 2\n\ndef double():\n    return 2 * x",
    ),
    Cell("<cell 1>", "y = double()\nassert y == 4, 'twice'\nassert x == 2"),
]
BREAK_Y = Mutation(old="2 * x", new="3 * x", breaks="assert y == 4")
BREAK_X = Mutation(old="y = double()", new="y = double()\nx = 3", breaks="assert x")


def test_examine_finds_no_problem_if_every_assertion_is_broken_by_a_mutation():
    assert course.examine(CELLS, [BREAK_Y, BREAK_X]) == course.Report()


def test_examine_runs_each_cell_once_with_the_original_names():
    """Names changed by a mutation are restored, including names that earlier functions use."""
    cells = [*CELLS, Cell("<cell 2>", "assert (x, y, double()) == (2, 4, 4)")]
    more = Mutation(old="(x, y, double())", new="(x, y, x)", breaks="assert (x")
    assert course.examine(cells, [BREAK_Y, BREAK_X, more]) == course.Report()


def test_examine_reports_a_cell_that_fails():
    report = course.examine([Cell("<cell 0>", "x = 1\n1 / 0\nx = 2")], [])
    assert report.cells == ["<cell 0>: ZeroDivisionError('division by zero') at 1 / 0"]


def test_examine_reports_an_assertion_that_no_mutation_breaks():
    assert course.examine(CELLS, [BREAK_Y]).mutations == ["no mutation breaks: assert x == 2"]


@pytest.mark.parametrize(
    "wrong, said",
    [
        (Mutation(old="no such text", new="", breaks="assert y"), "occurs 0 times"),
        (Mutation(old="x", new="y", breaks="assert y"), "occurs"),
        (Mutation(old="2 * x", new="3 * x", breaks="assert z"), "begins 0 assertions"),
        (Mutation(old="2 * x", new="3 * x", breaks="assert"), "begins 2 assertions"),
        (Mutation(old="2 * x", new="x + x", breaks="assert y"), "does not break assert y"),
        (Mutation(old="x = 2\n", new="x = 3\n", breaks="assert x"), "breaks assert y == 4"),
        (Mutation(old="2 * x", new="2 * nothing", breaks="assert y"), "NameError"),
    ],
)
def test_examine_reports_a_mutation_that_is_misplaced_or_breaks_something_else(wrong, said):
    report = course.examine(CELLS, [BREAK_Y, BREAK_X, wrong])
    assert any(said in problem for problem in report.mutations), report.mutations


def test_examine_reports_a_mutation_after_its_assertion():
    cells = [*CELLS, Cell("<cell 2>", "z = 1")]
    late = Mutation(old="z = 1", new="z = 2", breaks="assert x")
    [problem] = course.examine(cells, [BREAK_Y, BREAK_X, late]).mutations
    assert "comes before it" in problem


def exercise(stub, solution, grading="check(answer, y, 'twice')"):
    return Cell("<cell 2>", f"{stub}\n{grading}", solution)


@pytest.mark.parametrize(
    "cell, problems",
    [
        (exercise("answer = None", "answer = 2 * x"), 0),
        (exercise("answer = None", "answer = x"), 1),
        (exercise("answer = None", ""), 1),
        (exercise("answer = 4", "answer = 4"), 1),
        (exercise("answer = None", "answer = 1 / 0"), 1),
        (exercise("answer = None", "answer = 4", "check(answer, y, '', tolerance=2)"), 1),
        (exercise("answer = None", "answer = 4", "leaderboard(answer, {'DAPO': 3.0}, '')"), 0),
        (exercise("answer = None", "answer = None", "leaderboard(answer, {'DAPO': 3.0}, '')"), 1),
    ],
)
def test_examine_tries_exercises(cell, problems):
    report = course.examine([*CELLS, cell], [BREAK_Y, BREAK_X])
    assert len(report.exercises) == problems, report.exercises
    assert report.cells == report.mutations == []


def test_smaller_replaces_a_text_that_occurs_exactly_once():
    cells = course.smaller(CELLS, [("x = 2\n", "x = 1\n")])
    assert "x = 1" in cells[0].source and "x = 2" in CELLS[0].source
    for text in ("no such text", "x"):
        with pytest.raises(ValueError, match="occurs"):
            course.smaller(CELLS, [(text, "y")])
