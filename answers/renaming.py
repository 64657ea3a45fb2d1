r"""Names that an answer may choose freely: a family's integer, an added constant, cyclic groups.

\frac{\pi}{4}+n\pi, n ∈ \mathbb{Z} equals \frac{\pi}{4}-k\pi, k ∈ \mathbb{Z}; x^2+C equals x^2+c;
and C_2 equals \mathbb{Z}_2 if the other answer contains \mathbb{Z}.
"""

import re

from answers.names import TOKEN, substituted

# ---- families ------------------------------------------------------------------------------------

LETTER = r"([a-zA-Z])"
INTEGERS = r"(?:\\mathbb\{Z\}|Z(?![a-zA-Z_]))"
QUANTIFIER = (
    r"(?:\\text\{(?:where|for|with|for (?:any|all|some|every|each)(?: integers?)?)\}|\\forall)"
)
CLAUSES = (
    re.compile(rf"[\s,;(]*(?:\\quad\s?)?{QUANTIFIER}?[\s,(]*{LETTER}\s?∈\s?{INTEGERS}\s?\)?$"),
    re.compile(
        r"[\s,;(]*\\text\{(?:where |for |with )?(?:any |all |some |every |each |an )?integers?\}\s*"
        rf"{LETTER}\s?\)?$"
    ),
    re.compile(
        rf"[\s,;(]*(?:\\text\{{(?:where|with)\}})?\s*{LETTER}\s?"
        r"\\text\{is (?:an|any|some) integer\}\s?\)?$"
    ),
)
BUILT = re.compile(rf"‹(.*)[|:]\s?{LETTER}\s?∈\s?{INTEGERS}\s?›")
PARAMETERS = ("n", "k", "m", "j", "l", "N", "K")
INTEGER = "n"  # every parameter is renamed to this
SHIFTS = ("(-n)", "(n+1)", "(n-1)", "(1-n)", "(-1-n)")  # each takes every integer value, like n


def family(text: str) -> tuple[str, str]:
    r"""(text before "n ∈ \mathbb{Z}", n); the name is empty if there is no such clause."""
    built = BUILT.fullmatch(text)
    if built:
        return built[1].strip(), built[2]
    for clause in CLAUSES:
        found = clause.search(text)
        if found and found.start() > 0:
            return text[: found.start()], found[1]
    return text, ""


def same_families(p: str, g: str) -> list[str] | None:
    """[g, the ways to write p ...] with INTEGER as their parameter; None if neither is a family."""
    p_text, p_name = family(p)
    g_text, g_name = family(g)
    if not p_name and not g_name:
        return None
    p_text = with_name(p_text, p_name)
    g_text = with_name(g_text, g_name)
    if is_indexed(p_text) or is_indexed(g_text):
        return [g_text, p_text]
    return [g_text, p_text, *(substituted(p_text, INTEGER, shifted) for shifted in SHIFTS)]


def with_name(text: str, name: str) -> str:
    """The text with a parameter renamed to INTEGER: `name`, or if it is empty, the only one."""
    tokens = set(TOKEN.findall(text))
    parameters = [name] if name else [letter for letter in PARAMETERS if letter in tokens]
    if len(parameters) != 1 or parameters == [INTEGER]:
        return text
    return substituted(text, parameters[0], INTEGER)


def is_indexed(text: str) -> bool:
    """Whether the parameter is an index, a_n, or an argument, f(n) = ..., and cannot be shifted."""
    return re.search(r"_\s?\{?\s?n|[a-zA-Z]\s?\(\s?n\s?\)\s?=", text) is not None


# ---- added constants, cyclic groups --------------------------------------------------------------

CONSTANTS = frozenset(["C", "c", "K", "C_1", "c_1"])
NAME = re.compile(r"\\[a-zA-Z]+|[a-zA-Z](?:_\w)?")
CYCLIC = re.compile(r"(?<![a-zA-Z\\])[CZ](?=\s?_)")


def with_constant_of(p: str, g: str) -> str:
    """p with its added constant renamed to match g."""
    if "+" not in p or "+" not in g:
        return p
    p_names = NAME.findall(p)
    g_names = NAME.findall(g)
    p_only = set(p_names) - set(g_names)
    g_only = set(g_names) - set(p_names)
    if len(p_only) != 1 or len(g_only) != 1 or not p_only | g_only <= CONSTANTS:
        return p
    (p_constant,) = p_only
    (g_constant,) = g_only
    if not is_added_once(p_constant, p_names, p) or not is_added_once(g_constant, g_names, g):
        return p
    return substituted(p, p_constant, g_constant)


def is_added_once(constant: str, names: list[str], text: str) -> bool:
    added = rf"(?:^|[=+,])\s?{constant}\s?(?:$|[-+,])"
    return names.count(constant) == 1 and re.search(added, text) is not None


def with_groups_of(p: str, g: str) -> str:
    r"""p with C_2 replaced by \mathbb{Z}_2 if g contains \mathbb{Z}."""
    if r"\mathbb{Z}_" in g and r"\mathbb{Z}" not in p:
        return CYCLIC.sub(lambda _: r"\mathbb{Z}", p)
    return p


def written_alike(p: str, g: str) -> tuple[str, list[str]]:
    """(g, the ways to write p with g's names)."""
    p, g = with_groups_of(p, g), with_groups_of(g, p)
    p = with_constant_of(p, g)
    families = same_families(p, g) if "∈" in p + g or "integer" in p + g else None
    if families:
        g, *ways = families
        return g, ways
    return g, [p]
