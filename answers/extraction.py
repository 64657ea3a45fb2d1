r"""Finds the final answer of a response: <answer> or the last box, else a statement, else its end.

As in the field's other graders, the last box counts, whatever the prose beside it says.
statements.py finds an answer that has no box.
"""

import re
from collections import deque

from .latex import MAX_CHARS, closing_brace
from .statements import final_value, unboxed_answer
from .thoughts import without_thoughts

MAX_RESPONSE = 200_000  # characters, more than 30,000 tokens; a longer response has no answer
MAX_BOXES = 8  # only so many boxes, the last ones, are read
MAX_GAP = 60  # characters between two boxes of one answer
TAIL = 2000  # characters at the end of a response that are searched for an answer without a box

# \boxed{42}, \fbox{42} and \framebox{42}; models also mistype these as boxed{42} and \boxed 42.
BOX = re.compile(
    r"(?:\\(?:f|frame)?[bB]ox(?:ed)?|(?<![\\a-zA-Z])boxed)\s{0,3}\{"
    r"|\\boxed\s?(?P<bare>-?\d[\d.,/]{0,30}(?<![.,])|\(-?\d[\d.,/ -]{0,30}\))"
)
# What belongs to the box before it: a percent sign, a degree, a power or an index.
SUFFIX = re.compile(r"[\s$]{0,3}(\\?%|percent(?![a-zA-Z])|°|[_^](?:\d|\\circ|\{[^{}]{1,20}\}))")
# What may stand between two boxes of one answer: "□ and □", "x = □, y = □", "□, □".
JOINERS = re.compile(
    r"(?:[\s$,;:&{}()\[\]*]|\\[,;:!()\[\]\\]|\\(?:q?quad|text)\b|\b(?:and|or|as well as)\b"
    r"|(?<![\\\w])[a-zA-Z](?:_\{?\w\}?)?\s?=)*"
)
# A label before a box: "1. □ 2. □", "(a) □ (b) □", "Area: □. Perimeter: □."
LABEL = re.compile(
    r"(?:^|[\s.,;])\s*(?:[-•]|\(?\w[.)]"
    r"|[*\s]*(?!(?i:step|total|final|.{0,20}answer)\b)\w[\w ]{0,20}:)[\s*$]*$"
)

# A name before a box: "x = □".
NAME = re.compile(r"(?<![\\\w])([a-zA-Z](?:_\{?\w\}?)?)\s?=[\s$]*$")

TAGGED = re.compile(r"<answer>([^<>]{1,400})</answer>")


def extract_answer(response: str, truncated: bool = False) -> str | None:
    r"""The final answer after the last thought, as the response spells it, or None.

    It is <answer> or the last box, whichever is later; else what follows the last "answer is"; else
    the last formula or number of the last sentence, unless the response was `truncated`.
    """
    response = without_thoughts(response) if len(response) <= MAX_RESPONSE else ""
    found = boxes(response)
    if found is None:
        return None
    behind = response[found[-1][1] if found else 0 :]
    tagged = TAGGED.findall(behind[-TAIL:])
    if tagged:
        answer = tagged[-1].strip()
        return final_value(answer) or answer
    if found and found[-1][2]:
        return boxed_answer(response, found)
    return unboxed_answer(response[-TAIL:], truncated, has_empty_box=bool(found))


def boxes(response: str) -> list[tuple[int, int, str]] | None:
    """(start, end, content) of the last outermost boxes; None if the last one is not closed."""
    found = []
    for opening in deque(BOX.finditer(response), MAX_BOXES):
        if found and found[-1] and opening.start() < found[-1][1]:
            continue  # a box inside a box
        content, end = opening["bare"], opening.end()
        if content is None:
            closing = closing_brace(response, end, end + MAX_CHARS)
            if closing is None:
                found.append(None)
                continue
            content, end = response[end:closing].strip(), closing + 1
        suffix = SUFFIX.match(response, end)
        if suffix:
            content, end = content + suffix[1], suffix.end()
        found.append((opening.start(), end, content))
    if found and found[-1] is None:
        return None
    return [box for box in found if box]


def boxed_answer(response: str, found: list[tuple[int, int, str]]) -> str:
    """The content of the last box, and of boxes before it that only joiners separate from it.

    "x = □, y = □" keeps its names.
    """
    start = found[-1][0]
    joined = found[-1:]
    for box in reversed(found[:-1]):
        gap = response[box[1] : start]
        if LABEL.search(response[max(0, box[0] - MAX_GAP) : box[0]]):
            gap = LABEL.sub("", gap)
        if len(gap) > MAX_GAP or not JOINERS.fullmatch(gap):
            break
        start = box[0]
        if box[2]:
            joined.insert(0, box)
    contents = [content for _, _, content in joined]
    names = [NAME.search(response[max(0, box[0] - MAX_GAP) : box[0]]) for box in joined]
    if len(joined) > 1 and all(names) and len({name[1] for name in names}) == len(names):
        return ", ".join(f"{x[1]} = {y}" for x, y in zip(names, contents, strict=True))
    return ", ".join(reversed(dict.fromkeys(reversed(contents))))  # of equal ones, the last
