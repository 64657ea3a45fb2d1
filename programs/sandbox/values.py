"""Encodes plain values as JSON text, which can be read without trusting the program that wrote it.

Tuples, sets, dictionaries, ranges, iterators, bytes, and numbers that JSON lacks have their own
encodings. A numpy array is sent as a list. Any other object is sent as the name of its type, and
equals nothing.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction

COLLISIONS = 100  # how many keys of a set or dictionary may share a hash or be equal
DIGITS = 2**63  # integers this large are sent in hexadecimal, which takes linear time
# Comparing longer numbers could take minutes.
FEW_DIGITS = re.compile(r"-?[0-9]{1,60}([./][0-9]{1,60})?")


class Other:
    """An object that is not a plain value: truthy, not None, and equal to nothing."""

    def __init__(self, name: str):
        self.name = name

    def __eq__(self, other):
        return False

    __hash__ = None

    def __repr__(self):
        return f"<{self.name}>"


def dumps(value) -> str:
    """A value as JSON text. Raises RecursionError if the value contains itself."""
    return json.dumps(packed(value))


def loads(text: str):
    """The value in a JSON text. Raises ValueError or RecursionError."""
    return read(json.loads(text))


def read(content):
    """The value in untrusted JSON data. Raises ValueError or RecursionError."""
    try:
        return unpacked(content)
    except (TypeError, KeyError, AttributeError, ArithmeticError) as error:
        raise ValueError(f"no value: {type(error).__name__}") from error


def packed(value):
    """A value as JSON data; {"kind": content} for types that JSON lacks."""
    if value is None or isinstance(value, bool | float | str):
        return value  # json writes a subclass like its base class
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
    """Whether an output of `packed` contains an object that is sent as the name of its type."""
    if isinstance(content, list):
        return any(map(holds_other, content))
    if isinstance(content, dict):
        return "other" in content or any(map(holds_other, content.values()))
    return False


def unpacked(content):
    """The value that `packed` encoded."""
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
    """The keys unchanged. Raises ValueError if many share a hash: a set would take hours."""
    counts = Counter(map(hash, keys))
    if counts and max(counts.values()) > COLLISIONS:
        raise ValueError("too many keys share one hash")
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
        raise ValueError("not a number, or too many digits")
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
    """("value" or "error", content) of a program's answer. Raises ValueError for other text."""
    reply = json.loads(line)
    if not isinstance(reply, dict) or len(reply) != 1 or not reply.keys() <= {"value", "error"}:
        raise ValueError("not an answer to a call")
    ((key, content),) = reply.items()
    return key, content
