"""Simulates how long sampling takes. infra/flight.py decides which responses are in flight.

Sampling one token for every response in flight takes the time needed to read the weights and the
KV caches from memory. Adding a response takes the time needed to compute its KV cache. Lengths are
log-normal over prompts, log-normal over the responses to each prompt, and capped.
"""

import math
import statistics
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from infra.flight import Flight, cache_bytes, width
from transformers import PreTrainedConfig

from benchmarks.sizes import HALF, sizes_of
from rollout import CHUNK

SPREAD_OF_PROMPTS, SPREAD_IN_GROUP = 0.6, 0.45  # standard deviations of log length

BANDWIDTH = 3.35e12  # H100 memory, bytes per second
PEAK_FLOP = 989e12  # H100, dense bfloat16 FLOP per second
REACHED = 0.7  # share of BANDWIDTH that sampling reaches
REACHED_FLOP = 0.4  # share of PEAK_FLOP that a forward pass reaches
PROMPT = 200  # tokens
LAUNCH = 0.004  # seconds per token for launches, while no memory is read


@dataclass(frozen=True)
class Sampler:
    """A sampler's model and limits."""

    multiplying: int  # parameters in matrix products, two bytes each
    cache_bytes: int  # keys and values for one token
    in_flight: int  # responses at once
    cache_tokens: int  # in the caches at once
    prompt: int = PROMPT  # tokens
    bandwidth: float = BANDWIDTH

    def seconds(self, passes: int, count: int, columns: int) -> float:
        """Seconds for `passes` new tokens in each of `count` responses, padded to `columns`."""
        read = 2 * self.multiplying + count * columns * self.cache_bytes
        return passes * (LAUNCH + read / (REACHED * self.bandwidth))

    def prefill_seconds(self, tokens: int) -> float:
        """Seconds to compute the caches of `tokens` tokens; attention is left out."""
        return 2 * self.multiplying * tokens / (REACHED_FLOP * PEAK_FLOP)


@dataclass(eq=False)
class Simulated:
    """A response of known length, with the interface that infra/flight.py expects."""

    length: int
    prompt: int  # its index
    prompt_tokens: int
    new: int = 0
    finished: bool = False

    def __len__(self) -> int:
        return self.prompt_tokens + self.new

    def grow(self) -> int:
        """Add a chunk, or the rest of the response. Returns the number of new tokens."""
        before = self.new
        self.new = min(self.new + CHUNK, self.length)
        self.finished = self.new == self.length
        return self.new - before


class Sampled(NamedTuple):
    """One rank's work."""

    seconds: float
    passes: int  # forward passes, one token each


def lengths(seed: int, prompts: int, group: int, mean: float, longest: int) -> np.ndarray:
    """Lengths in tokens, with the given mean after capping at `longest`: [prompts, group]."""
    rng = np.random.default_rng(seed)
    of_prompts = rng.normal(0, SPREAD_OF_PROMPTS, (prompts, 1))
    relative = np.exp(of_prompts + rng.normal(0, SPREAD_IN_GROUP, (prompts, group)))
    low, high = 0.0, longest / relative.min()  # the scale lies between
    for _ in range(60):
        scale = (low + high) / 2
        if np.minimum(relative * scale, longest).mean() < mean:
            low = scale
        else:
            high = scale
    return (relative * high).clip(1, longest).round().astype(int)


def groups_of(lengths: np.ndarray, prompt_tokens: int) -> list[list[Simulated]]:
    """New responses with these lengths, grouped by prompt."""
    groups = []
    for prompt, group in enumerate(lengths.tolist()):
        groups.append([Simulated(length, prompt, prompt_tokens) for length in group])
    return groups


def simulated(sampler: Sampler, responses: list[Simulated]) -> Sampled:
    """The work of a rank that samples these responses, simulated to the end, chunk by chunk.

    Each added response first needs a forward pass over all its tokens.
    """
    flight = Flight(list(responses), sampler.in_flight, sampler.cache_tokens, CHUNK)
    seconds, passes = 0.0, 0
    while True:
        staying = flight.those_who_stay()
        arriving = flight.those_who_arrive(staying)
        flying = flight.responses = staying + arriving
        if not flying:
            return Sampled(seconds, passes)
        distinct = {(response.prompt, len(response)) for response in arriving}
        seconds += sampler.prefill_seconds(sum(tokens for _, tokens in distinct))
        columns = width(flying)
        new = max(response.grow() for response in flying)
        seconds += sampler.seconds(new, len(flying), columns)
        passes += new


# ---- a step of training --------------------------------------------------------------------------


def sampler_of(
    config: PreTrainedConfig, flags, gpus: int, cache_tokens: int, bandwidth: float = BANDWIDTH
) -> Sampler:
    """Each GPU's sampler in the run described by flags (train.Config).

    cache_tokens: cache capacity of the GPU. bandwidth: of its memory, bytes per second.
    """
    responses = flags.prompts * flags.group_size / gpus
    return Sampler(
        multiplying=sizes_of(config).multiplying,
        cache_bytes=cache_bytes(config, HALF),
        in_flight=min(flags.in_flight, math.ceil(responses)),
        cache_tokens=cache_tokens,
        prompt=min(PROMPT, flags.max_prompt_tokens),
        bandwidth=bandwidth,
    )


def of_a_step(sampler: Sampler, flags, gpus: int, mean: float, seed: int = 0) -> list[Sampled]:
    """Each GPU's work if a step's responses have `mean` tokens on average."""
    drawn = lengths(seed, flags.prompts, flags.group_size, mean, flags.max_new_tokens)
    responses = sum(groups_of(drawn, sampler.prompt), [])
    return [simulated(sampler, responses[gpu::gpus]) for gpu in range(gpus)]  # dealt in turn


def print_sampling(ranks: list[Sampled], flags, mean: int) -> None:
    """Print the time of the slowest GPU, which the others wait for, and the mean of all."""
    slowest = max(ranks, key=attrgetter("seconds"))
    seconds = statistics.mean(rank.seconds for rank in ranks)
    print(
        f"sampling, simulated: {slowest.seconds:.1f} s, {slowest.passes} forward passes per step "
        f"on the slowest GPU ({seconds:.1f} s on average)\n"
        f"  if responses have {mean} tokens on average (--mean-tokens) and {flags.max_new_tokens} "
        f"at most, log-normal: {SPREAD_OF_PROMPTS} over prompts, {SPREAD_IN_GROUP} in a group"
    )
