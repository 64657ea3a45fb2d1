"""One rank of tests/infra/test_ranks.py: does on some ranks what the test then compares with one.

    torchrun tests/infra/worker.py FOLDER FLAGS...

Trains as train.py does with DAPO, with DelTA and with DelTA's proxy of mean zero, in FOLDER/dapo,
FOLDER/delta and FOLDER/surprise. Saves to FOLDER/results.pt what the methods saw and answered in
every step, and DelTA's coefficients of rows that are spread over the ranks.
"""

import dataclasses
import os
import sys
from pathlib import Path

# Before torch: started as a script, Python looks in tests/ only.
sys.path.insert(0, str(Path(__file__).parent.parent.parent))

import torch
from references import two_sides
from torch import distributed as dist

import train
from ablations import VARIANTS
from delta import delta_coefficients
from infra.ranks import start_ranks
from infra.rows import Rows, all_finite
from methods import METHODS


def watched(method, seen: list[dict]):
    """The method, which notes what it sees and answers."""

    def weights(tokens, flags):
        answer = method.weights(tokens, flags)
        seen.append(
            {
                "token": tokens.token,
                "logprob": tokens.logprob,
                "weights": answer,
                "rows": 0 if tokens.kept is None else len(tokens.kept.values),
            }
        )
        return answer

    return dataclasses.replace(method, weights=weights)


def train_watched(name: str, folder: Path, flags: list[str]) -> list[dict]:
    """Train in `folder` with a method; what it saw and answered, one entry a step."""
    seen = []
    method = METHODS[name]
    METHODS[name] = watched(method, seen)
    command = [*flags, "--method", name, "--output-dir", str(folder)]
    train.train(train.parse_config(command))
    METHODS[name] = method
    return seen


def spread(v: torch.Tensor) -> Rows:
    """The rows of v that this rank holds: every world-th."""
    mine = torch.arange(dist.get_rank(), len(v), dist.get_world_size())
    return Rows(v[mine], mine, len(v))


def coefficients_of_spread_rows() -> dict[str, torch.Tensor]:
    """DelTA's coefficients of rows spread over the ranks, for K = 2 and every variant."""
    v, advantage = two_sides(seed=4)
    return {
        variant: delta_coefficients(spread(v), advantage, K=2, pieces=VARIANTS[variant])
        for variant in VARIANTS
    }


def coefficients_of_own_rows() -> list[torch.Tensor]:
    """Of each rank DelTA's coefficients of a plain tensor, which is another one on each."""
    v, advantage = two_sides(seed=10 + dist.get_rank())
    ours = delta_coefficients(v, advantage, K=2)
    told = [None] * dist.get_world_size()
    dist.all_gather_object(told, ours)
    return told


def one_broken_row_is_seen_by_all() -> bool:
    """Whether every rank learns of a NaN in the last row, which one of them holds."""
    v, _ = two_sides(seed=4)
    v[-1, 0] = torch.nan
    seen = torch.tensor(float(not all_finite(spread(v), torch.device("cpu"))))
    dist.all_reduce(seen, dist.ReduceOp.MIN)
    return bool(seen)


def main() -> None:
    folder, *flags = sys.argv[1:]
    folder = Path(folder)
    start_ranks()
    results = {
        "dapo": train_watched("dapo", folder / "dapo", flags),
        "delta": train_watched("delta", folder / "delta", flags),
        "surprise": train_watched("delta", folder / "surprise", [*flags, "--proxy", "surprise"]),
        "coefficients": coefficients_of_spread_rows(),
        "own coefficients": coefficients_of_own_rows(),
        "broken row seen": one_broken_row_is_seen_by_all(),
    }
    if dist.get_rank() == 0:
        torch.save(results, folder / "results.pt")


if __name__ == "__main__":
    main()
    if "RANK" in os.environ:
        dist.destroy_process_group()
