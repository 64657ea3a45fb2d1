"""Tests infra/rows.py: partial sums change no result. test_ranks.py covers several ranks."""

import pytest
import torch

from infra.rows import Rows, per_row, squared_distances


@pytest.fixture(params=[torch.float32, torch.bfloat16])
def v(request):
    return torch.randn(50, 7, generator=torch.Generator().manual_seed(0)).to(request.param)


def held(v):
    """A single rank's `Rows` with the rows of v, added out of order."""
    rows_of_v = Rows(len(v))
    order = torch.randperm(len(v), generator=torch.Generator().manual_seed(9))
    for index in (order[:20], order[:0], order[20:]):
        rows_of_v.add(index, v[index])
    assert (rows_of_v.shape, rows_of_v.dtype) == (v.shape, torch.float32)
    return rows_of_v


def test_products_are_those_of_a_matrix(v):
    weights = torch.rand(3, 50, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    direction = torch.randn(7, generator=torch.Generator().manual_seed(2))
    expected = (weights @ v.double()).float(), v.float() @ direction
    ours = weights @ held(v), held(v) @ direction
    for a, b in zip(ours, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(weights[1] @ held(v), expected[0][1], rtol=1e-5, atol=1e-5)


def test_functions_of_a_row_have_one_number_per_row(v):
    point = torch.randn(7, generator=torch.Generator().manual_seed(2))
    distance = torch.stack([((x.float() - point) ** 2).sum() for x in v])
    largest = v.float().max(dim=1).values
    for form in (v, held(v)):
        torch.testing.assert_close(squared_distances(form, point), distance, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(per_row(form, lambda x: x.max(dim=1).values), largest)
