"""The processes of a run: who they are, and how parameters are spread over them.

Under torchrun every GPU has a process, its *rank*; without it there is one rank, so that one path
serves all. Shards lie inside a node; several nodes hold copies (HSDP).
"""

import os
from datetime import timedelta

import torch
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor


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


def start_ranks() -> tuple[int, int]:
    """Start the process group, of one rank without torchrun; (rank, number of ranks)."""
    if dist.is_initialized():
        return rank_and_world()

    if "RANK" in os.environ:
        store, rank, world = next(dist.rendezvous("env://"))
    else:
        store, rank, world = dist.HashStore(), 0, 1

    # torchrun's store outlives a restart: the new ranks must not meet the addresses of dead ones.
    store = dist.PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)

    backend = "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(this_device())
        backend = "cpu:gloo,cuda:nccl"

    # Ranks that evaluate may finish hours apart, and wait for each other without complaint.
    dist.init_process_group(
        backend, store=store, rank=rank, world_size=world, timeout=timedelta(days=7)
    )
    return rank, world


def end_ranks() -> None:
    """Leave the process group in order: all ranks come here, then its threads end.

    A rank that exits while another still works may be aborted by the threads it leaves behind.
    """
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.barrier()
        dist.destroy_process_group()


def device_mesh() -> DeviceMesh:
    """All ranks in one row; with several nodes a row for each, for HSDP."""
    world = dist.get_world_size()
    local = int(os.environ.get("LOCAL_WORLD_SIZE", world))
    if world == local:
        return init_device_mesh(this_device().type, (world,))
    return init_device_mesh(
        this_device().type, (world // local, local), mesh_dim_names=("replicate", "shard")
    )


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
