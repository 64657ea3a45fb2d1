"""Tests verify.py on inputs designed to fool, hang or crash a grader."""

import random
import time

import pytest
from tables import boxed, rows

from answers.extraction import MAX_RESPONSE
from answers.latex import normalise
from answers.letters import choice
from verify import extract_answer, is_equivalent, reward

# Fragments whose repetition may make a pattern backtrack.
FRAGMENTS = r"""
    { } {} ( [ | ^ ^{ 2^ 2^{ _ \ \\ & % $ $$ # ~ . , ; : - + = < 1 1, 1,234, 1. x xy 1/ 1! -1/
    \frac \frac{1} \sqrt \sqrt[ \text{ \text{not} \left( \quad \, \pm \cup \in \approx \circ
    \lfloor \begin{pmatrix} \end{pmatrix} \( \[x \(x\) f( f(x) x= x< e^ |x n^n \% 0.\overline{3}
    1\frac{1}{2} ² − √ π ∞ ½ ٣ １ 𝟏 é 😀 \boxed \boxed{1}\quad \fbox{\boxed{ 1.5% $x$ \overline{
"""
WITH_SPACES = (  # separated by |
    "1 |1 234 | |\n|\\ | and | or | cm| square|square meters per |\\text{ and }|\\boxed{1} and |"
    "**Final Answer:** |answer is |$x$ and |but so |e\u0301|\u200b|\u202e|\u00a0|answer: $|"
    "<answer>|<think>|So = 5 "
)


def repeated(text: str, times: int | list[int], between: str = "") -> str:
    """The text `times` times, or once for each number of a range; § stands for the number."""
    numbers = range(times) if isinstance(times, int) else range(*times)
    return between.join(text.replace("§", str(i)) for i in numbers)


# Numbers too large to write out, long sums, nested brackets, many members.
ROWS = rows("hostile")
BOXED = {row["name"]: "".join(repeated(*part) for part in row["parts"]) for row in ROWS}


def hostile() -> dict[str, str]:
    """Responses by name."""
    responses = {name: boxed(answer) for name, answer in BOXED.items()}
    for fragment in (*FRAGMENTS.split(), *WITH_SPACES.split("|")):
        responses[f"4 kB of {fragment!r}"] = boxed(fragment * (3900 // len(fragment)))
        longest = fragment * ((MAX_RESPONSE - 10) // len(fragment))
        responses[f"200 kB of {fragment!r}"] = longest
        responses[f"200 kB of {fragment!r} behind a box"] = boxed("8") + longest
    responses["200 kB of letters"] = "a" * MAX_RESPONSE
    responses["1 MB behind an answer"] = boxed("57") + "x" * 10**6
    responses["5 MB of letters"] = "a" * 5 * 10**6
    responses["5 MB of boxes"] = boxed("5") * (5 * 10**6 // 9)
    responses["5 MB of thoughts"] = "<think>" * (5 * 10**6 // 7)
    responses["nested brackets"] = "(" * 190_000 + "5" + ")" * 190_000
    for name, answer in BOXED.items():
        several = " and ".join(boxed(f"{answer}+{i}") for i in range(32))
        responses[f"32 boxes of {name}"] = several
        responses[f"{name} stated"] = f"So the answer is ${answer[:99]}$." * 9
    responses["nested boxes"] = "\\boxed{" * 50_000 + "5" + "}" * 50_000
    return responses


HOSTILE = hostile()
MOST_SECONDS = 0.3  # CPU seconds; the slowest call takes 0.17 on an idle core
GOLDS = ("57", "x+1", "\\{5,7\\}", "(0,1)")


def timed(function, *arguments) -> tuple:
    """(the result, CPU seconds of the fastest of ten calls: other work on a core slows some)."""
    fewest = float("inf")
    for _ in range(10):
        start = time.process_time()
        result = function(*arguments)
        fewest = min(fewest, time.process_time() - start)
        if fewest < 0.5 * MOST_SECONDS:
            break
        normalise.cache_clear()
    return result, fewest


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


OPTIONS = " ".join(f"({letter}) \\sqrt{{{letter}+x}}" for letter in "ABCDEFGHIJ")


@pytest.mark.parametrize("name", HOSTILE)
def test_the_letter_of_hostile_input_is_found_in_little_time(name):
    _, seconds = timed(choice, HOSTILE[name], OPTIONS)
    assert seconds < MOST_SECONDS


TOKENS = r"""
    \frac { } ( ) [ ] 1 2 x ^ _ ! + - * / , = < > \sqrt \pi e i \infty | \{ \} \pm \sin \log \binom
    0 9 \text{ \cup % & \\ : . \begin{pmatrix} \end{pmatrix} \boxed{ $ 3.5 \lfloor 10^9 ^\circ
    \overline{ \ge or n k ≈ \in \mathbb{R} \setminus \tan \rfloor
"""


def test_random_tokens_and_characters_never_raise():
    draw = random.Random(0)
    tokens = [*TOKENS.split(), " "]
    for _ in range(1_000):
        a = "".join(draw.choices(tokens, k=draw.randint(1, 30)))
        b = "".join(draw.choices(tokens, k=draw.randint(1, 30)))
        assert reward(boxed(a), b) in (0.0, 1.0)
        assert is_equivalent(a, a) in (True, False)

        highest = draw.choice([128, 256, 0x11000])  # ASCII, Latin-1, beyond 16 bits
        text = "".join(chr(draw.randrange(highest)) for _ in range(draw.randint(1, 60)))
        assert reward(text, "5") in (0.0, 1.0)
        assert is_equivalent(text, text) in (True, False)
