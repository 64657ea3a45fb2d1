"""Reads the programs of blocks.txt, honest.txt, hostile.txt and results.txt."""

import re
from pathlib import Path


def listed(name: str) -> dict[str, tuple[str, ...]]:
    """{name: (other words of the heading, the program)}. A heading stands between signs ====."""
    text = (Path(__file__).parent / name).read_text()
    found = {}
    for heading, program in re.findall(r"^==== (.*)\n((?s:.*?))(?=^====|\Z)", text, re.MULTILINE):
        first, *words = heading.split(" ==== ")
        assert first not in found, first
        found[first] = (*words, program)
    return found
