"""Sums and products over the rows of a tensor [N, H] that may be too large to process at once.

Each row belongs to a response token. The tensor may be in host memory or half precision, and its
rows may be sharded over ranks (`Rows`). The functions process it in blocks, in float32, and return
full results on every rank, so the calling code is plain maths on [N] tensors. A plain tensor holds
all N rows and needs no communication.

Shapes: N rows in all, n on this rank, H numbers per row, M sets of weights.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import distributed as dist

BLOCK_CPU = 2**20  # numbers in a block: fits in a CPU cache
BLOCK_GPU = 2**24  # takes longer than a kernel launch


@dataclass
class Rows:
    """The part of a tensor [N, H] that this rank holds; the other ranks hold the rest."""

    values: torch.Tensor  # [n, H], possibly in host memory
    mine: torch.Tensor  # [n] ascending indices of these rows among the N
    count: int  # N

    def __len__(self) -> int:
        return self.count

    @property
    def shape(self) -> torch.Size:
        return torch.Size((self.count, *self.values.shape[1:]))


def sum_over_ranks(x: torch.Tensor) -> torch.Tensor:
    """The sum of x over all ranks, in place; x itself if there is only one rank."""
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(x)
    return x


def blocks(v: torch.Tensor, device: torch.device) -> Iterator[tuple[slice, torch.Tensor]]:
    """(slice, its rows on `device` in float32 or better) over v, without a full copy."""
    numbers = BLOCK_CPU if device.type == "cpu" else BLOCK_GPU
    size = max(1, numbers // max(1, v.shape[1]))
    dtype = torch.promote_types(v.dtype, torch.float32)
    for start in range(0, len(v), size):
        block = slice(start, start + size)
        yield block, v[block].to(device, dtype, non_blocking=True)


def weighted_sums(v: torch.Tensor | Rows, weights: torch.Tensor) -> torch.Tensor:
    """Σ_n weights[m, n] v[n] for each m, in one pass over v: weights [M, N] -> [M, H]."""
    if isinstance(v, Rows):
        return sum_over_ranks(weighted_sums(v.values, weights[:, v.mine]))

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
        mine = per_row(v.values, function, device)  # [n]
        whole = torch.zeros(v.count, dtype=mine.dtype, device=device)
        whole[v.mine] = mine
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
    if isinstance(v, Rows):
        broken = torch.tensor(float(not all_finite(v.values, device)), device=device)
        return sum_over_ranks(broken).item() == 0
    # A sum propagates NaN and inf, and is eight times as fast as isfinite on a CPU. Large finite
    # numbers may overflow in it, so an infinite sum is checked element by element.
    return all(bool(x.sum().isfinite() or x.isfinite().all()) for _, x in blocks(v, device))
