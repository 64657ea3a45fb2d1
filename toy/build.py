"""Rebuilds the committed base models in toy/bases: `python -m toy.build`.

No run or test needs this, because the folders are part of the repository. Use it after changing
the task or how bases are trained, and then measure the table in toy/README.md again. It takes ten
minutes on one thread. Other processors and PyTorch versions round differently: other bytes.
"""

import shutil
from pathlib import Path

import numpy as np
import torch
from transformers import Qwen3ForCausalLM

from toy import code_task, code_tokenizer
from toy.base import BASES, CODE_BASE, Base, build_model, fit, save_base, train_base
from toy.tokenizer import build_tokenizer

# The bases for chains, in the order of the table in toy/README.md; the code toy has one base.
COMMITTED = [Base(5, 0.1, regime="learn"), Base(5, 0.2, regime="sharpen")]


def train_code_base() -> Qwen3ForCausalLM:
    """The code toy's base: it confuses min and max, and one other token in ten is random."""
    rng = np.random.default_rng([0, 1])
    torch.manual_seed(0)
    model = build_model(vocabulary=len(code_tokenizer.VOCABULARY))

    def draw() -> tuple[list[str], list[str]]:
        asked = code_task.problems(64, seed=int(rng.integers(2**31)))
        texts = [each["problem"] for each in asked]
        return texts, [code_task.demonstration(text, rng, 0.1) for text in texts]

    return fit(model, code_tokenizer.build_tokenizer(), draw, steps=1500)


def main(folder: Path = BASES) -> None:
    """Build every base model in `folder`. Existing folders are replaced."""
    torch.set_num_threads(1)
    for base in COMMITTED:
        replace(folder / base.name, train_base(base), build_tokenizer())
    replace(folder / CODE_BASE, train_code_base(), code_tokenizer.build_tokenizer())


def replace(folder: Path, model, tokenizer) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    save_base(model, folder, tokenizer)
    print(f"built {folder}", flush=True)


if __name__ == "__main__":
    main()
