"""Sums and products over the rows of a matrix [N, H] that is sharded over the ranks.

Each row belongs to a response token. `Rows` holds this rank's rows, on GPUs in bfloat16. The
functions process them in blocks, in float32, and return full results on every rank, so the calling
code is plain maths on [N] tensors. A plain tensor holds all N rows and needs no communication.

Shapes: N rows in all, n in a part of them, H numbers per row, M sets of weights.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch

from infra.ranks import sum_over_ranks

BLOCK = 2**22  # numbers
SPARED = 0.25  # share of a GPU's memory that rows leave free, for the passes of the model


@dataclass
class Rows:
    """A matrix [N, H] of which this rank holds some rows; the other ranks hold the rest."""

    count: int  # N
    parts: list[tuple] = field(default_factory=list)  # (places [n] among the N, rows [n, H])

    def add(self, places: torch.Tensor, rows: torch.Tensor) -> None:
        """Hold these rows [n, H]: those of a GPU in bfloat16, and on the host if it is full."""
        if rows.is_cuda:
            rows = rows.bfloat16()
            if free_share(rows.device) < SPARED:
                rows = torch.empty(rows.shape, dtype=rows.dtype, pin_memory=True).copy_(rows)
        self.parts.append((places, rows))

    def __len__(self) -> int:
        return self.count

    @property
    def shape(self) -> torch.Size:
        return torch.Size((self.count, *self.parts[0][1].shape[1:]))


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
        yield block, v[block].to(device, non_blocking=True).to(dtype)  # half as many bytes to move


def weighted_sums(v: torch.Tensor | Rows, weights: torch.Tensor) -> torch.Tensor:
    """Σ_n weights[m, n] v[n] for each m, in one pass over v: weights [M, N] -> [M, H]."""
    if isinstance(v, Rows):
        return sum_over_ranks(sum(weighted_sums(x, weights[:, at]) for at, x in v.parts))

    dtype = torch.promote_types(v.dtype, torch.float32)
    total = torch.zeros(len(weights), v.shape[1], dtype=dtype, device=weights.device)
    for block, x in blocks(v, weights.device):
        total += weights[:, block].to(dtype) @ x
    return total


def per_row(v: torch.Tensor | Rows, function: Callable, device: torch.device) -> torch.Tensor:
    """One number per row: [N], on every rank.

    function: maps a block of rows [size, H], in float32 or better on `device`, to [size].
    """
    if isinstance(v, Rows):
        dtype = torch.promote_types(v.parts[0][1].dtype, torch.float32)
        whole = torch.zeros(v.count, dtype=dtype, device=device)
        for places, x in v.parts:
            whole[places] = per_row(x, function, device)
        return sum_over_ranks(whole)  # other ranks' rows are 0, so the sum joins all rows

    result = torch.empty(len(v), dtype=torch.promote_types(v.dtype, torch.float32), device=device)
    for block, x in blocks(v, device):
        result[block] = function(x)
    return result


def products(v: torch.Tensor | Rows, direction: torch.Tensor) -> torch.Tensor:
    """v[n] · direction for every row: direction [H] -> [N]."""
    return per_row(v, lambda x: x @ direction.to(x.dtype), direction.device)


def squared_distances(v: torch.Tensor | Rows, point: torch.Tensor) -> torch.Tensor:
    """‖v[n] - point‖² for every row: point [H] -> [N]."""
    return per_row(v, lambda x: (x - point.to(x.dtype)).square().sum(dim=1), point.device)


def all_finite(v: torch.Tensor | Rows, device: torch.device) -> bool:
    """Whether all rows on all ranks are finite."""
    return bool(per_row(v, lambda x: x.isfinite().all(dim=1).to(x.dtype), device).all())
