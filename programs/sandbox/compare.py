"""Compares a program's output or return value with the expected one. The program may be hostile.

All comparisons take linear time, and no value chosen by a program is hashed. The code runs in the
judge's process, and judge.py catches the remaining exceptions.
"""

import math
import re
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, localcontext

from . import values

# Possessive quantifiers prevent backtracking, so text is read only once.
NUMBER = re.compile(r"[-+]?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][-+]?[0-9]{1,4})?")
# 50 digits are enough for a difference. Every number that matches NUMBER is within these exponents.
ARITHMETIC = Context(prec=50, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[])


TOLERANCE = 1e-6  # for a decimal; relative if the decimal exceeds 1


# ---- outputs -------------------------------------------------------------------------------------


def same_output(output: str, expected: str, tolerance: float) -> bool:
    """Whether two outputs agree by line and token. Leading and trailing blank lines are ignored."""
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
    """Whether two tokens are identical, or are numbers that agree.

    If the gold is an integer, only an equal number agrees. If it is a decimal, every number within
    the tolerance agrees.
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


# ---- values, as encoded by values.packed; expected values come from JSON -------------------------


def same_value(value, gold, tolerance: float) -> bool:
    """Whether a returned value is the expected one. A tuple equals a list, and True equals 1."""
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
    """Whether two dictionaries agree. JSON keys are strings, so integer keys become strings."""
    if len(pairs) != len(golds):
        return False
    wanted = dict(golds)
    for key, value in pairs:
        spelled = spelled_key(key)
        if spelled not in wanted or not same_value(value, wanted.pop(spelled), tolerance):
            return False
    return True


def spelled_key(key) -> str | None:
    """A key as JSON writes it; None for a key that JSON cannot represent."""
    if isinstance(key, dict) and "int" in key:
        key = values.unpacked(key)
    if isinstance(key, int) and not isinstance(key, bool):
        return str(key)
    return key if isinstance(key, str) else None


def number(content):
    """The number that `content` encodes; None if it is not a number."""
    if isinstance(content, dict) and content.keys() <= {"int", "complex", "decimal", "fraction"}:
        return values.unpacked(content)
    return content if isinstance(content, int | float) else None


def same_number(value, gold, tolerance: float) -> bool:
    """Whether two numbers are equal or, if the gold is a float, within the tolerance."""
    if value is None or value == gold:
        return value is not None
    if not isinstance(gold, float) or not isinstance(value, int | float):
        return False
    if math.isinf(gold):  # a relative tolerance would be infinite
        return False
    try:
        return abs(value - gold) <= tolerance * max(1.0, abs(gold))
    except OverflowError:  # an integer larger than every float
        return False
