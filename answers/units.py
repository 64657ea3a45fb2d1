r"""Units and other words after a number: 5 cm, 36 square meters, 60 km/h, 12 apples.

Only listed words may follow a number; any other word (5 complement, 5 light years) makes an answer
unreadable. A list of forbidden words would never be complete.
"""

import re
from pathlib import Path

# ---- the lists of words.txt ----------------------------------------------------------------------


def sections(text: str) -> dict[str, str]:
    """The text under each heading of words.txt."""
    listed = {}
    for section in text.split("# ")[1:]:
        heading, _, body = section.partition("\n")
        listed[heading.split(":")[0]] = body
    return listed


def words_under(heading: str) -> frozenset[str]:
    return frozenset(LISTED[heading].split())


def units_under(heading: str) -> dict[str, list[str]]:
    """{symbol of a unit: its other names}."""
    entries = [entry.split() for entry in LISTED[heading].split(",")]
    return {symbol: names for symbol, *names in entries}


LISTED = sections((Path(__file__).parent / "words.txt").read_text())
NOUNS = words_under("counted")
JOINING = words_under("joining")
MODIFIERS = words_under("before") | JOINING
BEHIND = words_under("behind")
LABELS = words_under("labels")
ANSWERS = words_under("answers")

# ---- units ---------------------------------------------------------------------------------------

PREFIXES = {
    "n": "nano",
    "μ": "micro",
    "m": "milli",
    "c": "centi",
    "d": "deci",
    "k": "kilo",
    "M": "mega",
    "G": "giga",
    "T": "tera",
}
COMPOUNDS = {
    "mph": {"mi": 1, "h": -1},
    "kph": {"km": 1, "h": -1},
    "kmh": {"km": 1, "h": -1},
    "kWh": {"kW": 1, "h": 1},
}


def all_symbols() -> dict[str, str]:
    """{symbol or name of a unit: its symbol}."""
    symbols = {}
    metric = units_under("metric")
    for symbol, names in [*units_under("units").items(), *metric.items()]:
        for name in [symbol, *names]:
            symbols[name] = symbol
    for symbol, names in metric.items():
        for letter, prefix in PREFIXES.items():
            prefixed = letter + symbol
            for name in [prefixed, *(prefix + name for name in names if len(name) > 2)]:
                symbols.setdefault(name, prefixed)
    symbols["ml"] = "mL"
    return symbols


SYMBOL = all_symbols()
RADIANS = ("rad", "radian")

# ---- other words ---------------------------------------------------------------------------------


BEFORE_UNIT = JOINING | {"square", "sq", "cubic", "cu", "total", "each", "every"}
MAX_WORDS = 8
POWER = re.compile(r"\^\{?-?\d\}?")
WORD = re.compile(r"[^\W\d_]+(?:-[a-z]+)?|\^\{?(-?\d)\}?|[/\d$€£¥₹]|[^\s/.,()]")
PERCENT = re.compile(r"per\s?(?:cent|mille)")
AM_OR_PM = re.compile(r"(?<![a-zA-Z])([ap])\.\s?m(?:\.|$)")
ABBREVIATED = re.compile(r"(?<=[a-zA-Z])\.(?=\s|$)")


def without_dots(text: str) -> str:
    """a.m. is am, and in. is in; other dots are kept."""
    return ABBREVIATED.sub("", AM_OR_PM.sub(r"\1m", text))


def is_dropped(text: str) -> bool:
    """Whether the text after a value may be omitted: it has only units and counted nouns."""
    if PERCENT.search(text):
        return False
    words = re.findall(r"[^\W\d_]+(?:-[a-z]+)?|[^\s/,()]", POWER.sub("", without_dots(text)))
    words = [word for word in words if word not in ("·", "*", "-")]
    if not 0 < len(words) <= MAX_WORDS or words[0] in ("to", "for"):
        return False
    if not all(is_unit(word) or is_noun(word) or word.lower() in MODIFIERS for word in words):
        return False
    for before, word in zip(words, words[1:], strict=False):
        if (
            word not in JOINING
            and is_unit(word)
            and not (is_unit(before) or before.lower() in BEFORE_UNIT)
        ):
            return False  # light years are not years
    last = words[-1]
    return is_unit(last) or is_noun(last) or last.lower() in BEHIND or words[-2:-1] == ["to"]


def names_a_quantity(text: str) -> bool:
    r"""Whether a text names a quantity: \text{Area} = 5, but not \text{not} = 5."""
    words = re.findall(r"[^\W\d_]+|[^\s()]", without_dots(text))
    if len(words) > MAX_WORDS or OPERATION.search(text):
        return False
    return all(map(may_be_in_a_label, words)) and words[0].lower() not in ANSWERS


# "the area of the square" names an area; "the square of the area" does not.
OPERATION = re.compile(
    r"(?i:(?<!of )(?<!of the )(?<!of a )\b(?:squares?|cubes?|roots?|base|degree)\b)"
)


def may_be_in_a_label(word: str) -> bool:
    if is_noun(word) or is_unit(word) or word.lower() in MODIFIERS | LABELS:
        return True
    is_point = word.isupper() and word.lower() not in ANSWERS
    return is_point or (len(word) == 1 and word.isalnum())


def is_unit(word: str) -> bool:
    return symbol_of(word) is not None or word in COMPOUNDS


def symbol_of(word: str) -> str | None:
    """The symbol of a unit; None if the word is not a unit."""
    if word in SYMBOL:
        return SYMBOL[word]
    if len(word) <= 2:
        return None
    name = word.lower()
    if name != word and name in SYMBOL and len(name) < 4:
        return None  # MIN is min, but mpa is not MPa
    for ending in ("", "s"):
        stem = name.removesuffix(ending)
        if stem in SYMBOL and len(stem) > 2 and stem in NAMES:
            return SYMBOL[stem]
    return None


NAMES = frozenset(name for name in SYMBOL if name.islower() and len(name) > 2)


def is_noun(word: str) -> bool:
    return noun(word) is not None


def noun(word: str) -> str | None:
    """The singular of a counted noun; None for other words."""
    word = word.lower()
    for ending, singular in (("", ""), ("s", ""), ("es", ""), ("ies", "y")):
        stem = word.removesuffix(ending) + singular
        if word.endswith(ending) and stem in NOUNS:
            return stem
        if word in NOUNS:
            return word
    return None


def unit(text: str) -> tuple[dict[str, int], dict[str, int]]:
    """(units, other words) in a text, with their powers: m per s^2 is {"m": 1, "s": -2}."""
    known = {}
    others = {}
    sign = 1
    power = 1
    last = None
    for found in WORD.finditer(without_dots(text)):
        word = found[0]
        if found[1]:
            if last:
                known[last] *= int(found[1])
            continue
        if word in ("/", "per"):
            sign = -1
            continue
        if word.lower() in ("square", "sq", "cubic", "cu"):
            power = 2 if word[0] in "sS" else 3
            continue

        symbol = symbol_of(word)
        if symbol or word in COMPOUNDS:
            for name, times in COMPOUNDS.get(word, {symbol: 1}).items():
                known[name] = known.get(name, 0) + sign * times * power
                last = name
        else:
            name = noun(word) or word.lower()
            if name not in JOINING and name not in NO_UNIT:
                others[name] = sign
            last = None
        sign = 1
        power = 1
    return known, others


NO_UNIT = ("unit", *RADIANS, "u", "total", "altogether")


def is_angle(text: str) -> bool:
    """Whether the text says that an angle is in radians."""
    return text.strip().lower() in ("rad", "rads", "radian", "radians")


def agree(a: str, b: str) -> bool:
    """Whether the texts after two equal numbers agree: 5 cm and 5, but not 5 cm and 5 m.

    Words other than units agree if one text has all words in the other: marbles, red marbles.
    """
    a_known, a_others = unit(a)
    b_known, b_others = unit(b)
    if a_known and b_known:
        if a_known != b_known:
            return False
    elif (a_known and b_others) or (b_known and a_others):
        return False
    return a_others.items() <= b_others.items() or b_others.items() <= a_others.items()


# ---- words outside \\text ------------------------------------------------------------------------

MIN_WORD = 4  # an unlisted word has at least this many letters; mgh is a product
VOWEL = re.compile("(?<!^)[aeiou]", re.IGNORECASE)


def is_word(letters: str) -> bool:
    """Whether letters outside \\text are a word, not a product: yes, Ellipse, Bob, but not mgh."""
    if letters.lower() in ANSWERS | JOINING:
        return True
    if len(letters) > 2 and (is_noun(letters) or letters.lower() in MODIFIERS | LABELS):
        return True
    is_name = letters.istitle() and len(letters) > 2
    is_long = len(letters) >= MIN_WORD and (letters.islower() or letters.isupper())
    return (is_name or is_long) and VOWEL.search(letters) is not None
