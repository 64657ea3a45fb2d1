r"""Inequalities as intervals: x<5 is (-\infty,5), -2x>4 is (-\infty,-2), x>1 and x<5 is (1,5)."""

from answers.equations import difference, is_name
from answers.names import substituted
from answers.structure import Structure
from answers.values import Evaluator

INTERVALS = ("()", "[]", "(]", "[)")
COORDINATES = ("x", "y", "z", "t", r"\theta")  # -a < x < a is an interval, a < b < c is a chain
NONE = ("", None)


def same_inequality(judge, p: Structure, g: Structure) -> bool:
    """Whether two inequalities are equal: side by side, as multiples, or as intervals."""
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
    """Whether two answers, at least one of them an inequality, are equal intervals."""
    p_name, p_interval = solved(p, judge.evaluator)
    g_name, g_interval = solved(g, judge.evaluator)
    if not p_interval or not g_interval or p_interval.kind != g_interval.kind:
        return False
    if p_name and g_name and p_name != g_name:
        return False
    return judge.same_in_order(p_interval.members, g_interval.members)


def solved(p: Structure, evaluator: Evaluator) -> tuple[str, Structure | None]:
    """The name and the interval of 0<x≤1, x<5 or -2x>4; ("", None) for other inequalities."""
    if p.kind in INTERVALS:
        return "", p
    sides = p.members[::2]
    signs = p.members[1::2]
    if p.kind != "<" or len(sides) > 3:
        return NONE
    if len(sides) == 2:  # x < 5 is -∞ < x - 5 < 0
        sides = [r"-\infty", difference(sides), "0"]
        signs = ["<", *signs]

    low, middle, high = sides
    name, slope, constant = linear(middle, evaluator)
    names_of_ends = evaluator.names(low) | evaluator.names(high)
    if not name or (names_of_ends and (name not in COORDINATES or name in names_of_ends)):
        return NONE
    is_rising = evaluator.constant(slope) > 0
    ends = []
    for end in (low, high):
        if r"\infty" in end:
            ends.append(end if is_rising else f"-({end})")
        else:
            ends.append(f"(({end})-({constant}))/({slope})")
    if not is_rising:
        ends.reverse()
        signs.reverse()
    opening = "(" if signs[0] == "<" else "["
    closing = ")" if signs[1] == "<" else "]"
    return name, Structure(opening + closing, ends)


def linear(text: str, evaluator: Evaluator) -> tuple[str, str, str]:
    """(name, a, b) of a linear expression a x + b; the name is empty for other expressions."""
    names = evaluator.names(text)
    if len(names) != 1:
        return "", "", ""
    (name,) = names
    b = substituted(text, name, "(0)")
    a = f"({substituted(text, name, '(1)')})-({b})"
    if not evaluator.constant(a) or not evaluator.equal(text, f"({a})*{name}+({b})"):
        return "", "", ""
    return name, a, b


def as_one_chain(judge, p: Structure) -> Structure:
    """1<x<5 for x>1 ∧ x<5; other structures unchanged."""
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
    """x≠0 and x≠1 as the reals without {0,1}; other structures unchanged."""
    if p.kind != "list":
        return p
    members = [judge.structure(member) for member in p.members]
    names = {member.members[0] for member in members}
    if len(names) > 1 or any(member.kind != "≠" for member in members):
        return p
    values = ",".join(member.members[-1] for member in members)
    return Structure("∖", [r"(-\infty,\infty)", f"‹{values}›"])


def intervals(judge, p: Structure) -> list[str]:
    """The intervals of x≠0 and of the reals without a set; the members of other structures."""
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
