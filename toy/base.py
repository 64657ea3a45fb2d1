"""The toy's base models: small Qwen3 models that know the format but err in the arithmetic.

Reinforcement learning needs a model that is sometimes right. Each of these was trained from scratch
on demonstrations with errors, by commit d9add26 (`python -m toy.build`). The models are committed,
so every machine starts from the same weights. They are Hugging Face folders in float16, and are
read as float32 here. README.md has their numbers.
"""

from pathlib import Path

import torch
from transformers import AutoTokenizer, PreTrainedTokenizerFast, Qwen3ForCausalLM

HERE = Path(__file__).parent / "bases"
BASES = {  # --toy-regime, or `code` for the toy of programs -> folder
    "learn": HERE / "learn-k5-noise0.1-seed0",
    "sharpen": HERE / "sharpen-k5-noise0.2-seed0",
    "code": HERE / "learn-code-noise0.1-seed0",
}


def base_model(regime: str = "sharpen") -> tuple[Qwen3ForCausalLM, PreTrainedTokenizerFast]:
    """A base model in float32, and its tokenizer. regime: a key of BASES."""
    model = Qwen3ForCausalLM.from_pretrained(BASES[regime], dtype=torch.float32)
    return model.eval(), AutoTokenizer.from_pretrained(BASES[regime])
