"""Makes the committed base models of toy/bases again: `python -m toy.build`.

No run and no test needs this: the folders are part of the repository. Use it after a change to
the task or to the training of the base, and then measure anew what toy/bases/README.md states.

    python -m toy.build                                  all of them, 15 minutes on one core
    python -m toy.build learn-k5-noise0.1-filler1-seed0  only this one
    python -m toy.build --to FOLDER                      elsewhere, to compare

Training runs on one thread, because the number of threads changes how sums are rounded. Other
processors and other versions of PyTorch still give other bytes.
"""

import argparse
import shutil
from pathlib import Path

import torch

from toy.base import BASES, Base, save_base, train_base
from toy.code_base import code_base_name, train_code_base
from toy.code_tokenizer import build_tokenizer as build_code_tokenizer
from toy.tokenizer import build_tokenizer

# Of the chains; the code toy has one base.
COMMITTED = [
    Base(5, 0.1, 1, regime="learn"),  # the default of train.py
    Base(12, 0.02, 1, regime="learn"),  # the studies': more steps, and fewer errors in a step
    Base(5, 0.1, 4, regime="learn"),  # more tokens that decide nothing
    Base(5, 0.1, 4, regime="learn", zipf=True),  # the same with many words, most of them rare
    Base(5, 0.1, 1, regime="learn-minus"),  # another mistake
    Base(5, 0.1, 17, regime="learn"),  # long responses: most tokens decide nothing
    Base(5, 0.2, 1),  # the notebooks' and the tests'
    Base(12, 0.06, 1),  # the studies': many steps and few errors tell methods apart
    Base(12, 0.1, 1),  # the same with more errors: it has more to gain
    Base(5, 0.2, 0),  # the study of credit, which varies the share of tokens that decide nothing
    Base(5, 0.2, 4),
    Base(10, 0.06, 1),  # the comparison of a step with TRL's
]


def main(arguments: list[str] | None = None) -> None:
    """Builds the bases named on the command line, or all; an existing folder is replaced."""
    chains = {base.name: base for base in COMMITTED}
    known = [*chains, code_base_name()]
    parser = argparse.ArgumentParser(
        prog="python -m toy.build",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", help=f"which of {', '.join(known)} (default: all)")
    parser.add_argument("--to", type=Path, default=BASES, help="parent folder (default: toy/bases)")
    options = parser.parse_args(arguments)
    for name in options.names:
        if name not in known:
            parser.error(f"no base is named {name}: choose from {', '.join(known)}")

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
