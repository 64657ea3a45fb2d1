r"""Inequalities as intervals: x<5 is (-\infty,5), -2x>4 is (-\infty,-2), x>1 and x<5 is (1,5)."""

from answers.equations import difference, is_label, is_name
from answers.names import substituted
from answers.structure import Structure
from answers.values import Evaluator

INTERVALS = ("()", "[]", "(]", "[)")
COORDINATES = ("x", "y", "z", "t", r"\theta")  # -a < x < a is an interval, a < b < c is a chain
NONE = ("", None)


def same_inequality(judge, p: Structure, g: Structure) -> bool:
    """Two chains, side by side; two inequalities, as multiples; or the intervals they are."""
    p = as_one_chain(judge, p)
    g = as_one_chain(judge, g)
    if p.kind == g.kind == "∧":
        return judge.same_members(p.members, g.members)
    if p.kind == g.kind and p.members[1::2] == g.members[1::2]:
        p_sides = p.members[::2]
        g_sides = g.members[::2]
        if judge.same_in_order(p_sides, g_sides):
            return True
        if len(p_sides) == 2 and judge.evaluator.proportional(
            difference(p_sides), difference(g_sides), positive=True
        ):
            return True

    return same_intervals(judge, p, g)


def same_intervals(judge, p: Structure, g: Structure) -> bool:
    """The intervals that two inequalities are, or that one is beside the other's."""
    p_name, p_interval = solved(p, judge.evaluator)
    g_name, g_interval = solved(g, judge.evaluator)
    if not p_interval or not g_interval or p_interval.kind != g_interval.kind:
        return False
    if p_name and g_name and p_name != g_name:
        return False
    return judge.same_in_order(p_interval.members, g_interval.members)


def solved(p: Structure, evaluator: Evaluator) -> tuple[str, Structure | None]:
    """The name and the interval of 0<x≤1, x<5 or -2x>4; of others there is none."""
    if p.kind in INTERVALS:
        return "", p
    sides = p.members[::2]
    if p.kind != "<" or len(sides) > 3:
        return NONE
    if len(sides) == 2:
        return half_line(sides, p.members[1], evaluator)

    low, middle, high = sides
    names = [evaluator.names(side) for side in sides]
    is_between_numbers = not names[0] | names[2]
    is_coordinate = middle in COORDINATES and not names[1] & (names[0] | names[2])
    if is_label(middle) and (is_between_numbers or is_coordinate):
        return middle, between(low, *p.members[1::2], high)
    if not is_between_numbers:
        return NONE

    name, slope, is_rising, constant = linear(middle, evaluator)
    if not name:
        return NONE
    ends = [f"(({end})-({constant}))/({slope})" for end in (low, high)]
    low_sign, high_sign = p.members[1::2]
    if is_rising:
        return name, between(ends[0], low_sign, high_sign, ends[1])
    return name, between(ends[1], high_sign, low_sign, ends[0])


def half_line(sides: list[str], sign: str, evaluator: Evaluator) -> tuple[str, Structure | None]:
    """The solutions of left < right where left - right is a x + b: below -b/a, or above."""
    left, right = sides
    if is_label(left) and not evaluator.names(right):
        return left, between(r"-\infty", "<", sign, right)
    if is_label(right) and not evaluator.names(left):
        return right, between(left, sign, "<", r"\infty")

    name, slope, is_rising, constant = linear(difference(sides), evaluator)
    if not name:
        return NONE
    bound = f"-({constant})/({slope})"
    if is_rising:
        return name, between(r"-\infty", "<", sign, bound)
    return name, between(bound, sign, "<", r"\infty")


def linear(text: str, evaluator: Evaluator) -> tuple[str, str, bool, str]:
    """The name, a, whether a > 0, and b of an expression a x + b; the name of others is empty."""
    names = evaluator.names(text)
    if len(names) != 1:
        return "", "", False, ""
    (name,) = names
    b = substituted(text, name, "(0)")
    a = f"({substituted(text, name, '(1)')})-({b})"
    slope = evaluator.constant(a)
    if not slope or not evaluator.equal(text, f"({a})*{name}+({b})"):
        return "", "", False, ""
    return name, a, slope > 0, b


def between(low: str, low_sign: str, high_sign: str, high: str) -> Structure:
    opening = "(" if low_sign == "<" else "["
    closing = ")" if high_sign == "<" else "]"
    return Structure(opening + closing, [low, high])


def as_one_chain(judge, p: Structure) -> Structure:
    """1<x<5 of x>1 ∧ x<5; anything else as it is."""
    if p.kind != "∧" or len(p.members) != 2:
        return p
    chains = [judge.structure(member) for member in p.members]
    if any(chain.kind != "<" or len(chain.members) != 3 for chain in chains):
        return p
    for low, high in (chains, chains[::-1]):
        if low.members[2] == high.members[0] and is_name(high.members[0]):
            return Structure("<", [*low.members, *high.members[1:]])
    return p


def all_unequal(judge, p: Structure) -> Structure:
    """x≠0 and x≠1 as x is no member of {0,1}; anything else as it is."""
    if p.kind != "list":
        return p
    members = [judge.structure(member) for member in p.members]
    names = {member.members[0] for member in members}
    if len(names) > 1 or any(member.kind != "≠" for member in members):
        return p
    values = ",".join(member.members[-1] for member in members)
    return Structure("∖", [r"(-\infty,\infty)", f"‹{values}›"])


def intervals(judge, p: Structure) -> list[str]:
    """The intervals of x≠0, and of all numbers without a set; a union's own members."""
    if p.kind == "≠" and len(p.members) == 2 and is_name(p.members[0]):
        left_out = p.members[1:]
    elif p.kind == "∖" and p.members[0] == r"(-\infty,\infty)" and len(p.members) == 2:
        left_out = judge.structure(p.members[1]).members
    else:
        return p.members
    values = {text: judge.evaluator.constant(text) for text in left_out}
    if not values or None in values.values():
        return p.members
    ends = [r"-\infty", *sorted(values, key=values.get), r"\infty"]
    return [f"({low},{high})" for low, high in zip(ends, ends[1:], strict=False)]
