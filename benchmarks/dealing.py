"""How long ranks wait for the slowest sampler, by how responses are dealt (`dealing`).

A simulation (benchmarks/flights.py) of Qwen3-8B on eight H100 with the paper's settings (App. I):
128 prompts x 16 responses, 5,700 tokens on average and 20,480 at most, caches of the planned size.
Nothing here was measured on a GPU.

    groups     the 16 responses to a prompt on one rank, prompts in turn
    responses  responses in turn, as ranks.shared_by_ranks deals them
    on demand  a rank takes the next response whenever it has room
    known      as if all lengths were known: the longest first, to the rank with the least work

On demand gains nothing, because a rank takes a response before its length is known. The assignment
would also depend on time, so a killed run would not continue bit for bit.
"""

import statistics
from operator import attrgetter

import train
from benchmarks.flights import (
    Sampled,
    Sampler,
    Simulated,
    dealt_in_turn,
    groups_of,
    lengths,
    sampler_of,
    simulated,
)
from benchmarks.plan import planned, qwen3
from studies.tables import table_line

RANKS = 8
MEAN = 5700  # tokens

Groups = list[list[Simulated]]


def paper_flags() -> train.Config:
    return train.parse_config(["--model", "Qwen/Qwen3"])


def of_paper(seed: int) -> tuple[Sampler, Groups]:
    """(the sampler of a rank, new responses by their prompts)."""
    flags = paper_flags()
    config = qwen3("8B")
    room = planned(config, flags, RANKS, 80).cache_tokens
    sampler = sampler_of(config, flags, RANKS, room)
    drawn = lengths(seed, flags.prompts, flags.group_size, MEAN, flags.max_new_tokens)
    return sampler, groups_of(drawn, sampler.prompt)


def by_groups(sampler: Sampler, groups: Groups) -> list[Sampled]:
    return simulated(sampler, [sum(each, []) for each in dealt_in_turn(groups, RANKS)], [])


def by_responses(sampler: Sampler, groups: Groups) -> list[Sampled]:
    return simulated(sampler, dealt_in_turn(sum(groups, []), RANKS), [])


def on_demand(sampler: Sampler, groups: Groups) -> list[Sampled]:
    """First the first response to every prompt, in the order of infra/flight.py."""
    waiting = sorted(sum(groups, []), key=lambda response: response.name[-1])
    return simulated(sampler, [[] for _ in range(RANKS)], [[each] for each in waiting])


def by_known_length(sampler: Sampler, groups: Groups) -> list[Sampled]:
    """The cost of a response is its length squared, because every token reads the cache so far."""
    dealt = [[] for _ in range(RANKS)]
    to_do = [0.0] * RANKS
    for each in sorted(sum(groups, []), key=attrgetter("length"), reverse=True):
        rank = to_do.index(min(to_do))
        dealt[rank].append(each)
        to_do[rank] += each.length**2
    return simulated(sampler, dealt, [])


HEADER = """\
| dealt | slowest rank over the mean of 8, of each draw of lengths | mean | slowest rank, s |
|---|---|---|---|"""
WAYS = {
    "groups": by_groups,
    "responses": by_responses,
    "on demand": on_demand,
    "known": by_known_length,
}


def dealing(args) -> dict[str, list[list[float]]]:
    """How long ranks wait for the slowest one, simulated: groups or single responses dealt."""
    print(HEADER)
    measured = {}
    for name, way in WAYS.items():
        seconds = []
        for seed in range(args.repetitions):
            seconds.append([rank.seconds for rank in way(*of_paper(seed))])
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
