"""The letter of a response to a multiple-choice problem."""

import re

from . import units
from .comparison import same_answer
from .extraction import TAIL, boxes
from .thoughts import without_thoughts
from .values import BUDGET

LISTED = units.sections("letters.txt")


def patterns(heading: str) -> list[re.Pattern]:
    lines = LISTED[heading].strip().replace("§", LISTED["letter"].strip()).splitlines()
    return [re.compile(line) for line in lines]


STATES = patterns("states")
IN_BOX, LINE, DOUBT, OPTION = (patterns(x)[0] for x in ("box", "line", "doubt", "option"))


def choice(response: str, problem: str = "") -> str | None:
    """The letter A-J of a response: behind its last "Wait, " if it can. `problem` has options."""
    response = with_letter(without_thoughts(response), dict(OPTION.findall(problem)))
    return next(filter(None, map(letter, reversed(DOUBT.split(response)))), None)


def with_letter(response: str, options: dict[str, str]) -> str:
    """The response with a letter in its last box if that states one option of the problem."""
    found = boxes(response)
    start, end, box = found[-1] if found else (0, 0, "")
    chosen = [name for name in options if same_answer(box, options[name], BUDGET // 10)]
    if len(chosen) != 1 or IN_BOX.match(box):
        return response
    return f"{response[:start]}\\boxed{{{chosen[0]}}}{response[end:]}"


def letter(response: str) -> str | None:
    """The letter in the last box, else the last one stated."""
    found = boxes(response)
    boxed = IN_BOX.match(found[-1][2]) if found else None
    if boxed:
        return boxed[1].upper()
    tail = response[-TAIL:]
    for pattern in STATES:
        stated = pattern.findall(tail)
        if stated:
            return stated[-1].upper()
    lines = set(LINE.findall(tail))
    return lines.pop() if len(lines) == 1 else None
