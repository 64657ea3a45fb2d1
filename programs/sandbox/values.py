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
DECIMAL = re.compile(r"-?[0-9]{1,60}(\.[0-9]{1,60})?")
FRACTION = re.compile(r"-?[0-9]{1,60}/[1-9][0-9]{0,59}")


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
    except (TypeError, KeyError, AttributeError, OverflowError) as error:
        raise ValueError(f"no value: {type(error).__name__}") from error


def packed(value):
    """What JSON can hold of a value; {"kind": content} stands for what it cannot."""
    if value is None or isinstance(value, bool | float | str):
        return value if type(value) in PLAIN else plain_base(value)
    if isinstance(value, int):
        return int(value) if abs(value) < DIGITS else {"int": hex(value)}
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
    if isinstance(value, range) and all(abs(part) < DIGITS for part in bounds(value)):
        return {"range": bounds(value)}
    if isinstance(value, Iterator):
        return {"iterator": [packed(each) for each in value]}
    if isinstance(value, Decimal | Fraction):
        return packed_number(value)
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        return packed(value.tolist())
    return {"other": type(value).__name__[:80]}


def bounds(value: range) -> list[int]:
    return [value.start, value.stop, value.step]


def packed_number(value: Decimal | Fraction) -> dict:
    """Its digits, unless there are too many, or it is none."""
    if isinstance(value, Fraction):
        few = max(abs(value.numerator), value.denominator) < 10**60
        text = f"{value.numerator}/{value.denominator}" if few else ""
        return {"fraction": text} if FRACTION.fullmatch(text) else {"other": "Fraction"}
    text = f"{value:f}" if abs(value.adjusted()) < 60 else ""
    return {"decimal": text} if DECIMAL.fullmatch(text) else {"other": "Decimal"}


def holds_other(content) -> bool:
    """Whether what `packed` gave holds an object that travels as its name alone."""
    if isinstance(content, list):
        return any(map(holds_other, content))
    if isinstance(content, dict):
        return "other" in content or any(map(holds_other, content.values()))
    return False


PLAIN = (type(None), bool, float, str)


def plain_base(value):
    """A float or text without what a class of its own adds to it."""
    base = float if isinstance(value, float) else str
    return base.__str__(value) if base is str else base.__float__(value)


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
    if not all(isinstance(part, int) and abs(part) < DIGITS for part in inner):
        raise ValueError("no range")
    return range(*inner)


def read_iterator(inner):
    return iter([unpacked(each) for each in inner])


def read_decimal(inner):
    if not DECIMAL.fullmatch(inner):
        raise ValueError("no decimal")
    return Decimal(inner)


def read_fraction(inner):
    if not FRACTION.fullmatch(inner):
        raise ValueError("no fraction")
    return Fraction(inner)


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
