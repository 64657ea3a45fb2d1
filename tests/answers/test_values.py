"""answers/values.py: exact fractions, 700 bits otherwise, points that tell functions apart."""

import random
from fractions import Fraction

import pytest

from answers import Unreadable
from answers.latex import normalise
from answers.parser import parse
from answers.values import BUDGET, POINTS, Evaluator

SEEDS = 8


def tree(text: str) -> tuple:
    return parse(normalise(text))


def equal(a: str, b: str, seed: str = "") -> bool:
    p, g = tree(a), tree(b)
    return Evaluator([p, g], seed).equal(p, g)


def value_of(text: str):
    """The value of a constant expression; None if it has none."""
    return Evaluator([]).at(tree(text), 0)


def random_sum(draw: random.Random, depth: int) -> str:
    """A random expression made of digits, + - * / and brackets."""
    if depth == 0:
        return str(draw.randint(1, 9))
    a, b, c = [random_sum(draw, depth - 1) for _ in range(3)]
    first, second = draw.choices("+-*/", k=2)
    return f"({a}{first}{b}){second}{c}" if draw.random() < 0.5 else f"{a}{first}{b}{second}{c}"


def test_values_of_rational_expressions_are_exact():
    draw = random.Random(0)
    compared = 0
    for _ in range(300):
        text = random_sum(draw, depth=2)
        # It is safe to evaluate this text: it has only digits, signs and brackets.
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
        ("2^{3^2}", 512),
        ("-2^2", -4),
        ("1/2(3)", Fraction(3, 2)),
        ("\\frac12", Fraction(1, 2)),
        ("1\\frac{2}{3}", Fraction(5, 3)),
        ("3!2^3", 48),
        ("\\binom{5}{2}", 10),
        ("||-3|-5|", 2),
        ("\\lfloor-7/2\\rfloor", -4),
        ("\\sqrt[3]{-8}+2", 0),
        ("\\log_2 8-3", 0),
        ("\\sqrt{8}-2\\sqrt{2}", 0),
        ("\\sin\\pi", 0),
        ("\\sin 30^\\circ-1/2", 0),
        ("e^{i\\pi}+1", 0),
        ("\\lfloor\\log_2 8\\rfloor", 3),
        ("0.1\\overline{6}", Fraction(1, 6)),
        ("2.5e3", 2500),
        ("50\\%", Fraction(1, 2)),
    ],
)
def test_values_are_exact(text, value):
    assert value_of(text) == value
    assert isinstance(value_of(text), Fraction)


@pytest.mark.parametrize(
    "text",
    ["1/0", "0^0", "(-1)!", "\\infty-\\infty", "\\ln 0", "0\\cdot\\infty", "(1/2)!", "\\tanh 1000"],
)
def test_undefined_expressions_have_no_value(text):
    assert value_of(text) is None


@pytest.mark.parametrize(
    "text", ["(1", "1 2", "x 2", "x^", "\\unknown", "\\log_2", "204_5", "(" * 50 + "1" + ")" * 50]
)
def test_parse_refuses_text_outside_the_grammar(text):
    with pytest.raises(Unreadable):
        tree(text)


@pytest.mark.parametrize(
    "a, b",
    [
        ("\\sqrt{1-x^2}+a", "a+\\sqrt{1-x^2}"),
        ("\\sqrt{x}^2", "x"),
        ("\\ln(x^2)", "\\ln x+\\ln x"),
        ("\\lfloor\\frac{n+1}{2}\\rfloor", "\\lceil\\frac{n}{2}\\rceil"),
        ("\\cos(n\\pi)", "(-1)^n"),
        ("|a-b|", "|b-a|"),
        ("f(2x)", "f(x+x)"),
        ("e^{\\ln x}", "x"),
        ("\\sqrt{x-10000000}", "(x-10^7)^{1/2}"),
        ("\\binom{n}{k}", "\\frac{n!}{k!(n-k)!}"),
        ("\\sin(\\arcsin x)", "x"),
        ("\\sqrt{f(x)}^2", "f(x)"),
    ],
)
def test_equal_expressions_are_equal_for_every_seed(a, b):
    for seed in range(SEEDS):
        assert equal(a, b, str(seed)), seed
        assert equal(b, a, str(seed)), seed


@pytest.mark.parametrize(
    "a, b",
    [
        ("\\lfloor\\log_2 n\\rfloor+1", "5"),
        ("(-1)^n\\cdot 18", "18"),
        ("|x-10|", "10-x"),
        ("|x-3|+|x-7|", "4"),
        ("\\binom{k}{14}", "0"),
        ("2^{|n|}", "2^n"),
        ("f(2x)", "2f(x)"),
        ("\\lfloor n/12\\rfloor", "\\lceil n/12\\rceil-1"),
        ("\\lfloor n/30\\rfloor", "\\lfloor (n+1)/30\\rfloor"),
        ("\\lfloor x\\rfloor+\\lfloor y\\rfloor", "\\lfloor x+y\\rfloor"),
        ("|x-10^7|", "10^7-x"),
        ("|x-e^{120}|", "e^{120}-x"),
        ("n^{(-1)^n}", "n"),
        ("|a|+|b|", "|a+b|"),
        ("\\arcsin(\\sin x)", "x"),
        # The domains of these meet only at an edge.
        ("\\sqrt{x-1}", "\\sqrt{1-x}"),
        ("\\sqrt{1-x^2}", "\\sqrt{x^2-1}"),
        ("\\sqrt{(x-1)(x-2)}", "\\sqrt{(1-x)(x-2)}"),
        ("\\sqrt{a-b}", "\\sqrt{b-a}"),
        ("\\arccos(a/b)", "\\arccos(b/a)"),
        ("\\frac{n!}{(n-k)!}", "\\frac{n!}{(k-n)!}"),
    ],
)
def test_different_expressions_differ_for_every_seed(a, b):
    for seed in range(SEEDS):
        assert not equal(a, b, str(seed)), seed
        assert not equal(b, a, str(seed)), seed


@pytest.mark.parametrize(
    "a, b",
    [
        ("262537412640768744", "e^{\\pi\\sqrt{163}}"),
        ("10^{20}", "10^{20}+\\pi"),
        ("\\ln 2", "\\ln(2+10^{-40})"),
        ("\\pi", "428224593349304/136308121570117"),
        ("\\pi", "\\pi+10^{-140}"),
        ("10^{20}x", "10^{20}x+\\pi"),
    ],
)
def test_values_that_agree_in_many_digits_differ(a, b):
    assert not equal(a, b)
    assert equal(a, f"0+({a})")
    assert equal(b, f"({b})+0")


def test_points_have_both_signs_and_depend_only_on_the_seed_and_the_answers():
    for seed in range(SEEDS):
        a, b = [Evaluator([tree("x+50")], str(seed)) for _ in range(2)]
        values = [a.variable("x", point) for point in range(POINTS)]
        assert values == [b.variable("x", point) for point in range(POINTS)]
        assert min(values) < -50 and max(values) > 50
        assert sum(0 < value < 10 for value in values) >= 4
        whole = [a.variable("n", point) for point in range(POINTS)]
        assert {value % 2 for value in whole} == {0, 1}


def test_all_comparisons_of_an_evaluator_share_one_budget():
    evaluator = Evaluator([])
    assert evaluator.equal(tree("1+1"), tree("2"))
    assert 0 < evaluator.budget < BUDGET
    with pytest.raises(Unreadable):
        evaluator.pay(BUDGET)
