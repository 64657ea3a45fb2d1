r"""Detects words around an answer that retract, deny, extend or hedge it.

A \boxed answer is final only if the words around it do none of these. The patterns read only a few
hundred characters.
"""

import re

GAP = 120  # at most this many characters separate two boxes that are parts of one answer

# After these words a box replaces the previous box. Otherwise nearby boxes are parts of one answer:
# "5 if n is even and 6 if it is odd", "the sum is 12, the product is 35".
REPLACED = re.compile(
    r"(?i:(?<![a-z])(?:no|not|wait|wrong|instead|rather|actually|correct\w*|mistake\w*|fail\w*"
    r"|check\w*|verif\w*|so|thus|hence|therefore|then|gives?|get|find|means|implies|final\w*"
    r"|simpl\w+|would|answer)(?![a-z]))|n't|=\s*$"  # "=": "1/2 = 0.5"
)
PART = re.compile(r"(?i:(?<![a-z])part\s\(?[a-e1-5]\)?|\n\s*(?:\*\*)?\([a-e]\))")

# Text after a box or a statement that retracts it: the beginning of a sentence, a judgement of the
# answer, or the rest of the sentence.
BEGINS = (
    r"no[,.! ]|wait|hmm|actually|oops|sorry|scratch|on (?:second|reflection|closer)|hold on"
    r"|but (?:it|the (?:right|correct|real|true|actual|answer))\b"
    r"|let (?:me|us) (?:correct|fix|change)"
    r"|let (?:me|us) re(?:do|check|consider|calculate|compute|think|examine|visit|try)|let's re"
    r"|i(?:'d| (?:made|take|was|would))|correct(?:ion|ed)|rather|instead|never ?mind|strike|forget"
    r"|ignore|disregard|edit\b|update\b|revis|erratum|incorrect|wrong|false\b|invalid|rejected"
    r"|extraneous"
)
SUBJECT = r"(?<![a-z])(?:that|this|it|which|above|answer|box|result|value|step|i)(?![a-z])"
WRONG = (
    r"\bwrong|incorrect|inaccurate|mistake|\binvalid|\bfalse\b|impossible|contradict|\bfail|reject"
    r"|extraneous|retract|withdraw|disregard|ignore|error|erroneous|doubt|unsure|uncertain|guess"
    r"|taken back|take it back|\bbad\b|\boff\b|instead|ought|should (?:be|have)"
)
NOT_RIGHT = (
    r"(?:\bnot|n't|cannot)\s(?:\w+\s){0,2}?(?:right|correct|it\b|possible|valid|answer|work|satisf"
    r"|hold|true|be\b|allowed|acceptable|sure|certain|know|confident|convinced|think|believe|what)"
)
TAKEN_BACK = re.compile(
    rf"(?:^|[.!?\n—–:;,(\[-])[\s*$.,)]*(?:{BEGINS})|[.!?\n][\s*$]*not\b"
    rf"|{SUBJECT}[^.,;!?\n]{{0,60}}?(?:{WRONG}|{NOT_RIGHT})"
    r"|^[\s$).,]*(?:cannot|fails|(?:is|was|does|would|could|can|has|seems|looks|may|might)"
    r"(?:n't| not\b|\s[^.!?\n]{0,40}?(?:wrong|incorrect|invalid|false|impossible|\boff\b|extraneous"
    r"|naive|mistake|tempting|rejected|excluded|discarded|ruled out|too [lsbmf]\w+)))",
    re.IGNORECASE,
)
# Text before a box that denies it, or makes it part of an expression or one of two alternatives.
DENIAL = (
    r"(?<![a-z])(?:not|\w+n't|never|cannot|neither|reject\w*|rul\w+ out|exclud\w+|discard\w*"
    r"|instead of|rather than|other than|except|unlike|without)\s"
    r"(?:(?:be|equals?|to|the|a|answer|value|is|of|right|correct)\s){0,4}[\s$*:(]*"
)
WRONG_ANSWER = (
    r"(?:wrong|incorrect|mistaken|invalid|naive|former|old)\s"
    r"(?:answer|result|value|guess|solution)[^.,;!?\n]{0,30}"
)
DENIED = re.compile(
    rf"(?:{DENIAL}|{WRONG_ANSWER}|mistake\s[^.,;!?\n]{{0,30}}|~~[\s$]*"
    r"|[\w)}][\s$]*\bor\s[\s$\\(]*)$",
    re.IGNORECASE,
)
COMMAND_BEFORE = (
    r"\\(?:sqrt|[dt]?frac|binom|log|ln|sin|cos|tan|times|cdot|pm|mp|[bx]?cancel|sout|st"
    r"|not|lnot|neg|overline|neq?)(?:\s?\[[^\]]{0,9}\])?[\s{]*"
)
SIGN_BEFORE = r"[\^_√≠]\s?\{?|=\s*[-+]\s*|[\d})]\s*[-+*/]\s*|\d|(?:^|[$\s({])[-+]"
PART_OF_MORE = re.compile(rf"(?:{COMMAND_BEFORE}|{SIGN_BEFORE})$")
UNSETTLED = re.compile(
    r"[\s$).,\\]*(?:\\text\{\s*)?(?:[oO]r|and maybe|otherwise)(?![a-z])"
    r"|[\s$)\\]*,?\s*(?:if|unless)(?![a-z])"
)
CONTINUED = re.compile(
    r"[a-zA-Z](?<![mgsLNJWVAKCFh])(?![a-zA-Z])|"
    r"\s?(?:\\(?:pi|sqrt|cdot|times|frac|binom|pm)(?![a-zA-Z])|[/^+√π]|[-*]\s?[\d\\(])"
    r"|[\s$)]{0,5}(?:thousand|million|billion|trillion|hundred|dozen|more|less|fewer|greater|times"
    r"|plus|minus|mod|modulo|squared|cubed|factorial|divided|multiplied|choose)(?![a-z])"
)

# "We do not know if the answer is 5", "Wrong answer: 5"
NOT_STATED = re.compile(
    r"(?<![a-z])(?:if|whether|unless|suppos\w+|assum\w+|imagine|maybe|perhaps|might|could"
    r"|not|\w+n't|never|wrong|incorrect|naive|possible|first|initial|former|old"
    r"|guess\w*)(?:\s\w+){0,2}\s*$",
    re.IGNORECASE,
)
# A number that ends a sentence is an answer if a LEADING word precedes it and no SUPPOSED word is
# in the sentence.
LEADING = re.compile(
    r"(?i:(?:^|(?<![a-z]))(?:is|are|was|be|equals|equal to|get|gets|gives|obtain|have|find|yields"
    r"|then|thus|therefore|hence|so|total|all|answer|makes|only|exactly|that)|^|(?<!\d):)[\s,:]*$"
)
# Two results: "The largest is 17, the smallest is 3". One result: "we get 3 + 4 = 7, so it is 8".
CONCLUSION = r"\b(?:so|thus|then|hence|therefore|gives)\b"
ANOTHER = re.compile(rf"(?i:(?:\bis|\bare|\bequals|=)\s*[$\\(]*[-−]?[\d\\](?!.*{CONCLUSION}))")
SUPPOSED = re.compile(
    r"(?i:(?<![a-z])(?:let|suppose|assum\w+|consider\w*|if|whether|when|unless|case|try\w*|say"
    r"|check"
    r"|maybe|perhaps|probably|possibly|might|could|would|may|or|not|no|never|either|neither|than"
    r"|least|most|about|around|approximately|roughly|guess|wrong|incorrect|want|need|know|given"
    r"|where|because|since|step|for|\w+n't)(?![a-z]))"
)


def are_parts(gap: str) -> bool:
    """Whether the boxes before and after `gap` are parts of one answer."""
    if PART.search(gap[-GAP:]):
        return True
    return len(gap) <= GAP and not REPLACED.search(gap)


def is_denied(before: str) -> bool:
    """Whether the words before a box deny it or make it part of an expression."""
    return DENIED.search(before) is not None or PART_OF_MORE.search(before) is not None


def goes_on(after: str) -> bool:
    """Whether the text after a box or formula changes it: 9 π, 5 million, 5 or 6, 5 if n > 0."""
    return UNSETTLED.match(after) is not None or CONTINUED.match(after) is not None


def is_taken_back(after: str) -> bool:
    return TAKEN_BACK.search(after) is not None


def is_supposed(before: str) -> bool:
    """Whether the words before "answer is" make it a supposition or refer to another answer."""
    return NOT_STATED.search(before) is not None


def is_result(before: str) -> bool:
    """Whether the beginning of a sentence introduces the following text as its only result."""
    if ANOTHER.search(before):
        return False
    return LEADING.search(before) is not None and not SUPPOSED.search(before)
