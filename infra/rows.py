"""A matrix [N, H] whose rows are sharded over the ranks, for the maths of delta.py.

Each row belongs to a response token. `Rows` holds this rank's rows as they are given (see
policy.kept_features). Its results are float32 and the same on every rank, so `v @ d` and
`share @ v` mean the same for a tensor with all N rows and for `Rows`.

Shapes: N rows in all, n in a part of them, H numbers per row, M sets of weights.
"""

from collections.abc import Callable, Iterator

import torch

from infra.ranks import sum_over_ranks

BLOCK = 2**22  # numbers
SPARED = 0.25  # share of a GPU's memory that rows leave free, for the passes of the model


class Rows:
    """A matrix [N, H] of which this rank holds some rows; the other ranks hold the rest."""

    def __init__(self, count: int):
        self.count = count  # N
        self.parts = []  # (indices [n] among the N, rows [n, H])

    def add(self, index: torch.Tensor, rows: torch.Tensor) -> None:
        """Hold these rows [n, H]: on the host, if they come from a GPU whose memory is full."""
        if rows.is_cuda and free_share(rows.device) < SPARED:
            rows = torch.empty(rows.shape, dtype=rows.dtype, pin_memory=True).copy_(rows)
        self.parts.append((index, rows))

    @property
    def shape(self) -> torch.Size:
        # There is a part, perhaps without rows, because every rank runs at least one pass.
        return torch.Size((self.count, *self.parts[0][1].shape[1:]))

    @property
    def dtype(self) -> torch.dtype:
        """That of the results: float32, or float64 if the rows have it."""
        return torch.promote_types(self.parts[0][1].dtype, torch.float32)

    def __matmul__(self, direction: torch.Tensor) -> torch.Tensor:
        """self @ direction: [H] -> [N]."""
        return self.per_row(lambda x: x @ direction.to(x.dtype), direction.device)

    def __rmatmul__(self, weights: torch.Tensor) -> torch.Tensor:
        """weights @ self: [N] -> [H], or [M, N] -> [M, H]."""
        size = (*weights.shape[:-1], self.shape[1])
        total = torch.zeros(size, dtype=self.dtype, device=weights.device)
        for index, part in self.parts:
            weights_of_part = weights[..., index].to(self.dtype)  # [M, n]
            for block, x in blocks(part, weights.device):
                total += weights_of_part[..., block] @ x
        return sum_over_ranks(total)

    def per_row(self, function: Callable, device: torch.device) -> torch.Tensor:
        """One number per row: [N], on every rank. function: as for the function `per_row`."""
        whole = torch.zeros(self.count, dtype=self.dtype, device=device)
        for index, part in self.parts:
            whole[index] = per_row(part, function, device)
        return sum_over_ranks(whole)  # other ranks' rows are 0, so the sum joins all rows


def free_share(gpu: torch.device) -> float:
    """The share of a GPU's memory that new tensors can use."""
    free, total = torch.cuda.mem_get_info(gpu)
    cached = torch.cuda.memory_reserved(gpu) - torch.cuda.memory_allocated(gpu)  # by torch
    return (free + cached) / total


def blocks(v: torch.Tensor, device: torch.device) -> Iterator[tuple[slice, torch.Tensor]]:
    """(slice, its rows on `device` in float32 or better) over v, without a full copy."""
    size = max(1, BLOCK // max(1, v.shape[1]))
    dtype = torch.promote_types(v.dtype, torch.float32)
    for start in range(0, len(v), size):
        block = slice(start, start + size)
        moved = v[block].to(device, non_blocking=True)
        yield block, moved.to(dtype)  # only now, as bfloat16 has half as many bytes to move


def per_row(v: torch.Tensor | Rows, function: Callable, device: torch.device) -> torch.Tensor:
    """One number per row: [N], on every rank.

    function: maps a block of rows [size, H], in float32 or better on `device`, to [size].
    """
    if isinstance(v, Rows):
        return v.per_row(function, device)
    result = torch.empty(len(v), dtype=torch.promote_types(v.dtype, torch.float32), device=device)
    for block, x in blocks(v, device):
        result[block] = function(x)
    return result


def squared_distances(v: torch.Tensor | Rows, point: torch.Tensor) -> torch.Tensor:
    """‖v[n] - point‖² for every row: point [H] -> [N]."""
    return per_row(v, lambda x: (x - point.to(x.dtype)).square().sum(dim=1), point.device)
