"""How long ranks that sample wait for the slowest one, by how responses are dealt (`dealing`).

A simulation: who is in flight is decided by infra/flight.py itself, and a chunk of tokens takes as
long as the memory of a GPU needs to read weights and caches. Settings are those of Qwen3-8B on
eight H100 (App. I): 128 prompts x 16 responses, 248,000 tokens in a rank's caches (see `plan`).
Lengths are log-normal over prompts and again over the responses to each, 5,700 tokens in the mean
and 20,480 at most. Nothing here was measured on a GPU.

    groups      the 16 responses to a prompt on one rank, prompts in turn
    on demand   the same, but a rank takes the next group whenever it has room
    responses   responses in turn, as ranks.shared_by_ranks deals them

On demand gains little: what the others wait for is the last long response, wherever it is. And who
takes what would depend on time, so that a run which was killed would not continue bit for bit.
"""

import heapq
import statistics
from collections import deque
from dataclasses import dataclass

import numpy as np

from infra.flight import Flight, width
from rollout import CHUNK
from studies.tables import table_line

RANKS = 8
PROMPTS, GROUP = 128, 16
MEAN, LONGEST, PROMPT = 5700, 20480, 200  # tokens
SPREAD_OF_PROMPTS, SPREAD_IN_GROUP = 0.6, 0.45  # standard deviations of log length
IN_FLIGHT, CACHE_TOKENS = 256, 248_000

WEIGHT_BYTES = 16.4e9
CACHE_BYTES = 147_456  # of a token
BANDWIDTH = 0.7 * 3.35e12  # bytes per second of an H100, of which 70 % are reached
LAUNCH = 0.004  # seconds a token in which no memory is read


@dataclass(eq=False)
class Simulated:
    """A response of known length, as infra/flight.py sees one."""

    length: int
    prompt: int
    name: tuple[int, int, int, int]
    new: int = 0
    finished: bool = False

    def __len__(self) -> int:
        return PROMPT + self.new

    def grow(self) -> None:
        self.new = min(self.new + CHUNK, self.length)
        self.finished = self.new == self.length


def lengths(seed: int) -> np.ndarray:
    """[PROMPTS, GROUP] tokens."""
    rng = np.random.default_rng(seed)
    of_prompts = rng.normal(0, SPREAD_OF_PROMPTS, (PROMPTS, 1))
    relative = np.exp(of_prompts + rng.normal(0, SPREAD_IN_GROUP, (PROMPTS, GROUP)))
    scale = np.geomspace(100, 60000, 2000)
    means = [np.minimum(relative * x, LONGEST).mean() for x in scale]
    scaled = relative * scale[np.searchsorted(means, MEAN)]
    return scaled.clip(1, LONGEST).astype(int)


def seconds_of_chunk(responses: list[Simulated]) -> float:
    """Seconds of CHUNK tokens of each response in flight."""
    read = WEIGHT_BYTES + len(responses) * width(responses) * CACHE_BYTES
    return CHUNK * (LAUNCH + read / BANDWIDTH)


def simulated(dealt: list[list[Simulated]], waiting: list[list[Simulated]]) -> list[float]:
    """Seconds until each rank has nothing left to do.

    dealt: of each rank what it samples; waiting: groups that are taken on demand, in this order.
    """
    flights = [Flight(mine, IN_FLIGHT, CACHE_TOKENS, CHUNK) for mine in dealt]
    groups = deque(waiting)
    ends = [0.0] * len(flights)
    events = [(0.0, rank) for rank in range(len(flights))]
    while events:
        now, rank = heapq.heappop(events)
        flight = flights[rank]
        staying, arriving = flight.exchange()
        flying = staying + arriving
        while groups and not flight.waiting and flight.fits(len(flying) + 1, width(flying)):
            flight.waiting += groups.popleft()
            flying += flight.those_who_arrive(flying)
        flight.responses = flying
        ends[rank] = now
        if not flying:
            continue
        heapq.heappush(events, (now + seconds_of_chunk(flying), rank))
        for response in flying:
            response.grow()
    return ends


def of_groups(seed: int) -> list[list[Simulated]]:
    """New responses, by their prompts."""
    groups = []
    for prompt, group in enumerate(lengths(seed).tolist()):
        groups.append([Simulated(n, prompt, (0, 0, prompt, i)) for i, n in enumerate(group)])
    return groups


def by_groups(seed: int) -> list[float]:
    groups = of_groups(seed)
    return simulated([sum(groups[rank::RANKS], []) for rank in range(RANKS)], [])


def on_demand(seed: int) -> list[float]:
    return simulated([[] for _ in range(RANKS)], of_groups(seed))


def by_responses(seed: int) -> list[float]:
    responses = sum(of_groups(seed), [])
    return simulated([responses[rank::RANKS] for rank in range(RANKS)], [])


HEADER = """\
| dealt | slowest rank over the mean of 8, of each draw of lengths | mean | slowest rank, s |
|---|---|---|---|"""
WAYS = {"groups": by_groups, "on demand": on_demand, "responses": by_responses}


def dealing(args) -> dict[str, list[list[float]]]:
    """How long ranks wait for the slowest one, simulated: groups or single responses dealt."""
    print(HEADER)
    measured = {}
    for name, way in WAYS.items():
        seconds = [way(seed) for seed in range(args.repetitions)]
        over_mean = [max(each) / statistics.mean(each) for each in seconds]
        cells = [
            name,
            ", ".join(f"{x:.2f}" for x in over_mean),
            f"{statistics.mean(over_mean):.2f}",
            f"{statistics.mean(max(each) for each in seconds):.0f}",
        ]
        print(table_line(cells), flush=True)
        measured[name] = seconds
    return measured
