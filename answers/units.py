r"""Units and other words behind a number: 5 cm, 36 square meters, 60 km/h, 12 apples.

Which words are units, which two are the same unit, and which words may not be dropped because they
change what is said.
"""

import re

# Each unit under the symbol that stands for it below. Plural s is dropped before a word is looked
# up, and words of more than two letters may be in capitals.
UNITS = {
    "m": "meter metre",
    "cm": "centimeter centimetre",
    "mm": "millimeter millimetre",
    "km": "kilometer kilometre",
    "nm": "nanometer nanometre",
    "in": "inch inche",
    "ft": "foot feet",
    "yd": "yard",
    "mi": "mile",
    "g": "gram",
    "kg": "kilogram",
    "mg": "milligram",
    "lb": "pound",
    "oz": "ounce",
    "s": "sec second",
    "ms": "millisecond",
    "min": "minute",
    "h": "hr hour",
    "day": "",
    "week": "wk",
    "month": "",
    "year": "yr",
    "L": "l liter litre",
    "mL": "ml milliliter millilitre",
    "gal": "gallon",
    "N": "newton",
    "kN": "kilonewton",
    "J": "joule",
    "kJ": "kilojoule",
    "W": "watt",
    "kW": "kilowatt",
    "V": "volt",
    "A": "amp ampere",
    "mA": "milliampere",
    "Pa": "pascal",
    "kPa": "kilopascal",
    "Hz": "hertz",
    "kHz": "kilohertz",
    "mol": "mole",
    "K": "kelvin",
    "C": "celsius",
    "F": "fahrenheit",
    "dollar": "usd USD $",
    "cent": "",
    "euro": "EUR €",
    "GBP": "£",
    "yen": "JPY ¥",
    "rupee": "INR Rs ₹",
    "acre": "",
    "hectare": "ha",
}
COMPOUNDS = {"mph": {"mi": 1, "h": -1}, "kph": {"km": 1, "h": -1}, "kmh": {"km": 1, "h": -1}}
RADIANS = ("rad", "radian")
NO_UNIT = ("unit", *RADIANS, "u", "the", "a", "of", "total")
SYMBOL = {name: symbol for symbol, names in UNITS.items() for name in [symbol, *names.split()]}

# Words that the letters after a number may be without \text, beside the units.
COUNTED = "people person student way point time item coin side square unit radian rad mph kph"
WORDS = {word for word in [*SYMBOL, *COUNTED.split()] if word.isalpha()}
BARE = sorted(WORDS, key=len, reverse=True)
BARE_POWER = r"(?:\s?\^\s?(?:-?[23]|\{-?[23]\}))?"
AREA = r"(?:(?:square|cubic|sq\.?|cu\.?)\s?)?"


def one_of(words: list[str]) -> str:
    return rf"{AREA}(?:{'|'.join(words)})(?:e?s)?(?![a-zA-Z]){BARE_POWER}"


# Behind a space; without one 6m is six times m, and 2mg twice m times g.
UNIT_WORDS = one_of(BARE)
BARE_UNIT = rf"\s({UNIT_WORDS}(?:\s?(?:/|per|\*)\s?{UNIT_WORDS})?)"

# Words that say something else than the number before them: negations, alternatives, guesses,
# bounds, conditions, factors and operations. No text with one of them is dropped.
SAYING_MORE = """
    not no non none never nor neither without except unless isn aren doesn don cannot false
    wrong incorrect invalid inadmissible rejected excluded discarded omitted ruled fails failed
    extraneous impossible undefined dne null contradiction mistake typo zero root likely
    unlikely unsure hmm or either maybe perhaps possibly probably otherwise else instead versus
    wait guess guessed etc example others among rather respectively if when where and but can
    could would should may might must only more less least most fewer greater smaller larger too
    above below over under up about bound bounds approx approximately around roughly almost
    nearly circa estimate estimated ish until through between mod modulo base binary octal hex
    hexadecimal plus minus divided multiplied squared cubed factorial percent percents pct mille
    permil permille ppm degree degrees pi negative positive inverse reciprocal opposite half
    halves third thirds quarter quarters dozen dozens gross score scores double twice doubled
    tripled ago lakh crore hundred hundreds thousand thousands million millions billion billions
    trillion trillions one two three four five six seven eight nine ten eleven twelve thirteen
    fourteen fifteen sixteen seventeen eighteen nineteen twenty thirty forty fifty sixty seventy
    eighty ninety infinity even odd nope nah nay hardly scarcely untrue absurd contradict
    contradicts contradictory contradicted reject rejects refuted disproved disproven cancelled
    canceled forbidden unacceptable bogus spurious alternatively alternately doubtful tentative
    tentatively presumably supposedly rounded truncated upto power till
"""
MEANINGFUL = frozenset(SAYING_MORE.split())
AUXILIARY = "is are was were do does did has have had wo ca could should would must need ai sha"
NEGATION = re.compile(rf"(?:{'|'.join(AUXILIARY.split())})nt")  # isnt, wont; isn't has a sign
ORDINAL = re.compile(r"[a-z]+ths?")  # tenths
NO_ORDINALS = ("month", "path", "length", "width", "depth", "bath", "cloth", "moth", "birth")
SHORT = "a an as at by in is it of on to we am pm sq cu"
SHORT_WORDS = frozenset(SHORT.split())
MAX_WORDS = 8
POWER = re.compile(r"\^\{?-?\d\}?")
WORD = re.compile(r"[a-zA-Z]+|\^\{?(-?\d)\}?|[/\d]|[^\sa-zA-Z/.,()]")


def is_dropped(text: str) -> bool:
    """Whether a text behind a complete value may be left out: units, and what is counted."""
    if AND_SO_ON_OR_PERCENT.search(text):
        return False
    words = re.findall(r"[a-zA-Z]+|[^\sa-zA-Z/.,()]", NON_NEGATIVE.sub("", POWER.sub("", text)))
    if not words or len(words) > MAX_WORDS or words[0] == "to":  # ways to sit, but not 5 to 7
        return False
    return all(map(is_harmless, words))


AND_SO_ON_OR_PERCENT = re.compile(r"\.\s?\.|per\s?(?:cent|mille)")
NON_NEGATIVE = re.compile(r"(?:non-?)?(?:negative|positive) (?=[a-z]{3})|-|·|\*")  # integers


def is_harmless(word: str) -> bool:
    """Whether it is a unit, or a word that may be a noun or belong to one."""
    if word in SYMBOL or word in SHORT_WORDS or word in COMPOUNDS:
        return True
    if not word.isascii() or not word.isalpha() or len(word) < 3:
        return False
    name = singular(word)
    is_ordinal = ORDINAL.fullmatch(word.lower()) is not None and name not in NO_ORDINALS
    if is_ordinal or NEGATION.fullmatch(word.lower()):
        return False
    return word.lower() not in MEANINGFUL


def singular(word: str) -> str:
    """A word in small letters without its plural s; a symbol of one or two letters as it is."""
    if word in SYMBOL or len(word) <= 2:
        return word
    word = word.lower()
    if word.endswith("s") and not word.endswith("ss"):
        return word[:-1]
    return word


def unit(text: str) -> dict[str, int]:
    """Its words with their powers: "square meters per s" is {"m": 2, "s": -1}."""
    powers = {}
    sign = 1
    power = 1
    last = None
    for found in WORD.finditer(text.replace(".", "")):
        word = found[0]
        if found[1] and last:
            powers[last] *= int(found[1])
            continue
        if word in ("/", "per"):
            sign = -1
            continue

        word = singular(word)
        if word in ("square", "sq", "cubic", "cu"):
            power = 2 if word.startswith("s") else 3
            continue
        for name, times in COMPOUNDS.get(word, {SYMBOL.get(word, word): 1}).items():
            powers[name] = powers.get(name, 0) + sign * times * power
            last = name
        sign = 1
        power = 1
    return {name: power for name, power in powers.items() if name not in NO_UNIT}


def is_angle(text: str) -> bool:
    """Whether it says that an angle is in radians, which degrees are not."""
    return singular(text.strip()) in RADIANS


def agree(a: str, b: str) -> bool:
    """Whether two texts behind equal numbers can be the same: 5 cm and 5, but not 5 cm and 5 m.

    What is no known unit agrees if one says more than the other: marbles, red marbles.
    """
    units_a = unit(a)
    units_b = unit(b)
    if not units_a or not units_b or units_a == units_b:
        return True
    if all(name in UNITS for name in [*units_a, *units_b]):
        return False
    return set(units_a) <= set(units_b) or set(units_b) <= set(units_a)
