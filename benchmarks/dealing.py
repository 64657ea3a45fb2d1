"""How long ranks that sample wait for the slowest one, by how responses are dealt (`dealing`).

A simulation (benchmarks/flights.py) of Qwen3-8B on eight H100 with the paper's settings (App. I):
128 prompts x 16 responses, 5,700 tokens in the mean and 20,480 at most, caches as large as the plan
says. Nothing here was measured on a GPU.

    groups     the 16 responses to a prompt on one rank, prompts in turn
    responses  responses in turn, as ranks.shared_by_ranks deals them
    on demand  a rank takes the next response whenever it has room
    known      as if all lengths were known: the longest first, to the rank with the least to do

On demand gains nothing: a rank that takes a response does not know either how long it will be. And
who takes what would depend on time, so that a killed run would not continue bit for bit.
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
    """(what a rank samples with, new responses by their prompts)."""
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
    """First the first response to every prompt, as infra/flight.py has it."""
    waiting = sorted(sum(groups, []), key=lambda response: response.name[-1])
    return simulated(sampler, [[] for _ in range(RANKS)], [[each] for each in waiting])


def by_known_length(sampler: Sampler, groups: Groups) -> list[Sampled]:
    """A response reads its cache at every token: its cost is taken as the square of its length."""
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
