"""Tests recipes/countdown.py: its reward, and the problems that it makes."""

import itertools

import pytest

from recipes.countdown import HELD_OUT, problems, reward


@pytest.mark.parametrize(
    "response, expected",
    [
        (" (3+5)*2\n7 1 4 make 27:", 1.0),
        ("3 * 2 + 5 + 5", 0.0),  # a number twice
        ("5 + 3 * 2", 0.0),  # 11
        ("3*(5+2)", 0.0),  # 21
        ("2*(5+3)", 1.0),
        ("(3+5)*2 = 16", 0.0),
        ("2*8", 0.0),
        ("16", 0.0),
        ("(3+5)2", 0.0),  # a call, in Python
        ("((3+5)*2", 0.0),
        ("03+5*2", 0.0),
        ("-3+5*2", 0.0),
        ("3+5**2", 0.0),
        ("3//5*2", 0.0),
        ("", 0.0),
        ("\n(3+5)*2", 1.0),  # the first line with text
        ("so\n(3+5)*2", 0.0),
    ],
)
def test_reward(response, expected):
    assert reward(response, {"numbers": [2, 3, 5], "target": 16}) == expected


def test_a_division_is_no_operation_even_if_it_would_make_the_target():
    assert reward("7//2*1", {"numbers": [7, 2, 1], "target": 3}) == 0


def test_every_problem_can_be_solved_and_is_there_once():
    found = problems(seed=0)
    for each in found:
        equations = [
            "{0}{3}{1}{4}{2}".format(*order, *signs)
            for order in itertools.permutations(each["numbers"])
            for signs in itertools.product("+-", repeat=2)
        ]
        assert any(reward(equation, each) for equation in equations)
        assert each["problem"] == "{} {} {} make {}".format(*each["numbers"], each["target"])
    keys = {(*sorted(each["numbers"]), each["target"]) for each in found}
    assert len(keys) == len(found) > 5 * HELD_OUT
    assert found == problems(seed=0) != problems(seed=1)
