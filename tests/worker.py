"""Run by test_ranks.py under torchrun: trains as train.py does and saves what the method saw and answered in every step.

    torchrun tests/worker.py SAVE_TO FLAGS...
"""
import sys
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent.parent))

import grpo  # noqa: E402
import train  # noqa: E402

cfg, seen = train.parse_config(sys.argv[2:]), []
original = grpo.METHODS[cfg.method]


def spy(tokens, **flags):
    weights = original(tokens, **flags)
    seen.append({"token": tokens.token, "weights": weights, "logprob": tokens.logprob, "rows": len(tokens.hidden)})
    return weights


grpo.METHODS[cfg.method] = spy
train.train(cfg)
if dist.get_rank() == 0:
    torch.save(seen, sys.argv[1])
