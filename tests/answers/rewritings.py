r"""Rewritings that preserve a gold answer's meaning; those in gold_mutations.py change it.

Every function takes a gold answer and returns a list of rewritten answers, or an empty list if the
function does not apply. test_verify_metamorphic.py lists the gold forms for each function.
"""

import re
from fractions import Fraction

OPENING = "([{"
CLOSING = ")]}"


# ---- reading a gold answer -----------------------------------------------------------------------


def split(text: str, separator: str = ",") -> list[str]:
    r"""The pieces between separators outside all brackets: "1,(2,3)" is "1" and "(2,3)"."""
    depth = 0
    pieces = [""]
    for character in text:
        if character in OPENING:
            depth += 1
        elif character in CLOSING:
            depth -= 1
        if depth == 0 and character == separator:
            pieces.append("")
        else:
            pieces[-1] += character
    return [piece.strip() for piece in pieces]


def unsized(gold: str) -> str:
    return gold.replace(r"\left", "").replace(r"\right", "").strip()


def members(gold: str) -> list[str]:
    r"""The members of "1, 2", "(1,2)", "[1,2)" or "\{1,2\}"."""
    gold = unsized(gold)
    if gold.startswith(r"\{"):
        gold = gold[2:-2]
    elif gold[0] in "([" and len(split(gold)) == 1:
        gold = gold[1:-1]
    return split(gold)


def rational(gold: str) -> Fraction:
    r"""The value of 3, -0.5, 7/25, \frac{1}{2} or \frac12."""
    found = re.fullmatch(r"(-?)\\frac\{?(\d+?)\}?\{?(\d+)\}?", gold)
    if found:
        return Fraction(f"{found[1]}{found[2]}/{found[3]}")
    return Fraction(gold)


def has_variable(gold: str) -> bool:
    r"""Whether the gold contains a variable such as x or \theta; e, i and \pi are constants."""
    greek = r"\\(?:alpha|beta|theta|lambda)"
    commands = r"\\(?:text|begin|end)\{.*?\}|\\[a-zA-Z]+"
    letters = re.sub(commands, "", re.sub(greek, "x", gold))
    return re.search("[a-df-hj-zA-Z]", letters) is not None


# ---- any answer -------------------------------------------------------------


def delimiters(gold: str) -> list[str]:
    return [f"${gold}$", f"$${gold}$$", rf"\({gold}\)", rf"\[{gold}\]", f"$ {gold} $"]


def surroundings(gold: str) -> list[str]:
    return [
        f" {gold} ",
        f"{gold}.",
        f"{{{gold}}}",
        rf"\displaystyle {gold}",
        rf"\,{gold}\,",
        rf"\ {gold}\ ",
        rf"{gold} \quad",
        f"\n{gold}\n",
    ]


def fraction_sizes(gold: str) -> list[str]:
    plain = gold.replace(r"\dfrac", r"\frac")
    if r"\frac" not in plain:
        return []
    return [plain.replace(r"\frac", rf"\{size}frac") for size in ("d", "t", "c")]


def bracket_sizes(gold: str) -> list[str]:
    r"""\left( for (. Golds with brackets that cannot be resized, as in \sqrt[3], are skipped."""
    if re.search(r"\\left|\\sqrt\[|\\text|begin", gold):
        return []
    sizes = [(r"\left", r"\right"), (r"\bigl", r"\bigr"), (r"\Big", r"\Big")]
    rewritten = []
    for left, right in sizes:
        sized = re.sub(r"(\\\{|[(\[])", lambda found, left=left: left + found[1], gold)
        sized = re.sub(r"(\\\}|[)\]])", lambda found, right=right: right + found[1], sized)
        rewritten.append(sized)
    return rewritten


def spaces_around_signs(gold: str) -> list[str]:
    if re.search(r"\de|\\text", gold):
        return []
    rewritten = re.sub(r"(?<=[\w})])([-+=<>])(?=[\w\\({])", r" \1 ", gold)
    return [rewritten, rewritten.replace(" ", "  ")]


def minus_signs(gold: str) -> list[str]:
    return [gold.replace("-", "−"), gold.replace("-", "–")] if "-" in gold else []


def products(gold: str) -> list[str]:
    if r"\cdot" in gold:
        return [gold.replace(r"\cdot", r"\times"), gold.replace(r"\cdot", "*")]
    if r"\times" in gold:
        return [gold.replace(r"\times", r"\cdot")]
    return []


def brace_of_powers(gold: str) -> list[str]:
    """x^2 is x^{2}, and x_1 is x_{1}."""
    rewritten = re.sub(r"([\^_])([a-zA-Z0-9])(?![0-9])", r"\1{\2}", gold)
    return [] if rewritten == gold else [rewritten]


def spaces_after_commas(gold: str) -> list[str]:
    return [gold.replace(",", space) for space in (", ", r",\,", r",\ ", r",~", r" , ")]


# ---- values -----------------------------------------------------------------


def sums_and_products(gold: str) -> list[str]:
    return [
        f"({gold})",
        f"0+({gold})",
        f"({gold})-0",
        f"-(-({gold}))",
        rf"1\cdot({gold})",
        rf"\frac{{2({gold})}}{{2}}",
        rf"\frac12({gold})+({gold})/2",
    ]


def commuted_sums(gold: str) -> list[str]:
    """c + a + b for a + b + c."""
    terms = split(gold, "+")
    if len(terms) < 2 or re.search(r"[-|±]|\\pm|floor", re.sub(r"\{.*?\}", "", gold)):
        return []
    return ["+".join(reversed(terms))]


def slashes(gold: str) -> list[str]:
    r"""((1)/(2)) for \frac{1}{2}."""
    rewritten = re.sub(
        r"(?<![\w}^])(?<!\\log)\\d?frac\{([^{}]*)\}\{([^{}]*)\}", r"((\1)/(\2))", gold
    )
    return [] if rewritten == gold else [rewritten]


def name_on_the_left(gold: str) -> list[str]:
    names = [r"Z", r"Z_{10}", r"\text{Answer}", r"Z_{\max}", "Z(t)"]
    return [f"{name} = {gold}" for name in names] + [f"={gold}", f"Z={gold}"]


def label_on_the_left(gold: str) -> list[str]:
    if has_variable(gold):
        return []
    labels = ["|AB|", "[ABC]", r"\cos\theta", r"\angle ABC", "P(A)"]
    if gold not in ("0", "e", "i"):  # m + n = 0 is a condition
        labels += ["m+n", r"\frac{AB}{CD}"]
    return [f"{label} = {gold}" for label in labels]


def words_behind(gold: str) -> list[str]:
    if has_variable(gold):
        return []
    words = [r"\text{ apples}", r"\text{ square units}", r"\textnormal{ different ways}"]
    words += [r"\mathrm{\ cm}", r"\,\text{cm}^2", r"\text{ units.}", r"\mbox{ in total}"]
    return [f"{gold} {word}" for word in words] + [f"{gold}{word}" for word in words[:2]]


# ---- rational numbers -------------------------------------------------------


def equal_fractions(gold: str) -> list[str]:
    p, q = rational(gold).as_integer_ratio()
    rewritten = []
    for factor in (1, 2, 3, 7, -1):
        a = factor * p
        b = factor * q
        rewritten += [rf"\frac{{{a}}}{{{b}}}", f"{a}/{b}"]
    rewritten.append(rf"\frac{{{p - q}}}{{{q}}}+1")
    rewritten.append(rf"{p}\cdot\frac{{1}}{{{q}}}")
    return [text for text in rewritten if not text.endswith("/-1")]


def approximations(gold: str) -> list[str]:
    """A fraction followed by a rounded decimal. Decimal golds have no exact form."""
    is_fraction = "/" in gold or "frac" in gold
    if not is_fraction:
        return []
    decimal = f"{float(rational(gold)):.4f}"
    return [rf"{gold} \approx {decimal}", rf"Z = {gold} \approx {decimal}"]


def decimals(gold: str) -> list[str]:
    value = rational(gold)
    if 10**12 % value.denominator != 0 or abs(value) > 10**15:
        return []
    scaled = abs(value) * 10**12
    digits = str(scaled.numerator).rjust(13, "0")
    sign = "-" if value < 0 else ""
    decimal = f"{sign}{digits[:-12]}.{digits[-12:]}"
    return [decimal, decimal.rstrip("0") + "0"]


def percents(gold: str) -> list[str]:
    hundredths = rational(gold) * 100
    if hundredths.denominator != 1:
        return []
    return [rf"{hundredths}\%", rf"{hundredths} \text{{ percent}}"]


def thousands(gold: str) -> list[str]:
    value = rational(gold)
    if value.denominator != 1 or abs(value) < 1000:
        return []
    groups = f"{value.numerator:,}"
    return [groups] + [groups.replace(",", mark) for mark in ("{,}", r"\,", r",\!", " ", r"\ ")]


def mixed_numbers(gold: str) -> list[str]:
    value = rational(gold)
    if value.denominator == 1 or value < 1:
        return []
    whole, rest = divmod(value, 1)
    p, q = rest.as_integer_ratio()
    return [rf"{whole}\frac{{{p}}}{{{q}}}", f"{whole} {p}/{q}", rf"{whole} \frac{{{p}}}{{{q}}}"]


# ---- structures -------------------------------------------------------------


def another_order(gold: str) -> list[str]:
    listed = members(gold)
    if len(listed) < 2:
        return []
    reordered = [listed[::-1], listed[1:] + listed[:1]]
    return [", ".join(order) for order in reordered]


def set_in_another_order(gold: str) -> list[str]:
    return [rf"\{{{text}\}}" for text in another_order(gold)]


def joined_by_words(gold: str) -> list[str]:
    listed = members(gold)
    if len(listed) != 2:
        return []
    joints = [" and ", r" \text{ and } ", r" \quad\text{or}\quad ", r" \text{ or } ", r",\quad "]
    return [joint.join(listed) for joint in joints]


def larger_fractions(gold: str) -> list[str]:
    r"""(\frac{6}{2},\frac{4}{2}) for (3,2), and likewise for an interval's endpoints."""
    if re.search(r"(?<![\w{\\.])-?\d+(?![\w}])", gold) is None or re.search(r"\\frac\d", gold):
        return []
    return [re.sub(r"(?<![\w{.^_])(\d+)(?=[,)\]])", doubled_fraction, gold)]


def doubled_fraction(found: re.Match) -> str:
    return rf"\frac{{{2 * int(found[1])}}}{{2}}"


def named_tuple(gold: str) -> list[str]:
    listed = members(gold)
    names = "xyz"[: len(listed)]
    named = [f"{name} = {member}" for name, member in zip(names, listed, strict=True)]
    return [f"({','.join(names)}) = {gold}", ", ".join(named), r" \text{ and } ".join(named)]


def interval_as_chain(gold: str) -> list[str]:
    r"""0 < x \le 1 for (0,1]."""
    gold = unsized(gold)
    low, high = members(gold)
    below = r"\le" if gold[0] == "[" else "<"
    above = r"\le" if gold[-1] == "]" else "<"
    rewritten = [rf"x \in {gold}"]
    if low != r"-\infty" and high != r"\infty":
        rewritten.append(f"{low} {below} x {above} {high}")
    elif high != r"\infty":
        rewritten.append(f"x {above} {high}")
    elif low != r"-\infty":
        rewritten += [f"{low} {below} x", f"x {below.replace('le', 'ge').replace('<', '>')} {low}"]
    return rewritten


def equation_of_differences(gold: str) -> list[str]:
    left, right = gold.split("=")
    return [
        f"{right.strip()} = {left.strip()}",
        f"2({left}) = 2({right})",
        f"{left}-({right}) = 0",
        f"-({left}) = -({right})",
        f"0 = 3({right}) - 3({left})",
    ]


MIRRORED = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le", r"\leq": r"\geq"}
RELATION = re.compile(r"(<|>|\\(?:leq|le|ge)(?![a-z]))")


def mirrored_inequality(gold: str) -> list[str]:
    sides = RELATION.split(gold)
    if len(sides) < 3:
        return []
    mirrored = [MIRRORED.get(side, side) for side in sides[::-1]]
    return [" ".join(mirrored)]


def negated_inequality(gold: str) -> list[str]:
    sides = RELATION.split(gold)
    if len(sides) != 3:
        return []
    return [f"-({sides[0]}) {MIRRORED[sides[1]]} -({sides[2]})"]


def other_matrix_brackets(gold: str) -> list[str]:
    if "vmatrix" in gold:
        return []
    swapped = gold.replace("pmatrix", "?").replace("bmatrix", "pmatrix").replace("?", "bmatrix")
    spaced = gold.replace("&", " & ").replace(r"\\", " \\\\\n")
    return [swapped, spaced, re.sub(r"(\\\\)?(\\end)", r"\\\\\2", gold)]


# ---- responses around an answer ---------------------------------------------


def boxed_in_a_sentence(gold: str) -> list[str]:
    box = rf"\boxed{{{gold}}}"
    return [
        f"Therefore the answer is ${box}$.",
        f"So we get\n\\[{box}.\\]",
        f"$$\n{box}\n$$",
        f"**Final Answer:** {box}",
        rf"First I thought of $\boxed{{987}}$. That fails, so the answer must be ${box}$.",
        f"${box}$ is the only value that works, as was to be shown.",
        rf"\begin{{align*}} a &= b \\ &= {box} \end{{align*}}",
        rf"$\boxed{{\boxed{{{gold}}}}}$",
        rf"$\fbox{{{gold}}}$",
        rf"\boxed {{ {gold} }}",
    ]


def stated_without_a_box(gold: str) -> list[str]:
    return [
        f"**Final Answer:** ${gold}$",
        f"**Final Answer**: \\({gold}\\)",
        f"Final answer: ${gold}$.",
        f"The answer is ${gold}$. I hope it is correct.",
        f"**Answer:** $${gold}$$",
    ]


def two_boxes(gold: str) -> list[str]:
    listed = members(gold)
    if len(listed) != 2:
        return []
    a, b = [rf"\boxed{{{member}}}" for member in listed]
    return [
        f"${a}$ and ${b}$",
        rf"${a}\quad\text{{and}}\quad{b}$",
        rf"\[{a} \quad \text{{or}} \quad {b}\]",
        rf"\({a}\) and \({b}\)",
        rf"\[{a}\] and \[{b}\]",
        f"\\[{a}\\]\n\\[{b}\\]",
        f"{a}, {b}",
    ]
