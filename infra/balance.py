"""Which responses share a micro-batch, and which rank runs it.

Ranks gather each other's shards layer by layer, so they go through their micro-batches in step,
and each step takes as long as its slowest rank. What a sequence of T tokens costs is T + T² / E:
all but attention grows with its tokens, attention with their square, and at E tokens the two are
equal.

On the CPU the sequences of a micro-batch stand side by side, padded to the longest of them; on GPUs
they are packed end to end in one row (infra/packed_attention.py). A micro-batch holds at most
`budget` tokens, padding included, or one sequence that is longer.

Here sequences are named by their place in a list of lengths that falls, and a group, the sequences
of a micro-batch, is a list of such places.
"""

import math
from dataclasses import dataclass

import torch

SLACK = 1.03  # the factor by which the bound on a group's cost is raised


@dataclass(frozen=True)
class Layout:
    """How sequences lie in a micro-batch, and what they cost there."""

    packed: bool = False  # end to end in one row; else side by side, and padded
    equal_at: float = math.inf  # E: tokens at which attention costs as much as all else

    def cost(self, lengths: list[int]) -> float:
        """Of the sequences of a micro-batch, in tokens' worth of all but attention."""
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
    """This rank's micro-batches of responses `index`, as many as every other rank has."""
    if len(index) == 0:
        return []
    index = index[length[index].argsort(descending=True, stable=True)]
    mine = shares(length[index].tolist(), budget, world, layout)[rank]
    return [index[torch.tensor(group, dtype=torch.long, device=index.device)] for group in mine]


def shares(falling: list[int], budget: int, world: int, layout: Layout) -> list[list[list[int]]]:
    """The groups of every rank: in each step the ranks have groups of about equal cost.

    Those of the last step may be empty.
    """
    split = packed_groups if layout.packed else padded_groups
    groups = split(falling, budget, world, layout)
    groups.sort(key=lambda group: layout.cost([falling[i] for i in group]), reverse=True)
    groups += [[] for _ in range(-len(groups) % world)]
    return [groups[rank::world] for rank in range(world)]


def packed_groups(falling: list[int], budget: int, world: int, layout: Layout) -> list[list[int]]:
    """Groups of any sequences: the next longest joins the least costly one that has room for it.

    Where none has room, each rank gets a group more, and all begin anew.
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
    """Groups of neighbours, so that little is padded, in as few steps as the budget allows.

    For several ranks the bound on a group's cost is lowered as far as no step is added: groups of
    equal cost. With two ranks on the toy this saves a fifth of the slowest rank's work.
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
    """Groups, in order, of at most `budget` padded tokens and a cost of at most `most`.

    None is padded to more than twice its length. With lengths [40, 7, 5] and a budget of 200 the
    groups are [0] and [1, 2].
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
