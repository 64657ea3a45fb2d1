"""infra/expressions.py: values against Python's own arithmetic, and against known constants."""

import math
import random
from fractions import Fraction

import pytest

from infra.arithmetic import Unreadable
from infra.expressions import FUEL, MAX_DEPTH, POINTS, Evaluator


def value_of(text: str):
    """The value of an expression without free variables."""
    values = Evaluator("seed").values(text)
    assert values == values[:1] * POINTS
    return values[0]


def random_sum(draw: random.Random, depth: int) -> str:
    """An expression of integers, + - * / and brackets."""
    if depth == 0:
        return str(draw.randint(1, 9))
    parts = [random_sum(draw, depth - 1) for _ in range(3)]
    first, second = draw.choices("+-*/", k=2)
    if draw.random() < 0.5:
        return f"({parts[0]}{first}{parts[1]}){second}{parts[2]}"
    return f"{parts[0]}{first}{parts[1]}{second}{parts[2]}"


def test_values_of_rational_expressions_are_exact():
    draw = random.Random(0)
    compared = 0
    for _ in range(300):
        text = random_sum(draw, depth=2)
        # The text is made here, of digits, signs and brackets: Python may evaluate it.
        python = "".join(f"Fraction({c})" if c.isdigit() else c for c in text)
        try:
            expected = eval(python, {"Fraction": Fraction})
        except ZeroDivisionError:
            expected = None
        assert value_of(text) == expected, text
        compared += expected is not None
    assert compared > 200


@pytest.mark.parametrize(
    "text, value",
    [
        ("2-3-4", -5),
        ("2^{3}^2", 64),
        ("2^3^2", 512),
        ("-2^2", -4),
        ("2^-1", Fraction(1, 2)),
        ("1/2*3", Fraction(3, 2)),
        ("1.25", Fraction(5, 4)),
        ("2.5e3", 2500),
        ("\\frac12", Fraction(1, 2)),
        ("\\frac1{23}", Fraction(1, 23)),
        ("2(3)", 6),
        ("3!", 6),
        ("3!!", 3),
        ("3!2", 12),
        ("204_5", 54),
        ("\\binom{5}{2}", 10),
        ("\\binom52", 10),
        ("|-3|", 3),
        ("\\lfloor-7/2\\rfloor", -4),
        ("\\lceil-7/2\\rceil", -3),
    ],
)
def test_values_exact(text, value):
    assert value_of(text) == value
    assert isinstance(value_of(text), Fraction)


@pytest.mark.parametrize(
    "text, value",
    [
        ("\\sqrt2", math.sqrt(2)),
        ("\\sqrt[3]{-8}", -2),
        ("\\sin30\\degree", 0.5),
        ("30\\degree", 30),
        ("\\sin^2(1)", math.sin(1) ** 2),
        ("\\sin^{-1}(1)", math.pi / 2),
        ("\\sin2\\pi", 0),
        ("\\cot2", 1 / math.tan(2)),
        ("\\sec2", 1 / math.cos(2)),
        ("\\csc2", 1 / math.sin(2)),
        ("\\cos1\\sin2", math.cos(1) * math.sin(2)),
        ("\\cos1*2", math.cos(1) * 2),
        ("\\log_28", 3),
        ("\\log_{2}{8}", 3),
        ("\\lg1000", 3),
        ("\\ln(e^2)", 2),
        ("e^{i\\pi}", -1),
        ("2\\pi", 2 * math.pi),
    ],
)
def test_values_of_constants_and_functions(text, value):
    assert complex(value_of(text)) == pytest.approx(value, abs=1e-12)


def test_values_of_infinity():
    assert value_of("\\infty") == math.inf
    assert value_of("-\\infty") == -math.inf


@pytest.mark.parametrize(
    "text", ["1/0", "0^0", "(-1)!", "\\infty-\\infty", "\\ln0", "0*\\infty", "(1/2)!", "."]
)
def test_values_of_what_is_undefined_are_none(text):
    assert value_of(text) is None


def test_values_of_free_variables_are_of_both_signs_and_integers_for_n_k_m():
    evaluator = Evaluator("seed")
    x = evaluator.values("x")
    assert [value > 0 for value in x] == [True, True, False, False]
    assert len(set(x)) == POINTS
    assert x != evaluator.values("y")
    assert x != evaluator.values("x_1")
    assert x != Evaluator("another seed").values("x")
    assert x == Evaluator("seed").values("x")

    for name in ("n", "k", "m"):
        assert all(value > 0 and value.denominator == 1 for value in evaluator.values(name))
    for n, k in zip(evaluator.values("n"), evaluator.values("k"), strict=True):
        assert n > k


def test_values_follow_the_variables():
    evaluator = Evaluator("seed")
    x = evaluator.values("x")
    y = evaluator.values("y")
    assert evaluator.values("2x-xy") == [2 * a - a * b for a, b in zip(x, y, strict=True)]
    assert evaluator.values("\\frac{x}{y}") == [a / b for a, b in zip(x, y, strict=True)]


def test_values_of_roots_and_logarithms_drop_out_where_they_are_not_real():
    evaluator = Evaluator("seed")
    for text in ("\\sqrt{x}", "\\ln x", "x^{1/4}"):
        defined = [value is not None for value in evaluator.values(text)]
        assert defined == [True, True, False, False]
    assert None not in evaluator.values("\\sqrt[3]{x}")


@pytest.mark.parametrize(
    "text",
    ["", "1+", "\\lnx", "(1", "1)", "(1]", "*1", "1 2", "\\unknown", "x^", "\\frac123", "a,b"],
)
def test_values_refuse_what_is_not_in_the_grammar(text):
    with pytest.raises(Unreadable):
        Evaluator("seed").values(text)


def test_values_are_bounded_in_depth_and_work():
    depth = MAX_DEPTH - 1
    assert value_of("(" * depth + "1" + ")" * depth) == 1
    with pytest.raises(Unreadable):
        value_of("(" * MAX_DEPTH + "1" + ")" * MAX_DEPTH)

    with pytest.raises(Unreadable):
        value_of("1+" * FUEL + "1")
    with pytest.raises(Unreadable):
        value_of("99999^9999")


def test_evaluator_has_one_budget_for_all_it_evaluates():
    evaluator = Evaluator("seed")
    evaluator.values("1+1")
    assert evaluator.fuel == FUEL - 3  # two numbers and a sum
    evaluator.values("1+1")
    assert evaluator.fuel == FUEL - 3
    evaluator.values("1+2")
    assert evaluator.fuel == FUEL - 6

    evaluator.pay(FUEL - 7)
    with pytest.raises(Unreadable):
        evaluator.pay(1)
