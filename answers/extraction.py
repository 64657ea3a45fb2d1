r"""Finds the final answer of a response: in its last boxes, after "answer is", or at its end.

The text found there must be the whole answer. An unclosed box, a retracted box, a number inside an
expression, and an unfinished thought do not count. Every search is bounded, so a one-megabyte
response takes hardly longer than its last boxes alone.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from answers import wording
from answers.comparison import Judge
from answers.equations import SINGLE
from answers.errors import Unreadable
from answers.latex import MAX_CHARS, closing_brace, normalise

MAX_BOXES = 32  # boxes searched, from the last one backwards
TAIL = 2000  # characters at the end of a response that are searched for an answer without a box
BEFORE = 80  # characters before a box or a statement
LINE = 300  # characters read from a statement, and after a box

THOUGHT = re.compile(
    r"[<◁](/?)(?:think|thinking|thoughts?|reasoning)[>▷]|<\|(begin|end)_of_thoughts?\|>",
    re.IGNORECASE,
)
BOX = re.compile(r"\\f?box(?:ed)?\s{0,3}\{")
ONLY_A_BOX = re.compile(r"[\s$]*\\f?box(?:ed)?\s{0,3}\{(.*)\}[\s$]*", re.DOTALL)

# Separators between two members of a list: "$\boxed{1}$ and $\boxed{2}$", \quad\text{or}\quad,
# possibly with a name for the second member: "$x=\boxed{1}$, $y=\boxed{2}$".
LIST_MARK = r"\n\s{0,9}(?:[-*•]|\d{1,2}[.)])\s"  # of a list item on its own line
MARKS = r"[\s,;$&.*]|\\\\|\\[,;:!> ()\[\]]|\\q?quad(?![a-zA-Z])"
AND = r"(?:and|or)(?![a-zA-Z])|\\(?:text|textrm|mathrm)\s?\{[\s,]{0,5}(?:and|or)[\s,]{0,5}\}"
JOINERS = rf"(?:{LIST_MARK}|{MARKS}|{AND}){{0,40}}"
NAMED = rf"({SINGLE})\s{{0,3}}=[\s$]{{0,5}}"
BETWEEN = re.compile(rf"{JOINERS}(?:{NAMED})?")
NAME_BEFORE = re.compile(rf"(?<![\w\\^_}}]){NAMED}$")

STATED = re.compile(r"(?i:answers?)[\s*_]{0,4}(?i:is|are|:|=)|(?i:final answer)|#### ")
EDGES = " \t\n\r*_:#="
SENTENCE_END = re.compile(r"[.!](?:[\s*]|$)|\n")
REASON = re.compile(r",?\s(?:because|since|so|which|where)\s")
NEGATION = re.compile(r"(?<![a-z])(?:not|never|neither)(?![a-z])|n't")
ADVERB = re.compile(r"(?:therefore|thus|hence|then|simply|just|exactly|equal to)\s")
VERB = re.compile(r"(?<![a-zA-Z])(?:is|are|equals)(?![a-zA-Z])")
BOLD = re.compile(r"(?<!\w)\*\*|\*\*(?!\w)")
NUMBER_AND_WORDS = re.compile(
    r"([-−]?\$?[\d.,/]{0,50}\d)\s+([a-zA-Z]{1,20}(?:\s[a-zA-Z]{1,20}){0,7})"
)
FORMULA = re.compile(
    r"\$\$([^$]{1,300})\$\$|\$([^$]{1,300})\$|\\\(([^$]{1,300}?)\\\)|\\\[([^$]{1,300}?)\\\]"
)

NUMBER_AT_END = re.compile(
    r"(?:^|(?<=[\s:=]))([-−]?\$?(?:\d{1,3}(?:,\d{3}){1,50}(?![\d,])|\d{1,300})?(?:\.\d{1,300})?"
    r"(?:/\d{1,300})?%?)((?:\s[a-zA-Z]{1,20}){0,8})\s*$"
)
NAME_AT_END = re.compile(r"(?:^|(?<=\s))[a-zA-Z](?:_\w)?\s?=\s*$")


class Found(NamedTuple):
    """A box or formula: its start and end in the response, and its content."""

    start: int
    end: int
    content: str


def extract_answer(response: str, truncated: bool = False) -> str | None:
    r"""The final answer as the response spells it, or None. The first of these that exists:

    1. the last \boxed{} or \fbox{}, joined with the boxes that belong to it, each value once:
       "$\boxed{1}$ and $\boxed{2}$" gives "1, 2". If boxes are nested, the outermost counts. An
       unclosed or retracted box gives no answer;
    2. the text after the last "answer is", "answer:" or heading "Final answer": formulas joined
       like boxes, or else the rest of the first sentence after its verb;
    3. the formula or number that ends the last sentence, if words introduce it as a result.

    Thoughts are not searched: the search begins after the last </think>.

    truncated: whether the response was cut off at its limit. Then neither its end nor an
    unfinished sentence gives an answer.
    """
    response = without_thoughts(response)
    if has_open_box(response):
        return None
    boxed = boxes(response)
    if boxed:
        return settled_box(response, boxed)

    tail = response[-TAIL:]
    for statement in reversed(list(STATED.finditer(tail))):
        rest = tail[statement.end() :].lstrip(EDGES)
        if wording.is_supposed(tail[max(0, statement.start() - BEFORE) : statement.start()]):
            return None
        if rest:
            return stated_answer(rest, truncated)
    return None if truncated else answer_at_end(tail)


def without_thoughts(response: str) -> str:
    """The text after the last thought; empty if the last thought is not closed."""
    if "<" not in response and "◁" not in response:
        return response
    start = 0
    is_open = False
    for mark in THOUGHT.finditer(response):
        is_open = mark[1] == "" or (mark[2] or "").lower() == "begin"
        start = mark.end()
    return "" if is_open else response[start:]


# ---- boxes ---------------------------------------------------------------------------------------


def starts_of_boxes(response: str) -> Iterator[int]:
    """The starts of at most MAX_BOXES boxes, the last one first."""
    starts = {name: response.rfind(name) for name in ("\\boxed", "\\fbox")}
    for _ in range(MAX_BOXES):
        name = max(starts, key=starts.get)
        start = starts[name]
        if start < 0:
            return
        yield start
        starts[name] = response.rfind(name, 0, start)


def has_open_box(response: str) -> bool:
    """Whether the last box is not closed."""
    start = next(starts_of_boxes(response), None)
    opening = BOX.match(response, start) if start is not None else None
    if not opening:
        return False
    return closing_brace(response, opening.end(), opening.end() + MAX_CHARS) is None


def boxes(response: str) -> list[Found]:
    """The closed outermost boxes of a response, in order; at most the last MAX_BOXES.

    A box that contains only another box is replaced by the inner box.
    """
    found = []
    for start in starts_of_boxes(response):
        opening = BOX.match(response, start)
        if not opening:
            continue
        end = closing_brace(response, opening.end(), opening.end() + MAX_CHARS)
        if end is None:
            continue

        while found and found[-1].end <= end:  # inside this box
            found.pop()
        found.append(Found(start, end + 1, unwrapped(response[opening.end() : end])))
    return found[::-1]


def unwrapped(content: str) -> str:
    for _ in range(MAX_BOXES):
        inner = ONLY_A_BOX.fullmatch(content)
        if not inner or closing_brace(content, inner.start(1)) != inner.end(1):
            break
        content = inner[1]
    return content.strip()


def settled_box(response: str, boxed: list[Found]) -> str | None:
    """The answer in the last boxes. If it is retracted, the answer stated after it, or None."""
    *_, last = boxed
    previous = boxed[-2].end if len(boxed) > 1 else 0
    before = response[max(previous, last.start - BEFORE) : last.start]
    after = response[last.end : last.end + LINE]
    if wording.is_denied(before) or wording.goes_on(after):
        return None
    if wording.is_taken_back(after):
        stated = list(STATED.finditer(after))
        return stated_answer(after[stated[-1].end() :].lstrip(EDGES)) if stated else None
    return joined(response, boxed[::-1])


def joined(text: str, found: list[Found]) -> str:
    """The first of `found`, joined with the following ones that belong to the same answer."""
    members = [found[0]]
    named = False
    for neighbour in found[1:]:
        first, second = sorted([members[-1], neighbour])
        gap = BETWEEN.fullmatch(text, first.end, second.start)
        if not gap and not wording.are_parts(text[first.end : second.start]):
            break
        named = named or (gap is not None and gap[1] is not None)
        members.append(neighbour)
    if len(members) == 1:
        return members[0].content

    texts = []  # each value once
    for member in sorted(members):
        name = NAME_BEFORE.search(text, max(0, member.start - 40), member.start) if named else None
        content = f"{name[1]}={member.content}" if name else member.content
        if not any(are_same(content, other) for other in texts):
            texts.append(content)
    return ", ".join(texts)


def are_same(a: str, b: str) -> bool:
    p = normalise(a)
    g = normalise(b)
    if not p or p == g:
        return p == g
    try:
        return Judge([p, g]).same(p, g)
    except Unreadable:
        return False


# ---- answers without a box -----------------------------------------------------------------------


def stated_answer(text: str, truncated: bool = False) -> str | None:
    """The first formulas after "answer is", else the end of the first sentence."""
    line = text[:LINE]
    found = formulas(line)
    if found and not NEGATION.search(line, 0, found[0].start):
        after = line[found[0].end :]
        if wording.is_taken_back(after):
            return None
        answer = joined(line, found)
        return None if answer == found[0].content and wording.goes_on(after) else answer

    line = BOLD.sub("", line)
    end = SENTENCE_END.search(line)
    if truncated and not end:
        return None
    sentence = line[: end.start()] if end else line
    clause = REASON.split(sentence)[0]
    if wording.is_taken_back(line[len(clause) :]):
        return None
    answer = ADVERB.sub("", VERB.split(clause)[-1].lstrip()).strip(EDGES).rstrip(EDGES + ".")
    return NUMBER_AND_WORDS.sub(r"\1 \\text{\2}", answer)


def answer_at_end(tail: str) -> str | None:
    """The formula or number at the end of the last sentence, if words introduce it as a result."""
    text = BOLD.sub("", tail).rstrip(" \t\n\r.")
    start = 0
    for end in SENTENCE_END.finditer(text):
        start = end.end()
    sentence = text[start:]

    found = formulas(sentence)
    if found and found[-1].end == len(sentence):
        answer = joined(sentence, found[::-1])
        first = found[-1]
        for earlier in reversed(found[:-1]):
            if not BETWEEN.fullmatch(sentence, earlier.end, first.start):
                break
            first = earlier
        return answer if wording.is_result(sentence[: first.start]) else None

    number = NUMBER_AT_END.search(sentence)
    if not number or not re.search(r"\d", number[1]):
        return None
    if not wording.is_result(NAME_AT_END.sub("", sentence[: number.start(1)])):
        return None
    words = number[2].strip()
    return f"{number[1]} \\text{{{words}}}" if words else number[1]


def formulas(text: str) -> list[Found]:
    return [
        Found(*formula.span(), formula[formula.lastindex].strip())
        for formula in FORMULA.finditer(text)
    ]


# ---- multiple choice -----------------------------------------------------------------------------

LETTER_IN_BOX = re.compile(r"(?:\s|\$|\\(?:text|mathrm|mathbf|textbf)\b|[{(]){0,9}([A-J])(?![\w'])")
STATED_LETTERS = (
    # "The answer is (A)", "Option B"
    re.compile(r"(?i:answer|choice|option)[\s*]{0,4}(?i:is|:)?[\s*:($]{0,5}([A-J])(?![\w'])"),
    # "(A)"
    re.compile(r"\(([A-J])\)"),
    # a separate line
    re.compile(r"(?m)^[\s*]{0,5}([A-J])[*.)]{0,3}\s{0,5}$"),
)


def choice(response: str) -> str | None:
    """The letter A-J of a multiple-choice response: the boxed letter, else the stated letter.

    The stated letter is the last match of the first pattern in STATED_LETTERS that matches.
    """
    response = without_thoughts(response)
    boxed = boxes(response)
    if boxed:
        letter = LETTER_IN_BOX.match(boxed[-1].content)
        return letter[1] if letter else None

    for pattern in STATED_LETTERS:
        stated = pattern.findall(response[-TAIL:])
        if stated:
            return stated[-1]
    return None
