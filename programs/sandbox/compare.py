"""Whether what a program printed or returned is what a test expects. Hostile text comes in here.

Everything takes time linear in the texts, and nothing is hashed that a program chose; what raises
nevertheless is caught by judge.py, in whose process this runs.
"""

import math
import re
from dataclasses import dataclass
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, localcontext

from . import values

# Possessive: digits that are taken are not given back, so that a text is read once.
NUMBER = re.compile(r"[-+]?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][-+]?[0-9]{1,4})?")
# Of a difference 50 digits are enough. No number of NUMBER's form leaves this range.
ARITHMETIC = Context(prec=50, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[])


@dataclass(frozen=True)
class Comparison:
    """What counts as the same, where the sets of problems differ (programs/rules.py)."""

    tolerance: float = 1e-6  # of a decimal, relative to it if it exceeds 1; 0 for equality
    leading_lines: bool = True  # whether blank lines before the first other one count
    true_is_one: bool = False  # whether True and False are the numbers 1 and 0


# ---- outputs -------------------------------------------------------------------------------------


def same_output(output: str, expected: str, how: Comparison) -> bool:
    """Whether two outputs agree line by line and token by token."""
    lines = lines_of(output, how)
    golds = lines_of(expected, how)
    if len(lines) != len(golds):
        return False
    return all(same_line(line, gold, how) for line, gold in zip(lines, golds, strict=True))


def lines_of(text: str, how: Comparison) -> list[str]:
    """The lines of an output without the blank ones at its end, and perhaps at its beginning."""
    text = text.rstrip() if how.leading_lines else text.strip()
    return text.split("\n")


def same_line(line: str, gold: str, how: Comparison) -> bool:
    tokens = line.split()
    golds = gold.split()
    if len(tokens) != len(golds):
        return False
    return all(same_token(token, each, how) for token, each in zip(tokens, golds, strict=True))


def same_token(token: str, gold: str, how: Comparison) -> bool:
    """Whether two tokens are the same text, or numbers that agree.

    Where the gold is a whole number, only the same number does; where it is a decimal, one that is
    within the tolerance.
    """
    if token == gold:
        return True
    if not NUMBER.fullmatch(token) or not NUMBER.fullmatch(gold):
        return False
    with localcontext(ARITHMETIC):
        value, wanted = Decimal(token), Decimal(gold)
        if value == wanted:
            return True
        if gold.lstrip("+-").isdecimal():
            return False
        return abs(value - wanted) <= Decimal(how.tolerance) * max(1, abs(wanted))


# ---- values: as values.packed spells them; those expected are JSON's -----------------------------


def same_value(value, gold, how: Comparison) -> bool:
    """Whether a returned value is the expected one; a tuple is a list."""
    if isinstance(gold, list):
        members = value.get("tuple") if isinstance(value, dict) else value
        if not isinstance(members, list) or len(members) != len(gold):
            return False
        return all(
            same_value(each, wanted, how) for each, wanted in zip(members, gold, strict=True)
        )
    if isinstance(gold, dict) and "dict" in gold:
        pairs = value.get("dict") if isinstance(value, dict) else None
        return isinstance(pairs, list) and same_entries(pairs, gold["dict"], how)
    if gold is None or isinstance(gold, str):
        return type(value) is type(gold) and value == gold
    if isinstance(value, bool) != isinstance(gold, bool) and not how.true_is_one:
        return False
    return same_number(number(value), number(gold), how.tolerance)


def same_entries(pairs: list, golds: list, how: Comparison) -> bool:
    """Whether two dictionaries agree. JSON's keys are texts, so that a whole number is one, too."""
    if len(pairs) != len(golds):
        return False
    wanted = dict(golds)
    for key, value in pairs:
        spelled = spelled_key(key)
        if spelled not in wanted or not same_value(value, wanted.pop(spelled), how):
            return False
    return True


def spelled_key(key) -> str | None:
    """A key as JSON spells it; None for one that it has not."""
    if isinstance(key, dict) and "int" in key:
        key = values.unpacked(key)
    if isinstance(key, int) and not isinstance(key, bool):
        return str(key)
    return key if isinstance(key, str) else None


def number(content):
    """The number that a content spells; None where it is none."""
    if isinstance(content, dict) and content.keys() <= {"int", "complex", "decimal", "fraction"}:
        return values.unpacked(content)
    return content if isinstance(content, int | float) else None


def same_number(value, gold, tolerance: float) -> bool:
    """Whether two numbers are equal or, where a float is expected, within the tolerance."""
    if value is None or value == gold:
        return value is not None
    if not isinstance(gold, float) or not isinstance(value, int | float):
        return False
    if math.isinf(gold):  # any number is within an infinite tolerance
        return False
    try:
        return abs(value - gold) <= tolerance * max(1.0, abs(gold))
    except OverflowError:  # an integer beyond all floats
        return False
