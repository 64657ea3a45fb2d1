"""Peak bytes during an update for a Qwen3 size under FSDP2; run by test_plan.py.

    python tests/benchmarks/fake_ranks.py SIZE LAYERS RANKS SEQUENCES TOKENS

prints the peak on one of RANKS GPUs, for two micro-batches of SEQUENCES x TOKENS each through the
first LAYERS layers. The tensors and the process group are fake, so no GPU is needed.
"""

import sys

import torch
from fake_sampler import first_layers
from infra.head import token_logprobs
from infra.policy import Policy, TokenRows, decoder_layers, recompute_in_backward
from torch import distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoModelForCausalLM

from infra import head, ranks


class EveryTokenAResponse(Policy):
    """A policy that treats every token as a response token.

    Policy.forward selects the response tokens, whose number is unknown for fake tensors.
    """

    def forward(self, ids: torch.Tensor) -> TokenRows:
        states = self.lm.base_model(input_ids=ids, use_cache=False).last_hidden_state  # [B, T, H]
        hidden = states.flatten(0, 1)  # [N, H]
        token = ids.flatten()  # [N]
        logprob, *means = token_logprobs(hidden, self.lm_head(), token, with_means=False)
        return TokenRows(logprob, *means, hidden.detach().clone(), token)


def precision_of_gpus() -> MixedPrecisionPolicy:
    """The precision used by `shard` on GPUs."""
    return MixedPrecisionPolicy(torch.bfloat16, torch.float32)


def sharded_policy(size: str, layers: int, mesh: DeviceMesh) -> Policy:
    """The policy that load_policy makes on GPUs, with fake tensors."""
    config = first_layers(size, layers)
    lm = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    layers = decoder_layers(lm)
    recompute_in_backward(layers)
    policy = EveryTokenAResponse(lm)
    ranks.MixedPrecisionPolicy = precision_of_gpus  # the mesh consists of CPUs
    ranks.shard(policy, layers, mesh)
    return policy


def adam_with_moments(policy: Policy) -> torch.optim.Optimizer:
    """AdamW as it is after the first step. The tracker would miscount a real step."""
    optimizer = torch.optim.AdamW(policy.parameters(), fused=True)
    for p in policy.parameters():
        optimizer.state[p] = {
            "step": torch.zeros(()),
            "exp_avg": torch.zeros_like(p),
            "exp_avg_sq": torch.zeros_like(p),
        }
    return optimizer


def peak_bytes(size: str, layers: int, sequences: int, tokens: int) -> int:
    """The peak memory of one rank in bytes."""
    head.LOGIT_BLOCK_CPU = head.LOGIT_BLOCK_GPU  # as on GPUs
    mesh = ranks.device_mesh()  # made with real tensors
    with FakeTensorMode():
        policy = sharded_policy(size, layers, mesh)
        ids = torch.zeros(sequences, tokens, dtype=torch.long)
        tracker = FSDPMemTracker(policy, adam_with_moments(policy))
        tracker.track_inputs((ids,))
        with tracker:
            for _ in range(2):  # during the second micro-batch, gradients already exist
                policy(ids).logprob.sum().backward()
                tracker.reset_mod_stats()

    (snapshot,) = tracker.get_tracker_snapshot("peak").values()  # of one device
    return snapshot["Total"]


def main() -> None:
    size = sys.argv[1]
    layers, world, sequences, tokens = (int(argument) for argument in sys.argv[2:])
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
    print(peak_bytes(size, layers, sequences, tokens))


if __name__ == "__main__":
    main()
