"""verify.py on inputs designed to fool, hang or crash a grader."""

import random
import threading

import pytest
from hostile import hostile, megabytes, repeated_fragments

import verify
from answers.arithmetic import MAX_BITS
from verify import extract_answer, is_equivalent, reward

HOSTILE = {**hostile(), **repeated_fragments(), **megabytes()}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_input_is_graded_within_the_budget_in_any_thread(name, monkeypatch):
    """Every input gets a verdict within the budget, even in a thread, where alarms cannot fire."""
    response = HOSTILE[name]
    answer = extract_answer(response) or ""
    rewards = []
    others = []
    judges = []

    class RecordedJudge(verify.Judge):
        def __init__(self, answers, seed):
            super().__init__(answers, seed)
            judges.append(self)

    monkeypatch.setattr(verify, "Judge", RecordedJudge)

    def judge():
        for gold in ("57", "x+1", "\\{5,7\\}", "(0,1)"):
            rewards.append(reward(response, gold))
        others.append(is_equivalent("5", answer))
        others.append(is_equivalent(answer, answer))

    thread = threading.Thread(target=judge)
    thread.start()
    thread.join()
    assert rewards == [0.0, 0.0, 0.0, 0.0]
    assert others[0] in (True, False)
    assert others[1] in (True, False)

    # The operation that exceeds the budget is the last one; it may cost this much.
    most = 2 * (2 * MAX_BITS >> 11) ** 2
    assert all(judge.evaluator.arithmetic.fuel >= -most for judge in judges)


FRAGMENTS = (
    "\\frac { } ( ) [ ] 1 2 x ^ _ ! + - * / , = < > \\sqrt \\pi e i \\infty | \\{ \\} \\pm \\sin"
    " \\log \\binom 0 9 \\text{ \\cup % & \\\\ : . \\begin{pmatrix} \\end{pmatrix} \\boxed{ $ 3.5"
    " \\lfloor \\rfloor 10^9 ^\\circ \\overline{ \\ge or n k"
)
TOKENS = [*FRAGMENTS.split(), " "]


def test_random_token_soup_never_raises():
    draw = random.Random(0)
    for _ in range(8_000):
        a = "".join(draw.choices(TOKENS, k=draw.randint(1, 30)))
        b = "".join(draw.choices(TOKENS, k=draw.randint(1, 30)))
        assert reward("\\boxed{" + a + "}", b) in (0.0, 1.0)
        assert is_equivalent(a, a) in (True, False)


def test_a_ratio_too_large_for_floats_is_wrong_and_never_raises():
    assert reward(r"\boxed{(\pi x=0)=(x/10^{1000}=0)}", "5") == 0.0


def test_random_characters_never_raise():
    draw = random.Random(1)
    for _ in range(8_000):
        characters = []
        for _ in range(draw.randint(1, 60)):
            highest = draw.choice([128, 256, 0x11000])  # ASCII, Latin-1, beyond 16 bits
            characters.append(chr(draw.randrange(highest)))
        text = "".join(characters)

        assert reward(text, "5") in (0.0, 1.0)
        assert is_equivalent(text, text) in (True, False)
