"""verify.py: the rules of comparison, and the answers that earlier graders judged wrongly."""

from pathlib import Path

import pytest

from verify import earnable, is_equivalent, reward

ROOT = Path(__file__).parent.parent


def boxed(answer: str) -> str:
    return f"\\boxed{{{answer}}}"


def test_reward_is_binary_and_needs_a_statement_in_a_truncated_response():
    assert reward("answer \\boxed{3}", "3") == 1.0
    assert reward("answer \\boxed{4}", "3") == 0.0
    assert reward("", "3") == 0.0
    assert reward("so we get 5", "5") == 1.0
    assert reward("so we get 5", "5", truncated=True) == 0.0
    assert reward("\\boxed{5}, since", "5", truncated=True) == 1.0


def test_reward_and_earnable_accept_numbers():
    assert reward("\\boxed{5}", 5) == 1.0
    assert reward("\\boxed{\\frac{1}{2}}", 0.5) == 1.0
    assert reward("\\boxed{6}", 5) == 0.0
    assert earnable(5)


@pytest.mark.parametrize(
    "response", ["{10\\%}", "{10}\\%", "{10} percent", "{x = 10\\%}", "{10.0\\%}"]
)
def test_a_percentage_is_its_value_or_a_gold_number_above_1(response):
    assert reward(f"\\boxed{response}.", "0.1") == 1.0
    assert reward(f"\\boxed{response}.", "10") == 1.0
    assert reward(f"\\boxed{response}.", "10\\%") == 1.0
    assert reward(f"\\boxed{response} is wrong.", "10") == 0.0


@pytest.mark.parametrize(
    "response, gold",
    [("10", "10\\%"), ("1\\%", "1"), ("0.5\\%", "0.5"), ("45\\%", "45^\\circ"), ("11\\%", "10")],
)
def test_a_percentage_is_nothing_else(response, gold):
    assert reward(boxed(response), gold) == 0.0


def test_a_negative_percentage_has_a_sign_too():
    assert reward("\\boxed{-10\\%}", "-10") == 1.0
    assert reward("\\boxed{-10\\%}", "10") == 0.0


@pytest.mark.parametrize("noun", ["clips", "paper clips", "bags of flour", "trays can be filled"])
def test_a_counted_noun_may_stand_beside_a_number_but_no_word_that_changes_it(noun):
    assert reward(f"\\boxed{{72 \\text{{ {noun}}}}}", "72") == 1.0
    assert reward(f"The answer is 72 {noun}.", "72") == 1.0
    for word in ("thousand", "dozen", "or fewer", "hundred", "percent of the"):
        assert reward(f"\\boxed{{72 \\text{{ {word} {noun}}}}}", "72") == 0.0, word
        assert reward(f"The answer is 72 {word} {noun}.", "72") == 0.0, word
    assert reward("\\boxed{72 \\text{ light years}}", "72") == 0.0


def test_a_word_that_ends_in_old_denies_nothing():
    for before in (
        "Both conditions hold for $n=",
        "He sold $",
        "The threshold is $",
        "Harold has $",
    ):
        assert reward(f"{before}\\boxed{{7}}$", "7") == 1.0, before
    assert reward("My old answer was $\\boxed{7}$", "7") == 0.0


@pytest.mark.parametrize("words", ["more books", "fewer books", "less", "times a week"])
def test_a_comparison_behind_a_box_does_not_change_it(words):
    assert reward(f"He has $\\boxed{{7}}$ {words}.", "7") == 1.0
    assert reward("The answer is $\\boxed{7}$ times 3.", "7") == 0.0


def test_a_doubt_withdraws_a_box_until_it_is_settled():
    doubt = "$\\boxed{20}$. Wait, let me double check:"
    assert reward(f"{doubt} 4 times 5 gives 20. Yes.", "20") == 1.0
    assert reward(f"{doubt} 4 times 6 gives 24, so it is 24.", "20") == 0.0
    assert reward(f"{doubt} 4 times 5.", "20") == 0.0
    assert reward("$\\boxed{20}$. Let me verify: 4 times 5 gives 20.", "20") == 1.0
    assert reward("$\\boxed{20}$. It should be noted that 25 is larger.", "20") == 1.0


def test_earnable_is_false_for_gold_answers_that_no_answer_matches():
    for gold in ("5", "\\frac{1}{2}", "x \\equiv 3", "\\int f = 2", "\\text{Yes}"):
        assert earnable(gold), gold
    for gold in ("\\sum_{i=1}^5 i", "\\frac{0}{0}", "", "nan", "\\int f"):
        assert not earnable(gold), gold


# ---- a box that is taken back --------------------------------------------------------------------


@pytest.mark.parametrize(
    "after",
    [
        "But wait, the endpoints are excluded, so the count is 80.",
        "However, the endpoints are excluded, so the count is 80.",
        "However, subtracting the endpoints leaves $80$.",
        "Oh no, the count is 80.",
        "Alternatively, the count is 80.",
        "So the corrected count is 80.",
        "So it's 80.",
        "Therefore the final answer is **80**.",
        "**Final Answer**: 80",
        "I'm not sure about this.",
        "That overcounts by 2.",
        "Nope.",
        "\n80",
        "= 80",
        "or 80",
        "if n is even",
        "million",
    ],
)
def test_reward_is_0_if_another_result_or_a_denial_follows(after):
    space = ". " if after[0].isupper() else " "
    assert reward(f"$\\boxed{{82}}${space}{after}", "82") == 0.0
    if after[0].isupper() or after[0] == "\n":  # other words change an answer only behind a box
        assert reward(f"<answer>82</answer>{space}{after}", "82") == 0.0


@pytest.mark.parametrize(
    "after",
    [
        "Note that 5 does not work.",
        "Check: 41 + 41 = 82.",
        "So the answer is 82.",
        "However, there are other methods.",
        "The other root, $x=-3$, is rejected.",
        "I hope this helps!",
    ],
)
def test_reward_is_1_if_the_text_behind_a_box_does_not_change_it(after):
    assert reward(f"$\\boxed{{82}}$. {after}", "82") == 1.0


# ---- credits and misses of earlier graders -------------------------------------------------------


@pytest.mark.parametrize(
    "a, b",
    [
        ("a=2, m=-6", "a=2, a=-6"),
        ("600,15", "15,600"),
        ("\\cos 2\\pi/5", "1/5"),
        ("10^{40}", "\\sqrt{10^{80}+1}"),
        ("1", "\\tanh(100)"),
        ("10^{13}-x", "|x-10^{13}|"),
        ("10^{50}-x", "|x-10^{50}|"),
        ("100!-x", "|x-100!|"),
        ("|x|=4", "4"),
        ("\\log x=4", "4"),
        ("(y,x)=(1,2)", "(1,2)"),
        ("5\\text{M}", "5"),
        ("\\lim f \\neq 3 = 5", "5"),
    ],
)
def test_is_equivalent_rejects_what_earlier_graders_credited(a, b):
    assert not is_equivalent(a, b)
    assert not is_equivalent(b, a)


@pytest.mark.parametrize(
    "response, gold",
    [
        (boxed("\\color{blue}{116}"), "116"),
        ("<answer>116</answer>", "116"),
        (
            boxed("\\begin{pmatrix}1\\\\[2pt]2\\end{pmatrix}"),
            "\\begin{pmatrix}1\\\\2\\end{pmatrix}",
        ),
        (boxed("(0,\\infty)\\setminus\\{1\\}"), "(0,1)\\cup(1,\\infty)"),
        (boxed("2043_{\\text{five}}"), "2043_5"),
        (boxed("0.1\\overline{6}"), "1/6"),
        (boxed("\\text{sin}\\,x\\mathrm{cos}x + \\mathrm{tan} x"), "\\sin x\\cos x+\\tan x"),
        (boxed("\\mathrm{log}_2 3"), "\\log_2 3"),
        (boxed("V=\\pi r^2h=12\\pi"), "12\\pi"),
    ],
)
def test_reward_is_1_for_what_earlier_graders_missed(response, gold):
    assert reward(response, gold) == 1.0


# ---- compare -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "a, b",
    [
        ("2y=4x", "y-2x=0"),
        ("S=5", "S=2+3"),
        ("y=2, x=3", "(3,2)"),
        ("\\log^2 x", "(\\log x)^2"),
        ("x \\equiv 3", "x \\equiv 3"),
        ("x <= 3", "x \\le 3"),
        ("x >= 3", "x \\ge 3"),
        ("x != 3", "x \\ne 3"),
    ],
)
def test_is_equivalent_is_symmetric_and_reproducible(a, b):
    for _ in range(3):
        assert is_equivalent(a, b)
        assert is_equivalent(b, a)


@pytest.mark.parametrize(
    "a, b",
    [
        ("[0,1)", "(0,1]"),
        ("12:30", "24:60"),
        ("f(2)<f(1)<f(4)", "f(2)<f(8)<f(4)"),
        ("P(A)=P(B)=1/2", "P(A)=P(C)=1/2"),
        ("3,5", "3.5"),
        ("32, 349", "32349"),
        ("\\begin{pmatrix}1&2\\end{pmatrix}", "\\begin{pmatrix}1\\\\2\\end{pmatrix}"),
        ("\\begin{vmatrix}1\\end{vmatrix}", "\\begin{pmatrix}1\\end{pmatrix}"),
        ("x=5", "5=6"),
        ("\\int x", "\\int x"),
        ("\\equiv 3", "\\equiv 4"),
        ("204_5", "54"),
        ("3!!", "720"),
        ("\\min x^2", "\\min x^2"),
    ],
)
def test_is_equivalent_rejects_different_answers(a, b):
    assert not is_equivalent(a, b)
    assert not is_equivalent(b, a)


def test_is_equivalent_accepts_six_digits_of_an_irrational_but_not_of_a_rational_number():
    assert is_equivalent("3.14159", "\\pi")
    assert is_equivalent("\\pi", "3.141593")
    for decimal, exact in (
        ("3.1416", "\\pi"),
        ("3.14153", "\\pi"),
        ("0.03142", "\\pi/100"),
        ("0.333333333333", "1/3"),
    ):
        assert not is_equivalent(decimal, exact)
    assert not is_equivalent("\\pi", "3.14159")  # a gold needs six digits after its point
    assert not is_equivalent("15300.75+\\frac{\\pi}{1000}", "15300.75")


def test_is_equivalent_drops_sums_from_predictions_but_not_from_golds():
    """m+n = 33 states the value of m+n. A gold answer a+b = 5 is a condition; x+y = 5 is a line."""
    assert is_equivalent("m+n=33", "33")
    assert not is_equivalent("33", "m+n=33")
    for equation in ("x+y=5", "xy=5", "2a=5", "x^2=5", "|x-1|=5"):
        assert not is_equivalent(equation, "5")
        assert not is_equivalent("5", equation)


def test_is_equivalent_accepts_an_exact_form_with_its_rounded_or_truncated_decimal():
    for decimal in ["3", "3.1", "3.14", "3.141", "3.142"]:
        assert is_equivalent(f"\\pi\\approx {decimal}", "\\pi"), decimal
    for decimal in ["4", "3.2", "3.15", "3.140", "3.143", "-3"]:
        assert not is_equivalent(f"\\pi\\approx {decimal}", "\\pi"), decimal


@pytest.mark.parametrize("frame", ["{}", "({},1)", "\\{{{}\\}}", "1,{}", "x={}"])
@pytest.mark.parametrize(
    "undefined",
    ["0/0", "\\frac{1}{0}", "\\infty-\\infty", "0^0", "\\log 0", "(-1)!", "\\frac{1}{x-x}"],
)
def test_undefined_expressions_do_not_equal_themselves(undefined, frame):
    text = frame.format(undefined)
    assert not is_equivalent(text, text)


@pytest.mark.parametrize("file", [ROOT / "verify.py", *sorted((ROOT / "answers").glob("*.py"))])
def test_verify_never_executes_text(file):
    source = file.read_text()
    for banned in ("eval(", "exec(", "__import__", "subprocess", "signal", "ast.parse"):
        assert banned not in source, banned
