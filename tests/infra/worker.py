"""Runs one rank of tests/infra/test_ranks.py, which compares several ranks with one.

    PYTHONPATH=.:tests torchrun tests/infra/worker.py FOLDER FLAGS...

This trains like train.py, in FOLDER. It saves to FOLDER/results.pt the token weights of every step,
the refusal that each rank received, and what the lines of docs/extending.md for a trainer of one's
own give.
"""

import re
import sys
from pathlib import Path
from unittest.mock import patch

import torch
from hashed_rewards import rewarded
from references import two_sides
from torch import distributed as dist

import delta
import train
from config import parse_config
from infra.errors import UserError
from infra.ranks import from_all_ranks, shared_by_ranks, start_ranks
from methods import Method

PAGE = Path("docs/extending.md").read_text()
(DROP_IN,) = re.findall(r"^```python\n(from infra.ranks import.*?)^```$", PAGE, re.M | re.S)


def steps_of(folder: Path, flags: list[str]) -> list[dict]:
    """Train in `folder`. Returns each step's tokens, token weights and this rank's rows."""
    seen = []
    checked_weights = Method.checked_weights

    def watched(method, tokens, v, cfg):
        weights = checked_weights(method, tokens, v, cfg)
        rows = sum(len(index) for index, _ in v.parts)
        seen.append({"token": tokens.token, "weights": weights, "rows": rows})
        return weights

    with patch.object(Method, "checked_weights", watched), rewarded():
        train.train(parse_config([*flags, "--output-dir", str(folder)]))
    return seen


def refusal() -> str:
    """The message that this rank receives when one rank refuses its share."""

    def share(items: list) -> list:
        if 7 in items:
            raise UserError("7 is refused")
        return items

    try:
        shared_by_ranks([4, 1, 7, 2], share)
    except UserError as error:
        return str(error)


def ported() -> torch.Tensor:
    """ρ A [61] by the page's lines. Each rank has some of the tokens."""
    h, A = (x.chunk(dist.get_world_size())[dist.get_rank()] for x in two_sides())
    known = vars(delta) | {"h": h, "logprob": -h[:, 0].abs(), "A": A.clone()}
    exec(DROP_IN, known)
    return torch.cat(from_all_ranks(known["A"]))


def main() -> None:
    folder, *flags = sys.argv[1:]
    start_ranks()
    rank = dist.get_rank()
    results = {
        "refusals": from_all_ranks(refusal()),
        "ported": ported(),
        "steps": steps_of(Path(folder), flags),  # ends the ranks
    }
    if rank == 0:
        torch.save(results, Path(folder, "results.pt"))


if __name__ == "__main__":
    main()
