"""verify.py on classes of responses that are graded wrong where a rule fits only examples."""

import classes
import pytest

from verify import reward


@pytest.mark.parametrize("right", [True, False])
@pytest.mark.parametrize("made", [*classes.WRONG, *classes.MISSED])
def test_reward_of_a_class_of_responses(made, right):
    """Every class of tests/answers/classes.py, each with many golds."""
    wrong = []
    for response, gold, is_right in made():
        if is_right == right and (reward(response, gold) == 1.0) != right:
            wrong.append(f"{response} for {gold}")
    assert not wrong, f"{len(wrong)}: {wrong[:20]}"


def test_every_class_is_large():
    for made in (*classes.WRONG, *classes.MISSED):
        assert len(set(made())) >= 30, made.__name__
