"""How well numbers of tokens order them: AUC, near ties, Spearman's rank correlation.

Shapes: N tokens, n of them positive.
"""

import torch


def auc(values: torch.Tensor, positive: torch.Tensor) -> float:
    """The chance that a positive has the higher value than a negative, ties one half.

    values: [N]; positive: bool [N]. NaN where there is no such pair.
    """
    n = int(positive.sum())
    m = len(positive) - n
    if n == 0 or m == 0:
        return float("nan")

    # Mann and Whitney: the positives' ranks, less what they would be among themselves.
    ranks = mid_ranks(values)
    return float((ranks[positive].sum() - n * (n + 1) / 2) / (n * m))


def near_ties(values: torch.Tensor, positive: torch.Tensor, within: float) -> float:
    """The share of pairs of a positive and a negative whose values differ by at most `within`.

    What an AUC of 0 or 1 is worth where the values hardly differ. NaN where there is no pair.
    """
    negatives = values[~positive].double().sort().values  # [N - n]
    positives = values[positive].double()  # [n]
    if len(positives) == 0 or len(negatives) == 0:
        return float("nan")

    up_to = torch.searchsorted(negatives, positives + within, right=True)
    below = torch.searchsorted(negatives, positives - within, right=False)
    return float((up_to - below).double().mean() / len(negatives))


def rank_correlation(a: torch.Tensor, b: torch.Tensor) -> float:
    """Spearman's: the correlation of the ranks of a and b [N]; NaN where one is constant."""
    ranks = torch.stack([mid_ranks(a), mid_ranks(b)])
    return float(torch.corrcoef(ranks)[0, 1])


def mid_ranks(values: torch.Tensor) -> torch.Tensor:
    """1 for the lowest value, and so on: [N] float64; equal values share the mean of theirs."""
    _, place, count = values.unique(return_inverse=True, return_counts=True)
    count = count.double()
    mid_rank = count.cumsum(0) - (count - 1) / 2  # of each distinct value
    return mid_rank[place]
