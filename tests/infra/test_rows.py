"""infra/rows.py: blocks change no result. tests/infra/test_ranks.py covers several ranks."""

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
        monkeypatch.setattr(rows, "BLOCK_CPU", 3 * 7)
        assert len(list(rows.blocks(values, CPU))) == 17
    return values


def both_forms(v):
    """A plain tensor, and a single rank's `Rows` with the same contents."""
    return [v, Rows(v, torch.arange(len(v)), len(v))]


def test_weighted_sums_are_matrix_products(v):
    weights = torch.rand(3, 50, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for form in both_forms(v):
        total = weighted_sums(form, weights)
        torch.testing.assert_close(total, (weights @ v.double()).float(), rtol=1e-5, atol=1e-5)


def test_products_have_one_number_per_row(v):
    direction = torch.randn(7, generator=torch.Generator().manual_seed(2))
    for form in both_forms(v):
        expected = v.float() @ direction
        torch.testing.assert_close(products(form, direction), expected, rtol=1e-5, atol=1e-5)


def test_squared_distances_are_measured_to_the_point(v):
    point = torch.randn(7, generator=torch.Generator().manual_seed(3))
    expected = torch.stack([((x.float() - point) ** 2).sum() for x in v])
    for form in both_forms(v):
        torch.testing.assert_close(squared_distances(form, point), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_all_finite_detects_a_single_non_finite_number(v, bad):
    assert all(all_finite(form, CPU) for form in both_forms(v))
    broken = v.clone()
    broken[49, 6] = bad
    assert not any(all_finite(form, CPU) for form in both_forms(broken))


def test_all_finite_accepts_numbers_whose_sum_overflows():
    assert all_finite(torch.full((3, 4), 3e38), CPU)
    assert all_finite(torch.tensor([[3e38, 3e38], [-3e38, -3e38]]), CPU)


def test_a_rank_fills_in_its_own_rows():
    """A rank that holds rows 1 and 3 of 4 fills these two; other ranks fill the rest."""
    share = Rows(torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([1, 3]), 4)
    assert len(share) == 4
    assert share.shape == (4, 2)
    assert products(share, torch.tensor([5.0, 7.0])).tolist() == [0.0, 5.0, 0.0, 14.0]
    weights = torch.tensor([[9.0, 10.0, 9.0, 100.0]])
    assert weighted_sums(share, weights).tolist() == [[10.0, 200.0]]
