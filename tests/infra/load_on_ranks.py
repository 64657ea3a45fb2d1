"""A rank that loads a model and compares its weights and rows with from_pretrained.

    torchrun ... load_on_ranks.py FOLDER RANKS_PER_NODE

Every rank prints one line: the largest weight difference, whether the log-probabilities
agree within 1e-4, and the number of device mesh dimensions.
"""

import os
import sys

import torch
from infra.loading import load_policy, policy_logprobs, reference_logprobs
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM

from infra.ranks import end_ranks, full_tensor, start_ranks


def main() -> None:
    folder = sys.argv[1]
    os.environ["LOCAL_WORLD_SIZE"] = sys.argv[2]
    start_ranks()
    policy, _ = load_policy(folder)
    lm = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    expected = dict(lm.named_parameters())
    of_weights = 0.0
    for name, parameter in policy.lm.named_parameters():
        assert isinstance(parameter, DTensor)
        assert parameter.dtype == torch.float32
        apart = (full_tensor(parameter) - expected[name]).abs().max()
        of_weights = max(of_weights, float(apart))
    with torch.no_grad():
        logprobs = policy_logprobs(policy)
    apart = float((logprobs - reference_logprobs(folder, lm, torch.float32)).abs().max())
    said = f"weights {of_weights:g} log p {apart < 1e-4} mesh {parameter.device_mesh.ndim}\n"
    sys.stdout.write(said)  # a single write, because the ranks share a pipe
    end_ranks()


if __name__ == "__main__":
    main()
