"""Finds the letter of a response to a multiple-choice problem: in a box, else in a statement."""

import re

from . import units
from .comparison import same_answer
from .extraction import MAX_BOXES, MAX_RESPONSE, TAIL, boxes
from .thoughts import without_thoughts
from .values import BUDGET

SHARE = BUDGET // (8 * MAX_BOXES)  # operations for the comparison of one box with one option
LISTED = units.sections("letters.txt")


def patterns(heading: str) -> list[re.Pattern]:
    lines = LISTED[heading].strip().replace("§", LISTED["letter"].strip()).splitlines()
    return [re.compile(line) for line in lines]


STATES = patterns("states")
IN_BOX, LINE, DOUBT, OPTION = (patterns(x)[0] for x in ("box", "line", "doubt", "option"))


def choice(response: str, problem: str = "") -> str | None:
    """The letter A-J of a response, or None. `problem` may show the options, as (A) 3 N."""
    response = without_thoughts(response) if len(response) <= MAX_RESPONSE else ""
    options = dict(OPTION.findall(problem))
    for _, _, content in reversed(boxes(response) or []):
        letter = letter_in_box(content, options)
        if letter:
            return letter
    for part in reversed(DOUBT.split(response[-TAIL:])):
        letter = stated_letter(part)
        if letter:
            return letter
    return None


def letter_in_box(content: str, options: dict[str, str]) -> str | None:
    """The letter in a box, or the letter of the only option that equals the box's content."""
    found = IN_BOX.match(content)
    if found:
        return found[1].upper()
    held = [x for x, option in options.items() if same_answer(content, option, SHARE)]
    return held[0] if len(held) == 1 else None


def stated_letter(text: str) -> str | None:
    """The last letter that a sentence states, else the only letter that begins a line, or None."""
    for pattern in STATES:
        stated = pattern.findall(text)
        if stated:
            return stated[-1].upper()
    lines = set(LINE.findall(text))
    return lines.pop().upper() if len(lines) == 1 else None
