"""Tests verify.py: the rules of comparison, and how few errors the labelled tables show."""

from itertools import groupby

import pytest
from tables import boxed, errors, pairs_of_golds, rows, tables

from answers.comparison import UNDECIDED
from answers.letters import choice
from verify import earnable, is_equivalent, reward

TABLES = tables(every=16)  # `tests/answers/tables.py` takes all
# Right answers that earn nothing: "Known losses" in docs/answers.md. Other entries are 0.
MISSED = {
    "answers": 38,
    "responses": 9,
    "examination": 13,
    "golds": 4,
    "contest": 12,
    "classes": 600,  # 642 of all
}
# Wrong answers that earn, nearly all because words or signs beside a box are not read: "Known false
# credits". Six have no box: "the largest is 17, the smallest is 3".
FALSE = {"responses": 53, "examination": 2, "contest": 5, "words": 21, "classes": 33}


@pytest.mark.parametrize("name", TABLES)
def test_reward_on_a_labelled_table(name):
    false, missed = errors(TABLES[name])
    assert len(false) <= FALSE.get(name, 0), false
    assert len(missed) <= MISSED.get(name, 0), missed[:20]


def test_is_equivalent_rejects_golds_with_different_values():
    """This compares one pair in 120, and `tests/answers/tables.py --golds` one in seven."""
    pairs = list(pairs_of_golds())[::120]
    assert len(pairs) > 3_500
    assert [pair for pair in pairs if is_equivalent(*pair)] == []


RULES = {rule: list(group) for rule, group in groupby(rows("rules"), lambda row: row["rule"])}


@pytest.mark.parametrize("rule", RULES)
def test_reward_follows_a_rule(rule):
    for row in RULES[rule]:
        given = reward(row["response"], row["gold"], row.get("truncated", False))
        assert given == row["truth"], row


def test_is_equivalent_is_symmetric_and_reproducible():
    for row in rows("pairs"):
        for a, b in 2 * [(row["a"], row["b"]), (row["b"], row["a"])]:
            assert is_equivalent(a, b) == row["equal"], row


GRADERS = {"is_equivalent": is_equivalent, "reward": reward, "choice": choice}


def test_inputs_like_those_of_public_bug_reports():
    """Right answers are missed in 17 of the 307 reports, and in 1 of 143 inputs like them."""
    found = [(row, GRADERS[row["call"]](*row["input"])) for row in rows("reports")]
    wrong = [row for row, verdict in found if verdict != row["right"]]
    assert [row for row in wrong if not row["right"]] == []
    assert len(wrong) <= 18, wrong


def sines(*factors: int) -> str:
    return "+".join(f"\\sin({i}x)" for i in factors)


def test_long_formulas_are_compared_at_fewer_points_and_undecided_ones_counted():
    UNDECIDED.clear()
    assert is_equivalent(sines(*range(1, 16)), sines(*range(15, 0, -1)))
    assert not is_equivalent(sines(*range(1, 16)), sines(*range(15, 1, -1), 16))
    assert not is_equivalent(sines(*range(1, 41)), sines(*range(2, 42)))
    assert earnable("+".join([r"\sin\sin\sin\sin\sin x"] * 50))  # the same tokens are equal
    assert UNDECIDED.total() == 0
    gold = sines(*range(40, 0, -1))
    assert not is_equivalent(sines(*range(1, 41)), gold)
    assert UNDECIDED[gold] == UNDECIDED.total() == 1


@pytest.mark.parametrize("frame", ["{}", "({},1)", "\\{{{}\\}}", "1,{}", "x={}"])
@pytest.mark.parametrize(
    "undefined",
    ["0/0", "\\frac{1}{0}", "\\infty-\\infty", "0^0", "\\log 0", "(-1)!", "\\frac{1}{x-x}"],
)
def test_undefined_expressions_do_not_equal_themselves(undefined, frame):
    text = frame.format(undefined)
    assert not is_equivalent(text, text)


def test_earnable_is_false_for_gold_answers_that_no_answer_matches():
    for gold in ("5", 5, "\\frac{1}{2}", "x \\equiv 3", "\\int f = 2", "\\text{Yes}"):
        assert earnable(gold), gold
    for gold in ("\\sum_{i=1}^5 i", "\\frac{0}{0}", "", "nan", "\\int f"):
        assert not earnable(gold), gold


@pytest.mark.parametrize(
    "gold", ["proof", "Proof.", "notfound", "\\text{N/A}", "unknown", "-", "?????", "see the proof"]
)
def test_a_gold_that_stands_for_none_is_never_earned(gold):
    assert not earnable(gold)
    assert reward(boxed(gold), gold) == 0.0
    assert earnable("None") and earnable("\\text{No solution}")
