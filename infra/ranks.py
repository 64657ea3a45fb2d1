"""A run's processes, their communication, and parameter sharding.

Under torchrun each GPU has one process, a *rank*. Without torchrun a single rank runs the same
code. Parameters are sharded within a node and replicated across nodes (HSDP).
"""

import os
from collections.abc import Callable
from datetime import timedelta

import torch
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from infra.errors import MISTAKES, Interrupted, Stop, UserError

NCCL_LIMIT = timedelta(hours=1)  # timeout for a collective between GPUs
GLOO_LIMIT = timedelta(days=7)  # timeout for a collective between CPUs


def this_device() -> torch.device:
    """The GPU of this rank, or the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))


def computation_dtype() -> torch.dtype:
    """The dtype in which models compute."""
    return torch.bfloat16 if this_device().type == "cuda" else torch.float32


def rank_and_world() -> tuple[int, int]:
    """(this rank, number of ranks); (0, 1) without a process group."""
    if not dist.is_initialized():
        return 0, 1
    return dist.get_rank(), dist.get_world_size()


def speaks() -> bool:
    """Whether this process prints for all ranks, with or without a process group."""
    return int(os.environ.get("RANK", 0)) == 0


def start_ranks() -> tuple[int, int]:
    """Start the process group (one rank without torchrun). Returns (rank, number of ranks)."""
    if dist.is_initialized():
        return rank_and_world()

    check_environment()
    if "RANK" in os.environ:
        store, rank, world = next(dist.rendezvous("env://"))
    else:
        store, rank, world = dist.HashStore(), 0, 1

    # torchrun's store survives a restart, but new ranks must not read the addresses of dead ones.
    store = dist.PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)

    prefer_expandable_segments()
    backend = "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(this_device())
        backend = "cpu:gloo,cuda:nccl"

    # Ranks may finish sampling hours apart and must not time out. Barriers and object collectives
    # therefore run on the CPU.
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=GLOO_LIMIT)
    if torch.cuda.is_available():
        limit_nccl(dist.group.WORLD)
    return rank, world


def check_environment() -> None:
    """Raise UserError if the environment sets RANK without torchrun's other variables."""
    missing = {"WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} - os.environ.keys()
    if "RANK" in os.environ and missing:
        raise UserError(
            f"RANK is set in the environment, but not {', '.join(sorted(missing))}: "
            "start with torchrun, or unset RANK"
        )


def prefer_expandable_segments() -> None:
    """Let torch use expandable segments of GPU memory, unless the environment configures them.

    The caches of responses change size between chunks of sampling, so fixed segments would often
    not fit. torch reads the setting when the GPU is first used.
    """
    if "PYTORCH_CUDA_ALLOC_CONF" not in os.environ:  # the older name
        os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")


def shared_by_ranks(items: list, work: Callable[[list], list]) -> list:
    """work(items), split over the ranks. Returns all results in order, on all ranks.

    work: a share of the items -> one result per item. Items are dealt round-robin. If one rank
    raises a user error, FloatingPointError or Interrupted, every rank raises it, because the others
    wait for that rank's results.
    """
    rank, world = rank_and_world()
    if world == 1:
        return work(items)

    try:
        mine = work(items[rank::world])
    except (*MISTAKES, FloatingPointError, Interrupted) as error:
        mine = error
    shares = from_all_ranks(mine)
    for share in shares:
        if isinstance(share, Exception):
            raise share

    return [shares[i % world][i // world] for i in range(len(items))]


def from_all_ranks(mine) -> list:
    """Each rank's `mine`, in rank order. All ranks call this."""
    shares = [None] * dist.get_world_size()
    dist.all_gather_object(shares, mine)
    return shares


def limit_nccl(group) -> None:
    """Set the timeout of collectives between GPUs to NCCL_LIMIT; on timeout the run ends."""
    # torch has no public way to set a separate timeout for each backend.
    group._get_backend(torch.device("cuda"))._set_default_timeout(NCCL_LIMIT)


def end_ranks() -> None:
    """Leave the process group cleanly: wait for all ranks, then end its threads.

    Without this, the threads of a rank that exits early may abort its process.
    """
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.barrier()
        dist.destroy_process_group()


def on_first_rank(function: Callable, *arguments):
    """Run function(*arguments) on rank 0 and return its result on every rank. All ranks call this.

    If rank 0 raises a user error or a Stop, every rank raises it, and one message is printed.
    """
    rank, world = rank_and_world()
    result = None
    if rank == 0:
        try:
            result = function(*arguments)
        except (*MISTAKES, Stop) as error:
            result = error
    if world > 1:
        told = [result]
        dist.broadcast_object_list(told)
        result = told[0]
    if isinstance(result, Exception):
        raise result
    return result


def device_mesh() -> DeviceMesh:
    """All ranks in one row, or one row per node if there are several nodes (HSDP)."""
    world = dist.get_world_size()
    local = int(os.environ.get("LOCAL_WORLD_SIZE", world))
    if world == local:
        return init_device_mesh(this_device().type, (world,))
    mesh = init_device_mesh(
        this_device().type, (world // local, local), mesh_dim_names=("replicate", "shard")
    )
    if mesh.device_type == "cuda":
        for group in mesh.get_all_groups():
            limit_nccl(group)  # torch's default for new groups is ten minutes
    return mesh


def shard(model: torch.nn.Module, layers: list[torch.nn.Module], mesh: DeviceMesh) -> None:
    """Apply FSDP2, one unit per decoder layer; embedding, norm and LM head belong to the root.

    On GPUs the compute dtype is bfloat16 and gradients are reduced in float32. FSDP averages
    gradients over ranks.
    """
    precision = MixedPrecisionPolicy()
    if mesh.device_type == "cuda":
        precision = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    for module in (*layers, model):
        fully_shard(module, mesh=mesh, mp_policy=precision)


def full_tensor(x: torch.Tensor) -> torch.Tensor:
    """The full tensor of a sharded tensor. All ranks call this together."""
    return x.full_tensor() if isinstance(x, DTensor) else x
