"""Tests answers/values.py: exact fractions, 700-bit numbers, points that tell functions apart."""

import random
from fractions import Fraction

import pytest
from tables import rows

from answers import Unreadable
from answers.latex import normalise
from answers.parser import parse
from answers.values import Evaluator

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
    for _ in range(300):
        text = random_sum(draw, depth=2)
        # It is safe to evaluate this text, because it has only digits, signs and brackets.
        python = "".join(f"Fraction({c})" if c.isdigit() else c for c in text)
        try:
            expected = eval(python, {"Fraction": Fraction})
        except ZeroDivisionError:
            expected = None
        assert value_of(text) == expected, text


@pytest.mark.parametrize("row", rows("values"), ids=lambda row: row["text"])
def test_values_are_exact_or_undefined(row):
    expected = None if row["value"] is None else Fraction(row["value"])
    found = value_of(row["text"])
    assert found == expected and type(found) is type(expected)


@pytest.mark.parametrize(
    "text", ["(1", "1 2", "x 2", "x^", "\\unknown", "\\log_2", "204_5", "(" * 50 + "1" + ")" * 50]
)
def test_parse_refuses_text_outside_the_grammar(text):
    with pytest.raises(Unreadable):
        tree(text)


@pytest.mark.parametrize("row", rows("expressions"), ids=lambda row: f"{row['a']} {row['b']}")
def test_expressions_compare_alike_for_every_seed_in_either_order(row):
    for seed in range(SEEDS):
        a, b = (row["a"], row["b"]) if seed % 2 else (row["b"], row["a"])
        assert equal(a, b, str(seed)) == row["equal"], (a, b, seed)
