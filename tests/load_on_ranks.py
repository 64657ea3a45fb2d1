"""A rank that loads a model and compares its weights and log p with from_pretrained's.

    torchrun ... load_on_ranks.py FOLDER

Every rank prints one line: the refusal, or whether it read the files, the largest difference of a
weight, and whether log p agrees within 1e-4.
"""

import sys
from unittest.mock import patch

import torch
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM

import loading
from infra.errors import UserError
from infra.ranks import end_ranks, full_tensor, start_ranks


def loaded(folder: str) -> str:
    """The line of this rank."""
    try:
        with patch.object(loading, "from_files", wraps=loading.from_files) as read:
            policy, _ = loading.load_policy(folder)
    except UserError as error:
        return str(error)
    lm = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    apart = 0.0
    for (key, ours), expected in zip(policy.lm.named_parameters(), lm.parameters(), strict=True):
        assert isinstance(ours, DTensor), key
        apart = max(apart, float((full_tensor(ours) - expected).abs().max()))
    ids = torch.arange(2, 12)[None]
    with torch.no_grad():
        logprob = policy(ids, ids > 2).logprob
        expected = lm(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None]).squeeze(1)
    close = torch.allclose(logprob, expected, rtol=0, atol=1e-4)
    return f"read {read.called}, weights {apart:g}, log p {close}"


if __name__ == "__main__":
    start_ranks()
    sys.stdout.write(loaded(sys.argv[1]) + "\n")  # a single write, because the ranks share a pipe
    end_ranks()
