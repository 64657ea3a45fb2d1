"""verify.py on classes of responses. Rules fitted to a few examples would misgrade them."""

import json
from pathlib import Path

import classes
import pytest

from verify import earnable, is_equivalent, reward

DATA = Path(__file__).parent / "data"
RESPONSES = DATA / "responses.jsonl"
EXAMINATION = DATA / "examination.jsonl"
# Right answers in examination.jsonl that earn nothing: see "Known losses" in answers/README.md.
GIVEN_UP = (r"\boxed{\frac{5}{3}}", r"\boxed{1011}_2", r"\boxed{10\text{:}30\text{ p.m.}}")


@pytest.mark.parametrize("right", [True, False])
@pytest.mark.parametrize("made", [*classes.WRONG, *classes.MISSED])
def test_reward_for_every_class_of_responses(made, right):
    """Every class in tests/answers/classes.py, each with many golds."""
    wrong = []
    for response, gold, is_right in made():
        if is_right == right and (reward(response, gold) == 1.0) != right:
            wrong.append(f"{response} for {gold}")
    assert not wrong, f"{len(wrong)}: {wrong[:20]}"


def test_every_class_is_large():
    for made in (*classes.WRONG, *classes.MISSED):
        assert len(set(made())) >= 30, made.__name__


@pytest.mark.parametrize("right", [True, False])
def test_reward_for_responses_written_to_fool_the_rules(right):
    pairs = [json.loads(line) for line in RESPONSES.read_text().splitlines()]
    wrong = []
    for pair in pairs:
        is_credited = reward(pair["response"], pair["gold"]) == 1.0
        if pair["truth"] == right and is_credited != right:
            wrong.append(pair)
    assert len(pairs) > 300
    assert not wrong


def test_reward_for_the_examination_file():
    """Golds like those in MATH, AIME and OlympiadBench; answers unlike those in the classes."""
    pairs = [json.loads(line) for line in EXAMINATION.read_text().splitlines()]
    wrong = []
    for pair in pairs:
        is_credited = reward(pair["response"], pair["gold"]) == 1.0
        if is_credited != pair["truth"]:
            wrong.append((is_credited, pair["response"]))
    assert len(pairs) > 200
    assert wrong == [(False, response) for response in GIVEN_UP]


def test_outside_golds_are_earnable_and_distinct():
    golds = [entry["gold"] for entry in classes.OUTSIDE]
    same = {("45", "45^\\circ"), ("45^\\circ", "45")}
    for gold in golds:
        assert earnable(gold), gold
        for other in golds:
            if other != gold and (gold, other) not in same:
                assert not is_equivalent(gold, other), (gold, other)
