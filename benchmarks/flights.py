"""How long sampling takes, simulated: who is in flight is decided by infra/flight.py itself.

A new token of every response in flight takes as long as a GPU's memory needs to read the weights
and the caches, and what arrives as long as its multipliers need to compute its cache. Lengths are
log-normal over prompts and again over the responses to each, and are cut at the longest.
"""

import heapq
from collections import deque
from dataclasses import dataclass

import numpy as np

from infra.flight import Flight, width
from rollout import CHUNK

SPREAD_OF_PROMPTS, SPREAD_IN_GROUP = 0.6, 0.45  # standard deviations of log length

BANDWIDTH = 3.35e12  # bytes per second of an H100's memory
PEAK_FLOP = 989e12  # dense bfloat16 FLOP per second of an H100
REACHED = 0.7  # of the bandwidth
REACHED_FLOP = 0.4  # of the FLOP, by a forward pass
LAUNCH = 0.004  # seconds a token in which no memory is read


@dataclass(frozen=True)
class Sampler:
    """What samples, and its limits."""

    multiplying: int  # parameters that multiply; two bytes each
    cache_bytes: int  # keys and values of a token
    in_flight: int  # responses at once
    cache_tokens: int  # in the caches at once
    prompt: int = 200  # tokens
    bandwidth: float = BANDWIDTH

    def seconds(self, passes: int, count: int, columns: int) -> float:
        """Of so many new tokens of each of `count` responses, padded to `columns`."""
        read = 2 * self.multiplying + count * columns * self.cache_bytes
        return passes * (LAUNCH + read / (REACHED * self.bandwidth))

    def prefill_seconds(self, tokens: int) -> float:
        """Of the caches of sequences of so many tokens in all; attention is left out."""
        return 2 * self.multiplying * tokens / (REACHED_FLOP * PEAK_FLOP)


@dataclass(eq=False)
class Simulated:
    """A response of known length, as infra/flight.py sees one."""

    length: int
    prompt: int  # which one
    name: tuple[int, int, int, int]
    prompt_tokens: int
    new: int = 0
    finished: bool = False

    def __len__(self) -> int:
        return self.prompt_tokens + self.new

    def grow(self) -> int:
        """By a chunk, or up to the end; returns the tokens."""
        before = self.new
        self.new = min(self.new + CHUNK, self.length)
        self.finished = self.new == self.length
        return self.new - before


@dataclass
class Sampled:
    """What a rank has done."""

    seconds: float = 0.0
    passes: int = 0  # of the model, each a token further

    def fly(self, sampler: Sampler, flying: list[Simulated], arriving: list[Simulated]) -> None:
        """Sample a chunk; those who arrive come from a pass over all their tokens."""
        distinct = {(response.prompt, len(response)) for response in arriving}
        self.seconds += sampler.prefill_seconds(sum(tokens for _, tokens in distinct))
        columns = width(flying)
        passes = max(response.grow() for response in flying)
        self.seconds += sampler.seconds(passes, len(flying), columns)
        self.passes += passes


def lengths(seed: int, prompts: int, group: int, mean: float, longest: int) -> np.ndarray:
    """[prompts, group] tokens, of this mean when cut at the longest."""
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
    """What each rank has done when nothing is left to do.

    dealt: of each rank what it samples; waiting: lists that are taken on demand, in this order.
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
        staying, arriving = flight.exchange()
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
    """As ranks.shared_by_ranks deals them."""
    return [responses[rank::ranks] for rank in range(ranks)]
