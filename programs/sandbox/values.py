"""Converts plain values to JSON data, which can be read without trusting the program's process.

Objects of the program's own classes are sent as the name of their type, and equal nothing.
"""

from collections import deque
from collections.abc import Iterator, MappingView
from decimal import Decimal
from fractions import Fraction

WIDE = 2**63  # integers this large are sent in hexadecimal, which has no limit on digits
TYPES = {"tuple": tuple, "set": set, "frozenset": frozenset, "deque": deque}


class Other:
    """An object that is not a plain value: truthy, not None, and equal only to itself."""

    def __init__(self, name: str):
        self.name = name

    def __repr__(self):
        return f"<{self.name}>"


def packed(value):
    """A value as JSON data; {"kind": content} for types that JSON lacks.

    Other objects are left as they are: json.dumps refuses them, or names them with `other`.
    """
    if value is None or isinstance(value, bool | float | str):
        return value  # json writes a subclass like its base class
    if isinstance(value, int):
        return value if abs(value) < WIDE else {"int": hex(value)}
    if isinstance(value, list):
        return [packed(each) for each in value]
    if isinstance(value, dict):
        return {"dict": [[packed(key), packed(each)] for key, each in value.items()]}
    for kind, types in {**TYPES, "iterator": Iterator | MappingView}.items():
        if isinstance(value, types):
            return {kind: [packed(each) for each in value]}
    if isinstance(value, range):
        return {"range": [packed(each) for each in (value.start, value.stop, value.step)]}
    if isinstance(value, Fraction):
        return {"fraction": [packed(value.numerator), packed(value.denominator)]}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, Decimal):
        return {"decimal": str(value)}
    if isinstance(value, bytes | bytearray):
        return {"bytes": value.hex()}
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        return packed(value.tolist())
    return value


def other(value) -> dict:
    """An object as the name of its type."""
    return {"other": type(value).__name__[:80]}


COLLECTIONS = {**TYPES, "iterator": iter, "dict": dict}
NUMBERS = {"range": range, "fraction": Fraction, "complex": complex}  # of several arguments
TEXTS = {"decimal": Decimal, "bytes": bytes.fromhex, "other": Other}


def unpacked(content):
    """The value that `packed` encoded. Untrusted content raises some Exception."""
    if isinstance(content, list):
        return [unpacked(each) for each in content]
    if not isinstance(content, dict):
        return content
    ((kind, inner),) = content.items()
    if kind == "int":
        return int(inner, 16)
    if kind in TEXTS:
        return TEXTS[kind](str(inner))
    members = unpacked(inner)
    return NUMBERS[kind](*members) if kind in NUMBERS else COLLECTIONS[kind](members)


def excerpt(text: str, most: int = 100) -> str:
    """The beginning of a text in one line of at most `most` printable characters."""
    line = " ".join(text[: 10 * most].split())
    line = "".join(each if each.isprintable() else "?" for each in line)
    return line if len(line) <= most else line[: most - 3] + "..."
