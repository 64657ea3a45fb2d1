"""The memory of an update under FSDP2, for test_plan.py.

The tensors and the process group are fake, so no GPU is needed.
"""

from functools import partial

import torch
from torch import distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM, PreTrainedConfig

import policy
from loading import decoder_layers


class EveryTokenAResponse(policy.Policy):
    """Policy.forward for responses without prompts: a mask has no known count on fake tensors."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.lm.base_model(input_ids=ids, use_cache=False).last_hidden_state.flatten(0, 1)
        head = [x.float() for x in self.lm.get_output_embeddings().parameters()]
        size = int(policy.BLOCK_SHARE * 80e9 / 4) // self.lm.config.vocab_size
        parts = []
        for block in zip(hidden.split(size), ids.flatten().split(size), strict=True):
            parts.append(checkpoint(self.block_outputs, *block, *head, use_reentrant=False)[0])
        return torch.cat(parts)


def peak_bytes(config: PreTrainedConfig, ranks: int, tokens: int) -> int:
    """The peak on one rank in an update with two micro-batches of one sequence each."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    mesh = dist.device_mesh.init_device_mesh("cpu", (ranks,))  # of real tensors
    with FakeTensorMode():
        return of_an_update(config, mesh, tokens)


def of_an_update(config: PreTrainedConfig, mesh: DeviceMesh, tokens: int) -> int:
    """The peak in bytes, in a fake mode."""
    lm = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    for layer in decoder_layers(lm):
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
    model = EveryTokenAResponse(lm)
    precision = MixedPrecisionPolicy(torch.bfloat16, torch.float32)  # as `shard` sets on GPUs
    for module in (*decoder_layers(lm), model):
        fully_shard(module, mesh=mesh, mp_policy=precision)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for p in model.parameters():  # as after the first step, which the tracker would miscount
        zeros = {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
        optimizer.state[p] = {"step": torch.zeros(()), **zeros}
    ids = torch.zeros(1, tokens, dtype=torch.long)
    tracker = FSDPMemTracker(model, optimizer)
    tracker.track_inputs((ids,))
    with tracker:
        for _ in range(2):  # during the second micro-batch, gradients already exist
            model(ids).sum().backward()
            tracker.reset_mod_stats()
    (snapshot,) = tracker.get_tracker_snapshot("peak").values()  # of one device
    return snapshot["Total"]
