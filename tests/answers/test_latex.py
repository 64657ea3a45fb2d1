"""answers/latex.py: each group of rewritings separately; reapplying a group changes nothing."""

import json
import random
from pathlib import Path

import pytest

from answers import latex
from answers.extraction import extract_answer

ANSWERS = Path(__file__).parent / "data" / "answers.jsonl"
EXAMPLES = [
    ("signs", "−3×2 \\cdot 4 \\div 5**2", "-3*2 * 4 / 5^2"),
    ("signs", "\\cdots", "\\cdots"),
    ("signs", "a \\leq b >= c \\ne d", "a ≤ b ≥ c ≠ d"),
    ("signs", "\\left\\{1\\right\\} \\cup \\emptyset", "\\left‹1\\right› ∪ ∅"),
    ("signs", "√2 \\pm ½", "\\sqrt{2} ± \\frac{1}{2}"),
    ("signs", "30^\\circ, 30^{\\circ}, 30°", "30\\degree , 30\\degree , 30\\degree "),
    ("signs", "\\$5 or €5", "\\text{USD} 5 or \\text{EUR} 5"),
    ("signs", "f^{\\prime}(x²)", "f'(x^{2})"),
    ("signs", "1 \\\\lt 2", "1 \\\\lt 2"),  # a new line, then lt
    ("spaces", "$\\left(\\,5 \\right.$", "( 5"),
    ("spaces", "\\(1\\) \\(2\\] \\\\ \\[3", "1\\quad 2\\quad 3"),
    ("spaces", "\\Bigl[ 1 \\bigr) \\quad 2", "[ 1 ) \\quad 2"),
    ("spaces", "\\left|x\\right|", "\\lvert x\\rvert"),
    ("spaces", "1,\\!234", "1{,}234"),
    ("spaces", "\\leftarrow\\pi \\, r", "\\leftarrow\\pi r"),
    ("fonts", "\\mathbf{v} + \\mathrm{m}", " v  + \\text{m}"),
    ("fonts", "\\operatorname{sin} 2 + cos 3", "\\sin  2 + \\cos  3"),
    ("fonts", "\\sqrt{\\frac lg} + lg 2", "\\sqrt{\\frac lg} + \\lg  2"),
    ("fonts", "\\textbf{ yes. }", "\\text{yes}"),
    ("fonts", "\\text{cos and sin}", "\\text{cos and sin}"),
    ("fonts", "\\mathrm{cm^{2}}", "\\text{cm^2}"),
    ("fractions", "\\dfrac12 + {a \\over b}", "\\frac{1}{2} + {\\frac{a }{ b}}"),
    ("fractions", "\\tbinom{n}{k}", "\\binom{n}{k}"),
    ("fractions", "1\\frac{2}{3}", "(1+2/3)"),
    ("fractions", "-1 \\frac23", "-(1+2/3)"),
    ("fractions", "1 2/3", "(1+2/3)"),
    ("fractions", "x1 2/3 and x^2\\frac12", "x1 2/3 and x^2\\frac{1}{2}"),
    ("separators", "1 or 2 \\text{ and } 3", "1 , 2 , 3"),
    ("separators", "1 \\text{or} 2", "1 , 2"),
    ("separators", "\\text{even or odd} floor", "\\text{even or odd} floor"),
    ("separators", "1 \\quad 2", "1 \\quad 2"),  # two readings: see structure.readings
    ("separators", " = 5. ", "5"),
    ("separators", "1, 2, ...", "1, 2, ..."),
    ("separators", "x>1 and x<5", "x>1  ∧  x<5"),
    ("unit_marks", "5 \\text{cm}^2", "5 \\text{cm^2}"),
    ("unit_marks", "9.8 \\frac{\\text{m}}{\\text{s}^{2}}", "9.8\\text{m/s^2}"),
    ("unit_marks", "\\frac{1}{\\text{s}^2}", "\\frac{1}{\\text{s^2}}"),
    ("unit_marks", "5 square meters", "5\\text{square meters}"),
    ("unit_marks", "60 km/h", "60\\text{km/h}"),
    ("unit_marks", "2 x", "2 x"),
    ("unit_marks", "(n+1) m", "(n+1) m"),
    ("unit_marks", "3+2 m", "3+2 m"),
    ("unit_marks", "2mg", "2mg"),
    ("unit_marks", "6 m + 6m", "6 m + 6m"),  # a product of m
    ("unit_marks", "6 m", "6\\text{m}"),
    ("unit_marks", "6m, \\pi r^2 h", "6m, \\pi r^2 h"),
    ("unit_marks", "\\text{5 cm}", "5\\text{cm}"),
    ("unit_marks", "\\text{USD} 5", "5\\text{USD}"),
    ("unit_marks", "45\\text{degrees}", "45\\degree "),
    ("unit_marks", "\\text{(B)} + 3\\text{m}", " B  + 3\\text{m}"),
    ("collections", "x ∈ [0,1]", "[0,1]"),
    ("collections", "‹x : x>0›", "x>0"),
    ("collections", "\\mathbb{R}", "(-\\infty,\\infty)"),
    ("collections", "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}", "⟦(1,2),(3,4)⟧"),
    ("collections", "\\begin{array}{c}1\\\\2\\\\\\end{array}", "⟦(1),(2)⟧"),
    ("collections", "\\begin{vmatrix}1\\end{vmatrix}", "\\det⟦(1)⟧"),
    ("numbers", "1{,}234 + 12{,}345{,}678.5", "1234 + 12345678.5"),
    ("numbers", "3{,}5, 0{,}125, 1234{,}567", "3,5, 0,125, 1234,567"),
    ("numbers", "0 500, 00 500", "0 500, 00 500"),
    ("numbers", "12 345 678", "12345678"),
    ("numbers", "5 6, 12 34, 1 2345", "5 6, 12 34, 1 2345"),
    ("numbers", "50\\%, 5 percent", "50/100, 5/100"),
    ("numbers", "5\\text{per cent}", "5/100"),
    ("numbers", "0.1\\overline{6}", "(0.10+6/(10*9))"),
    ("numbers", "0.\\overline{142857}", "(0.0+142857/(1*999999))"),
    ("numbers", "12.34\\overline{5}", "(12.340+5/(100*9))"),
]


@pytest.mark.parametrize("group, before, after", EXAMPLES)
def test_group(group, before, after):
    assert getattr(latex, group)(before) == after


def test_every_group_is_tested():
    assert {group for group, _, _ in EXAMPLES} == {group.__name__ for group in latex.GROUPS}


def answers_of_the_table() -> set[str]:
    pairs = [json.loads(line) for line in ANSWERS.read_text().splitlines()]
    answers = {extract_answer(pair["response"]) or "" for pair in pairs}
    return answers | {pair["gold"] for pair in pairs}


FRAGMENTS = (
    "\\frac { } ( ) [ ] 1 2 x ^ _ ! + - * / , = < > \\sqrt \\pi | \\{ \\} \\pm sin \\log \\binom 0"
    " \\text{ \\text{cm} \\text{and} \\cup % & \\\\ : . \\begin{pmatrix} \\end{pmatrix} $ 3.5"
    " ^\\circ"
    " \\overline{ \\ge or and n \\quad \\, \\! \\left \\right \\mathrm{ cm m 1{,}234 1,000 1 ' \\in"
    " \\mathbb{R} \\degree ½ π ² million \\text{5 \\over \\mathbf{"
)
TOKENS = [*FRAGMENTS.split(), " ", "~", "\n", "\\"]


@pytest.mark.parametrize("group", latex.GROUPS)
def test_applying_a_group_again_changes_nothing(group):
    draw = random.Random(0)
    soups = ["".join(draw.choices(TOKENS, k=draw.randint(1, 25))) for _ in range(300)]
    for text in [*answers_of_the_table(), *soups]:
        once = group(text)
        assert group(once) == once, text


@pytest.mark.parametrize("group", latex.GROUPS)
def test_no_group_changes_the_output_of_all_groups(group):
    """No group depends on a later one: after the last group, none finds anything to rewrite."""
    for text in answers_of_the_table():
        for each in latex.GROUPS:
            text = each(text)
        assert "".join(group(text).split()) == "".join(text.split())


GUARDS = {
    "RAISED": latex.CARET,
    "LAYOUT": latex.BACKSLASH,
    "FONTS": latex.FONT_OR_FUNCTION,
    "FRACTIONS": latex.QUOTIENT,
    "SEPARATORS": latex.SEPARATOR,
    "UNITS": latex.UPRIGHT_WORD,
    "COLLECTIONS": latex.SET_OR_MATRIX,
    "NUMBERS": latex.UNUSUAL_NUMBER,
}


@pytest.mark.parametrize("name", GUARDS)
def test_only_with_skips_no_matching_rule(name):
    """`only_with` only saves time; it changes no result."""
    draw = random.Random(1)
    soups = ["".join(draw.choices(TOKENS, k=draw.randint(1, 12))) for _ in range(2000)]
    texts = [latex.spaces(latex.signs(text)) for text in [*answers_of_the_table(), *soups]]
    rules = getattr(latex, name)
    left_out = [text for text in texts if not GUARDS[name].search(text)]
    assert len(left_out) > 100
    for text in left_out:
        assert latex.rewritten(text, rules) == text
