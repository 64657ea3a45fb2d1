"""Rebuilds the committed base models in toy/bases: `python -m toy.build [NAME ...]`.

No run or test needs this, because the folders are part of the repository. Use it after changing
the task or how bases are trained, and then measure the table in toy/README.md again. It takes 15
minutes for all bases, on one thread, because the number of threads changes the rounding of sums.
Another processor or PyTorch version gives different bytes.
"""

import shutil
import sys
from pathlib import Path

import torch

from toy.base import BASES, Base, save_base, train_base
from toy.code_base import NAME, train_code_base
from toy.code_tokenizer import build_tokenizer as build_code_tokenizer
from toy.tokenizer import build_tokenizer

# The bases for chains, in the order of the table in toy/README.md; the code toy has one base.
COMMITTED = [
    Base(5, 0.1, 1, regime="learn"),
    Base(12, 0.02, 1, regime="learn"),
    Base(5, 0.1, 4, regime="learn"),
    Base(5, 0.1, 4, regime="learn", zipf=True),
    Base(5, 0.1, 1, regime="learn-minus"),
    Base(5, 0.1, 17, regime="learn"),
    Base(5, 0.2, 1),
    Base(12, 0.06, 1),
]


def main(names: list[str], folder: Path = BASES) -> None:
    """Build the named bases, or all, in `folder`. Existing folders are replaced."""
    chains = {base.name: base for base in COMMITTED}
    known = [*chains, NAME]
    if not set(names) <= set(known):
        sys.exit(f"choose from {', '.join(known)}")
    torch.set_num_threads(1)
    for name in names or known:
        print(f"building {name}", flush=True)
        if name in chains:
            model, tokenizer = train_base(chains[name]), build_tokenizer(chains[name].vocabulary)
        else:
            model, tokenizer = train_code_base(), build_code_tokenizer()
        shutil.rmtree(folder / name, ignore_errors=True)
        save_base(model, folder / name, tokenizer)


if __name__ == "__main__":
    main(sys.argv[1:])
