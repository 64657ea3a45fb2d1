"""Run by test_memory.py: peak bytes of an update of a Qwen3 size under FSDP2, on fake tensors and a fake process group (no memory needed).

    python tests/fake_ranks.py SIZE RANKS ROWS TOKENS_A_ROW
"""
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoModelForCausalLM

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.memory import qwen3  # noqa: E402
from policy import Policy, TokenLogprobs, TokenRows, device_mesh, shard  # noqa: E402


class EveryTokenAResponse(Policy):
    """Policy.forward without the selection of response tokens, whose number fake tensors cannot know."""

    def forward(self, ids):
        hidden = self.lm.base_model(input_ids=ids, use_cache=False).last_hidden_state.flatten(0, 1)
        return TokenRows(*TokenLogprobs.apply(hidden, self.lm.get_output_embeddings().weight, ids.flatten(), 1.0, False), hidden.detach())


size, world, rows, width = sys.argv[1], *map(int, sys.argv[2:])
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
mesh = device_mesh()
with FakeTensorMode():
    lm = AutoModelForCausalLM.from_config(qwen3(size), dtype=torch.float32).eval()
    lm.activation_checkpointing_enable({"use_reentrant": False})
    lm.base_model.layers.train()
    policy = EveryTokenAResponse(lm)
    shard(policy, mesh, bf16=True)
    optimizer = torch.optim.AdamW(policy.parameters(), fused=True)
    for p in policy.parameters():  # what its first step would make; a step inside the tracker is counted wrongly
        optimizer.state[p] = {"step": torch.zeros(()), "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
    ids = torch.zeros(rows, width, dtype=torch.long)
    tracker = FSDPMemTracker(policy, optimizer)
    tracker.track_inputs((ids,))
    with tracker:
        for _ in range(2):  # the second micro-batch meets the first one's gradients
            policy(ids).logprob.sum().backward()
            tracker.reset_mod_stats()
(snapshot,) = tracker.get_tracker_snapshot("peak").values()
print(snapshot["Total"])
