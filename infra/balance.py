"""Deals responses to micro-batches and ranks.

Ranks gather each other's shards layer by layer, so all of them run one micro-batch per round, and
a round takes as long as its slowest rank. A sequence of T tokens costs T + T² / E: the cost of
attention is quadratic in T, all other costs are linear, and at E tokens the two are equal.

On the CPU the sequences of a micro-batch are padded to the longest. On GPUs they are packed end to
end in one row (infra/packed_attention.py). A micro-batch holds at most `budget` tokens, padding
included, or a single longer sequence.

A sequence is an index into a list of descending lengths. A group is a list of such indices: the
sequences of one micro-batch.
"""

import math
from dataclasses import dataclass

import torch

SLACK = 1.03  # factor by which the limit on a group's cost grows


@dataclass(frozen=True)
class Layout:
    """Whether a micro-batch is padded or packed, and what it costs."""

    packed: bool = False  # end to end in one row; else padded
    equal_at: float = math.inf  # E: tokens at which attention costs as much as everything else

    def cost(self, lengths: list[int]) -> float:
        """The cost of a micro-batch's sequences, in units of one token without attention."""
        if not lengths:
            return 0.0
        if not self.packed:
            lengths = [max(lengths)] * len(lengths)
        return sum(T + T * T / self.equal_at for T in lengths)


PADDED = Layout()


def deal(
    index: torch.Tensor,
    length: torch.Tensor,
    budget: int,
    rank: int,
    world: int,
    layout: Layout = PADDED,
) -> list[torch.Tensor]:
    """This rank's micro-batches of the responses in `index`; all ranks get equally many."""
    if len(index) == 0:
        return []
    index = index[length[index].argsort(descending=True, stable=True)]
    mine = shares(length[index].tolist(), budget, world, layout)[rank]
    return [index[torch.tensor(group, dtype=torch.long, device=index.device)] for group in mine]


def shares(falling: list[int], budget: int, world: int, layout: Layout) -> list[list[list[int]]]:
    """Each rank's groups, one per round. The groups in a round cost about the same.

    Groups in the last round may be empty.
    """
    split = packed_groups if layout.packed else padded_groups
    groups = split(falling, budget, world, layout)
    groups.sort(key=lambda group: layout.cost([falling[i] for i in group]), reverse=True)
    groups += [[] for _ in range(-len(groups) % world)]
    return [groups[rank::world] for rank in range(world)]


def packed_groups(falling: list[int], budget: int, world: int, layout: Layout) -> list[list[int]]:
    """Groups for packing: the next longest sequence joins the cheapest group that has room.

    If no group has room, every rank gets one more group, and dealing starts again.
    """
    count = math.ceil(math.ceil(sum(falling) / budget) / world) * world
    while True:
        groups = [[] for _ in range(count)]
        tokens = [0] * count
        costs = [0.0] * count
        for i, T in enumerate(falling):
            with_room = [g for g in range(count) if tokens[g] + T <= budget or not groups[g]]
            if not with_room:
                break
            least = min(with_room, key=costs.__getitem__)
            groups[least].append(i)
            tokens[least] += T
            costs[least] += layout.cost([T])
        else:
            return groups
        count += world


def padded_groups(falling: list[int], budget: int, world: int, layout: Layout) -> list[list[int]]:
    """Groups of similar lengths, so that there is little padding, in the fewest rounds.

    With several ranks, a group's cost is limited, at first to the mean. The limit rises until no
    additional round is needed. This equalises the costs: with two ranks on the toy it saves a fifth
    of the slowest rank's work.
    """
    groups = neighbours(falling, budget, math.inf, layout)
    if world == 1:
        return groups

    count = math.ceil(len(groups) / world) * world
    most = sum(layout.cost([falling[i] for i in group]) for group in groups) / count
    while True:
        groups = neighbours(falling, budget, most, layout)
        if len(groups) <= count:
            return groups
        most *= SLACK


def neighbours(falling: list[int], budget: int, most: float, layout: Layout) -> list[list[int]]:
    """Groups of consecutive sequences, each of at most `budget` padded tokens and cost `most`.

    No sequence is padded to more than twice its length. With lengths [40, 7, 5] and a budget of 200
    the groups are [0] and [1, 2].
    """
    groups = []
    for i, T in enumerate(falling):
        if groups:
            longest = falling[groups[-1][0]]
            count = len(groups[-1]) + 1
            fits = longest * count <= budget and layout.cost([longest] * count) <= most
            if fits and longest <= 2 * T:
                groups[-1].append(i)
                continue
        groups.append([i])
    return groups
