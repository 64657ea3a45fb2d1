"""answers/units.py: words for the same unit, and words that may not be dropped."""

import pytest

from answers import units


@pytest.mark.parametrize(
    "text, known, others",
    [
        ("cm", {"cm": 1}, {}),
        ("Centimeters", {"cm": 1}, {}),
        ("square meters", {"m": 2}, {}),
        ("m^2", {"m": 2}, {}),
        ("sq. ft", {"ft": 2}, {}),
        ("cubic inches", {"in": 3}, {}),
        ("km/h", {"km": 1, "h": -1}, {}),
        ("miles per hour", {"mi": 1, "h": -1}, {}),
        ("mph", {"mi": 1, "h": -1}, {}),
        ("m/s^2", {"m": 1, "s": -2}, {}),
        ("square units", {}, {}),
        ("radians", {}, {}),
        ("red apples", {}, {"red": 1, "apple": 1}),
        ("apples per child", {}, {"apple": 1, "child": -1}),
        ("dollars per hour", {"dollar": 1, "h": -1}, {}),
        ("MeV", {"MeV": 1}, {}),
        ("millipascals", {"mPa": 1}, {}),
    ],
)
def test_unit(text, known, others):
    assert units.unit(text) == (known, others)


@pytest.mark.parametrize(
    "a, b, same",
    [
        ("cm", "centimeters", True),
        ("cm", "", True),
        ("square units", "cm^2", True),
        ("mph", "miles per hour", True),
        ("marbles", "red marbles", True),
        ("cm", "m", False),
        ("cm", "cm^2", False),
        ("apples", "oranges", False),
        ("a.m.", "p.m.", False),
    ],
)
def test_agree_is_symmetric(a, b, same):
    assert units.agree(a, b) == same
    assert units.agree(b, a) == same


@pytest.mark.parametrize(
    "text",
    [
        "cm",
        "apples",
        "ways to choose",
        "trailing zeros",
        "cans of soda",
        "months",
        "ways to sit",
        "students",
        "different points",
        "ways to count",
        "patients",
        "m/s^2",
        "sq. ft",
        "is the point",
    ],
)
def test_is_dropped(text):
    assert units.is_dropped(text)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "tenths",
            "halves",
            "minus",
            "perhaps",
            "per cent",
            "...",
            "for even n",
            "zero",
            "in binary",
        ),
        *("or 6", "or more", "not", "isn't it", "cannot be", "at least", "at most", "if n is even"),
        *(
            "mod 7",
            "million",
            "percent",
            "5",
            "+ 1",
            "factorial",
            "and 3 m",
            "é",
            "a b c d e f g h i",
        ),
        *(
            "isnt it",
            "we reject this",
            ", contradicts",
            "nope",
            "nah",
            "nay",
            "dont know",
            "wont do",
            "cant be",
            "hardly",
            "scarcely",
            "untrue",
            "absurd",
            "contradictory",
            "refuted",
            "disproved",
            "cancelled",
            "forbidden",
            "unacceptable",
            "bogus",
            "spurious",
            "alternatively",
            "alternately",
            "doubtful",
            "tentatively",
            "presumably",
            "supposedly",
            "rounded",
            "truncated",
            "upto",
            "to the power",
            "to",
            "till noon",
            "arent",
            "wasnt",
        ),
    ],
)
def test_is_dropped_refuses_words_that_change_the_meaning(text):
    assert not units.is_dropped(text)
