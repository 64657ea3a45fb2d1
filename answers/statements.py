"""Finds an answer without a box: after the last "answer is", else in the last sentence."""

import re
from collections import deque

from . import units

STATEMENT = 400  # characters of a statement
NEAR = 5  # words before a value that are searched for one that says it is no result

TAG = re.compile(r"</?[a-zA-Z]\w{0,20}\s?/?>|<[|｜][^<>|｜]{1,40}[|｜]>|<<[^<>\n]{0,80}>>")
BOLD = re.compile(r"(?<![\w)])\*\*|\*\*(?![\w(])|`")  # but x**2 is a power
DISPLAYED = re.compile(r"\\\[((?:(?!\\[\[\]]).){1,300})\\\]|\$\$([^$]{1,300})\$\$", re.DOTALL)
# but not in "1. The", "5! = 120" and "5! - 20"
SENTENCE_END = re.compile(r"(?<!\n\d)[.!]{1,3}(?:\s(?!=|(?<=!\s)[-+−*/×·÷^]\s?[\d(\\$])|$)|\n")
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
# A value directly after one of these is a part of a formula, of a list or of an equation.
JOINED = re.compile(
    r"(?:[-−+*/×·÷^<>~≈→≠√(]|[<>!]=|\btimes|\\[a-zA-Z]+|\d|[\d$)](?:,|,? (?:and|or|to|of|out of)))"
    r"\s?(?:[a-zA-Z]\s?=\s?)?$"
    r"|\b(?:at|for|with) \w{1,3} ?= ?$"
    r"|(?<![a-zA-Z\\])(?:\d[a-zA-Z](?![a-zA-Z\d])|[a-zA-Z]\s?[-+*/^²])[^=]{0,20}=\s?$"
)
# Words that may follow a value: no signs of a formula, and "5 more than y" is no result.
WORDS = re.compile(r"(?! (?:more|less|fewer) than)(?:[^\d=+*<>\\$√π?\[\]{}^/]|\^\d|/[a-z])*")


def unboxed_answer(text: str, truncated: bool, has_empty_box: bool) -> str | None:
    """The last answer that the end of a response states, else the result of its last sentence.

    The latter does not count if the response was cut off, or has an empty box.
    """
    text = DISPLAYED.sub(in_line, TAG.sub(" ", BOLD.sub("", text)))
    if STATED.search(text):
        return stated_answer(text, truncated)
    return None if truncated or has_empty_box else final_value(text)


def stated_answer(tail: str, truncated: bool) -> str | None:
    """What follows the last "answer is", unless it is only supposed, or is cut off."""
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
    """The last formula or number of the last sentence, with the noun after it.

    None if the value is a part of something else, or words beside it say that it is no result.
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
    r"""$x$ for the displayed formula \[ x. \], which may have several lines."""
    return f"${' '.join((displayed[1] or displayed[2]).split()).strip(' .')}$"
