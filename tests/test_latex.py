"""infra/latex.py: each group of rewritings on examples of its own, and every kind of structure."""

import pytest

from infra import latex
from infra.arithmetic import Unreadable
from infra.expressions import MAX_DEPTH
from infra.latex import MAX_MEMBERS, split, structure


def rewritten(text: str, group: list) -> str:
    for pattern, replacement in group:
        text = pattern.sub(replacement, text)
    return text


# ---- rewritings ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "group, before, after",
    [
        ("SIGNS", "−3×2", "-3*2"),
        ("SIGNS", "2 \\cdot 3 \\div 4**5", "2 * 3 / 4^5"),
        ("SIGNS", "\\cdots", "\\cdots"),
        ("SYMBOLS", "√2", "\\sqrt 2"),
        ("SYMBOLS", "30^\\circ", "30\\degree "),
        ("SYMBOLS", "€5~000", "5 000"),
        ("SYMBOLS", "‹1›", "1"),
        ("THOUSANDS", "1\\,234\\,567", "1234567"),
        ("THOUSANDS", "1{,}234", "1234"),
        ("THOUSANDS", "3{,}5", "3.5"),
        ("THOUSANDS", "1\\,2345", "1\\,2345"),
        ("SIZES", "\\left(\\dfrac12\\right.", "(\\frac12"),
        ("SIZES", "\\Bigl[ 1 \\bigr)", "[ 1 )"),
        ("SIZES", "\\leftarrow", "\\leftarrow"),
        ("SPACES", "$5$\\quad\\(6\\)", " 5   6 "),
        ("FONTS", "\\mathbf{v}", " v "),
        ("FONTS", "\\operatorname{sin} 2 + cos 3", "\\sin  2 + \\cos  3"),
        ("FONTS", "\\textbf{yes}", "\\text{yes}"),
        ("WORDS", "1 or 2 \\text{ and } 3", "1 , 2 , 3"),
        ("WORDS", "USD 5", "5"),
        ("WORDS", "\\text{5 cm}", "5"),
        ("WORDS", "floor", "floor"),
        ("RELATIONS", "a \\leq b >= c \\ne d", "a ≤ b ≥ c ≠ d"),
        ("RELATIONS", "\\left", "\\left"),
        ("OPERATORS", "\\{1\\} \\cup \\emptyset", "‹1› ∪ ‹›"),
        ("OPERATORS", "\\lvert x\\rvert \\pm 1", "| x| ± 1"),
        ("COLLECTIONS", "x \\in [0,1]", " [0,1]"),
        (
            "COLLECTIONS",
            "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}",
            "((1,2),(3,4))",
        ),
        ("COLLECTIONS", "\\mathbb{R}", "(-\\infty,\\infty)"),
        ("UNITS", "5 \\text{ cm}^2", "5"),
        ("UNITS", "5 square meters", "5"),
        ("UNITS", "60 km/h", "60"),
        ("UNITS", "50\\%", "50/100"),
        ("UNITS", "\\text{(B)}", " B "),
        ("UNITS", "5m", "5m"),  # five times m
        ("MIXED_NUMBERS", "1\\frac{2}{3}", "(1+2/3)"),
        ("MIXED_NUMBERS", "1\\frac23", "(1+2/3)"),
        ("MIXED_NUMBERS", "1 2/3", "(1+2/3)"),
        ("MIXED_NUMBERS", "x1 2/3", "x1 2/3"),
        ("LEFT_OVER_SPACES", " ( 1 , 2 ) ", "(1,2)"),
        ("LEFT_OVER_SPACES", "\\pi r + 1", "\\pi r+1"),
    ],
)
def test_rewritings(group, before, after):
    assert rewritten(before, getattr(latex, group)) == after


def test_repeating_decimal_is_a_sum():
    for decimal, total in [
        ("0.1\\overline{6}", "(0.10+6/(10*9))"),
        ("0.\\overline{142857}", "(0.0+142857/(1*999999))"),
        ("12.34\\overline{5}", "(12.340+5/(100*9))"),
    ]:
        assert latex.REPEATING.sub(latex.repeating_decimal, decimal) == total


# ---- structure -----------------------------------------------------------------------------------


def test_split_outside_all_brackets():
    assert split("1,(2,3);4", ",;") == ["1", "(2,3)", "4"]
    assert split("(0,1]∪[2,3)", "∪") == ["(0,1]", "[2,3)"]
    assert split("", ",") == [""]
    assert split("1,", ",") == ["1", ""]


@pytest.mark.parametrize("text", ["(1", "1)", "(1))(", "{1"])
def test_split_of_brackets_that_do_not_match_is_empty(text):
    assert split(text, ",") == []


def test_split_is_bounded_in_depth_and_members():
    assert split("(" * MAX_DEPTH + ")" * MAX_DEPTH, ",") != []
    assert split("(" * (MAX_DEPTH + 1) + ")" * (MAX_DEPTH + 1), ",") == []
    assert len(split("," * MAX_MEMBERS, ",")) == MAX_MEMBERS + 1
    assert split("," * (MAX_MEMBERS + 2), ",") == []


@pytest.mark.parametrize(
    "text, kind, members",
    [
        ("\\text{Not prime.}", "word", ["not", "prime"]),
        ("No", "word", ["no"]),
        ("2,±1", "list", ["2", "+1", "-1"]),
        ("1±2∓3", "list", ["1+2-3", "1-2+3"]),
        ("‹1,2›", "set", ["1", "2"]),
        ("‹›", "set", []),
        ("[0,1)∪(2,3)", "∪", ["[0,1)", "(2,3)"]),
        ("x=y=3", "=", ["x", "y", "3"]),
        ("2:3", ":", ["2", "3"]),
        ("(1,2]", "(]", ["1", "2"]),
        ("((1,2),(3,4))", "()", ["(1,2)", "(3,4)"]),
        ("((1,2))", "()", ["1", "2"]),
        ("{1}", "value", ["1"]),
        ("(1)(2)", "value", ["(1)(2)"]),
        ("\\frac{1}{2}+x", "value", ["\\frac{1}{2}+x"]),
    ],
)
def test_structure(text, kind, members):
    assert structure(text) == (kind, members)


@pytest.mark.parametrize(
    "text, kind, members",
    [
        ("0<x≤1", "(]", ["0", "1"]),
        ("1≥x>0", "(]", ["0", "1"]),
        ("x<5", "()", ["-\\infty", "5"]),
        ("x≥5", "[)", ["5", "\\infty"]),
        ("5≤f(x)", "[)", ["5", "\\infty"]),
        ("x<2e", "()", ["-\\infty", "2e"]),
        ("x≠5", "≠", ["(x)-(5)"]),
        ("x<y", "<", ["(x)-(y)"]),
        ("x+y≥1", "≤", ["(1)-(x+y)"]),
    ],
)
def test_inequality(text, kind, members):
    assert structure(text) == (kind, members)


@pytest.mark.parametrize("text", ["(1", "1,(2", "0<x>1", "0<x<1<2", "0<x+1<2", "(" * 50 + ")" * 50])
def test_structure_refuses_what_it_cannot_read(text):
    with pytest.raises(Unreadable):
        structure(text)
