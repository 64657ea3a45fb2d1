"""Without this file every rank would hold the rows v of all tokens, 67 GB of an 8B model's.

That is a batch of 2,048 responses of 2,000 tokens, with H = 4,096, in float32. Here the rows of a
matrix [N, H] are sharded over the ranks, for the products in delta.py. Each row belongs to a
response token. `Rows` holds this rank's rows as they are given (see methods.Method.kept_features).
Its results are in float32, or in float64 for such rows, and the same on every rank. So `v @ d` and
`share @ v` mean the same for a tensor with all N rows and for `Rows`.

Shapes: N rows in all, n in a part of them, H numbers per row, M sets of weights.
"""

from collections.abc import Callable, Iterator

import torch

from infra.ranks import sum_over_ranks

SPARED = 0.25  # share of a GPU's memory that rows leave free, for the passes of the model


class Rows:
    """A matrix [N, H] of which this rank holds some rows; the other ranks hold the rest."""

    def __init__(self, count: int):
        self.count = count  # N
        self.parts = []  # of each micro-batch (indices [n] among the N, rows [n, H])

    def add(self, index: torch.Tensor, rows: torch.Tensor) -> None:
        """Hold these rows [n, H]: on the host, if they come from a GPU that is nearly full."""
        if rows.is_cuda and free_share(rows.device) < SPARED:
            rows = torch.empty(rows.shape, dtype=rows.dtype, pin_memory=True).copy_(rows)
        self.parts.append((index, rows))

    @property
    def shape(self) -> torch.Size:
        # There is a part, perhaps without rows, because every rank runs at least one pass.
        return torch.Size((self.count, *self.parts[0][1].shape[1:]))

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the results: float32, or float64 if the rows have it."""
        return torch.promote_types(self.parts[0][1].dtype, torch.float32)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """(indices [n], rows [n, H] beside them, in the dtype of the results) of each part."""
        for index, rows in self.parts:
            yield index, rows.to(index.device).to(self.dtype)  # moved first: bfloat16 is smaller

    def __matmul__(self, direction: torch.Tensor) -> torch.Tensor:
        """self @ direction: [H] -> [N]."""
        return per_row(self, lambda x: x @ direction.to(x.dtype))

    def __rmatmul__(self, weights: torch.Tensor) -> torch.Tensor:
        """weights @ self: [N] -> [H], or [M, N] -> [M, H]."""
        size = (*weights.shape[:-1], self.shape[1])
        total = torch.zeros(size, dtype=self.dtype, device=weights.device)
        for index, x in self:
            total += weights[..., index].to(self.dtype) @ x
        return sum_over_ranks(total)


def free_share(gpu: torch.device) -> float:
    """The share of a GPU's memory that new tensors can use."""
    free, total = torch.cuda.mem_get_info(gpu)
    cached = torch.cuda.memory_reserved(gpu) - torch.cuda.memory_allocated(gpu)  # by torch
    return (free + cached) / total


def per_row(v: torch.Tensor | Rows, function: Callable) -> torch.Tensor:
    """One number per row: [N], on every rank. function: rows [n, H] in float32 or better -> [n]."""
    if isinstance(v, torch.Tensor):
        return function(v.to(torch.promote_types(v.dtype, torch.float32)))
    whole = torch.zeros(v.count, dtype=v.dtype, device=v.parts[0][0].device)
    for index, x in v:
        whole[index] = function(x)
    return sum_over_ranks(whole)  # other ranks' rows are 0, so the sum joins all rows


def squared_distances(v: torch.Tensor | Rows, point: torch.Tensor) -> torch.Tensor:
    """‖v[n] - point‖² for every row: point [H] -> [N]."""
    return per_row(v, lambda x: (x - point.to(x.dtype)).square().sum(dim=1))
