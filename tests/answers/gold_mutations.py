r"""Rewritings that change a gold answer's meaning; those in rewritings.py preserve it."""

import re
from fractions import Fraction

from rewritings import MIRRORED, RELATION, members, rational, unsized

# ---- any answer ----------------------------------------------------------


def first_number_plus_one(gold: str) -> list[str]:
    changed = re.sub(r"\d+", plus_one, gold, count=1)
    return [] if changed == gold else [changed]


def last_number_plus_one(gold: str) -> list[str]:
    changed = re.sub(r"\d+(?=\D*$)", plus_one, gold, count=1)
    return [] if changed == gold else [changed]


def plus_one(found: re.Match) -> str:
    return str(int(found[0]) + 1)


def hedges(gold: str) -> list[str]:
    return [
        f"{gold}, 987",
        rf"{gold} \text{{ or }} 987",
        rf"{gold} \quad\text{{or}}\quad 987",
        rf"987 \text{{ or }} {gold}",
        rf"{gold} \text{{ or maybe }} 987",
        rf"\text{{not }} {gold}",
        rf"\text{{either }} {gold} \text{{ or }} 987",
        rf"987\boxed{{{gold}}}",
        rf"\boxed{{{gold}}}987",
        rf"\approx {gold}",
        rf"\neq {gold}",
    ]


def other_boxes(gold: str) -> list[str]:
    box = rf"\boxed{{{gold}}}"
    return [
        rf"We tried {box}, but that is wrong. It is $\boxed{{987}}$.",
        rf"${box}$ or $\boxed{{987}}$",
        rf"${box} \quad\text{{or}}\quad \boxed{{987}}$",
        rf"\({box}\) and \(\boxed{{987}}\)",
        rf"\[{box}\] \[\boxed{{987}}\]",
        f"the answer is {gold}, thus \\boxed{{}}",
    ]


# ---- values --------------------------------------------------------------


def other_values(gold: str) -> list[str]:
    """Values that differ from the gold. 0 is skipped: its negative and its double are also 0."""
    if gold == "0":
        return []
    return [
        f"({gold})+1",
        f"-({gold})",
        f"2({gold})",
        f"({gold})/10",
        f"({gold})-0.001",
        f"({gold})+t",
        f"({gold})t",
        f"Z = -({gold})",
        f"{gold} > 0",
    ]


def other_rationals(gold: str) -> list[str]:
    value = rational(gold)
    p, q = value.as_integer_ratio()
    changed = [f"{p + 1}/{q}", f"{p}/{q + 1}", f"{-p}/{q}", f"{p}0/{q}", f"{q}/{p}", f"{p},{q}"]
    changed += [f"({p},{q})", f"[{p},{q}]", f"{p} {q}"]
    if "." not in gold:  # a decimal may approximate an irrational number
        changed.append(rf"{gold}+\frac{{\pi}}{{10^{{12}}}}")
    return [text for text in changed if not is_the_number(text, value)]


def is_the_number(text: str, value: Fraction) -> bool:
    if re.fullmatch(r"-?\d+/-?\d+", text) is None:
        return False
    p, q = text.split("/")
    return int(q) != 0 and Fraction(int(p), int(q)) == value


def swapped_differences(gold: str) -> list[str]:
    r"""\sqrt{b-a} for \sqrt{a-b}, and (k-n)! for (n-k)!."""
    term = r"(\w+(?:\^\w)?) ?- ?(\w+(?:\^\w)?)"
    changed = [
        re.sub(rf"\\sqrt\{{{term}\}}", r"\\sqrt{\2-\1}", gold),
        re.sub(rf"\({term}\)!", r"(\2-\1)!", gold),
    ]
    return [text for text in changed if text != gold]


# ---- structures ----------------------------------------------------------


def without_a_member(gold: str) -> list[str]:
    listed = members(gold)
    if len(listed) < 2:
        return []
    return [", ".join(listed[1:]), ", ".join(listed[:-1])]


def set_without_a_member(gold: str) -> list[str]:
    return [rf"\{{{text}\}}" for text in without_a_member(gold)]


def tuple_without_a_member(gold: str) -> list[str]:
    return [f"({text})" for text in without_a_member(gold)]


def swapped_members(gold: str) -> list[str]:
    first, second, *rest = members(gold)
    swapped = ",".join([second, first, *rest])
    return [f"({swapped})", rf"\{{{swapped}\}}", swapped]


def glued_members(gold: str) -> list[str]:
    """(3600) for (3,600), and -3.0 for -3,0; but 100,200 may be one number."""
    if "," not in gold or re.fullmatch(r"\d{1,3}(,\d{3})+", gold):
        return []
    return [gold.replace(",", glue) for glue in ("", ".", " ")]


def misnamed_tuple(gold: str) -> list[str]:
    listed = members(gold)
    if len(listed) != 2:
        return []
    x, y = listed
    return [f"y = {x}, x = {y}", f"x = {y}, y = {x}"]


def other_interval_brackets(gold: str) -> list[str]:
    gold = unsized(gold)
    other = {"(": "[", "[": "(", ")": "]", "]": ")"}
    changed = [other[gold[0]] + gold[1:], gold[:-1] + other[gold[-1]]]
    return [text for text in changed if not re.search(r"\[-\\infty|\\infty\]", text)]


def part_of_a_union(gold: str) -> list[str]:
    parts = re.split(r"\\cup|\\text\{ or \}", gold)
    return [*parts, parts[0] + r"\cap" + parts[1]]


def other_right_side(gold: str) -> list[str]:
    left, right = gold.split("=")
    return [f"{left} = {right}+1", f"{left} = 2({right})+3", f"{left} + 1 = {right}", right + "+1"]


def value_of_the_right_side(gold: str) -> list[str]:
    """12 for x + y = 12, but not 2x for y = 2x, which is right."""
    left, right = gold.split("=")
    return [] if re.fullmatch("[a-z] ?", left) else [right]


def other_relation(gold: str) -> list[str]:
    turned = RELATION.sub(turned_relation, gold)
    strict = RELATION.sub(toggled_relation, gold)
    return [text for text in (turned, strict) if text != gold]


def turned_relation(found: re.Match) -> str:
    return MIRRORED[found[1]] + " "


def toggled_relation(found: re.Match) -> str:
    toggled = {"<": r"\le ", ">": r"\ge ", r"\le": "<", r"\leq": "<", r"\ge": ">"}
    return toggled[found[1]]


def other_matrices(gold: str) -> list[str]:
    """The matrix with reversed rows, transposed, with an extra row, and its determinant."""
    if "vmatrix" in gold:
        return []
    begin, body, end = re.fullmatch(r"(\\begin\{.*?\})(.*)(\\end.*)", gold).groups()
    rows = []
    for line in body.split(r"\\"):
        rows.append([entry.strip() for entry in line.split("&")])
    changed = [rows[::-1], [list(column) for column in zip(*rows, strict=True)], rows + rows[:1]]

    rewritten = [re.sub("[pb]matrix", "vmatrix", gold)]
    for matrix in changed:
        lines = " \\\\ ".join(" & ".join(row) for row in matrix)
        rewritten.append(f"{begin}{lines}{end}")
    return [text for text in rewritten if text.replace(" ", "") != gold.replace(" ", "")]


def reversed_ratio(gold: str) -> list[str]:
    parts = gold.split(":")
    return [":".join(reversed(parts)), ".".join(parts), ",".join(parts)]


def other_words(gold: str) -> list[str]:
    word = re.sub(r"\\text\{(.*)\}", r"\1", gold)
    return [rf"\text{{not {word}}}", f"not {word}", rf"\text{{{word} or not}}", word[1:], "unknown"]
