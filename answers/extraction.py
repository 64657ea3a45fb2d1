r"""Finds the final answer of a response: in its last boxes, after "answer is", or at its end."""

import re
from collections import deque

from . import units
from .comparison import same_answer
from .latex import MAX_CHARS, closing_brace
from .thoughts import without_thoughts
from .values import BUDGET

MAX_RESPONSE = 200_000  # characters, more than 30,000 tokens; a longer response has no answer
MAX_BOXES = 8  # read from the last one backwards
MAX_JOINED = 500  # characters of boxes that are one answer
PART = BUDGET // 32  # of the operations of a comparison, for each comparison inside a response
TAIL = 2000  # characters at the end of a response that are searched for an answer without a box
AFTER = 400  # characters read after a box or a statement
BEFORE = 80  # characters read before one
GAP = 120  # characters at most between two boxes of one answer

# {heading: {words: a case}}: what may stand beside an answer
LISTED = {
    heading: dict(line.rsplit(" | ", 1) for line in body.strip().splitlines())
    for heading, body in units.sections("beside.txt").items()
}


def signs(heading: str) -> str:
    """A pattern for any line under a heading of beside.txt. A * is for letters in plain words."""
    lines = [
        line.replace("*", "[a-z]*") if re.fullmatch("[a-z' *]+", line) else line
        for line in LISTED[heading]
    ]
    return f"(?:{'|'.join(lines)})"


def phrases(heading: str) -> str:
    """A pattern for any line under a heading, as whole words."""
    return f"(?<![a-zA-Z]){signs(heading)}(?![a-zA-Z])"


BOX = re.compile(r"\\(?:f|frame)?[bB]ox(?:ed)?\s{0,3}\{")
TAGGED = re.compile(r"<answer>([^<>]{1,400})</answer>")
TAG = re.compile(r"</?[a-zA-Z]\w{0,20}\s?/?>|<[|｜][^<>|｜]{1,40}[|｜]>|<<[^<>\n]{0,80}>>")
BOLD = re.compile(r"(?<![\w)])\*\*|\*\*(?![\w(])|`")  # but x**2 is a power
SENTENCE_END = re.compile(r"(?<!\n\d)[.!]{1,3}(?:\s(?!=)|$)|\n")
NUMBER = (
    r"[-−]?\\?\$?(?:\d{1,9}\s(?=\d+/\d))?(?:\d[\d,]{0,30}(?:\.\d{1,30})?|\.\d{1,30})"
    r"(?:/\d{1,30})?\\?%?(?:st|nd|rd|th)?"
)
FORMULA = re.compile(
    r"\$\$([^$]{1,300})\$\$|\$([^$]{1,300})\$|\\\(([^$]{1,300}?)\\\)|\\\[([^$]{1,300}?)\\\]"
)
NOUNS = r"[a-zA-Z](?:[a-zA-Z/'-]|\^\d){0,20}(?:\s\(?[a-zA-Z][a-zA-Z/'-]{0,20}\)?){0,7}"

# Directly before and behind a box.
DENIED = re.compile(
    rf"(?i)(?:{phrases('denies')}(?:\s(?:be|answer)){{0,4}}[\s$*:(]*"
    rf"|{signs('negates')})$"
)
CHANGED = re.compile(rf"[\s$(),\\]*(?:\\text\{{\s*)?{phrases('changes')}|{signs('touches')}")
SUFFIX = re.compile(r"[\s$]{0,3}(\\?%|percent(?![a-zA-Z])|[_^](?:\d|\\circ|\{[^{}]{1,20}\}))")
# Sentences behind an answer.
BEGIN = r"(?i)(?:^|[—–:;,?(\[-])[\s*$.,)]{0,9}"
JUDGED = rf"(?<!\d\s){phrases('judged')}(?!\s[$\d\\])"
BEGUN = (
    rf"{BEGIN}{phrases('withdraws')}|(?:{JUDGED}(?:(?!because\b)[^,;?\d]){{0,60}}?"
    rf"|^[\s$).,]*(?={signs('judges')})[^,;]{{0,50}}?)"
)
WITHDRAWN = re.compile(f"{BEGUN}(?:{phrases('wrong')}|{phrases('refutes')})")
WRONG = re.compile(BEGUN + phrases("wrong"))
DOUBTED = re.compile(BEGIN + phrases("doubts"))
SETTLED = re.compile(rf"(?i)\W*{phrases('settles')}")
# Another result: "However, one is excluded, so the count is 80", "= 80", "So there are 80 points".
RESTATED = re.compile(
    rf"(?i)(?:{phrases('concludes')}[^?]{{0,200}}?(?:{phrases('states')}\s|'s\s|[:=])"
    rf"|^[\s$)]{{0,5}}=)\s{{0,3}}(?:({NUMBER})|{FORMULA.pattern})[\s*$)]{{0,5}}(?:[,;]|$)"
    rf"|^(?:####)?[\s$]{{0,3}}({NUMBER})[\s$.]{{0,3}}$"
    rf"|^\W*(?:so|thus|hence|therefore)\b[^\d?]{{0,80}}\s({NUMBER})\s{NOUNS}$"
)
TERMS = r"(?:(?!(?<!\\)\b[a-zA-Z]{2,})[^=,;:])*"  # the rest of a sum, without words
CORRECTS = re.compile(rf"(?i){phrases('corrects')}")  # but "Then 2(7) - 4 = 10" is a check
# Before a box. "Alice: " or "The sum is" names a part of an answer, "Hence" or "=" states another.
NAMED = re.compile(r"(?:^|(?<=[$(,;\[])|(?<=[a-z:,]\s))\s?[a-zA-Z](?:_\{?\w\}?)?\s?=\s*$")
PARTS = (
    re.compile(r"(?:^|[.,;\n])[\s*-]*(?!(?i:step|total|.{,20}answer)\b)\w[\w() ]{,20}:[\s*$]*$"),
    re.compile(r"(?:^|\. )The \w+ is[\s$]*$"),
)
STATES = re.compile(
    rf"(?<![\\a-zA-Z])(?!Or\b|And\b)[A-Z][a-zA-Z]|。"
    rf"|(?i:{phrases('leads')}|['’]s)[\s*$,:\\\[]*$|=\s*$"
)
# Answers without a box.
STATED = re.compile(
    r"(?i:(?:final )?answers?)[\s*_]{0,4}(?i:is|[:=>])|(?m:^)(?:A|Ans|Result|Solution):(?=.{1,80}$)"
    # GSM8K's sign, but not a heading: "#### 2. Add", "#### Step 2", "#### n = 3:"
    r"|(?<!#)####(?!#|\s*(?:\d{1,2}[.):]\s?[a-zA-Z]|[a-zA-Z]{3}|[^\n]{0,80}:\s*(?:\n|$)))"
)
BULLET = re.compile(r"[\s*_:]*\n[ \t]*(?:[-•+]|\d[.)])\s+")  # "- 42" in a list is not -42
DISPLAYED = re.compile(r"\\\[((?:(?!\\[\[\]]).){1,300})\\\]|\$\$([^$]{1,300})\$\$", re.DOTALL)
SUPPOSED = re.compile(rf"(?i){phrases('supposes')}")
LEADING = re.compile(rf"(?i)(?:{phrases('leads')}|^)[\s,:]*$")
SUM = re.compile(
    r"(?:^|(?<![-−+*/×^<>]\s)(?<=\s))(\\\(\s?|\$\s?(?=[^$]{1,300}\$(?!\d))|)[-−$(]{0,3}"
    r"\d(?:[^=,a-zA-Z]|,\d|[a-zA-Z]{3,}|x\s?\d){0,200}=\s*"
)
# A formula or number at the end of a sentence, with the words behind it.
RESULT = re.compile(rf"(?:{FORMULA.pattern}|(?:^|(?<=[\s:=]))({NUMBER}))(?:\s({NOUNS}))?$")
CONCLUSION = re.compile(r",\s(?:and\s)?so\s|(?:^|\s)(?:[Ss]ince|As)\s.{1,300},\s")
# A number before a result, unless it only counts things: "6 erasers and 8 pencils cost".
OTHER = re.compile(rf"=|{phrases('leads')}[\s:$]*\d|\d(?![\d,.]*\s[a-zA-Z]{{3}})")
# Words behind a result without another result: "72, which is the total", "72 altogether in May".
CLAUSE = re.compile(
    rf"(?:\s?[,;:(—–]\s?|\s-\s|(?<!\bor)\s(?=(?i:{phrases('trails')})))"
    r"(?!(?:by )?which (?:we|s?he|they)\b|times)(?:[a-zA-Z]{2,}|[aAI]\s)[a-zA-Z,;:'’()\s-]{0,300}$"
)


def extract_answer(response: str, truncated: bool = False) -> str | None:
    r"""The final answer behind the last thought, as the response spells it, or None.

    <answer> or the last box, whichever is later; else what stands behind the last "answer is"; else
    the result of the last sentence, unless the response was `truncated`.
    """
    response = without_thoughts(response) if len(response) <= MAX_RESPONSE else ""
    found = boxes(response)
    if found is None:
        return None
    start = max(found[-1][1] if found else 0, len(response) - TAIL)
    tagged = list(TAGGED.finditer(response, start))
    if tagged:
        answer = tagged[-1][1].strip()
        is_kept = not is_withdrawn(answer, response[tagged[-1].end() :][:AFTER])
        return (result(answer) or only_number(answer)) if is_kept else None
    answer = boxed_answer(response, found) if found else None
    if answer is not None:
        return answer
    behind = response[found[-1][1] if found else 0 :]  # a statement may replace a box
    tail = TAG.sub(" ", BOLD.sub("", behind[-TAIL:]))
    tail = DISPLAYED.sub(in_line, tail)
    statements = list(STATED.finditer(tail))
    if not statements:
        return None if truncated or found else result(tail)
    before = SENTENCE_END.split(tail[: statements[-1].start()])[-1]
    stated = tail[statements[-1].end() :]
    stated = BULLET.sub(", ", stated) if BULLET.match(stated) else stated
    stated = stated.lstrip(" \t\n\r*_:#=,")[:AFTER]
    sentence, *rest = SENTENCE_END.split(stated)
    is_complete = rest or not truncated or sentence.endswith("$")
    if SUPPOSED.search(before[-30:]) or not is_complete:
        return None
    sentence = without_clause(re.split(r",?\s(?:because|since)\s", sentence)[0].strip())
    answer = result(sentence) or sentence
    return None if is_withdrawn(answer, "\n".join(rest)) else answer


def in_line(displayed: re.Match) -> str:
    r"""$x$ for \[ x. \], which may stand on several lines."""
    return f"${' '.join((displayed[1] or displayed[2]).split()).strip(' .')}$"


def boxes(response: str) -> list[tuple[int, int, str]] | None:
    """(start, end, content) of the last outermost boxes; None if the last one is not closed."""
    found = []
    for opening in deque(BOX.finditer(response), MAX_BOXES):
        end = closing_brace(response, opening.end(), opening.end() + MAX_CHARS)
        if end is None:
            found.append(None)
        elif not found or found[-1] is None or opening.start() >= found[-1][1]:
            found.append((opening.start(), end + 1, response[opening.end() : end].strip()))
    if found and found[-1] is None:
        return None
    return [box for box in found if box]


def boxed_answer(response: str, found: list[tuple[int, int, str]]) -> str | None:
    """The last boxes that belong together; None if the words around the last one withdraw it."""
    start, end, content = found[-1]
    previous = found[-2][1] if len(found) > 1 else 0
    if DENIED.search(BOLD.sub("", response[max(previous, start - BEFORE) : start])):
        return None
    after = TAG.sub("\n", BOLD.sub("", response[end : end + AFTER]))
    suffix = SUFFIX.match(after)
    if suffix:
        content += suffix[1]
        after = after[suffix.end() :]
    if CHANGED.match(after) or is_withdrawn(content, after):
        return None

    texts = [content]
    for box in reversed(found[:-1]):
        if is_new(response, box, start):
            break
        start = box[0]
        if len(", ".join([box[2], *texts])) > MAX_JOINED:
            return None
        if not any(same_answer(box[2], text, budget=PART) for text in texts):
            texts.insert(0, box[2])
    return ", ".join(texts)


def is_new(response: str, box: tuple[int, int, str], start: int) -> bool:
    """Whether the box at `start` is another answer than `box`, not its next part ("□ and □")."""
    before = response[max(0, box[0] - BEFORE) : box[0]]
    gap = NAMED.sub("", response[box[1] : start])
    if any(part.search(before) and part.search(gap) for part in PARTS):
        return False
    return len(gap) > GAP or any(sign.search(gap) for sign in (WITHDRAWN, DOUBTED, STATES))


def is_withdrawn(answer: str, after: str) -> bool:
    """Whether the text behind an answer withdraws it, states another result, or doubts it."""
    is_doubted = False
    is_negative = units.WORDS["negative"].intersection(re.findall(r"[\w.]+", answer.lower()))
    used = re.compile(rf"(?<![\w.=])(?<!=\s){re.escape(answer)}(?!\.?\w){TERMS}=")
    for sentence in SENTENCE_END.split(TAG.sub("\n", BOLD.sub("", after))):
        corrects = CORRECTS.search(sentence) is not None
        if (WRONG if is_negative and not corrects else WITHDRAWN).search(sentence):
            return True
        is_doubted |= DOUBTED.search(sentence) is not None
        is_check = used.search(sentence) and not corrects
        restated = [] if is_check else ["".join(x.groups("")) for x in RESTATED.finditer(sentence)]
        if not all(same_answer(other, answer, budget=PART) for other in restated):
            return True
        if restated or SETTLED.match(sentence):
            is_doubted = False
    return is_doubted


def without_clause(sentence: str) -> str:
    """A sentence without the words behind its result, unless they may change or withdraw it."""
    clause = CLAUSE.search(sentence)
    before = sentence[: clause.start()] if clause else ""
    if not clause or before.count("(") > before.count(")") or WITHDRAWN.search(clause[0]):
        return sentence
    words = clause[0].replace(" and ", " ")
    is_unit = units.known(words.strip(" ,;:()—–-").removeprefix("in ")) in units.SYMBOLS
    return before if units.is_harmless(words) and not is_unit else sentence


def only_number(text: str) -> str:
    """The number of a sentence that has no other, "The bike will cost $320.", or else the text."""
    sentence = SENTENCE_END.split(text.rstrip("\n. "))[-1]
    numbers = list(re.finditer(rf"(?<!\S)(?<![-−+*/×=^<>]\s){NUMBER}(?![^\s.])", sentence))
    is_sentence = re.search("[a-z]{3} ", text) and units.is_harmless(text)
    if len(numbers) != 1 or not is_sentence or SUPPOSED.search(sentence[: numbers[0].start()]):
        return text
    return numbers[0][0]


def result(text: str) -> str | None:
    """The formula or number that ends a text, if words of its sentence introduce it as a result.

    A sum before it is omitted, "20 + 40 = 60". A counted number needs no introduction.
    """
    sentence = SENTENCE_END.split(text.rstrip(" \t\n\r."))[-1]
    sentence = without_clause(sentence.strip(" :,").lstrip("= "))
    sentence = SUM.sub(r"is \1", CONCLUSION.split(sentence)[-1]).replace("= is ", "= ")
    found = RESULT.search(sentence)
    if not found:
        return None
    before = NAMED.sub("", sentence[: found.start()])
    *answers, words = found.groups()
    is_led = LEADING.search(before)
    if SUPPOSED.search(before) or re.search(OTHER if is_led else r"\d|=", before):
        return None
    answer = next(answer for answer in answers if answer).strip()
    if not is_led and not (words and units.is_counted(words)):
        return None
    return f"{answer} \\text{{{words}}}" if words else answer
