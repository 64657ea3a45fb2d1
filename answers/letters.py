"""The letter of a response to a multiple-choice problem."""

import re

from .comparison import same_answer
from .extraction import TAIL, boxes
from .thoughts import without_thoughts

# A letter with what may enclose it, but no formula, no "A or B" and no beginning of a sentence.
# A small letter stands in brackets or at the end of a line: "(b)", "Answer: b".
LETTER = (
    r"(?:[\s*_$({\[<`'\"‘“]|\\[(,;]|\\(?:text|math|display|[lL]arge|color\{)[a-z]{0,9}\b\}?"
    r"|\\boxed\b){0,9}([A-J]|[a-j](?=[*)`'\"’”}.]{0,5}(?:\s*$|\s*\n)|(?<=\(.)\)))(?![\w'’-])"
    r"(?!\s*(?:[=+/^]|,?\s?(?:or|and|\\text\{\s?(?:or|and))\b|,\s?[A-J]\b))"
    r"(?!(?<=[AI])\s+(?!because|since|as\b)[a-z])"
)
IN_BOX = re.compile(
    rf"(?i:option|choice)?{LETTER}(?:[\s$*]*[)}}\]]+[.,:]?(?!\s*[=+/^_\\-])|[.,:]|(?:[\s$*.]|\\,)*$"
    r"|\s[-–—]\s(?=\d|[a-z]{3}))"
)
IS = (
    r"(?i:\b(?:is|be)\b|(?<=answer)['’]s|[:：=>→])"
    r"(?i:\s+(?:the|option|choice|letter|therefore|thus|indeed|most|\w+ly)\b){0,3}:?"
)
STATED_LETTERS = (  # "The answer must be (A)"; "A is the correct answer"; "I choose A"; "option A"
    re.compile(
        rf"(?i:answer|choice|option|letter)\b(?:(?!not\b|n't|options|choices)[^.\n:=>]){{0,40}}?"
        rf"{IS}{LETTER}"
    ),
    re.compile(
        rf"{LETTER}[\s*)}}\]$]*(?:is|must be) (?:(?!not)\w+ ){{0,2}}?(?:correct|right|best|answer)"
    ),
    re.compile(
        r"(?i:\b(?:choose|pick|select|with|think|say|must be|so|thus|hence|leaves|it is)\b|it['’]s)"
        rf",?{LETTER}"
    ),
    re.compile(rf"(?i:answer(?:\s[-–—])?|choice|option){LETTER}"),
)
MENTIONED = re.compile(
    r"(?<![\w)])\(([A-J]|[a-j](?=\)\W*$))\)"
)  # in the last line: others review the options
OPTION = re.compile(r"\(([A-J])\)\s(.{1,300}?)(?=\s\([B-J]\)\s|\n|$)")
DOUBT = re.compile(  # but "No, (A) has the wrong sign" is about another option
    r"[.!?,;\n](?:\s{0,3}(?i:no|wait|hmm+|actually|sorry|oops|correction)[,:.!—…]+)+"
    r"(?!\s*(?:\([A-J]\)|[B-HJ])\s(?!is (?:the|right|correct)|must)[a-z])"
)
LETTER_LINE = re.compile(
    r"(?m)^[\s*$\[]{0,5}\(?([A-J])(?:[.):]{1,2}\**(?:\s(?!.*\([B-J]\)).*)?|[*$\]]*)\s{0,5}$"
)


def choice(response: str, problem: str = "") -> str | None:
    """The letter A-J of a multiple-choice response: behind its last "Wait, " if it can.

    problem: a text with options, "(A) 3 N", so that a box with an option stands for its letter.
    """
    parts = DOUBT.split(without_thoughts(response))
    options = OPTION.findall(problem)
    return next(filter(None, (letter(part, options) for part in reversed(parts))), None)


def letter(response: str, options: list[tuple[str, str]]) -> str | None:
    """The letter in the last box or of the option in it, else the last letter stated."""
    found = boxes(response)
    if found:
        box = found[-1][2]
        boxed = IN_BOX.match(box)
        chosen = [name for name, option in options if same_answer(box, option)]
        if boxed or len(chosen) == 1:
            return boxed[1].upper() if boxed else chosen[0]
    tail = response[-TAIL:]
    for letters in STATED_LETTERS:
        stated = letters.findall(tail)
        if stated:
            return stated[-1].upper()
    mentioned = MENTIONED.findall(tail.rstrip().rpartition("\n")[2])
    if mentioned:
        return mentioned[-1].upper()
    lines = set(LETTER_LINE.findall(tail))  # several are the list of options
    return lines.pop() if len(lines) == 1 else None
