r"""Finds the final answer of a response: <answer> or the last box, else a statement, else its end.

It is the rule of the field's graders: the last box counts, whatever the prose beside it says.
"""

import re
from collections import deque

from . import units
from .latex import MAX_CHARS, closing_brace
from .thoughts import without_thoughts

MAX_RESPONSE = 200_000  # characters, more than 30,000 tokens; a longer response has no answer
MAX_BOXES = 8  # read from the last one backwards
MAX_GAP = 60  # characters between two boxes of one answer
TAIL = 2000  # characters at the end of a response that are searched for an answer without a box
NEAR = 5  # words before a value that may say that it is no result
STATEMENT = 400  # characters of a statement

# \boxed{42}, \fbox{42} and \framebox{42}; boxed{42} and \boxed 42 are typing errors of models.
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
    r"(?:^|[\s.,;])\s*(?:[-•]|\(?\w[.)]|[*\s]*(?!(?i:step|total|final|.{0,20}answer)\b)\w[\w ]{0,20}:)"
    r"[\s*$]*$"
)

TAGGED = re.compile(r"<answer>([^<>]{1,400})</answer>")
TAG = re.compile(r"</?[a-zA-Z]\w{0,20}\s?/?>|<[|｜][^<>|｜]{1,40}[|｜]>|<<[^<>\n]{0,80}>>")
BOLD = re.compile(r"(?<![\w)])\*\*|\*\*(?![\w(])|`")  # but x**2 is a power
DISPLAYED = re.compile(r"\\\[((?:(?!\\[\[\]]).){1,300})\\\]|\$\$([^$]{1,300})\$\$", re.DOTALL)
SENTENCE_END = re.compile(r"(?<!\n\d)[.!]{1,3}(?:\s(?!=)|$)|\n")
STATED = re.compile(
    r"(?i:(?:final )?answers?)[\s*_]{0,4}(?i:is|[:=>])"
    r"|(?:(?m:^)|(?<=\?\s))(?:A|Ans|Result|Solution):(?=.{1,80}$)"
    # GSM8K's sign, but not a heading: "#### 2. Add", "#### Step 2", "#### n = 3:"
    r"|(?<!#)####(?!#|\s*(?:\d{1,2}[.):]\s?[a-zA-Z]|[a-zA-Z]{3}|[^\n]{0,80}:\s*(?:\n|$)))"
)
BULLET = re.compile(r"[\s*_:]*\n[ \t]*(?:[-•+]|\d[.)])\s+")  # "- 42" in a list is not -42
REASON = re.compile(r",?\s(?:because|since|where|and (?:we|so|it))\s")
NUMBER = (
    r"[-−]?\\?\$?(?:\d{1,9}\s(?=\d+/\d))?(?:\d[\d,]{0,30}(?:\.\d{1,30})?(?<!,)|\.\d{1,30})"
    r"(?:/\d{1,30})?(?:\\?%| percent$|st|nd|rd|th)?"
)
FORMULA = r"\$([^$]{1,300})\$(?!\d)|\\\(([^$]{1,300}?)\\\)"
VALUE = re.compile(rf"(?:(?<![^\s=])|(?<=: ))(?:{FORMULA}|({NUMBER}))(?=[\s,;:.)]|$)")
# A value directly behind one of these is a part of a formula, of a list or of an equation.
JOINED = re.compile(
    r"(?:[-−+*/×·÷^<>~≈→≠√(]|[<>!]=|\btimes|\\[a-zA-Z]+|\d|[\d$)](?:,|,? (?:and|or|to|of|out of)))"
    r"\s?(?:[a-zA-Z]\s?=\s?)?$"
    r"|\b(?:at|for|with) \w{1,3} ?= ?$"
    r"|(?<![a-zA-Z\\])(?:\d[a-zA-Z](?![a-zA-Z\d])|[a-zA-Z]\s?[-+*/^²])[^=]{0,20}=\s?$"
)
# Words behind a value, without signs of a formula. "5 more than y" is no result.
WORDS = re.compile(r"(?! (?:more|less|fewer) than)(?:[^\d=+*<>\\$√π?\[\]{}^/]|\^\d|/[a-z])*")


def extract_answer(response: str, truncated: bool = False) -> str | None:
    r"""The final answer behind the last thought, as the response spells it, or None.

    <answer> or the last box, whichever is later; else what stands behind the last "answer is"; else
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
    tail = DISPLAYED.sub(in_line, TAG.sub(" ", BOLD.sub("", response[-TAIL:])))
    if STATED.search(tail):
        return stated_answer(tail, truncated)
    return None if truncated or found else final_value(tail)


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
    """The content of the last box, and of those before it that only joiners part from it."""
    start, _, content = found[-1]
    contents = [content]
    for box in reversed(found[:-1]):
        gap = response[box[1] : start]
        if LABEL.search(response[max(0, box[0] - MAX_GAP) : box[0]]):
            gap = LABEL.sub("", gap)
        if len(gap) > MAX_GAP or not JOINERS.fullmatch(gap):
            break
        start = box[0]
        if box[2] and box[2] not in contents:
            contents.insert(0, box[2])
    return ", ".join(contents)


def stated_answer(tail: str, truncated: bool) -> str | None:
    """What stands behind the last "answer is", unless that is supposed, or cut off."""
    statement = deque(STATED.finditer(tail), 1).pop()
    before = SENTENCE_END.split(tail[: statement.start()])[-1]
    stated = tail[statement.end() :]
    if BULLET.match(stated):
        stated = BULLET.sub(", ", stated)
    stated = stated.lstrip(" \t\n\r*_:#=,")[:STATEMENT]
    sentence, *rest = SENTENCE_END.split(stated)
    is_complete = rest or not truncated or sentence.endswith("$")
    if is_supposed(before[-30:]) or not is_complete:
        return None
    sentence = REASON.split(sentence)[0].strip()
    return final_value(sentence) or sentence


def final_value(text: str) -> str | None:
    """The last formula or number of the last sentence, with the noun behind it.

    None if it is a part of something else, or words beside it say that it is no result.
    """
    sentence = SENTENCE_END.split(text.rstrip(" \t\n\r."))[-1].strip(" :,")
    found = deque(VALUE.finditer(sentence), 1)
    if not found:
        return None
    value = found.pop()
    before, behind = sentence[: value.start()], sentence[value.end() :]
    if JOINED.search(before) or is_supposed(before):
        return None
    if not WORDS.fullmatch(behind) or not units.is_harmless(behind.replace(" and ", " ")):
        return None
    answer = next(filter(None, value.groups())).strip()
    noun = re.split("[,;:()—–]", behind.strip(" ()"))[0].strip()
    return f"{answer} \\text{{{noun}}}" if units.is_counted(noun) else answer


def is_supposed(before: str) -> bool:
    """Whether a word before a value says that it is no result: "if it is 7", "at least 7"."""
    clause = re.split("[,;:] ", before)[-1]
    words = units.words_of(clause.lower().replace("n't", " not"))
    return not units.WORDS["supposing"].isdisjoint(words[-NEAR:])


def in_line(displayed: re.Match) -> str:
    r"""$x$ for \[ x. \], which may stand on several lines."""
    return f"${' '.join((displayed[1] or displayed[2]).split()).strip(' .')}$"
