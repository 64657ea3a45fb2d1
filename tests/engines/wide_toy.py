"""The toy's committed base with heads of 32 numbers, which vLLM's attention on a CPU needs.

Its function is that of the base, whose heads have 16 numbers, up to rounding. A rotary pair of the
base keeps its frequency: pair j of 8 turns by θ^(-2j/16) per position, like pair 2j of 16. The
other pairs are 0. The norms of q and k are over twice as many numbers, half of them 0, and
attention divides by √32 instead of √16: q k would grow by 2 / √2, which k's norm takes back.
"""

from pathlib import Path

import torch
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

import toy


@torch.no_grad()
def save_wide_toy(folder: Path, **config) -> Path:
    """Write the widened base of `train.py --model toy` into the folder. Returns the folder.

    config: other entries of its config; with tied embeddings its function is another.
    """
    narrow = toy.base_folder(noise=0.1, regime="learn")
    base = Qwen3ForCausalLM.from_pretrained(narrow, dtype=torch.float32)
    wide = Qwen3ForCausalLM(Qwen3Config(**base.config.to_dict() | {"head_dim": 32} | config))
    pairs = 2 * torch.arange(8)
    at = torch.cat([pairs, 16 + pairs])  # the 16 numbers of a head among the 32
    for name, parameter in wide.named_parameters():
        old = base.get_parameter(name)
        kind = name.split(".")[-2]
        if kind in ("q_proj", "k_proj", "v_proj"):
            parameter.zero_().unflatten(0, (-1, 32))[:, at] = old.unflatten(0, (-1, 16))
        elif kind == "o_proj":
            parameter.zero_().unflatten(1, (-1, 32))[:, :, at] = old.unflatten(1, (-1, 16))
        elif kind in ("q_norm", "k_norm"):
            parameter.zero_()[at] = old if kind == "q_norm" else old / 2**0.5
        else:
            parameter.copy_(old)
    wide.generation_config = base.generation_config
    wide.save_pretrained(folder)
    AutoTokenizer.from_pretrained(narrow).save_pretrained(folder)
    return folder
