"""answers/structure.py and answers/equations.py: every kind of structure, and labels."""

import pytest

from answers.equations import in_order, is_label, is_name
from answers.errors import Unreadable
from answers.expressions import MAX_DEPTH
from answers.structure import MAX_MEMBERS, readings, split, structure

# ---- structure -----------------------------------------------------------------------------------


def test_split_ignores_separators_in_brackets():
    assert split("1,(2,3);4", ",;") == ["1", ",", "(2,3)", ";", "4"]
    assert split("(0,1] ∪ [2,3)", "∪") == ["(0,1]", "∪", "[2,3)"]
    assert split("", ",") == [""]
    assert split("1,", ",") == ["1", ",", ""]


@pytest.mark.parametrize("text", ["(1", "1)", "(1))(", "{1", "⟦1"])
def test_split_of_unmatched_brackets_is_empty(text):
    assert split(text, ",") == []


def test_split_limits_depth_and_members():
    assert split("(" * MAX_DEPTH + ")" * MAX_DEPTH, ",") != []
    assert split("(" * (MAX_DEPTH + 1) + ")" * (MAX_DEPTH + 1), ",") == []
    assert len(split("," * MAX_MEMBERS, ",")) == 2 * MAX_MEMBERS + 1
    assert split("," * (MAX_MEMBERS + 2), ",") == []


@pytest.mark.parametrize(
    "text, kind, members",
    [
        ("\\text{Not prime.}", "word", ["not", "prime"]),
        ("No", "word", ["no"]),
        ("2,±1", "list", ["2", "+1", "-1"]),
        ("1±2∓3", "list", ["1+2-3", "1-2+3"]),
        ("(±1,2)", "list", ["(+1,2)", "(-1,2)"]),
        ("±1±x", "list", ["+1+x", "+1-x", "-1+x", "-1-x"]),
        ("x>1 ∧ x<5", "∧", ["x>1", "x<5"]),
        ("|x|<2", "<", ["-(2)", "<", "x", "<", "2"]),
        ("\\lvert x\\rvert≥2", "∪", ["x≤-(2)", "2≤x"]),
        ("‹1,2›", "set", ["1", "2"]),
        ("‹0,±2›", "set", ["0", "+2", "-2"]),
        ("‹›", "set", []),
        ("∅", "set", []),
        ("[0,1)∪(2,3)", "∪", ["[0,1)", "(2,3)"]),
        ("x = y=3", "=", ["x", "y", "3"]),
        ("x=\\sqrt{2} ≈ 1.41", "≈", ["x=\\sqrt{2}", "1.41"]),
        ("2:3", ":", ["2", "3"]),
        ("x≠5", "≠", ["x", "5"]),
        ("5\\text{cm}", "quantity", ["5", "cm"]),
        ("(1,2)\\text{cm}", "quantity", ["(1,2)", "cm"]),
        ("12\\text{red apples}", "quantity", ["12", "red apples"]),
        ("(1,2]", "(]", ["1", "2"]),
        ("((1,2))", "()", ["1", "2"]),
        ("⟦(1,2),(3,4)⟧", "matrix", ["(1,2)", "(3,4)"]),
        ("{1}", "value", ["1"]),
        ("(1)(2)", "value", ["(1)(2)"]),
        ("\\frac{1}{2}+x", "value", ["\\frac{1}{2}+x"]),
    ],
)
def test_structure(text, kind, members):
    assert structure(text) == (kind, members)


@pytest.mark.parametrize(
    "text, members",
    [
        ("0<x≤1", ["0", "<", "x", "≤", "1"]),
        ("1≥x>0", ["0", "<", "x", "≤", "1"]),
        ("f(2)<f(1)<f(4)", ["f(2)", "<", "f(1)", "<", "f(4)"]),
        ("x>y", ["y", "<", "x"]),
    ],
)
def test_inequalities_are_parsed_in_rising_order(text, members):
    assert structure(text) == ("<", members)


@pytest.mark.parametrize(
    "text",
    [
        "(1",
        "1,(2",
        "0<x>1",
        "5\\text{or 6}",
        "5\\text{not}",
        "6\\text{cannot be}",
        "(" * 50 + ")" * 50,
    ],
)
def test_structure_refuses_unreadable_text(text):
    with pytest.raises(Unreadable):
        structure(text)


# ---- readings of a comma -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, meanings",
    [
        ("1,234", ["1234", "1,234"]),
        ("-1,234,567.5", ["-1234567.5", "-1,234,567.5"]),
        ("N=1,234", ["N=1234", "N=1,234"]),
        ("1,234\\text{cm}", ["1234\\text{cm}", "1,234\\text{cm}"]),
        ("3,5", ["3,5"]),
        ("1, 234", ["1, 234"]),
        ("0,123", ["0,123"]),
        ("(1,234)", ["(1,234)"]),
        ("1,234x", ["1,234x"]),
        ("1 \\quad 2", ["1 , 2", "1   2"]),
    ],
)
def test_readings(text, meanings):
    assert readings(text) == meanings


# ---- labels --------------------------------------------------------------------------------------

NAMES = (
    "x",
    "a_5",
    "f'",
    "\\theta",
    "S_{10}",
    "f_{\\max}",
    "AB",
    "ABC",
    "\\text{area}",
    "V_{\\text{cone}}",
)
QUANTITIES = (
    *(
        "f(3)",
        "f^{-1}(x)",
        "P(A∪B)",
        "P(X = 2)",
        "\\mathbb{E}[X]",
        "E[X]",
        "\\gcd(12, 20)",
        "\\det A",
    ),
    *("\\angle ABC", "|AB|", "|z|", "[ABC]", "[\\triangle ABC]", "\\cos\\theta", "\\sin A", "A:B"),
    *("\\sin 2A", "\\cos 2\\theta", "\\tan\\frac{A}{2}", "\\cos(3\\alpha)"),
    *("\\frac{dy}{dx}", "(x,y)", "\\overline{AB}"),
)
NO_LABELS = (
    *(
        "5",
        "2x",
        "-x",
        "x^2",
        "xy",
        "x+y",
        "a+b",
        "\\frac{a}{b}",
        "\\frac{x}{2}",
        "|x|",
        "|x-1|",
        "\\sin x",
        "\\sin 2x",
        "2\\sin A",
    ),
    *("\\sqrt{x}", "2+3", "", "x=5", "(1,2)", "a" * 200),
)


@pytest.mark.parametrize("text", NAMES)
def test_is_name(text):
    assert is_name(text)
    assert is_label(text)


@pytest.mark.parametrize("text", QUANTITIES)
def test_is_label_accepts_quantities(text):
    assert is_label(text)
    assert not is_name(text)


@pytest.mark.parametrize("text", NO_LABELS)
def test_is_label_refuses_other_left_sides(text):
    assert not is_label(text)


def test_in_order_sorts_values_by_consecutive_letters_only():
    assert in_order(["y", "x"], ["2", "3"]) == ["3", "2"]
    assert in_order(["z", "x", "y"], ["1", "2", "3"]) == ["2", "3", "1"]
    assert in_order(["n", "k"], ["2", "3"]) == ["2", "3"]
    assert in_order(["x_2", "x_1"], ["2", "3"]) == ["2", "3"]
