"""Plain values as JSON text, so that what a program returns can be read without trusting it.

Tuples, sets, dictionaries, ranges, iterators, bytes, and numbers that JSON has not have forms of
their own; an array of numpy travels as a list. Any other object travels as its type's name alone
and is equal to nothing.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction

COLLISIONS = 100  # keys of one hash that a set or dictionary may have; equal keys are among them
DIGITS = 2**63  # integers from here on travel in hexadecimal, which takes linear time
# Longer ones could keep who compares them busy for minutes.
FEW_DIGITS = re.compile(r"-?[0-9]{1,60}([./][0-9]{1,60})?")


class Other:
    """An object that is no plain value: true, not None, and equal to nothing."""

    def __init__(self, name: str):
        self.name = name

    def __eq__(self, other):
        return False

    __hash__ = None

    def __repr__(self):
        return f"<{self.name}>"


def dumps(value) -> str:
    """The text of a value. Raises RecursionError where it holds itself."""
    return json.dumps(packed(value))


def loads(text: str):
    """The value that a text spells. Raises ValueError or RecursionError."""
    return read(json.loads(text))


def read(content):
    """The value of a content that may be none. Raises ValueError or RecursionError."""
    try:
        return unpacked(content)
    except (TypeError, KeyError, AttributeError, ArithmeticError) as error:
        raise ValueError(f"no value: {type(error).__name__}") from error


def packed(value):
    """What JSON can hold of a value; {"kind": content} stands for what it cannot."""
    if value is None or isinstance(value, bool | float | str):
        return value  # json writes of a subclass what its base would
    if isinstance(value, int):
        return value if abs(value) < DIGITS else {"int": hex(value)}
    if isinstance(value, list):
        return [packed(each) for each in value]
    if isinstance(value, tuple):
        return {"tuple": [packed(each) for each in value]}
    if isinstance(value, set | frozenset):
        return {"set": [packed(each) for each in value]}
    if isinstance(value, dict):
        return {"dict": [[packed(key), packed(each)] for key, each in value.items()]}
    if isinstance(value, bytes | bytearray):
        return {"bytes": value.hex()}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, range):
        return {"range": [value.start, value.stop, value.step]}
    if isinstance(value, Iterator):
        return {"iterator": [packed(each) for each in value]}
    if isinstance(value, Decimal) and FEW_DIGITS.fullmatch(f"{value:f}"):
        return {"decimal": f"{value:f}"}
    if isinstance(value, Fraction) and FEW_DIGITS.fullmatch(str(value)):
        return {"fraction": str(value)}
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        return packed(value.tolist())
    return {"other": type(value).__name__[:80]}


def holds_other(content) -> bool:
    """Whether what `packed` gave holds an object that travels as its name alone."""
    if isinstance(content, list):
        return any(map(holds_other, content))
    if isinstance(content, dict):
        return "other" in content or any(map(holds_other, content.values()))
    return False


def unpacked(content):
    """The value of what `packed` gave."""
    if isinstance(content, list):
        return [unpacked(each) for each in content]
    if not isinstance(content, dict):
        return content
    ((kind, inner),) = content.items()
    return READERS[kind](inner)


def read_tuple(inner):
    return tuple(unpacked(each) for each in inner)


def read_set(inner):
    return set(scattered([unpacked(each) for each in inner]))


def read_dict(inner):
    keys = scattered([unpacked(key) for key, _ in inner])
    return dict(zip(keys, [unpacked(each) for _, each in inner], strict=True))


def scattered(keys: list) -> list:
    """The keys themselves. Raises ValueError where many share a hash: a set of them takes hours."""
    counts = Counter(map(hash, keys))
    if counts and max(counts.values()) > COLLISIONS:
        raise ValueError("too many keys of one hash")
    return keys


def read_int(inner):
    return int(inner, 16)


def read_complex(inner):
    return complex(*inner)


def read_range(inner):
    return range(*inner)


def read_iterator(inner):
    return iter([unpacked(each) for each in inner])


def read_decimal(inner):
    return Decimal(few_digits(inner))


def read_fraction(inner):
    return Fraction(few_digits(inner))


def few_digits(text: str) -> str:
    if not FEW_DIGITS.fullmatch(text):
        raise ValueError("no number of few digits")
    return text


READERS = {
    "tuple": read_tuple,
    "set": read_set,
    "dict": read_dict,
    "int": read_int,
    "bytes": bytes.fromhex,
    "complex": read_complex,
    "range": read_range,
    "iterator": read_iterator,
    "decimal": read_decimal,
    "fraction": read_fraction,
    "other": Other,
}


def split_reply(line: str) -> tuple[str, object]:
    """("value" or "error", content) of a program's answer. Raises ValueError for others."""
    reply = json.loads(line)
    if not isinstance(reply, dict) or len(reply) != 1 or not reply.keys() <= {"value", "error"}:
        raise ValueError("no answer to a call")
    ((key, content),) = reply.items()
    return key, content
