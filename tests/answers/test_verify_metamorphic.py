"""verify.py on all gold answers in data/answers.jsonl: rewritings that preserve the meaning earn 1,
rewritings that change it earn 0.
"""

import functools
import json
from pathlib import Path

import gold_mutations
import pytest
import rewritings
from golds import GOLDS, pairs_of_golds

import verify

ANSWERS = Path(__file__).parent / "data" / "answers.jsonl"
SEEDS = 60

# All forms of gold that have a value, and groups of forms.
ALL = sorted({entry["form"] for entry in GOLDS} - {"undefined"})
NUMBERS = ("number", "value")
LISTED = ("list", "tuple", "interval", "set", "named values")


def golds(*forms: str) -> list[str]:
    return [entry["gold"] for entry in GOLDS if entry["form"] in forms]


def boxed(answer: str) -> str:
    return f"\\boxed{{{answer}}}"


def earned(rewrite, forms, gold_to_response=boxed) -> dict[float, list[str]]:
    """{reward: rewritten golds, each as "rewritten for gold"}."""
    rewards = {0.0: [], 1.0: []}
    for gold in golds(*forms):
        for text in rewrite(gold):
            earns = verify.reward(gold_to_response(text), gold)
            rewards[earns].append(f"{text} for {gold}")
    assert rewards[0.0] or rewards[1.0]
    return rewards


# ---- the table of golds --------------------------------------------------------------------------


def test_golds_match_the_labelled_table():
    pairs = [json.loads(line) for line in ANSWERS.read_text().splitlines()]
    assert {entry["gold"] for entry in GOLDS} == {pair["gold"] for pair in pairs}
    assert len({entry["gold"] for entry in GOLDS}) == len(GOLDS)


# ---- rewritings that preserve the meaning --------------------------------------------------------

SAME = [
    ("delimiters", [form for form in ALL if form != "quantity"]),
    ("surroundings", ALL),
    ("fraction_sizes", ALL),
    ("bracket_sizes", [form for form in ALL if form != "text"]),
    ("spaces_around_signs", [form for form in ALL if form != "text"]),
    ("minus_signs", ALL),
    ("products", ALL),
    ("brace_of_powers", ("value", "family", "equation", "inequality")),
    ("spaces_after_commas", LISTED),
    ("sums_and_products", NUMBERS),
    ("commuted_sums", NUMBERS),
    ("slashes", NUMBERS),
    ("name_on_the_left", (*NUMBERS, "quantity", "infinity", "set", "tuple", "ratio")),
    ("label_on_the_left", NUMBERS),
    ("words_behind", NUMBERS),
    ("approximations", ("number",)),
    ("equal_fractions", ("number",)),
    ("decimals", ("number",)),
    ("percents", ("number",)),
    ("thousands", ("number",)),
    ("mixed_numbers", ("number",)),
    ("another_order", ("list",)),
    ("set_in_another_order", ("set",)),
    ("joined_by_words", ("list",)),
    ("larger_fractions", ("tuple", "interval", "set")),
    ("named_tuple", ("tuple",)),
    ("interval_as_chain", ("interval",)),
    ("equation_of_differences", ("equation",)),
    ("mirrored_inequality", ("inequality",)),
    ("negated_inequality", ("inequality",)),
    ("other_matrix_brackets", ("matrix",)),
]


@pytest.mark.parametrize("name, forms", SAME)
def test_reward_is_1_for_a_rewritten_gold(name, forms):
    missed = earned(getattr(rewritings, name), forms)[0.0]
    assert not missed, f"{len(missed)} missed: {missed[:20]}"


RESPONSES = [
    ("boxed_in_a_sentence", ALL),
    ("stated_without_a_box", (*NUMBERS, "tuple", "interval", "set", "equation", "ratio")),
    ("two_boxes", ("list",)),
]


@pytest.mark.parametrize("name, forms", RESPONSES)
def test_reward_is_1_for_a_response_around_a_gold(name, forms):
    missed = earned(getattr(rewritings, name), forms, gold_to_response=str)[0.0]
    assert not missed, f"{len(missed)} missed: {missed[:20]}"


# ---- rewritings that change the meaning ----------------------------------------------------------

CHANGED = [
    ("first_number_plus_one", ALL),
    ("last_number_plus_one", ALL),
    ("hedges", ALL),
    ("other_values", NUMBERS),
    ("other_rationals", ("number",)),
    ("swapped_differences", ("value", "label", "family", "equation")),
    ("without_a_member", ("list", "named values")),
    ("set_without_a_member", ("set",)),
    ("tuple_without_a_member", ("tuple", "interval")),
    ("swapped_members", ("tuple", "interval")),
    ("glued_members", ("list", "tuple", "interval", "set")),
    ("misnamed_tuple", ("tuple",)),
    ("other_interval_brackets", ("interval",)),
    ("part_of_a_union", ("union",)),
    ("other_right_side", ("equation",)),
    ("value_of_the_right_side", ("equation",)),
    ("other_relation", ("inequality",)),
    ("other_matrices", ("matrix",)),
    ("reversed_ratio", ("ratio",)),
    ("other_words", ("word",)),
]


@pytest.mark.parametrize("name, forms", CHANGED)
def test_reward_is_0_for_a_gold_with_a_changed_value(name, forms):
    credited = earned(getattr(gold_mutations, name), forms)[1.0]
    assert not credited, f"{len(credited)} false credits: {credited[:20]}"


def test_reward_is_0_for_a_response_that_does_not_settle_on_the_gold():
    credited = earned(gold_mutations.other_boxes, ALL, gold_to_response=str)[1.0]
    assert not credited, f"{len(credited)} false credits: {credited[:20]}"


def test_reward_is_0_for_undefined_expressions():
    for gold in golds("undefined"):
        assert verify.reward(boxed(gold), gold) == 0.0, gold


# ---- every pair of golds -------------------------------------------------------------------------


@pytest.fixture
def remembered(monkeypatch):
    """Caches `normalise`, the slowest part of a comparison: every gold is compared 700 times."""
    monkeypatch.setattr(verify, "normalise", functools.cache(verify.normalise))


def test_is_equivalent_accepts_golds_with_the_same_value():
    first = {entry["gold"]: entry for entry in GOLDS}
    missed = []
    for entry in GOLDS:
        other = first[entry.get("value", entry["gold"])]["gold"]
        if entry["form"] == "undefined":
            continue
        if not verify.is_equivalent(entry["gold"], other):
            missed.append(f"{entry['gold']} for {other}")
        if not verify.is_equivalent(other, entry["gold"]):
            missed.append(f"{other} for {entry['gold']}")
    assert not missed


def test_is_equivalent_rejects_golds_with_different_values(remembered):
    """All pairs that could agree by accident, and one in thirty of the other pairs.

    `bench.py verify` compares all pairs.
    """
    credited = []
    for number, (prediction, gold) in enumerate(pairs_of_golds()):
        if number % 30 != 0 and not is_likely(prediction, gold):
            continue
        if verify.is_equivalent(prediction, gold):
            credited.append(f"{prediction} for {gold}")
    assert not credited, f"{len(credited)} false credits: {credited[:40]}"


def is_likely(a: str, b: str) -> bool:
    """Whether random points decide: both have variables, or one does and the other is a digit."""
    digits = [gold.isdigit() and len(gold) == 1 for gold in (a, b)]
    variables = [rewritings.has_variable(gold) for gold in (a, b)]
    return all(variables) or (any(variables) and any(digits))


# ---- the points ----------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["value", "others"])
def test_every_gold_equals_itself_at_random_points(form, remembered):
    """Every gold with variables, with 60 seeds. Every tenth seed compares a value v with 0+(v)."""
    missed = []
    for entry in GOLDS:
        gold = entry["gold"]
        is_value = entry["form"] == "value"
        if is_value != (form == "value") or entry["form"] == "undefined":
            continue
        if not rewritings.has_variable(gold):
            continue

        for seed in range(SEEDS):
            prediction = f"0+({gold})" if is_value and seed % 10 == 0 else gold
            if not verify.is_equivalent(prediction, gold, seed=str(seed)):
                missed.append(f"{prediction} for {gold} with seed {seed}")
                break
    assert not missed, f"{len(missed)} golds do not always equal themselves: {missed}"
