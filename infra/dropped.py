r"""Drops the records that a run cannot learn from, and prints how many, and the first of each kind.

Without this file a run would take them: problems that point at a picture, answers that earn
nothing, and evaluation problems that are trained on.
"""

import re
from functools import cache

from answers.comparison import is_equivalent, stands_for_none
from infra.errors import UserError
from infra.ranks import is_first_rank
from verify import earnable

NO_TEXT = "without a text or an answer"
PICTURED = "with a picture, which the model would not see"
NEVER = "with a gold answer that no response can match"
REPEATED = "that repeat an earlier one"
TWO_GOLDS = "of one problem with different gold answers"

PICTURE = re.compile(
    r"!\[[^\]\n]{0,300}\]\s?\([^)\n]*[./]"  # Markdown; n![k](x) has neither dot nor slash
    r"|<\|?/?(?i:image|img|picture|figure|svg|vision)(?![a-z])|\[(?i:image|img)[ _]?\d*\]"
    r"|\\includegraphics|data:image/|\.(?i:png|jpe?g|gif|svg|webp|bmp)(?![\w(])"
    r"|['\"]type['\"]: ?['\"](?:input_)?image"  # a part of a chat's message
)

WORD = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{2,}")
MOST_WORDS = 8  # more make a sentence; the gold answers in tests/answers have at most 3
NEXT_SENTENCE = re.compile(r"(?<![A-Z][a-z])[.!?]\s+[A-Z\d$\\]")  # not "St. Louis"
# What JSON left of a command with one backslash: a control character, or a blank and its rest.
EATEN = re.compile(
    r"[\0-\x08\x0b\x0c\x0e-\x1f\x7f]|\t(?:heta|ext|imes|an|au|o|frac|riangle)(?![a-z])"
    r"|\r(?:ight|ho)(?![a-z])|\n(?:eq|e|u|abla|ot|otin)(?![a-z])"
)
ENCODED = re.compile(
    rf"{EATEN.pattern}|\\u[\da-fA-F]{{4}}|&(?:[a-zA-Z]{{2,8}}|#x?[\da-fA-F]{{1,6}});"
    r"|</?(?i:br|p|b|i|u|em|strong|su[bp]|span|div|math|m[ino]|code|font|td|tr|li)"
    r"(?:\s+\w+=[^<>]*|\s?/)?>"
    r"|^\[?\s*(?:'.*'|\".*\"|“.*”)\s*\]?$",  # in quotes, or a list of texts
    re.DOTALL,
)
# \\frac for \frac; but \\ also ends the rows of a matrix
DOUBLED = re.compile(r"(?<!\\)(?:\\\\)+(?:[a-zA-Z]{2}|[{}%$])")
MATRIX = re.compile(r"(?<!\\)\\begin")

# Blanks, quotes, $, \( \) and a sentence's punctuation do not make another problem. Signs do: 1+2
# is not 1*2. So does a point or a comma in a number.
LAYOUT = re.compile(r"\\[()\[\],;:! ]|[\s$~`'\"“”‘’]|[.,;:?](?!\d)")
SHORTEST = 20  # characters of a text that counts as leaked if it is a part of another


def usable(problems: list[dict], where: str, whole: bool = False) -> list[dict]:
    """The problems that a run can learn from; the first rank prints what it drops, and why.

    problems: one for each record. Of problems with the same text the first is kept, and none if
    their answers differ. whole: a user's own reward reads the answers, so any will do. Raises
    UserError, which names `where`, if no problem remains, or most gold answers cannot be matched.
    """
    dropped = {}  # reason -> [(number of the record, problem)]
    same_text = {}
    for number, problem in enumerate(problems, start=1):
        reason = fault(problem, whole)
        if reason:
            dropped.setdefault(reason, []).append((number, problem))
        else:
            same_text.setdefault(bare(problem["problem"]), []).append((number, problem))

    kept = []
    for first, *others in same_text.values():
        if whole or all(same_gold(first[1], other[1]) for other in others):
            kept.append(first[1])
            reason = REPEATED
        else:
            others.insert(0, first)
            reason = TWO_GOLDS
        if others:
            dropped.setdefault(reason, []).extend(others)

    never = dropped.get(NEVER, [])
    refuse_most(never, len(never) + sum(map(len, same_text.values())), where)
    report(f"{where}: {len(problems) - len(kept)} of {len(problems)} records are dropped", dropped)
    if not kept:
        raise UserError(f"{where} holds no problem with an answer: see --answer-column")
    return kept


def fault(problem: dict, whole: bool) -> str:
    """Why a problem is dropped, whatever the others are; "" if it is not."""
    has_tests = "tests" in problem  # a program's statement says in words what its picture shows
    if problem.get("picture") or (not has_tests and PICTURE.search(problem["problem"])):
        return PICTURED
    if not problem["problem"]:
        return NO_TEXT
    if whole:
        return ""
    if not all(problem.values()) or stands_for_none(problem.get("answer", "")):
        return NO_TEXT
    is_answer = not has_tests and not problem.get("choice")
    return NEVER if is_answer and not is_matchable(problem["answer"]) else ""


@cache
def is_matchable(gold: str) -> bool:
    """Whether a short answer can equal a gold answer: no sentences, code of a web page or question.

    Nor can it be in quotes, or have lost or doubled the backslashes of its commands.
    """
    is_text = NEXT_SENTENCE.search(gold) or len(WORD.findall(gold)) > MOST_WORDS
    is_encoded = ENCODED.search(gold) or (DOUBLED.search(gold) and not MATRIX.search(gold))
    return not is_text and not is_encoded and earnable(gold)


def refuse_most(never: list[tuple[int, dict]], total: int, where: str) -> None:
    """Raise UserError if `never`, whose gold answers no response can match, are most of `total`."""
    if 2 * len(never) > total:
        raise UserError(
            f"{where}: {len(never)} of {total} gold answers can never be matched; the first is "
            f"{shown(*never[0])}: name another --answer-column, or end the answers with "
            '"#### x" or \\boxed{x}'
        )


def same_gold(a: dict, b: dict) -> bool:
    """Whether two problems of one text have the same answer, or are both judged by tests."""
    p, g = a.get("answer", ""), b.get("answer", "")
    return p == g or is_equivalent(p, g) or is_equivalent(g, p)


def bare(text: str) -> str:
    """A problem's text without its layout: the same for $x$ and \\( x \\)."""
    return LAYOUT.sub("", text).casefold()


def print_leaks(held_out: list[dict], problems: list[dict], where: str) -> None:
    """Print how many held-out problems are trained on, and the first.

    The text of such a problem is that of a training problem, or a part of it, or has it as a part.
    """
    texts = {bare(problem["problem"]) for problem in problems}
    long = [text for text in texts if len(text) >= SHORTEST]
    joined = "\n".join(long)
    leaked = []
    for text in [bare(problem["problem"]) for problem in held_out]:
        holds = any(other in text and is_part(other, text) for other in long)
        leaked.append(text in texts or holds or (len(text) >= SHORTEST and is_part(text, joined)))
    if any(leaked):
        first = held_out[leaked.index(True)]["problem"]
        print(f"{sum(leaked)} of {len(held_out)} problems of {where} are in --data: {first[:60]!r}")


def is_part(part: str, whole: str) -> bool:
    """Whether a text is a part of another, and its numbers are whole: not 30 in 300."""
    pattern = rf"(?<!\d){re.escape(part)}(?![.,]?\d)"
    return part in whole and re.search(pattern, whole) is not None


def report(head: str, found: dict[str, list[tuple[int, dict]]]) -> None:
    """The first rank prints `head`, and a line for each reason: how many, and the first."""
    if not found or not is_first_rank():
        return
    print(head, flush=True)
    for reason, places in found.items():
        print(f"  {len(places)} {reason}; the first is {shown(*places[0])}", flush=True)


def shown(number: int, problem: dict) -> str:
    """A record's number, and the beginning of its problem and of its answer."""
    texts = [str(problem.get(name) or "") for name in ("problem", "answer")]
    return ", ".join([f"record {number}", *(repr(text[:60]) for text in texts if text)])
