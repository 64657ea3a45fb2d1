"""answers/values.py: expressions that are equal everywhere, and expressions that differ."""

from fractions import Fraction

import pytest

from answers.errors import Unreadable
from answers.values import FUEL, POINTS, Evaluator, Points

SEEDS = 10


def equal(a: str, b: str, seed: str = "") -> bool:
    return Evaluator([a, b], seed).equal(a, b)


# ---- points --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["x", "n"])
def test_points_have_both_signs_and_go_beyond_the_largest_number(name):
    for seed in range(SEEDS):
        points = Points(["x+50"], str(seed))
        values = [points.variable(name, i) for i in range(POINTS)]
        assert sum(0 < value < 10 for value in values) >= 4
        assert min(values) < -50
        assert max(values) > 50


def test_points_for_integer_names_are_even_and_odd_integers():
    for seed in range(SEEDS):
        points = Points(["x"], str(seed))
        for name in ("n", "k", "m"):
            values = [points.variable(name, i) for i in range(POINTS)]
            assert {value % 2 for value in values} == {0, 1}
        fractions = [points.variable("x", i) for i in range(POINTS)]
        assert any(value.denominator == 1 for value in fractions)
        assert any(0 < value < 1 for value in fractions)


def test_points_depend_only_on_the_seed_and_the_name():
    a, b, other = Points(["x"], "seed"), Points(["x"], "seed"), Points(["x"], "other")
    drawn = [a.variable("x", i) for i in range(9)]
    assert drawn == [b.variable("x", i) for i in range(9)]
    assert drawn != [other.variable("x", i) for i in range(9)]
    assert drawn == [a.variable("x", i) for i in range(9)]
    assert all(a.variable("y", i) != drawn[i] for i in range(9))


def test_an_unknown_function_has_one_value_for_each_argument():
    points = Points(["f(2)"], "seed")
    at_2 = points.function("f", ((2, 0),), point=0)
    assert at_2 == points.function("f", ((2, 0),), point=0)
    others = {
        points.function("f", ((3, 0),), point=0),
        points.function("g", ((2, 0),), point=0),
        points.function("f", ((2, 0),), point=1),
    }
    assert at_2 not in others
    assert len(others) == 3


# ---- equal, for any seed -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "a, b",
    [
        ("\\sqrt{1-x^2}+a", "a+\\sqrt{1-x^2}"),
        ("\\frac{r!}{(r-s)!}", "\\binom{r}{s}s!"),
        ("\\sqrt{(x-3)(5-x)}", "\\sqrt{(5-x)(x-3)}"),
        ("\\sqrt{x}^2", "x"),
        ("\\ln(x^2)", "\\ln x+\\ln x"),
        ("\\lfloor\\frac{n+1}{2}\\rfloor", "\\lceil\\frac{n}{2}\\rceil"),
        ("\\cos(n\\pi)", "(-1)^n"),
        ("|a-b|", "|b-a|"),
        ("f(2x)", "f(x+x)"),
        ("f(\\sqrt{4})", "f(\\log_2 4)"),
        ("e^{\\ln x}", "x"),
        ("x^{2019}+1", "1+x^{2019}"),
        ("k(a-b)", "-k(b-a)"),
        ("\\sqrt{x-10000000}", "(x-10^7)^{1/2}"),
        ("\\ln x+\\ln y+\\ln z", "\\ln(xyz)"),  # ln(xyz) is also real if two are negative
        ("\\binom{n}{k}", "\\frac{n!}{k!(n-k)!}"),
        ("\\sin(\\arcsin x)", "x"),
        ("\\sqrt{a-b}^2", "a-b"),
        ("\\sqrt{f(x)}^2", "f(x)"),
        ("\\sqrt{f(2)}^2", "f(2)"),
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
        ("(-1)^n 18", "18"),
        ("|x-10|", "10-x"),
        ("|x-10|", "x-10"),
        ("|x-3|+|x-7|", "4"),
        ("\\lceil n/50\\rceil", "1"),
        ("\\binom{k}{14}", "0"),
        ("m+(m-2)(m-3)(m-4)(m-5)(m-6)(m-7)(m-8)(m-9)(m-10)(m-11)(m-12)(m-13)", "m"),
        ("2^{|n|}", "2^n"),
        ("|a-b|", "a-b"),
        ("f(2x)", "2f(x)"),
        ("f(3)", "3f(1)"),
        ("I(0)e^{-t/RC}", "0"),
        ("E[X]^2", "E[X^2]"),
        ("\\lceil n/50\\rceil", "\\lfloor n/50\\rfloor+1"),
        ("\\lfloor n/12\\rfloor", "\\lceil n/12\\rceil-1"),
        ("\\lfloor n/30\\rfloor", "\\lfloor (n+1)/30\\rfloor"),
        ("\\lfloor\\sqrt{n}\\rfloor", "\\lfloor\\sqrt{n+1}\\rfloor"),
        ("\\lfloor x\\rfloor", "\\lceil x\\rceil-1"),
        ("\\lfloor x\\rfloor+\\lfloor y\\rfloor", "\\lfloor x+y\\rfloor"),
        ("|x-2500000|", "2500000-x"),
        ("|x-10^7|", "10^7-x"),
        ("-1", "(-1)^{n^2}"),
        ("n^{(-1)^n}", "n"),
        ("|a|+|b|", "|a+b|"),
        ("\\arcsin(\\sin x)", "x"),
        # The domains of most of these meet only at an edge.
        ("\\sqrt{x-1}", "\\sqrt{1-x}"),
        ("\\sqrt{1-x^2}", "\\sqrt{x^2-1}"),
        ("\\sqrt{x^2-1}+\\sqrt{1-x^2}", "0"),
        ("\\sqrt{(x-1)(x-2)}", "\\sqrt{(1-x)(x-2)}"),
        ("\\sqrt{n-5}", "\\sqrt{5-n}"),
        ("\\sqrt{a-b}", "\\sqrt{b-a}"),
        ("y\\sqrt{x-1}", "y\\sqrt{1-x}"),
        ("\\sqrt{x+y}", "\\sqrt{-x-y}"),
        ("\\arcsin x", "\\arcsin(1/x)"),
        ("\\arccos(a/b)", "\\arccos(b/a)"),
        ("\\frac{n!}{(n-k)!}", "\\frac{n!}{(k-n)!}"),
        ("\\frac{r!}{(r-s)!}", "\\frac{r!}{(s-r)!}"),
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
        ("0", "e^{-200}"),
        ("\\ln 2", "\\ln(2+10^{-40})"),
        ("\\pi", "\\pi(1+10^{-50})"),
        ("\\pi", "103993/33102"),
        ("\\pi", "428224593349304/136308121570117"),
        ("10^{20}x", "10^{20}x+\\pi"),
        ("\\sqrt{2}+\\sqrt{3}", "3.1462643699419723423291350657155704455124771291873"),
    ],
)
def test_values_that_agree_in_many_digits_differ(a, b):
    assert not equal(a, b)
    assert equal(a, f"0+({a})")
    assert equal(b, f"({b})+0")


def test_an_irrational_number_equals_a_rational_one_within_the_tolerance():
    evaluator = Evaluator(["3.14159", "\\pi"])
    tolerance = Fraction(1, 10**5)
    assert evaluator.equal("3.14159", "\\pi", tolerance)
    assert not evaluator.equal("3.14157", "\\pi", tolerance)
    assert not evaluator.equal("3.14159", "3.141591", tolerance)


@pytest.mark.parametrize(
    "text", ["0/0", "\\frac{x}{0}", "\\frac{1}{x-x}", "\\ln 0", "\\sqrt{-1-x^2}"]
)
def test_an_expression_undefined_everywhere_does_not_equal_itself(text):
    assert not equal(text, text)


# ---- proportional, constant ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "a, b, same, positive",
    [
        ("2y-4x", "y-2x", True, True),
        ("2y-4x", "2x-y", True, False),
        ("x+|x|", "x", False, False),
        ("x", "x^2", False, False),
        ("x-x", "y-y", False, False),
        ("\\sqrt{a-b}+a+b", "\\sqrt{b-a}+a+b", False, False),
        ("\\sqrt{xy}", "\\sqrt{x}\\sqrt{y}", True, True),
    ],
)
def test_proportional(a, b, same, positive):
    evaluator = Evaluator([a, b])
    assert evaluator.proportional(a, b) == same
    assert evaluator.proportional(a, b, positive=True) == (same and positive)


def test_constant():
    evaluator = Evaluator(["x"])
    assert evaluator.constant("2/3") == Fraction(2, 3)
    assert float(evaluator.constant("\\sqrt{2}")) == pytest.approx(2**0.5)
    assert evaluator.constant("x") is None
    assert evaluator.constant("i") is None


# ---- the budget ----------------------------------------------------------------------------------


def test_an_evaluator_has_one_budget_for_all_comparisons():
    evaluator = Evaluator(["1"])
    evaluator.equal("1+1", "2")
    spent = FUEL - evaluator.arithmetic.fuel
    assert spent > 0
    evaluator.equal("1+1", "2")
    assert FUEL - evaluator.arithmetic.fuel == spent
    evaluator.equal("1+2", "3")
    assert FUEL - evaluator.arithmetic.fuel == 2 * spent

    with pytest.raises(Unreadable):
        evaluator.arithmetic.pay(FUEL)


@pytest.mark.parametrize("text", ["99999^99999", "10^{10^{10}}", "e^{1000}", "3000!+" * 200 + "1"])
def test_values_and_texts_beyond_the_limits_are_unreadable(text):
    with pytest.raises(Unreadable):
        equal(text, f"({text})")
