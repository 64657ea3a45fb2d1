"""toy.decisive, compared with exhaustive branching on short chains.

The responses to a problem differ only in the results, so all 10^k chains of digits can be listed.
The value V of a prefix is the total probability of its right continuations. The advantage of a
result is Q - V.
"""

import itertools

import numpy as np
import pytest
import torch

import toy
from toy.task import read

K = 3
TOKENIZER = toy.build_tokenizer()
TABLE = {
    "+": lambda a, b: (a + b) % 10,
    "-": lambda a, b: (a - b) % 10,
    "*": lambda a, b: a * b % 10,
}


MISTAKEN = {"learn": "*", "learn-minus": "-"}


def chances(operation, a, b, noise, regime):
    """The probability of each result in a demonstration, as the regimes define it: [10]."""
    right = TABLE[operation](a, b)
    p = np.zeros(10)
    if MISTAKEN.get(regime) == operation:
        p[right] = 0.45
        p[(right + {"*": 3, "-": -1}[operation]) % 10] = 0.55
    else:
        p += noise / 10
        p[right] += 1 - noise
    return p


def value(problem, results, noise, regime):
    """The probability of a right answer after these results, summed over all continuations."""
    start, steps = read(problem)
    if len(results) == len(steps):
        return float(results[-1] == toy.chain(problem)[-1])
    current = results[-1] if results else start
    p = chances(*steps_at(steps, current, len(results)), noise, regime)
    return sum(p[r] * value(problem, (*results, r), noise, regime) for r in range(10) if p[r])


def steps_at(steps, current, i):
    operation, digit = steps[i]
    return operation, current, digit


def branches(problem, noise, regime):
    """The probability, results and advantages of every possible response."""
    start, steps = read(problem)
    values = {}
    for length in range(K + 1):
        for prefix in itertools.product(range(10), repeat=length):
            values[prefix] = value(problem, prefix, noise, regime)

    for results in values:
        if len(results) < K:
            continue
        probability = 1.0
        for i, current in enumerate((start, *results[:-1])):
            p = chances(*steps_at(steps, current, i), noise, regime)
            probability *= p[results[i]]
        gains = [values[results[: i + 1]] - values[results[:i]] for i in range(K)]
        if probability > 0:
            yield probability, results, np.array(gains)


def marked(problem, results):
    """Which results toy.decisive marks: bool [K]. Asserts that no other token is marked."""
    start, steps = read(problem)
    lines = []
    for (operation, digit), current, result in zip(steps, (start, *results), results, strict=False):
        lines.append(f"So {current}{operation}{digit}={result}\n")
    text = "".join(lines) + f"answer \\boxed{{{results[-1]}}}<eos>"
    mark = toy.decisive(problem, torch.tensor(TOKENIZER(text).input_ids))
    of_results = mark[[7 * i + 5 for i in range(K)]]  # `So a*b=c` and a newline: seven tokens
    assert mark.sum() == of_results.sum()
    return of_results.numpy()


@pytest.mark.parametrize("regime, noise", [("sharpen", 0.2), ("learn", 0.1), ("learn-minus", 0.1)])
def test_decisive_results_are_those_with_the_largest_loss(regime, noise):
    lost = blamed = wrong = worst = 0.0
    for each in toy.problems(12, seed=3, k=K):
        answer = int(each["answer"])
        for probability, results, advantage in branches(each["problem"], noise, regime):
            mark = marked(each["problem"], results)
            if results[-1] == answer:
                assert mark.all()
                continue
            assert mark.sum() == 1
            losses = -advantage.clip(max=0)
            lost += probability * losses.sum()
            blamed += probability * losses[mark].sum()
            wrong += probability
            worst += probability * (losses[mark].item() == losses.max())

    # The marked result causes nearly all of a wrong response's loss. The rest is lost later, at
    # results that could have undone the error by chance.
    assert blamed > 0.93 * lost
    assert worst > 0.93 * wrong
