"""answers/beside.txt: each line changes the verdict on its case."""

import re

import pytest

from answers import extraction
from verify import reward

LINES = [
    (heading, line, case)
    for heading, lines in extraction.LISTED.items()
    for line, case in lines.items()
]


@pytest.mark.parametrize("heading, line, case", LINES)
def test_line_changes_the_verdict_on_its_case(heading, line, case, monkeypatch):
    response = case.replace("§", r"\boxed{7}")
    verdict = reward(response, 7)
    whole = extraction.signs(heading)
    others = {other: case for other, case in extraction.LISTED[heading].items() if other != line}
    monkeypatch.setitem(extraction.LISTED, heading, others)
    shorter = extraction.signs(heading)
    for name, pattern in vars(extraction).copy().items():
        if isinstance(pattern, re.Pattern) and whole in pattern.pattern:
            without = re.compile(pattern.pattern.replace(whole, shorter))
            monkeypatch.setattr(extraction, name, without)
    assert reward(response, 7) != verdict


@pytest.mark.parametrize(
    "case",
    [
        "-§",
        r"2\times §",
        r"x \neq §",
        "§ for odd n",
        r"§\sqrt{2}",
        r"§\cdot 2",
        r"§\times 3",
        r"§\frac{1}{2}",
        "§. I made an error.",
        "§. I misread it.",
        "§. I missed one case.",
        "§. But the question asks for twice that.",
        "§. That is too small.",
        "§. It should have been 8.",
        "§. I don't think so.",
        "§. Let's recount.",
        "§. Actually, we have more.",
        "§. However, it is 8, as required.",
        "§. Thus there are 8 points.",
        "§. Hence there are 8 points.",
        "§. Therefore there are 8 points.",
        "§ (wrong)",
        "§ (rejected)",
        "§. That is not correct.",
        "§. This does not work.",
        "§. This cannot be.",
    ],
)
def test_other_words_of_a_line_withdraw_the_answer(case):
    assert reward(case.replace("§", r"\boxed{7}"), 7) == 0.0


@pytest.mark.parametrize("settled", ["Yes", "That's right", "This is correct", "It is right"])
def test_a_doubt_is_settled(settled):
    assert reward(rf"\boxed{{7}}. Wait, let me check. {settled}.", 7) == 1.0


@pytest.mark.parametrize(
    "before, behind", [("$", "$"), ("$$", "$$"), (r"\(", r"\)"), (r"\[", r"\]")]
)
def test_a_formula_states_a_result(before, behind):
    formula = rf"{before}\frac{{3}}{{4}}{behind}"
    assert reward(f"The answer is {formula}.", "3/4") == 1.0
    assert reward(rf"\boxed{{7}}. However, it is {formula}.", 7) == 0.0
