"""verify.py on inputs designed to fool, hang or crash a grader."""

import random
import time

import pytest
from hostile import hostile
from tables import boxed

from answers.values import BUDGET, Evaluator
from verify import extract_answer, is_equivalent, reward

HOSTILE = hostile()
MOST_SECONDS = 0.3  # of CPU time; twice what the slowest call takes on an idle core
GOLDS = ("57", "x+1", "\\{5,7\\}", "(0,1)")


def timed(function, *arguments) -> tuple:
    """(its result, seconds of CPU time)."""
    start = time.process_time()
    return function(*arguments), time.process_time() - start


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_input_earns_nothing_in_little_time(name):
    """A reward extracts the answer, and compares it with the gold answer."""
    answer, extracting = timed(extract_answer, HOSTILE[name])
    answer = answer or ""
    assert len(answer) < 50_000
    for a, b in [*((answer, gold) for gold in GOLDS), ("5", answer), (answer, answer)]:
        verdict, comparing = timed(is_equivalent, a, b)
        assert extracting + comparing < MOST_SECONDS
        assert b not in GOLDS or not verdict


@pytest.mark.parametrize("name", [name for name in HOSTILE if name.startswith("32 boxes of")])
def test_the_boxes_of_a_response_share_operations(name, monkeypatch):
    """Comparing the boxes with each other takes no more than comparing one with the gold answer."""
    operations = []
    pay = Evaluator.pay

    def counted(self, paid):
        operations.append(paid)
        pay(self, paid)

    monkeypatch.setattr(Evaluator, "pay", counted)
    reward(HOSTILE[name], "57")
    assert sum(operations) < 2 * BUDGET


TOKENS = r"""
    \frac { } ( ) [ ] 1 2 x ^ _ ! + - * / , = < > \sqrt \pi e i \infty | \{ \} \pm \sin \log \binom
    0 9 \text{ \cup % & \\ : . \begin{pmatrix} \end{pmatrix} \boxed{ $ 3.5 \lfloor 10^9 ^\circ
    \overline{ \ge or n k ≈ \in \mathbb{R} \setminus \tan \rfloor
"""


def test_random_tokens_and_characters_never_raise():
    draw = random.Random(0)
    tokens = [*TOKENS.split(), " "]
    for _ in range(3_000):
        a = "".join(draw.choices(tokens, k=draw.randint(1, 30)))
        b = "".join(draw.choices(tokens, k=draw.randint(1, 30)))
        assert reward(boxed(a), b) in (0.0, 1.0)
        assert is_equivalent(a, a) in (True, False)

        highest = draw.choice([128, 256, 0x11000])  # ASCII, Latin-1, beyond 16 bits
        text = "".join(chr(draw.randrange(highest)) for _ in range(draw.randint(1, 60)))
        assert reward(text, "5") in (0.0, 1.0)
        assert is_equivalent(text, text) in (True, False)
