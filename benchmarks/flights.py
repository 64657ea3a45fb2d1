"""Simulates how long sampling takes. infra/flight.py decides which responses are in flight.

A new token of every response in flight takes the time to read the weights and the caches from
memory. An arriving response takes the time to compute its cache. Lengths are log-normal over
prompts, log-normal over the responses to each prompt, and cut at the longest.
"""

import heapq
import math
import statistics
from collections import deque
from dataclasses import dataclass
from operator import attrgetter

import numpy as np
from transformers import PreTrainedConfig

from benchmarks.sizes import HALF, sizes_of
from infra.flight import Flight, cache_bytes, width
from rollout import CHUNK

SPREAD_OF_PROMPTS, SPREAD_IN_GROUP = 0.6, 0.45  # standard deviations of log length

BANDWIDTH = 3.35e12  # bytes per second of an H100's memory
PEAK_FLOP = 989e12  # dense bfloat16 FLOP per second of an H100
REACHED = 0.7  # share of the bandwidth
REACHED_FLOP = 0.4  # share of the FLOP in a forward pass
PROMPT = 200  # tokens
LAUNCH = 0.004  # seconds per token in which no memory is read


@dataclass(frozen=True)
class Sampler:
    """The model and the limits of a sampler."""

    multiplying: int  # parameters that multiply; two bytes each
    cache_bytes: int  # keys and values of a token
    in_flight: int  # responses at once
    cache_tokens: int  # in the caches at once
    prompt: int = PROMPT  # tokens
    bandwidth: float = BANDWIDTH

    def seconds(self, passes: int, count: int, columns: int) -> float:
        """Seconds for `passes` new tokens of each of `count` responses, padded to `columns`."""
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
    name: tuple[int, int, int, int]
    prompt_tokens: int
    new: int = 0
    finished: bool = False

    def __len__(self) -> int:
        return self.prompt_tokens + self.new

    def grow(self) -> int:
        """Add a chunk, or the rest up to the end. Returns the number of new tokens."""
        before = self.new
        self.new = min(self.new + CHUNK, self.length)
        self.finished = self.new == self.length
        return self.new - before


@dataclass
class Sampled:
    """The work of a rank."""

    seconds: float = 0.0
    passes: int = 0  # of the model, one token each

    def fly(self, sampler: Sampler, flying: list[Simulated], arriving: list[Simulated]) -> None:
        """Sample a chunk. Arriving responses first take a pass over all their tokens."""
        distinct = {(response.prompt, len(response)) for response in arriving}
        self.seconds += sampler.prefill_seconds(sum(tokens for _, tokens in distinct))
        columns = width(flying)
        passes = max(response.grow() for response in flying)
        self.seconds += sampler.seconds(passes, len(flying), columns)
        self.passes += passes


def lengths(seed: int, prompts: int, group: int, mean: float, longest: int) -> np.ndarray:
    """Lengths in tokens, with the given mean after the cut at `longest`: [prompts, group]."""
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
    """New responses of these lengths, by their prompts."""
    groups = []
    for prompt, group in enumerate(lengths.tolist()):
        names = [(0, 0, prompt, sample) for sample in range(len(group))]
        pairs = zip(group, names, strict=True)
        groups.append([Simulated(n, prompt, name, prompt_tokens) for n, name in pairs])
    return groups


def simulated(
    sampler: Sampler, dealt: list[list[Simulated]], waiting: list[list[Simulated]]
) -> list[Sampled]:
    """The work of each rank, simulated to the end.

    dealt: the responses of each rank. waiting: lists that ranks take on demand, in this order.
    """
    flights = []
    for mine in dealt:
        flights.append(Flight(mine, sampler.in_flight, sampler.cache_tokens, CHUNK))
    left = deque(waiting)
    ranks = [Sampled() for _ in flights]
    events = [(0.0, rank) for rank in range(len(flights))]
    while events:
        _, rank = heapq.heappop(events)
        flight = flights[rank]
        staying = flight.those_who_stay()
        arriving = flight.those_who_arrive(staying)
        flying = staying + arriving
        while left and not flight.waiting and flight.fits(len(flying) + 1, width(flying)):
            flight.waiting += left.popleft()
            arriving += flight.those_who_arrive(flying)
            flying = staying + arriving
        flight.responses = flying
        if flying:
            ranks[rank].fly(sampler, flying, arriving)
            heapq.heappush(events, (ranks[rank].seconds, rank))
    return ranks


def dealt_in_turn(responses: list, ranks: int) -> list[list]:
    """Deals the responses like ranks.shared_by_ranks."""
    return [responses[rank::ranks] for rank in range(ranks)]


# ---- a step of training --------------------------------------------------------------------------


def sampler_of(
    config: PreTrainedConfig, flags, gpus: int, cache_tokens: int, bandwidth: float = BANDWIDTH
) -> Sampler:
    """The sampler of each GPU in the run described by flags (train.Config).

    cache_tokens: the GPU's room for caches. bandwidth: of its memory, bytes per second.
    """
    responses = flags.prompts * flags.group_size / gpus
    return Sampler(
        multiplying=sizes_of(config).multiplying,
        cache_bytes=cache_bytes(config, HALF),
        in_flight=min(flags.rollout_rows, math.ceil(responses)),
        cache_tokens=cache_tokens,
        prompt=min(PROMPT, flags.max_prompt_tokens),
        bandwidth=bandwidth,
    )


def of_a_step(sampler: Sampler, flags, gpus: int, mean: float, seed: int = 0) -> list[Sampled]:
    """The work of each GPU if the responses of a step have `mean` tokens on average."""
    drawn = lengths(seed, flags.prompts, flags.group_size, mean, flags.max_new_tokens)
    responses = sum(groups_of(drawn, sampler.prompt), [])
    return simulated(sampler, dealt_in_turn(responses, gpus), [])


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
