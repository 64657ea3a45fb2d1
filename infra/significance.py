"""Without this file evaluate.py would compare two models' averages, but not with chance.

It has App. K's test over repetitions, and one over problems.
"""

import numpy as np


def mann_whitney(a: list[float], b: list[float]) -> tuple[float, float]:
    """(U, p) of the exact one-sided test of whether a's values exceed b's (App. K).

    U is the number of pairs a_i > b_j plus half the ties: a's rank sum minus n (n + 1) / 2.
    p is the probability of at least this U if n of the pooled values go to a at random.
    Ties share their mean rank, so doubled ranks are integers. For a = [2, 3] and b = [1, 2] the
    pooled values 1, 2, 2, 3 have doubled ranks 2, 5, 5, 8. The ranks of a sum to 13, so U is 3.5.
    """
    n = len(a)
    pooled = np.sort([*a, *b])
    below = np.searchsorted(pooled, [*a, *b], side="left")
    up_to = np.searchsorted(pooled, [*a, *b], side="right")
    doubled = below + up_to + 1  # twice each value's rank
    observed = doubled[:n].sum()
    u = (observed - n * (n + 1)) / 2

    # probability[k, s] that k of the values dealt so far went to a and their doubled ranks sum to s
    probability = np.zeros((n + 1, doubled.sum() + 1))  # about 4 n³ numbers: 70 MB for n = 128
    probability[0, 0] = 1.0
    for dealt, rank in enumerate(doubled):
        to_a = (n - np.arange(n + 1)) / (len(pooled) - dealt)  # [n + 1] P(next goes to a | k)
        taken = probability * to_a[:, None]
        probability -= taken
        probability[1:, rank:] += taken[:-1, :-rank]  # one value more, and its rank in the sum

    return float(u), float(min(1.0, probability[n, observed:].sum()))


def paired_bootstrap(
    a: list[float], b: list[float], resamples: int = 10_000, seed: int = 0
) -> tuple[float, float, float, float]:
    """(mean of a - b, low, high, p) over problems resampled with replacement.

    a and b are the accuracies [P] of two models on the same problems. 95 % of the resampled means
    lie between low and high; p is the share of these means that are 0 or less.
    """
    difference = np.asarray(a) - np.asarray(b)  # [P]
    count = len(difference)
    drawn = np.random.default_rng(seed).integers(count, size=(resamples, count))
    means = difference[drawn].mean(axis=1)  # [resamples]
    low, high = np.quantile(means, [0.025, 0.975])
    return float(difference.mean()), float(low), float(high), float((means <= 0).mean())
