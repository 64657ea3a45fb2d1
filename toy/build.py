"""Rebuilds the committed base models in toy/bases: `python -m toy.build`.

No run or test needs this, because the folders are part of the repository. Use it after changing
the task or how bases are trained, then measure the tables in toy/bases/README.md again.

    python -m toy.build                                  all of them, 15 minutes on one core
    python -m toy.build learn-k5-noise0.1-filler1-seed0  only this one
    python -m toy.build --to FOLDER                      in another folder, to compare

Training uses one thread, because the number of threads changes the rounding of sums. Another
processor or PyTorch version gives different bytes.
"""

import argparse
import shutil
from pathlib import Path

import torch

from toy.base import BASES, Base, save_base, train_base
from toy.code_base import code_base_name, train_code_base
from toy.code_tokenizer import build_tokenizer as build_code_tokenizer
from toy.tokenizer import build_tokenizer

# The bases for chains; the code toy has one base.
COMMITTED = [
    Base(5, 0.1, 1, regime="learn"),  # the default in train.py
    Base(12, 0.02, 1, regime="learn"),  # for studies: more steps, fewer errors per step
    Base(5, 0.1, 4, regime="learn"),  # more tokens that decide nothing
    Base(5, 0.1, 4, regime="learn", zipf=True),  # the same with many words, most of which are rare
    Base(5, 0.1, 1, regime="learn-minus"),  # a different mistake
    Base(5, 0.1, 17, regime="learn"),  # long responses: most tokens decide nothing
    Base(5, 0.2, 1),  # for notebooks and tests
    Base(12, 0.06, 1),  # for studies: many steps and few errors separate methods
    Base(12, 0.1, 1),  # the same with more errors, so there is more to gain
    Base(5, 0.2, 0),  # for the credit study: varies the share of tokens that decide nothing
    Base(5, 0.2, 4),
    Base(10, 0.06, 1),  # for comparing one step with TRL
]


def main(arguments: list[str] | None = None) -> None:
    """Build the bases named on the command line, or all. Existing folders are replaced."""
    chains = {base.name: base for base in COMMITTED}
    known = [*chains, code_base_name()]
    parser = argparse.ArgumentParser(
        prog="python -m toy.build",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", help=f"any of {', '.join(known)} (default: all)")
    parser.add_argument("--to", type=Path, default=BASES, help="parent folder (default: toy/bases)")
    options = parser.parse_args(arguments)
    for name in options.names:
        if name not in known:
            parser.error(f"unknown base {name}: choose from {', '.join(known)}")

    torch.set_num_threads(1)
    for name in options.names or known:
        print(f"building {name}", flush=True)
        if name in chains:
            model = train_base(chains[name])
            tokenizer = build_tokenizer(chains[name].vocabulary)
        else:
            model, tokenizer = train_code_base(), build_code_tokenizer()
        folder = options.to / name
        if folder.exists():
            shutil.rmtree(folder)
        save_base(model, folder, tokenizer)


if __name__ == "__main__":
    main()
