"""One rank of tests/infra/test_ranks.py, which compares several ranks with one.

    torchrun tests/infra/worker.py FOLDER FLAGS...

Trains like train.py with DAPO, with DelTA and with DelTA's zero-mean proxy, in FOLDER/dapo,
FOLDER/delta and FOLDER/surprise. Saves to FOLDER/results.pt the inputs and outputs of the methods
in every step, DelTA's coefficients for rows distributed across ranks, objects exchanged by the
ranks, and responses of known lengths, dealt in two ways.
"""

import dataclasses
import os
import sys
from pathlib import Path

# Before torch: only the script's own folder is on the path.
sys.path.insert(0, str(Path(__file__).parent.parent.parent))

import numpy as np
import torch
from references import two_sides
from torch import distributed as dist

import ablations
import rollout
import train
from ablations import VARIANTS
from benchmarks.scripted import (
    END_TOKEN,
    GROUP,
    UNLIMITED,
    random_model,
    scripted_jobs,
    scripted_lengths,
)
from delta import delta_coefficients
from infra.errors import UserError
from infra.ranks import from_all_ranks, shared_by_ranks, start_ranks
from infra.rows import Rows, all_finite
from methods import METHODS


def watched(method, seen: list[dict]):
    """The method, changed to record its inputs and outputs in `seen`."""

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
    """Train in `folder` with a method. Returns its inputs and outputs, one entry per step."""
    seen = []
    cfg = train.parse_config([*flags, "--method", name, "--output-dir", str(folder)])
    train.train(cfg, watched(ablations.configured(METHODS[name], cfg), seen))
    return seen


def spread(v: torch.Tensor) -> Rows:
    """The rows of v that this rank holds: every world-th row."""
    mine = torch.arange(dist.get_rank(), len(v), dist.get_world_size())
    return Rows(v[mine], mine, len(v))


def coefficients_of_spread_rows() -> dict[str, torch.Tensor]:
    """DelTA's coefficients for rows distributed across ranks, for K = 2 and every variant."""
    v, advantage = two_sides(seed=4)
    return {
        variant: delta_coefficients(spread(v), advantage, K=2, pieces=VARIANTS[variant])
        for variant in VARIANTS
    }


def coefficients_of_own_rows() -> list[torch.Tensor]:
    """Each rank's DelTA coefficients for a plain tensor that differs on every rank."""
    v, advantage = two_sides(seed=10 + dist.get_rank())
    ours = delta_coefficients(v, advantage, K=2)
    told = [None] * dist.get_world_size()
    dist.all_gather_object(told, ours)
    return told


def one_broken_row_is_seen_by_all() -> bool:
    """Whether every rank detects a NaN in the last row, which one rank holds."""
    v, _ = two_sides(seed=4)
    v[-1, 0] = torch.nan
    seen = torch.tensor(float(not all_finite(spread(v), torch.device("cpu"))))
    dist.all_reduce(seen, dist.ReduceOp.MIN)
    return bool(seen)


def sent_round() -> list[list]:
    """Every rank's arrays, numbers and errors, as this rank receives them."""
    rank = dist.get_rank()
    odd = np.arange(3 + rank) % 2 == 0  # its size in bytes is not a multiple of 8
    numbers = np.full((2, 1 + rank), 0.5)
    shares = from_all_ranks([odd, odd[:0], numbers, rank, UserError("ä")])
    told = []
    for *arrays, said, error in shares:
        assert all(array.flags.aligned for array in arrays)
        told.append([*(array.tolist() for array in arrays), said, repr(error)])
    return told


LENGTHS = 4 * [5] + 4 * [60] + 4 * [7] + 4 * [90]  # four responses to each of four prompts
IN_FLIGHT = 2


def dealt(groups: bool) -> tuple[list[list[int]], list[int]]:
    """(responses with LENGTHS, dealt by groups or one by one; each rank's forward passes)."""
    lm = random_model(64, vocabulary=40)
    counted = []
    lm.register_forward_hook(lambda *_: counted.append(1))  # the prefill bypasses it
    sampling = rollout.Sampling(max(LENGTHS), in_flight=IN_FLIGHT, cache_tokens=UNLIMITED)
    jobs = scripted_jobs(len(LENGTHS))

    def of_jobs(mine: list) -> list:
        return [sample.tokens.tolist() for sample in generate(mine)]

    def of_groups(mine: list) -> list:
        tokens = of_jobs(sum(mine, []))
        return [tokens[i : i + GROUP] for i in range(0, len(tokens), GROUP)]

    def generate(mine: list) -> list:
        return rollout.generate(lm, mine, [END_TOKEN], sampling)

    with scripted_lengths(LENGTHS):
        if groups:
            in_groups = [jobs[i : i + GROUP] for i in range(0, len(jobs), GROUP)]
            tokens = sum(shared_by_ranks(in_groups, of_groups), [])
        else:
            tokens = shared_by_ranks(jobs, of_jobs)
    return tokens, from_all_ranks(len(counted))


def main() -> None:
    folder, *flags = sys.argv[1:]
    folder = Path(folder)
    start_ranks()
    control = [*flags, "--delta-variant", "no_centroids", "--proxy", "centred"]
    results = {
        "dapo": train_watched("dapo", folder / "dapo", flags),
        "delta": train_watched("delta", folder / "delta", flags),
        "control": train_watched("delta", folder / "control", control),
        "coefficients": coefficients_of_spread_rows(),
        "own coefficients": coefficients_of_own_rows(),
        "broken row seen": one_broken_row_is_seen_by_all(),
        "sent round": sent_round(),
        "dealt groups": dealt(groups=True),
        "dealt responses": dealt(groups=False),
    }
    if dist.get_rank() == 0:
        torch.save(results, folder / "results.pt")


if __name__ == "__main__":
    main()
    if "RANK" in os.environ:
        dist.destroy_process_group()
