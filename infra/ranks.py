"""The processes of a run: who they are, and how parameters are spread over them.

Under torchrun every GPU has a process, its *rank*; without it there is one rank, so that one path
serves all. Shards lie inside a node; several nodes hold copies (HSDP).
"""

import os
import pickle
from collections.abc import Callable
from datetime import timedelta
from itertools import accumulate

import numpy as np
import torch
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from infra.errors import MISTAKES, Interrupted, Stop, UserError

NCCL_LIMIT = timedelta(hours=1)  # of a collective between GPUs
GLOO_LIMIT = timedelta(days=7)  # of one between CPUs


def this_device() -> torch.device:
    """The GPU of this rank, or the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))


def rank_and_world() -> tuple[int, int]:
    """(this rank, number of ranks); (0, 1) where no process group was started."""
    if not dist.is_initialized():
        return 0, 1
    return dist.get_rank(), dist.get_world_size()


def speaks() -> bool:
    """Whether this process prints what all would print, with or without a process group."""
    return int(os.environ.get("RANK", 0)) == 0


def start_ranks() -> tuple[int, int]:
    """Start the process group, of one rank without torchrun; (rank, number of ranks)."""
    if dist.is_initialized():
        return rank_and_world()

    check_environment()
    if "RANK" in os.environ:
        store, rank, world = next(dist.rendezvous("env://"))
    else:
        store, rank, world = dist.HashStore(), 0, 1

    # torchrun's store outlives a restart: the new ranks must not meet the addresses of dead ones.
    store = dist.PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)

    prefer_expandable_segments()
    backend = "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(this_device())
        backend = "cpu:gloo,cuda:nccl"

    # Ranks that sample finish hours apart, and wait for each other without complaint. Where they
    # meet (dist.barrier, and what sends objects) goes through the CPU.
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=GLOO_LIMIT)
    if torch.cuda.is_available():
        limit_nccl(dist.group.WORLD)
    return rank, world


def check_environment() -> None:
    """Raise UserError where the environment names a rank, but not the others that it waits for."""
    missing = {"WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} - os.environ.keys()
    if "RANK" in os.environ and missing:
        raise UserError(
            f"RANK is set in the environment, but not {', '.join(sorted(missing))}: "
            "start with torchrun, or unset RANK"
        )


def prefer_expandable_segments() -> None:
    """Let torch grow its segments of GPU memory, unless the environment says how to allocate.

    Caches of responses change their size between any two chunks of sampling: fixed segments would
    not fit the next ones. Read when the GPU is first used, so it must be set before.
    """
    if "PYTORCH_CUDA_ALLOC_CONF" not in os.environ:  # the older name
        os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")


def shared_by_ranks(items: list, work: Callable[[list], list]) -> list:
    """work(items), of which each rank does its share; in order, on all ranks.

    work: some of the items -> as many results. They are dealt in turn. Raises a user's mistake,
    FloatingPointError or Interrupted of one rank on every rank: the others wait for its results,
    and must hear of it.
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
    """`mine` of each rank, in the order of the ranks. All ranks call.

    Arrays in it are sent as they lie in memory, all in one message of bytes; pickle has the rest.
    Those received share the memory of that message.
    """
    buffers = []
    pickled = pickle.dumps(mine, protocol=5, buffer_callback=buffers.append)
    parts = [pickled, *(buffer.raw() for buffer in buffers)]
    rank, world = rank_and_world()
    sizes = [None] * world  # bytes of the parts of each rank
    dist.all_gather_object(sizes, [len(part) for part in parts])

    most = max(places(each)[-1].stop for each in sizes)
    message = torch.empty(most, dtype=torch.uint8)
    for place, part in zip(places(sizes[rank]), parts, strict=True):
        message.numpy()[place] = np.frombuffer(part, dtype=np.uint8)
    received = torch.empty(world, most, dtype=torch.uint8)
    dist.all_gather(list(received), message)

    shares = []
    for line, each in zip(received.numpy(), sizes, strict=True):
        pickled, *arrays = (line[place] for place in places(each))
        shares.append(pickle.loads(pickled, buffers=arrays))
    return shares


def places(sizes: list[int]) -> list[slice]:
    """Where parts of so many bytes lie in a message: each at a multiple of 8, as numbers must."""
    ends = accumulate(-(-size // 8) * 8 for size in sizes)
    starts = [0, *ends][:-1]
    return [slice(start, start + size) for start, size in zip(starts, sizes, strict=True)]


def limit_nccl(group) -> None:
    """Between GPUs an hour's silence is a fault, and ends the run."""
    # torch has no public way to give two backends two limits.
    group._get_backend(torch.device("cuda"))._set_default_timeout(NCCL_LIMIT)


def end_ranks() -> None:
    """Leave the process group in order: all ranks come here, then its threads end.

    A rank that exits while another still works may be aborted by the threads it leaves behind.
    """
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.barrier()
        dist.destroy_process_group()


def on_first_rank(function: Callable, *arguments):
    """function(*arguments) on rank 0, and what it returned on every rank. All ranks call.

    Raises a user's mistake or a Stop of rank 0 on every rank: they leave with one message.
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
    """All ranks in one row; with several nodes a row for each, for HSDP."""
    world = dist.get_world_size()
    local = int(os.environ.get("LOCAL_WORLD_SIZE", world))
    if world == local:
        return init_device_mesh(this_device().type, (world,))
    mesh = init_device_mesh(
        this_device().type, (world // local, local), mesh_dim_names=("replicate", "shard")
    )
    if mesh.device_type == "cuda":
        for group in mesh.get_all_groups():
            limit_nccl(group)  # new groups have torch's own limit, ten minutes
    return mesh


def shard(model: torch.nn.Module, layers: list[torch.nn.Module], mesh: DeviceMesh) -> None:
    """FSDP2: a unit per decoder layer; embedding, norm and LM head stay with the root, `model`.

    On GPUs the computation is in bfloat16 and gradients are reduced in float32. FSDP averages
    gradients over ranks.
    """
    precision = MixedPrecisionPolicy()
    if mesh.device_type == "cuda":
        precision = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    for module in (*layers, model):
        fully_shard(module, mesh=mesh, mp_policy=precision)


def full_tensor(x: torch.Tensor) -> torch.Tensor:
    """The whole of a sharded tensor; all ranks call together."""
    return x.full_tensor() if isinstance(x, DTensor) else x
