r"""Where the final answer of a response is: in its last boxes, behind "answer is", or at its end.

Every search is bounded, so that a response of a megabyte takes hardly longer than its last boxes.
"""

import re
from typing import NamedTuple

from answers.equations import SINGLE
from answers.latex import MAX_CHARS, closing_brace, normalise

MAX_BOXES = 32  # that are looked at, from the last one back
TAIL = 2000  # characters at the end of a response, where an answer without a box is looked for
LINE = 300  # characters of a statement

BOX = re.compile(r"\\f?box(?:ed)?\s{0,3}\{")
ONLY_A_BOX = re.compile(r"[\s$]*\\f?box(?:ed)?\s{0,3}\{(.*)\}[\s$]*", re.DOTALL)

# What may stand between two members of a list: "$\boxed{1}$ and $\boxed{2}$", \quad\text{or}\quad;
# perhaps with a name for the second: "$x=\boxed{1}$, $y=\boxed{2}$".
LIST_MARK = r"\n\s{0,9}(?:[-*•]|\d{1,2}[.)])\s"  # of an item on a line of its own
MARKS = r"[\s,;$&.*]|\\\\|\\[,;:!> ()\[\]]|\\q?quad(?![a-zA-Z])"
AND = r"(?:and|or)(?![a-zA-Z])|\\(?:text|textrm|mathrm)\s?\{[\s,]{0,5}(?:and|or)[\s,]{0,5}\}"
JOINERS = rf"(?:{LIST_MARK}|{MARKS}|{AND}){{0,40}}"
NAMED = rf"({SINGLE})\s{{0,3}}=[\s$]{{0,5}}"
BETWEEN = re.compile(rf"{JOINERS}(?:{NAMED})?")
NAME_BEFORE = re.compile(rf"(?<![\w\\^_}}]){NAMED}$")

STATED = re.compile(r"(?i:answers?)[\s*_]{0,4}(?i:is|are|:|=)|(?i:final answer)|#### ")
EDGES = " \t\n\r*_:#="
SENTENCE_END = re.compile(r"\.(?:\s|$)|\n")
REASON = re.compile(r",?\s(?:because|since|as|so|which|where|for|but)\s")
NEGATION = re.compile(r"(?<![a-z])(?:not|never|neither)(?![a-z])|n't")
ADVERB = re.compile(r"(?:therefore|thus|hence|then|simply|just|exactly|equal to)\s")
VERB = re.compile(r"(?<![a-zA-Z])(?:is|are|equals)(?![a-zA-Z])")
BOLD = re.compile(r"(?<!\w)\*\*|\*\*(?!\w)")
NUMBER_AND_WORDS = re.compile(
    r"([-−]?\$?[\d.,/]{1,50})\s+([a-zA-Z]{2,20}(?:\s[a-zA-Z]{1,20}){0,5})"
)
FORMULA = re.compile(
    r"\$\$([^$]{1,300})\$\$|\$([^$]{1,300})\$|\\\(([^$]{1,300}?)\\\)|\\\[([^$]{1,300}?)\\\]"
)
NUMBER = re.compile(
    r"(?<![\w.])[-−]?(?:\d{1,3}(?:,\d{3}){1,50}(?![\d,])|\d{1,300})(?:\.\d{1,300})?"
    r"(?:/\d{1,300})?%?"
)


class Found(NamedTuple):
    """A box or formula: from where to where it is in the response, and what it holds."""

    start: int
    end: int
    content: str


def extract_answer(response: str) -> str | None:
    r"""The final answer as the response spells it, or None. The first of these that there is:

    1. the last \boxed{} or \fbox{}, with its neighbours as one list, each value once:
       "$\boxed{1}$ and $\boxed{2}$" gives "1, 2". A box in a box is read as the outer one;
    2. what follows the last "answer is", "answer:" or heading "Final answer": formulas joined
       like boxes, or else the first sentence, from its verb on;
    3. the last formula or number.
    """
    boxed = boxes(response)
    if boxed:
        return joined(response, boxed[::-1])

    tail = response[-TAIL:]
    for statement in reversed(list(STATED.finditer(tail))):
        line = tail[statement.end() :].lstrip(EDGES)[:LINE]
        if line:
            return stated_answer(line)

    numbers = [Found(*number.span(), number[0]) for number in NUMBER.finditer(tail)]
    found = [*formulas(tail), *numbers]
    if found:
        return max(found, key=end_of).content
    return None


# ---- boxes ---------------------------------------------------------------------------------------


def boxes(response: str) -> list[Found]:
    """The closed boxes of a response that are in no other, in order; the last MAX_BOXES at most.

    A box that holds nothing but another box is that one.
    """
    found = []
    start = len(response)
    for _ in range(MAX_BOXES):
        start = max(response.rfind("\\boxed", 0, start), response.rfind("\\fbox", 0, start))
        if start < 0:
            break
        opening = BOX.match(response, start)
        if not opening:
            continue
        end = closing_brace(response, opening.end(), opening.end() + MAX_CHARS)
        if end is None:
            continue

        while found and found[-1].end <= end:  # inside this one
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


def joined(text: str, found: list[Found]) -> str:
    """The first of `found` with all that follow it without a break, backwards or forwards."""
    members = [found[0]]
    named = False
    for neighbour in found[1:]:
        first, second = sorted([members[-1], neighbour])
        gap = BETWEEN.fullmatch(text, first.end, second.start)
        if not gap:
            break
        named = named or gap[1] is not None
        members.append(neighbour)
    if len(members) == 1:
        return members[0].content

    texts = {}  # one spelling -> the answer as it is written
    for member in sorted(members):
        name = NAME_BEFORE.search(text, max(0, member.start - 40), member.start) if named else None
        content = f"{name[1]}={member.content}" if name else member.content
        texts.setdefault(normalise(content), content)
    return ", ".join(texts.values())


# ---- answers without a box -----------------------------------------------------------------------


def stated_answer(line: str) -> str:
    """The first formulas of what follows "answer is", else the end of its first sentence."""
    found = formulas(line)
    if found and not NEGATION.search(line, 0, found[0].start):
        return joined(line, found)
    sentence = SENTENCE_END.split(BOLD.sub("", line))[0]
    clause = REASON.split(sentence)[0]
    answer = ADVERB.sub("", VERB.split(clause)[-1].lstrip()).strip(EDGES + ".")
    return NUMBER_AND_WORDS.sub(r"\1 \\text{\2}", answer)


def formulas(text: str) -> list[Found]:
    return [
        Found(*formula.span(), formula[formula.lastindex].strip())
        for formula in FORMULA.finditer(text)
    ]


def end_of(found: Found) -> int:
    return found.end


# ---- multiple choice -----------------------------------------------------------------------------

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
