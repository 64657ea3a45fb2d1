"""answers/expressions.py: operator precedence, and which names are variables or functions."""

import math
import random
from fractions import Fraction

import pytest

from answers.errors import Unreadable
from answers.expressions import (
    CALLS,
    MAX_DEPTH,
    MAX_TOKENS,
    Step,
    read,
)
from answers.names import substituted, variables_in
from answers.values import Evaluator


def value_of(text: str) -> Fraction | complex | None:
    """The value of an expression; None if it has none."""
    evaluator = Evaluator([text])
    expression = evaluator.expression(text)
    for value, _ in evaluator.pairs(expression, expression):
        return value if isinstance(value, Fraction) else complex(value)
    return None


def random_sum(draw: random.Random, depth: int) -> str:
    """A random expression made of integers, + - * / and brackets."""
    if depth == 0:
        return str(draw.randint(1, 9))
    parts = [random_sum(draw, depth - 1) for _ in range(3)]
    first, second = draw.choices("+-*/", k=2)
    if draw.random() < 0.5:
        return f"({parts[0]}{first}{parts[1]}){second}{parts[2]}"
    return f"{parts[0]}{first}{parts[1]}{second}{parts[2]}"


def test_read_returns_steps_in_postfix_order():
    number = [Step("number", 0, Fraction(2)), Step("number", 0, Fraction(1))]
    variable = Step("variable", 0, "x")
    times, plus = Step("multiply", 2), Step("add", 2)
    assert read("2x+1").steps == [number[0], variable, times, number[1], plus]
    assert read("2x+1").names == {"x"}


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
        ("2^{3}^2", 64),
        ("2^3^2", 512),
        ("-2^2", -4),
        ("2^-1", Fraction(1, 2)),
        ("1/2*3", Fraction(3, 2)),
        ("1/2(3)", Fraction(3, 2)),
        ("1.25", Fraction(5, 4)),
        ("2.5e3", 2500),
        ("\\frac12", Fraction(1, 2)),
        ("\\frac1{23}", Fraction(1, 23)),
        ("2(3)", 6),
        ("(2)3", 6),
        ("3!", 6),
        ("3!!", 3),
        ("3!2", 12),
        ("204_5", 54),
        ("\\binom{5}{2}", 10),
        ("\\binom52", 10),
        ("|-3|", 3),
        ("2|-3|", 6),
        ("||-3|-5|", 2),
        ("\\lfloor-7/2\\rfloor", -4),
        ("\\lceil-7/2\\rceil", -3),
        ("\\sqrt{9}", 3),
        ("\\sqrt[3]{-8}", -2),
        ("30\\degree", 30),
    ],
)
def test_values_exact(text, value):
    assert value_of(text) == value
    assert isinstance(value_of(text), Fraction)


@pytest.mark.parametrize(
    "text, value",
    [
        ("\\sqrt2", math.sqrt(2)),
        ("\\sin30\\degree", 0.5),
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
        ("\\log^2 3", math.log(3) ** 2),
        ("\\log_2^3 4", 8),
        ("\\lg1000", 3),
        ("\\ln(e^2)", 2),
        ("e^{i\\pi}", -1),
        ("2\\pi", 2 * math.pi),
    ],
)
def test_values_of_constants_and_functions(text, value):
    assert complex(value_of(text)) == pytest.approx(value, abs=1e-12)


@pytest.mark.parametrize("name", CALLS)
def test_every_function_has_a_value(name):
    assert value_of(f"\\{name}(1/2)") is not None


def test_values_of_infinity():
    assert value_of("\\infty") == math.inf
    assert value_of("-\\infty") == -math.inf


@pytest.mark.parametrize(
    "text",
    ["1/0", "0^0", "(-1)!", "\\infty-\\infty", "\\ln0", "0*\\infty", "(1/2)!", "\\tan90\\degree"],
)
def test_undefined_expressions_have_no_value(text):
    assert value_of(text) is None


def test_degrees_are_radians_if_requested():
    assert read("90\\degree").steps != read("90\\degree", radians=True).steps
    assert read("\\sin 90\\degree").steps == read("\\sin 90\\degree", radians=True).steps


# ---- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, names",
    [
        ("2x+y", {"x", "y"}),
        ("xy", {"x", "y"}),
        ("e^{i\\pi}", set()),
        ("x_1+x_{12}", {"x_1", "x_12"}),
        ("f'(x)+f''(2)", {"f'", "f''", "x"}),
        ("f^{-1}(2)", {"f"}),
        ("2\\rho+\\xi\\chi\\kappa", {"\\rho", "\\xi", "\\chi", "\\kappa"}),
        ("n_{\\max}", {"n_\\max"}),
    ],
)
def test_read_finds_the_names(text, names):
    assert read(text).names == names


@pytest.mark.parametrize(
    "answers, variables",
    [
        (["f(2x)", "2f(x)"], {"x"}),
        (["a(b+c)", "ab+ac"], {"a", "b", "c"}),
        (["x(x+1)"], {"x"}),
        (["g(1)", "g"], set()),
        (["f^{-1}(x)"], {"f", "x"}),
        (["I(0)e^{-t/RC}", "0"], {"t", "R", "C"}),
        (["5\\text{ft}"], set()),
        (["\\mu(m+M)", "\\mu v_0"], {"\\mu", "v_0", "m", "M"}),
    ],
)
def test_variables_in_returns_the_names_without_brackets(answers, variables):
    assert variables_in(answers) == variables


def test_a_name_before_a_bracket_is_a_function_unless_it_is_a_variable():
    function = [step.operation for step in read("f(2x)").steps]
    product = [step.operation for step in read("f(2x)", frozenset("f")).steps]
    assert function == ["number", "variable", "multiply", "function"]
    assert product == ["variable", "number", "variable", "multiply", "multiply"]
    assert read("u(x,t)").steps[-1] == Step("function", 2, "u")


def test_substituted_replaces_whole_names_only():
    assert substituted("2x+\\sin x+x_1", "x", "(0)") == "2 (0) + \\sin (0) + x_1"


# ---- limits --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        *("", "1+", "\\lnx", "(1", "1)", "(1]", "*1", "1 2", "\\unknown", "x^", "\\frac123"),
        *("a,b", ".", "0^n", "5_1", "7_5", "2.0e9999", "\\sin^{-1}", "f(", "f(1", "x_", "x_{"),
        *("x_12", "|x", "\\rfloor"),
    ],
)
def test_read_refuses_text_outside_the_grammar(text):
    with pytest.raises(Unreadable):
        read(text)


def test_read_limits_depth_and_length():
    depth = MAX_DEPTH - 1
    assert value_of("(" * depth + "1" + ")" * depth) == 1
    with pytest.raises(Unreadable):
        read("(" * MAX_DEPTH + "1" + ")" * MAX_DEPTH)
    with pytest.raises(Unreadable):
        read("1+" * MAX_TOKENS + "1")
