"""Whether what a program printed or returned is what a test expects. Hostile text comes in here.

Everything takes time linear in the texts, and nothing is hashed that a program chose; what raises
nevertheless is caught by judge.py, in whose process this runs.
"""

import math
import re
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, localcontext

from . import values

# Possessive: digits that are taken are not given back, so that a text is read once.
NUMBER = re.compile(r"[-+]?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][-+]?[0-9]{1,4})?")
# Of a difference 50 digits are enough. No number of NUMBER's form leaves this range.
ARITHMETIC = Context(prec=50, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[])


TOLERANCE = 1e-6  # of a decimal, relative to it if it exceeds 1


# ---- outputs -------------------------------------------------------------------------------------


def same_output(output: str, expected: str, tolerance: float) -> bool:
    """Whether two outputs agree line by line and token by token, but for blank lines around."""
    lines = output.strip().split("\n")
    golds = expected.strip().split("\n")
    if len(lines) != len(golds):
        return False
    return all(same_line(line, gold, tolerance) for line, gold in zip(lines, golds, strict=True))


def same_line(line: str, gold: str, tolerance: float) -> bool:
    tokens = line.split()
    golds = gold.split()
    if len(tokens) != len(golds):
        return False
    return all(
        same_token(token, each, tolerance) for token, each in zip(tokens, golds, strict=True)
    )


def same_token(token: str, gold: str, tolerance: float) -> bool:
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
        return abs(value - wanted) <= Decimal(tolerance) * max(1, abs(wanted))


# ---- values: as values.packed spells them; those expected are JSON's -----------------------------


def same_value(value, gold, tolerance: float) -> bool:
    """Whether a returned value is the expected one; a tuple is a list, and True is 1."""
    if isinstance(gold, list):
        members = value.get("tuple") if isinstance(value, dict) else value
        if not isinstance(members, list) or len(members) != len(gold):
            return False
        return all(
            same_value(each, wanted, tolerance) for each, wanted in zip(members, gold, strict=True)
        )
    if isinstance(gold, dict) and "dict" in gold:
        pairs = value.get("dict") if isinstance(value, dict) else None
        return isinstance(pairs, list) and same_entries(pairs, gold["dict"], tolerance)
    if gold is None or isinstance(gold, str):
        return type(value) is type(gold) and value == gold
    return same_number(number(value), number(gold), tolerance)


def same_entries(pairs: list, golds: list, tolerance: float) -> bool:
    """Whether two dictionaries agree. JSON's keys are texts, so that a whole number is one, too."""
    if len(pairs) != len(golds):
        return False
    wanted = dict(golds)
    for key, value in pairs:
        spelled = spelled_key(key)
        if spelled not in wanted or not same_value(value, wanted.pop(spelled), tolerance):
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
