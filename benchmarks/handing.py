"""What happens to sampled tokens before they are scored: ranks hand them round (`handing`).

Each rank has sampled its share of the responses; all need all of them, packed. `arrays` is what
rollout.py does: ranks.from_all_ranks sends token ids, log p and texts, packing.pack puts the ids
side by side. `lists` is the plain way: pickled Python numbers, packed one response at a time.

Seconds of the first rank's processor, which other work on the machine does not lengthen. Those of
gloo's threads are what the machine's own network takes between two processes.
"""

import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import distributed as dist

from benchmarks.timing import spread
from infra.errors import UserError
from infra.packing import Rollouts, pack
from infra.ranks import from_all_ranks, speaks, start_ranks
from studies.tables import table_line

RESPONSES = 4096
LENGTHS = (1425, 5700)  # tokens, each of all responses
LETTERS = 4  # of the text, a token
PROMPT = [3] * 200
END = 1
HEADER = """\
| responses | tokens each | lists, s | arrays, s | of it gloo's threads, s |
|---|---|---|---|---|"""


def from_arrays(samples: list[tuple[np.ndarray, np.ndarray, str]]) -> Rollouts:
    """samples: token ids, log p and the text of each of this rank's responses."""
    tokens, logprobs, texts = zip(*sum(from_all_ranks(samples), []), strict=True)
    return pack([PROMPT] * len(tokens), tokens, texts, [END], torch.device("cpu"), logprobs)


def from_lists(samples: list[tuple[list[int], np.ndarray, str]]) -> torch.Tensor:
    shares = [None] * dist.get_world_size()
    dist.all_gather_object(shares, samples)
    responses = [tokens for tokens, _, _ in sum(shares, [])]
    longest = max(len(response) for response in responses)
    ids = torch.full((len(responses), len(PROMPT) + longest), END)
    for i, response in enumerate(responses):
        sequence = PROMPT + response
        ids[i, : len(sequence)] = torch.tensor(sequence)
    return ids


def busy_seconds(function: Callable[[], object]) -> tuple[float, float]:
    """(seconds of the processor that one call takes, those of them outside this thread)."""
    start, start_here = time.process_time(), time.thread_time()
    function()
    seconds, here = time.process_time() - start, time.thread_time() - start_here
    return seconds, seconds - here


def handing(args) -> list[dict]:
    """Sampled tokens handed round and packed, as arrays and as lists; under torchrun."""
    rank, world = start_ranks()
    if world == 1:
        raise UserError(
            "one rank hands nothing round: torchrun --nproc_per_node 2 bench.py handing"
        )
    if speaks():
        print(HEADER)
    rows = []
    rng = np.random.default_rng(rank)
    for length in LENGTHS:
        tokens = rng.integers(2, 150_000, (RESPONSES // world, length), dtype=np.int32)
        logprobs = rng.standard_normal(tokens.shape, dtype=np.float32)
        texts = [LETTERS * length * "x" for _ in tokens]
        ways = {
            "lists": partial(from_lists, list(zip(tokens.tolist(), logprobs, texts, strict=True))),
            "arrays": partial(from_arrays, list(zip(tokens, logprobs, texts, strict=True))),
        }
        row = {"length": length, "lists": [], "arrays": [], "lists gloo": [], "arrays gloo": []}
        for _ in range(args.repetitions):
            for name, way in ways.items():
                seconds, gloo = busy_seconds(way)
                row[name].append(seconds)
                row[f"{name} gloo"].append(gloo)
        cells = [spread(row[name], 2) for name in ("lists", "arrays", "arrays gloo")]
        if speaks():
            print(table_line([RESPONSES, length, *cells]), flush=True)
        rows.append(row)
    return rows
