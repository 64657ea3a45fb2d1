"""What left padding costs where caches are full, by infra/flight.py without a model (`padding`).

A rank's 256 responses to prompts of 500 tokens, and caches of 248,000 tokens: what Qwen3-8B has on
each of 8 GPUs of 80 GB. Lengths are lognormal (σ = 0.8), or one in ten is eight times as long as
the others; none is longer than 20,480 tokens.
"""

from collections import deque
from unittest.mock import patch

import numpy as np
import torch

from infra import flight
from infra.flight import Flight, Response, width
from studies.tables import table_line

RESPONSES = 256
PROMPT = 500  # tokens
LONGEST = 20480
CACHE_TOKENS = 248_000
CHUNK = 64
MEANS = (1000, 4000, 8000)

HEADER = """\
| lengths | mean, tokens | columns over tokens | responses in flight, mean \
| tokens whose cache is computed again, a sampled token |
|---|---|---|---|---|"""


def padding(args) -> list[dict]:
    """Print the table of RESULTS.md."""
    print(HEADER)
    rows = []
    for mean in MEANS:
        for name, lengths in mixes(mean).items():
            row = {"lengths": name, **flown(lengths)}
            print(table_row(row), flush=True)
            rows.append(row)
    return rows


def mixes(mean: int) -> dict[str, list[int]]:
    """Two mixes of response lengths of about this mean."""
    normal = np.random.default_rng(0).normal(size=RESPONSES)
    lognormal = mean * np.exp(0.8 * normal - 0.8**2 / 2)
    short = mean * 10 // 17
    tail = np.array([8 * short if i % 10 == 0 else short for i in range(RESPONSES)])
    return {
        "lognormal": lognormal.clip(1, LONGEST).astype(int).tolist(),
        "one in ten long": tail.clip(1, LONGEST).tolist(),
    }


def nothing(*_) -> None:
    """In the place of what handles caches."""


def flown(lengths: list[int]) -> dict:
    """Sample responses of these lengths, as far as Flight is concerned."""
    responses = []
    for length in lengths:
        limit = PROMPT + length
        responses.append(Response(torch.zeros(PROMPT), PROMPT, limit, numbers=no_numbers))
    some = Flight(deque(responses), RESPONSES, CACHE_TOKENS, CHUNK)

    columns = tokens = chunks = rows = again = 0
    handled = dict.fromkeys(("keep", "merged", "prefill", "let_grow"), nothing)
    with patch.multiple(flight, **handled):
        while not all(response.finished for response in responses):
            before = set(map(id, some.responses))
            some.change(None)
            arrived = [each for each in some.responses if id(each) not in before]
            again += sum(len(each) for each in arrived if each.new)
            columns += len(some.responses) * width(some.responses)
            tokens += sum(map(len, some.responses))
            rows += len(some.responses)
            chunks += 1
            for each in some.responses:
                each.append(torch.ones(CHUNK), torch.zeros(CHUNK), ends=[])
    return {
        "mean": sum(lengths) / len(lengths),
        "waste": columns / tokens,
        "in_flight": rows / chunks,
        "again": again / sum(lengths),
    }


def no_numbers() -> np.ndarray:
    return np.zeros(0)


def table_row(row: dict) -> str:
    """A line of the table."""
    return table_line(
        [
            row["lengths"],
            f"{row['mean']:.0f}",
            f"{row['waste']:.2f}",
            f"{row['in_flight']:.0f}",
            f"{row['again']:.2f}",
        ]
    )
