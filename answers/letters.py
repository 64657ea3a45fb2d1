"""The letter of a response to a multiple-choice problem."""

import re

from .extraction import TAIL, boxes
from .thoughts import without_thoughts

# A letter with what may enclose it, but no formula, no "A or B" and no beginning of a sentence.
LETTER = (
    r"(?:[\s*_$({\[\"“]|\\\(|\\(?:text|math)[a-z]{0,6}\b|\\boxed\b){0,9}([A-J])(?![\w'’-])"
    r"(?!\s*(?:[=+/^]|,?\s?(?:or|and|\\text\{\s?(?:or|and))\b|,\s?[A-J]\b))"
    r"(?!(?<=[AI])\s+(?!because|since|as\b)[a-z])"
)
IN_BOX = re.compile(
    rf"(?i:option|choice)?{LETTER}(?:[\s$*]*[)}}\]]+[.,:]?(?!\s*[=+/^_\\-])|[.,:]|[\s$*.]*$)"
)
IS = (
    r"(?i:\b(?:is|be)\b|(?<=answer)['’]s|[:=>])"
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
    re.compile(rf"(?i:answer|choice|option){LETTER}"),
    re.compile(r"(?<![\w)])\(([A-J])\)"),
)
DOUBT = re.compile(  # but "No, (A) has the wrong sign" is about another option
    r"[.!?,;\n](?:\s{0,3}(?i:no|wait|hmm+|actually|sorry|oops|correction)[,:.!—…]+)+"
    r"(?!\s*(?:\([A-J]\)|[B-HJ])\s(?!is (?:the|right|correct)|must)[a-z])"
)
LETTER_LINE = re.compile(r"(?m)^[\s*$\[]{0,5}\(?([A-J])(?:[.):]{1,2}\**(?:\s.*)?|[*$\]]*)\s{0,5}$")


def choice(response: str) -> str | None:
    """The letter A-J of a multiple-choice response: behind its last "Wait, " if it can."""
    parts = DOUBT.split(without_thoughts(response))
    return next(filter(None, map(letter, reversed(parts))), None)


def letter(response: str) -> str | None:
    """The letter in the last box, else the last one stated."""
    found = boxes(response)
    boxed = IN_BOX.match(found[-1][2]) if found else None
    if boxed:
        return boxed[1]
    tail = response[-TAIL:]
    for letters in STATED_LETTERS:
        stated = letters.findall(tail)
        if stated:
            return stated[-1]
    lines = set(LETTER_LINE.findall(tail))  # several are the list of options
    return lines.pop() if len(lines) == 1 else None
