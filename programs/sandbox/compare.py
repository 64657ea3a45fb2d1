"""Compares a program's output or value with the expected one, by the rules in verify_code.py."""

import math
import re
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, localcontext
from itertools import chain
from numbers import Number

TOLERANCE = 1e-6  # for a decimal; relative if the decimal exceeds 1

# Possessive quantifiers prevent backtracking, so text is read only once.
NUMBER = re.compile(r"[-+]?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][-+]?[0-9]{1,4})?")
# 50 digits are enough for a difference. Every number that matches NUMBER is within these exponents.
ARITHMETIC = Context(prec=50, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[])


def same_output(output: str, expected: str, tolerance: float) -> bool:
    """Whether two outputs agree by line and token, in linear time.

    Leading and trailing blank lines are ignored.
    """
    lines = [line.split() for line in output.strip().split("\n")]
    golds = [line.split() for line in expected.strip().split("\n")]
    if list(map(len, lines)) != list(map(len, golds)):
        return False
    pairs = zip(chain(*lines), chain(*golds), strict=True)
    return all(same_token(token, gold, tolerance) for token, gold in pairs)


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


def same_value(value, gold, tolerance: float) -> bool:
    """Whether a returned value is the expected JSON value. A tuple equals a list, True equals 1."""
    if isinstance(gold, list):
        if not isinstance(value, list | tuple) or len(value) != len(gold):
            return False
        return all(
            same_value(each, want, tolerance) for each, want in zip(value, gold, strict=True)
        )
    if isinstance(gold, dict):
        return isinstance(value, dict) and same_entries(value, gold, tolerance)
    if gold is None or isinstance(gold, str):
        return type(value) is type(gold) and value == gold
    return isinstance(value, Number) and same_number(value, gold, tolerance)


def same_entries(value: dict, gold: dict, tolerance: float) -> bool:
    """Whether two dictionaries agree. JSON keys are strings, so integer keys become strings."""
    spelled = {str(key) if type(key) is int else key: each for key, each in value.items()}
    if len(value) != len(gold) or spelled.keys() != gold.keys():
        return False
    return all(same_value(spelled[key], gold[key], tolerance) for key in gold)


def same_number(value: Number, gold: float, tolerance: float) -> bool:
    """Whether two numbers are equal or, if the gold is a float, within the tolerance."""
    if value == gold:
        return True
    if not isinstance(gold, float) or not isinstance(value, int | float):
        return False
    if math.isinf(gold):  # a relative tolerance would be infinite
        return False
    try:
        return abs(value - gold) <= tolerance * max(1.0, abs(gold))
    except OverflowError:  # an integer larger than every float
        return False
