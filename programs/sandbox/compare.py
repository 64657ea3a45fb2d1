"""Compares a program's output or value with the expected one.

1. Outputs are compared line by line and token by token. Spaces around tokens, and blank lines
   before the first and after the last line, are ignored.
2. If a decimal is expected, numbers within 1e-6 of it agree (relative if it exceeds 1). If an
   integer is expected, only an equal number agrees.
3. Returned values follow rule 2. A tuple equals a list, and True equals 1. An object of the
   program's own classes equals nothing.
"""

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
    """Whether two outputs agree, in linear time."""
    lines = [line.split() for line in output.strip().split("\n")]
    golds = [line.split() for line in expected.strip().split("\n")]
    if list(map(len, lines)) != list(map(len, golds)):
        return False
    pairs = zip(chain(*lines), chain(*golds), strict=True)
    return all(same_token(token, gold, tolerance) for token, gold in pairs)


def same_token(token: str, gold: str, tolerance: float) -> bool:
    """Whether two tokens are identical, or are numbers that agree."""
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
    """Whether a value is the expected JSON value. May raise OverflowError for a huge integer."""
    if isinstance(gold, list):
        if not isinstance(value, list | tuple) or len(value) != len(gold):
            return False
        return all(same_value(a, b, tolerance) for a, b in zip(value, gold, strict=True))
    if isinstance(gold, dict):  # JSON keys are strings, so integer keys become strings
        if not isinstance(value, dict) or len(value) != len(gold):
            return False
        spelled = {str(key) if type(key) is int else key: each for key, each in value.items()}
        if spelled.keys() != gold.keys():
            return False
        return all(same_value(spelled[key], gold[key], tolerance) for key in gold)
    if gold is None or isinstance(gold, str):
        return type(value) is type(gold) and value == gold
    if not isinstance(value, Number) or value == gold:
        return isinstance(value, Number)
    if not isinstance(gold, float) or not isinstance(value, int | float) or math.isinf(gold):
        return False
    return abs(value - gold) <= tolerance * max(1.0, abs(gold))
