"""infra/rows.py: neither blocks nor parts change a result. test_ranks.py covers several ranks."""

import pytest
import torch

from infra import rows
from infra.rows import Rows, all_finite, products, squared_distances, weighted_sums

CPU = torch.device("cpu")


@pytest.fixture(params=["one block", "many blocks", "bfloat16"])
def v(request, monkeypatch):
    values = torch.randn(50, 7, generator=torch.Generator().manual_seed(0))
    if request.param == "bfloat16":
        return values.bfloat16()
    if request.param == "many blocks":
        monkeypatch.setattr(rows, "BLOCK", 3 * 7)
        assert len(list(rows.blocks(values, CPU))) == 17
    return values


def both_forms(v):
    """A plain tensor, and a single rank's `Rows` with the same contents, added out of order."""
    held = Rows(len(v))
    order = torch.randperm(len(v), generator=torch.Generator().manual_seed(9))
    for places in (order[:20], order[:0], order[20:]):
        held.add(places, v[places])
    assert len(held) == len(v)
    assert held.shape == v.shape
    return [v, held]


def test_weighted_sums_are_matrix_products(v):
    weights = torch.rand(3, 50, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for form in both_forms(v):
        total = weighted_sums(form, weights)
        torch.testing.assert_close(total, (weights @ v.double()).float(), rtol=1e-5, atol=1e-5)


def test_products_and_squared_distances_have_one_number_per_row(v):
    point = torch.randn(7, generator=torch.Generator().manual_seed(2))
    distance = torch.stack([((x.float() - point) ** 2).sum() for x in v])
    for form in both_forms(v):
        torch.testing.assert_close(products(form, point), v.float() @ point, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(squared_distances(form, point), distance, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bad", [float("nan"), float("-inf")])
def test_all_finite_detects_a_single_non_finite_number(v, bad):
    v[0] = 3e38  # finite, although the sum of the row is not
    assert all(all_finite(form, CPU) for form in both_forms(v))
    v[49, 6] = bad
    assert not any(all_finite(form, CPU) for form in both_forms(v))


def test_a_rank_fills_in_its_own_rows():
    """A rank that holds rows 1 and 3 of 4 fills these two; other ranks fill the rest."""
    share = Rows(4)
    share.add(torch.tensor([3, 1]), torch.tensor([[0.0, 2.0], [1.0, 0.0]]))
    assert products(share, torch.tensor([5.0, 7.0])).tolist() == [0.0, 5.0, 0.0, 14.0]
    weights = torch.tensor([[9.0, 10.0, 9.0, 100.0]])
    assert weighted_sums(share, weights).tolist() == [[10.0, 200.0]]
