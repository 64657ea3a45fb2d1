"""The code toy's base model: a small Qwen3 that writes one-line functions and confuses min and max.

The model is trained like the other bases (toy/base.py), and is committed.
"""

from pathlib import Path

import numpy as np
import torch
from transformers import Qwen3ForCausalLM

from toy.base import BASES, build_model, fit
from toy.code_task import demonstration, problems
from toy.code_tokenizer import VOCABULARY, build_tokenizer

NAME = "learn-code-noise0.1-seed0"
NOISE = 0.1


def train_code_base(steps: int = 1500, batch: int = 64) -> Qwen3ForCausalLM:
    """Supervised training from scratch on fresh noisy demonstrations, a few minutes on one core.

    batch: demonstrations per step. torch's global random state does not change.
    """
    rng = np.random.default_rng([0, 1])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build_model(vocabulary=len(VOCABULARY))

    def draw() -> tuple[list[str], list[str]]:
        texts = [p["problem"] for p in problems(batch, seed=int(rng.integers(2**31)))]
        return texts, [demonstration(text, rng, NOISE) for text in texts]

    return fit(model, build_tokenizer(), draw, steps)


def code_base_folder() -> Path:
    """The base model's committed Hugging Face folder."""
    return BASES / NAME
