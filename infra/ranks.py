"""Without this file the scripts would run in one process, on one GPU.

Under torchrun each GPU has one process, a *rank*. Otherwise a single rank runs the same code.
"""

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed as dist
from torch.distributed.tensor import DTensor

from infra.errors import Stop, UserError

QUOTA = Path("/sys/fs/cgroup/cpu.max")  # of a container's processor time, on Linux
DTYPES = ["auto", "float32", "bfloat16"]  # the values of --dtype
LIMIT = timedelta(hours=6)  # how long a rank waits for the others, which may sample longer


def this_device() -> torch.device:
    """The GPU of this rank, or the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))


def rank_and_world() -> tuple[int, int]:
    """(this rank, number of ranks); (0, 1) without a process group."""
    if not dist.is_initialized():
        return 0, 1
    return dist.get_rank(), dist.get_world_size()


def is_first_rank() -> bool:
    """Whether this process prints for all ranks."""
    return rank_and_world()[0] == 0


# ---- start and end -------------------------------------------------------------------------------


def start_ranks() -> None:
    """Start the process group: one rank without torchrun."""
    if dist.is_initialized():
        return

    choose_threads()
    # The sampling caches change size with every chunk: fixed segments would often not fit.
    os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    backend = "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(this_device())
        # cuDNN's attention plans anew for every key length, i.e. for every token of a response.
        torch.backends.cuda.enable_cudnn_sdp(False)
        backend = "cpu:gloo,cuda:nccl"
    store, rank, world = dist.HashStore(), 0, 1
    if "RANK" in os.environ:
        store, rank, world = next(dist.rendezvous("env://"))
    # torchrun's store survives a restart, but new ranks must not read the addresses of dead ones.
    store = dist.PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=LIMIT)


def end_ranks() -> None:
    """Wait for all ranks, then end the group's threads, which may abort an exiting process."""
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.barrier()
        dist.destroy_process_group()


def choose_threads() -> None:
    """Compute with a container's share of the cores, which torch does not read.

    torchrun sets OMP_NUM_THREADS for several ranks.
    """
    if "OMP_NUM_THREADS" in os.environ or not QUOTA.exists():
        return
    quota, period = QUOTA.read_text().split()  # quota is "max" without a limit
    if quota != "max":
        torch.set_num_threads(max(1, min(torch.get_num_threads(), int(quota) // int(period))))


# ---- exchange ------------------------------------------------------------------------------------


def shared_by_ranks(items: list, work: Callable[[list], list]) -> list:
    """work(items), split over the ranks. Returns all results in order, on all ranks.

    work: a share of the items -> one result per item. If a rank raises a UserError or a
    FloatingPointError, every rank raises it, because the others wait for its results.
    """
    rank, world = rank_and_world()
    if world == 1:
        return work(items)

    try:
        mine = work(items[rank::world])
    except (UserError, FloatingPointError) as error:
        mine = error
    shares = from_all_ranks(mine)
    for share in shares:
        if isinstance(share, Exception):
            raise share

    return [shares[i % world][i // world] for i in range(len(items))]


def from_all_ranks(mine) -> list:
    """Each rank's `mine`, in rank order. All ranks call this, up to LIMIT apart."""
    shares = [None] * dist.get_world_size()
    dist.all_gather_object(shares, mine)
    return shares


def on_first_rank(function: Callable, *arguments):
    """function(*arguments) of rank 0, on every rank. All ranks call this.

    If rank 0 raises a user error or a Stop, every rank raises it, and one message is printed.
    """
    rank, world = rank_and_world()
    result = [None]
    if rank == 0:
        try:
            result = [function(*arguments)]
        except (UserError, Stop) as error:
            result = [error]
    if world > 1:
        dist.broadcast_object_list(result)
    if isinstance(result[0], Exception):
        raise result[0]
    return result[0]


def sum_over_ranks(x: torch.Tensor) -> torch.Tensor:
    """The sum of x over all ranks, in place; x itself if there is only one rank."""
    if rank_and_world()[1] > 1:
        dist.all_reduce(x)
    return x


def is_equal_on_ranks(x: torch.Tensor) -> bool:
    """Whether two means of x [N] are the same on all ranks, up to rounding. All ranks call this."""
    if rank_and_world()[1] == 1:
        return True
    x = x.double()
    position = torch.linspace(1, 2, len(x), dtype=x.dtype, device=x.device)
    means = torch.stack([x.mean(), (x * position).mean()])
    bounds = torch.stack([means, -means])
    dist.all_reduce(bounds, dist.ReduceOp.MAX)  # the largest, and minus the smallest
    return bool((bounds.sum(dim=0) < 1e-4).all())


def full_tensor(x: torch.Tensor) -> torch.Tensor:
    """The full tensor of a sharded tensor. All ranks call this together."""
    return x.full_tensor() if isinstance(x, DTensor) else x
