"""studies/ranking.py, compared with loops over pairs and values computed by hand."""

import math

import pytest
import torch

from studies.ranking import auc, mid_ranks, near_ties, rank_correlation


def values_and_marks():
    generator = torch.Generator().manual_seed(1)
    values = torch.randint(6, (40,), generator=generator).float()  # with ties
    positive = torch.rand(40, generator=generator) < 0.3
    return values, positive


def test_auc_is_the_share_of_pairs_in_the_right_order():
    values, positive = values_and_marks()
    pairs = []
    for a in values[positive].tolist():
        for b in values[~positive].tolist():
            pairs.append(1.0 if a > b else 0.5 if a == b else 0.0)
    assert auc(values, positive) == pytest.approx(sum(pairs) / len(pairs))


def test_auc_is_correct_in_extreme_cases():
    values = torch.tensor([1.0, 2.0, 3.0])
    positive = torch.tensor([False, False, True])
    assert auc(values, positive) == 1
    assert auc(-values, positive) == 0
    assert auc(torch.ones(3), positive) == 0.5
    assert math.isnan(auc(values, torch.ones(3, dtype=torch.bool)))
    assert math.isnan(auc(values[:0], positive[:0]))


@pytest.mark.parametrize("within", [0.0, 1.0, 2.5, 9.0])
def test_near_ties_is_the_share_of_close_pairs(within):
    values, positive = values_and_marks()
    pairs = []
    for a in values[positive].tolist():
        pairs += [abs(a - b) <= within for b in values[~positive].tolist()]
    assert near_ties(values, positive, within) == pytest.approx(sum(pairs) / len(pairs))
    assert math.isnan(near_ties(values, positive & False, within))
    assert math.isnan(near_ties(values, positive | True, within))


def test_mid_ranks_match_a_hand_calculation():
    assert mid_ranks(torch.tensor([5.0, 1.0, 5.0, 0.0])).tolist() == [3.5, 2.0, 3.5, 1.0]


def test_rank_correlation_depends_only_on_the_order():
    a = torch.tensor([0.1, 5.0, 0.2, 0.1])
    assert rank_correlation(a, a.exp()) == pytest.approx(1)
    assert rank_correlation(a, -a) == pytest.approx(-1)
    assert math.isnan(rank_correlation(a, torch.ones(4)))
    # ranks 1.5 4 3 1.5 against 2 2 4 2: covariance 0.75 / 4, variances 4.5 / 4 and 3 / 4
    b = torch.tensor([3.0, 3.0, 4.0, 3.0])
    assert rank_correlation(a, b) == pytest.approx(1 / math.sqrt(4.5 * 3))
