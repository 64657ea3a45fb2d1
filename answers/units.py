"""Reads the words beside a value: 5 cm, 60 km/h, 12 apples, Area = 5, There are 5."""

import re
from functools import cache
from pathlib import Path

MAX_WORDS = 8  # after a value


def sections(file: str) -> dict[str, str]:
    """{heading: text} of a list in this folder. A heading is "# name: what it lists"."""
    text = (Path(__file__).parent / file).read_text(encoding="utf-8")
    listed = {}
    for section in ("\n" + text).split("\n# ")[1:]:
        heading, _, body = section.partition("\n")
        listed[heading.split(":")[0]] = body
    return listed


def synonyms(entries: list[str]) -> dict[str, str]:
    """{each word of an entry: the first word of the entry}."""
    return {word: entry.split()[0] for entry in entries for word in entry.split()}


LISTED = sections("words.txt")
WORDS = {heading: frozenset(text.split()) for heading, text in LISTED.items()}
BESIDE = WORDS["before"] | WORDS["joining"] | WORDS["behind"]
IN_LABELS = WORDS["before"] | WORDS["joining"] | WORDS["labels"] | WORDS["introductions"]
UNITS = synonyms(LISTED["units"].split(","))  # name or symbol of a unit -> its symbol
SYMBOLS = frozenset(UNITS.values())

IDLE = WORDS["joining"] | {"unit", "total", "altogether", "u"}  # words that need not agree
PLURAL = re.compile("(?:[a-z]+-)?[a-z]{2,}[a-hj-rtv-z](?<!th)s")
WORD = re.compile(r"[^\W\d_]+(?:-[a-z]+)?|\^-?\d|[^\s(),]")
# "the area of the square" names an area; "the square of the area" does not.
OPERATION = re.compile(r"(?i:(?<!of )(?<!of the )(?<!of a )\bsquares?\b)")


def words_of(text: str) -> list[str]:
    """The words and signs of a text. "in." becomes in, and cm^{2} becomes cm^2."""
    return WORD.findall(re.sub(r"(?<=\w)\.(?=\s|$)|[{}]", "", text))


@cache
def known(word: str) -> str | None:
    """The symbol of a unit or the singular of a noun. Symbols are case-sensitive, names are not."""
    if word in UNITS:
        return UNITS[word]
    word = word.lower()
    for ending, singular in (("", ""), ("s", ""), ("es", ""), ("ies", "y")):
        stem = word.removesuffix(ending) + singular
        if word.endswith(ending) and len(stem) > 2 and stem in UNITS.keys() | WORDS["counted"]:
            return UNITS.get(stem, stem)
    return word[:-1] if PLURAL.fullmatch(word) else None


def is_harmless(text: str) -> bool:
    """Whether no word of a text changes the number before it."""
    return WORDS["changing"].isdisjoint(words_of(text.lower()))


def is_counted(text: str) -> bool:
    """Whether the text after a value may be omitted: 5 cm, 5 red clips, 5 trays can be filled."""
    words = [word for word in words_of(text) if word[0] not in "^/·*-"]
    lowered = [word.lower() for word in words]
    if not 0 < len(words) <= MAX_WORDS or not is_harmless(text):
        return False
    nouns = [known(word) for word in words]
    listed = [noun or word in BESIDE for noun, word in zip(nouns, lowered, strict=True)]
    if all(listed) and (nouns[-1] or lowered[-1] in WORDS["behind"]):
        return lowered[0] not in ("to", "for")
    head = next((i for i, noun in enumerate(nouns) if noun), None)
    if head is None or lowered[0] in WORDS["joining"] or any(len(word) == 1 for word in words):
        return False
    return nouns[head] not in SYMBOLS or all(listed[:head])


def names_a_quantity(text: str) -> bool:
    r"""Whether a text names a quantity: \text{Area} = 5, but not \text{not} = 5."""
    words = words_of(text.rstrip(" :"))
    if not words or OPERATION.search(text) or words[0].lower() in WORDS["answers"]:
        return False
    return all(
        len(word) == 1 or word.isupper() or known(word) or word.lower() in IN_LABELS
        for word in words
    )


def is_word(letters: str) -> bool:
    r"""Whether letters outside \text are a word, not a product: yes, Ellipse, Bob, but not mgh."""
    word = letters.lower()
    if (known(word) and len(word) > 2) or word in WORDS["answers"] | IN_LABELS:
        return True
    is_name = letters.istitle() and len(letters) > 2
    is_long = len(letters) > 3 and (letters.islower() or letters.isupper())
    return (is_name or is_long) and re.search(".[aeiouAEIOU]", letters) is not None


def signature(text: str) -> list[str]:
    """The units and nouns of a text: square meters per second and m^2/s are m ^2 / s."""
    text = re.sub(r"\b(?:square|sq)\.? (\w+)", r"\1^2", re.sub(r"\bper\b", "/", text))
    text = re.sub(r"\b(?:cubic|cu)\.? (\w+)", r"\1^3", text)
    words = [known(word) or word.lower() for word in words_of(text)]
    return [word for word in words if word not in IDLE or (word == "in" and word is words[0])]


def agree(a: str, b: str) -> bool:
    """Whether the texts after two equal values agree: cm, centimeters; marbles, red marbles."""
    p = signature(a)
    g = signature(b)
    is_part = set(p) <= set(g) or set(g) <= set(p)
    return not a or not b or (p == g if SYMBOLS.intersection(p + g) else is_part)
