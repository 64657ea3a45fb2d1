"""The letter of a multiple-choice response."""

import re

from answers.extraction import TAIL, boxes

LETTER_IN_BOX = re.compile(r"(?:\s|\$|\\(?:text|mathrm|mathbf|textbf)\b|[{(]){0,9}([A-J])(?![\w'])")
STATED_LETTERS = (
    # "The answer is (A)", "Option B"
    re.compile(r"(?i:answer|choice|option)[\s*]{0,4}(?i:is|:)?[\s*:($]{0,5}([A-J])(?![\w'])"),
    # "(A)"
    re.compile(r"\(([A-J])\)"),
    # a line of its own
    re.compile(r"(?m)^[\s*]{0,5}([A-J])[*.)]{0,3}\s{0,5}$"),
)


def choice(response: str) -> str | None:
    """The letter A-J of a multiple-choice response: the boxed, else a stated one.

    Of the ways to state one in STATED_LETTERS the first that occurs counts, where it occurs last.
    """
    boxed = boxes(response)
    if boxed:
        letter = LETTER_IN_BOX.match(boxed[-1].content)
        return letter[1] if letter else None

    for pattern in STATED_LETTERS:
        stated = pattern.findall(response[-TAIL:])
        if stated:
            return stated[-1]
    return None
