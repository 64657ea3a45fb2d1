"""Rank statistics of token weights: AUC, near ties, Spearman's rank correlation.

Shapes: N tokens, n of them positive.
"""

import torch


def auc(values: torch.Tensor, positive: torch.Tensor) -> float:
    """The probability that a positive has a higher value than a negative; a tie counts 1/2.

    values: [N]; positive: bool [N]. NaN if there is no pair.
    """
    n = int(positive.sum())
    m = len(positive) - n
    if n == 0 or m == 0:
        return float("nan")

    # Mann-Whitney: the rank sum of the positives, minus the smallest possible rank sum.
    ranks = mid_ranks(values)
    return float((ranks[positive].sum() - n * (n + 1) / 2) / (n * m))


def near_ties(values: torch.Tensor, positive: torch.Tensor, within: float) -> float:
    """The share of positive-negative pairs whose values differ by at most `within`.

    A high share makes an AUC near 0 or 1 less meaningful. NaN if there is no pair.
    """
    negatives = values[~positive].double().sort().values  # [N - n]
    positives = values[positive].double()  # [n]
    if len(positives) == 0 or len(negatives) == 0:
        return float("nan")

    up_to = torch.searchsorted(negatives, positives + within, right=True)
    below = torch.searchsorted(negatives, positives - within, right=False)
    return float((up_to - below).double().mean() / len(negatives))


def rank_correlation(a: torch.Tensor, b: torch.Tensor) -> float:
    """Spearman's rank correlation between a and b [N]; NaN if a or b is constant."""
    ranks = torch.stack([mid_ranks(a), mid_ranks(b)])
    return float(torch.corrcoef(ranks)[0, 1])


def mid_ranks(values: torch.Tensor) -> torch.Tensor:
    """Ranks from 1, lowest value first: [N] float64. Equal values share their mean rank."""
    _, place, count = values.unique(return_inverse=True, return_counts=True)
    count = count.double()
    mid_rank = count.cumsum(0) - (count - 1) / 2  # for each distinct value
    return mid_rank[place]
