r"""Units and other words behind a number: 5 cm, 36 square meters, 60 km/h, 12 apples.

What may stand beside a number is listed here; behind any other word (5 complement, 5 light years)
there is an answer that cannot be read. A blacklist would never end.
"""

import re
from pathlib import Path

# ---- units ---------------------------------------------------------------------------------------

# Each unit under the symbol that stands for it, with its other names. A symbol is one in its own
# case only: mPa is no MPa. Names are in any case, and may have a plural s.
UNITS = {
    "in": "inch inche",
    "ft": "foot feet",
    "yd": "yard",
    "mi": "mile",
    "lb": "lbs pound",
    "oz": "ounce",
    "ton": "tonne",
    "min": "minute",
    "h": "hr hrs hour",
    "day": "",
    "week": "wk",
    "month": "",
    "year": "yr yrs",
    "decade": "",
    "century": "centuries",
    "gal": "gallon",
    "quart": "",
    "pint": "",
    "cup": "",
    "C": "celsius",
    "F": "fahrenheit",
    "dollar": "usd USD $",
    "cent": "",
    "euro": "EUR €",
    "GBP": "£",
    "yen": "JPY ¥",
    "rupee": "INR Rs ₹",
    "yuan": "rmb RMB CNY",
    "acre": "",
    "hectare": "ha",
    "knot": "",
    "atm": "atmosphere",
    "bar": "",
    "mmHg": "",
    "amu": "",
    "dB": "decibel",
    "bit": "",
    "byte": "",
    "rpm": "",
}
# Those that take a prefix: symbol, and name.
METRIC = {
    "m": "meter metre",
    "g": "gram gramme",
    "s": "sec second",
    "L": "l liter litre",
    "N": "newton",
    "J": "joule",
    "W": "watt",
    "V": "volt",
    "A": "amp ampere",
    "Pa": "pascal",
    "Hz": "hertz",
    "mol": "mole",
    "M": "molar",
    "K": "kelvin",
    "T": "tesla",
    "H": "henry henries",
    "Wb": "weber",
    "eV": "electronvolt",
    "cal": "calorie",
    "coulomb": "",
    "farad": "",
    "ohm": "Ω",
}
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
    """Every symbol and name of a unit, with the symbol that stands for it."""
    symbols = {}
    for symbol, names in [*UNITS.items(), *METRIC.items()]:
        for name in [symbol, *names.split()]:
            symbols[name] = symbol
    for symbol, names in METRIC.items():
        for letter, prefix in PREFIXES.items():
            prefixed = letter + symbol
            for name in [prefixed, *(prefix + name for name in names.split() if len(name) > 2)]:
                symbols.setdefault(name, prefixed)
    symbols["ml"] = "mL"
    return symbols


SYMBOL = all_symbols()
RADIANS = ("rad", "radian")

# ---- other words ---------------------------------------------------------------------------------


def sections(text: str) -> dict[str, frozenset[str]]:
    """The words under each heading of words.txt."""
    words = {}
    for line in text.splitlines():
        if line.startswith("#"):
            heading = line[2:].split(":")[0]
            words[heading] = set()
        else:
            words[heading].update(line.split())
    return {name: frozenset(listed) for name, listed in words.items()}


LISTED = sections((Path(__file__).parent / "words.txt").read_text())
NOUNS = LISTED["counted"]
JOINING = LISTED["joining"]
MODIFIERS = LISTED["before"] | JOINING
BEHIND = LISTED["behind"]
LABELS = LISTED["labels"]
ANSWERS = LISTED["answers"]

BEFORE_UNIT = JOINING | {"square", "sq", "cubic", "cu", "total", "each", "every"}
MAX_WORDS = 8
POWER = re.compile(r"\^\{?-?\d\}?")
WORD = re.compile(r"[^\W\d_]+(?:-[a-z]+)?|\^\{?(-?\d)\}?|[/\d$€£¥₹]|[^\s/.,()]")
PERCENT = re.compile(r"per\s?(?:cent|mille)")
AM_OR_PM = re.compile(r"(?<![a-zA-Z])([ap])\.\s?m(?:\.|$)")
ABBREVIATED = re.compile(r"(?<=[a-zA-Z])\.(?=\s|$)")


def without_dots(text: str) -> str:
    """a.m. is am, and in. is in; any other dot says something."""
    return ABBREVIATED.sub("", AM_OR_PM.sub(r"\1m", text))


def is_dropped(text: str) -> bool:
    """Whether a text behind a complete value may be left out: units, and what is counted."""
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
            return False  # light years are no years
    last = words[-1]
    return is_unit(last) or is_noun(last) or last.lower() in BEHIND or words[-2:-1] == ["to"]


def names_a_quantity(text: str) -> bool:
    r"""Whether a text says what an equation is about: \text{Area} = 5, but not \text{not} = 5."""
    words = re.findall(r"[^\W\d_]+|[^\s()]", without_dots(text))
    if len(words) > MAX_WORDS or OPERATION.search(text):
        return False
    return all(map(may_be_in_a_label, words)) and words[0].lower() not in ANSWERS


# "the square of the area" is no label of the area, and the area of the square is one.
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
    """The symbol that stands for a unit; None if the word is no unit."""
    if word in SYMBOL:
        return SYMBOL[word]
    if len(word) <= 2:
        return None
    name = word.lower()
    if name != word and name in SYMBOL and len(name) < 4:
        return None  # MIN, but mpa is no MPa
    for ending in ("", "s"):
        stem = name.removesuffix(ending)
        if stem in SYMBOL and len(stem) > 2 and stem in NAMES:
            return SYMBOL[stem]
    return None


NAMES = frozenset(name for name in SYMBOL if name.islower() and len(name) > 2)


def is_noun(word: str) -> bool:
    return noun(word) is not None


def noun(word: str) -> str | None:
    """What is counted, in the singular."""
    word = word.lower()
    for ending, singular in (("", ""), ("s", ""), ("es", ""), ("ies", "y")):
        stem = word.removesuffix(ending) + singular
        if word.endswith(ending) and stem in NOUNS:
            return stem
        if word in NOUNS:
            return word
    return None


def unit(text: str) -> tuple[dict[str, int], dict[str, int]]:
    """Its units, and its other words, with their powers: m per s^2 is {"m": 1, "s": -2}."""
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
    """Whether it says that an angle is in radians, which degrees are not."""
    return text.strip().lower() in ("rad", "rads", "radian", "radians")


def agree(a: str, b: str) -> bool:
    """Whether two texts behind equal numbers can be the same: 5 cm and 5, but not 5 cm and 5 m.

    What is no unit agrees if one says more than the other: marbles, red marbles.
    """
    a_known, a_others = unit(a)
    b_known, b_others = unit(b)
    if a_known and b_known:
        if a_known != b_known:
            return False
    elif (a_known and b_others) or (b_known and a_others):
        return False
    return a_others.items() <= b_others.items() or b_others.items() <= a_others.items()


# ---- words without \\text ------------------------------------------------------------------------

MIN_WORD = 4  # letters of a word that is not listed; mgh is a product
VOWEL = re.compile("(?<!^)[aeiou]", re.IGNORECASE)


def is_word(letters: str) -> bool:
    """Whether letters without \\text are a word, and no product: yes, Ellipse, Bob, but not mgh."""
    if letters.lower() in ANSWERS | JOINING:
        return True
    if len(letters) > 2 and (is_noun(letters) or letters.lower() in MODIFIERS | LABELS):
        return True
    is_name = letters.istitle() and len(letters) > 2
    is_long = len(letters) >= MIN_WORD and (letters.islower() or letters.isupper())
    return (is_name or is_long) and VOWEL.search(letters) is not None


# ---- words behind a number without \text ---------------------------------------------------------

COUNTED = "people person student way point time item coin side square unit radian rad mph kph"
# A single letter may be a factor: only those that were always units.
LETTERS = {"m", "g", "s", "h", "L", "l", "N", "J", "W", "V", "A", "K", "C", "F"}
WORDS = {
    word
    for word in [*SYMBOL, *COUNTED.split()]
    if word.isascii() and word.isalpha() and (len(word) > 1 or word in LETTERS)
}
BARE = sorted(WORDS, key=len, reverse=True)
BARE_POWER = r"(?:\s?\^\s?(?:-?[23]|\{-?[23]\}))?"
AREA = r"(?:(?:square|cubic|sq\.?|cu\.?)\s?)?"


def one_of(words: list[str]) -> str:
    return rf"{AREA}(?:{'|'.join(words)})(?:e?s)?(?![a-zA-Z]){BARE_POWER}"


# Behind a space; without one 6m is six times m, and 2mg twice m times g.
UNIT_WORDS = one_of(BARE)
BARE_UNIT = rf"\s({UNIT_WORDS}(?:\s?(?:/|per|\*)\s?{UNIT_WORDS})?)"
