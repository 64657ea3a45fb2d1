"""verify.py: what is extracted, what is equal, what is worth a reward."""
import pytest

from verify import extract_answer, is_equivalent, overlong_penalty, reward


@pytest.mark.parametrize("response, answer", [
    ("so \\boxed{1} no, \\boxed{42}.", "42"), ("\\boxed{\\frac{1}{2}} is it", "\\frac{1}{2}"), ("5 then \\boxed{7", "7"),
    ("first 3, then -4.5", "-4.5"), ("\\boxed{3} and \\boxed{4", "3"), ("no answer", None), ("", None)])
def test_extract_answer(response, answer):
    assert extract_answer(response) == answer


@pytest.mark.parametrize("a, b, equal", [("033", "33", True), ("1,000", "1000", True), ("0.5", "1/2", True), ("\\frac{1}{2}", "0.5", True),
                                         ("$7$", "7", True), ("7", "8", False), ("", "", False), ("x", "y", False)])
def test_is_equivalent(a, b, equal):
    assert is_equivalent(a, b) is equal


def test_reward_is_binary():
    assert reward("answer \\boxed{3}", "3") == 1.0 and reward("answer \\boxed{4}", "3") == 0.0 and reward("", "3") == 0.0


def test_overlong_penalty_falls_linearly_to_minus_one():
    assert [overlong_penalty(n, 100, 40) for n in (0, 60, 70, 80, 100)] == [0, 0, -0.25, -0.5, -1]
    assert overlong_penalty(100, 100, 0) == 0
