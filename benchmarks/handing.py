"""What happens to sampled tokens before they are scored: ranks hand them round (`handing`).

In one process, so the network is not in it: pickled and read again, as between ranks, and packed.
`arrays` is what rollout.py does; `lists` of Python numbers, packed one response at a time, is what
it did before. Seconds of the processor, which other work on the machine does not lengthen.
"""

import pickle
import time
from collections.abc import Callable

import numpy as np
import torch

from benchmarks.timing import spread
from infra.packing import Rollouts, pack
from studies.tables import table_line

RESPONSES = 4096
LENGTHS = (1425, 5700)  # tokens, each of all responses
PROMPT = [3] * 200
END = 1
HEADER = "| responses | tokens each | lists, s | arrays, s |\n|---|---|---|---|"


def handed_round(samples: list) -> list:
    """The samples as another rank gets them."""
    return pickle.loads(pickle.dumps(samples))


def from_arrays(tokens: list[np.ndarray], logprobs: list[np.ndarray]) -> Rollouts:
    samples = handed_round(list(zip(tokens, logprobs, strict=True)))
    prompts = [PROMPT] * len(samples)
    texts = [""] * len(samples)
    arrays = [tokens for tokens, _ in samples]
    return pack(prompts, arrays, texts, [END], torch.device("cpu"), [x for _, x in samples])


def from_lists(tokens: list[list[int]], logprobs: list[np.ndarray]) -> torch.Tensor:
    samples = handed_round(list(zip(tokens, logprobs, strict=True)))
    longest = max(len(tokens) for tokens, _ in samples)
    ids = torch.full((len(samples), len(PROMPT) + longest), END)
    for i, (response, _) in enumerate(samples):
        sequence = PROMPT + response
        ids[i, : len(sequence)] = torch.tensor(sequence)
    return ids


def busy_seconds(function: Callable, *arguments) -> float:
    """Seconds of the processor that function(*arguments) takes."""
    start = time.process_time()
    function(*arguments)
    return time.process_time() - start


def handing(args) -> list[dict]:
    """Sampled tokens handed to another rank and packed, as arrays and as lists: seconds."""
    print(HEADER)
    rows = []
    rng = np.random.default_rng(0)
    for length in LENGTHS:
        tokens = list(rng.integers(2, 150_000, (RESPONSES, length), dtype=np.int32))
        logprobs = list(rng.standard_normal((RESPONSES, length), dtype=np.float32))
        lists = [each.tolist() for each in tokens]
        seconds = {"lists": [], "arrays": []}
        for _ in range(args.repetitions):
            seconds["lists"].append(busy_seconds(from_lists, lists, logprobs))
            seconds["arrays"].append(busy_seconds(from_arrays, tokens, logprobs))
        print(table_line([RESPONSES, length, *(spread(x, 2) for x in seconds.values())]))
        rows.append({"length": length, **seconds})
    return rows
