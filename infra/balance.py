"""Divides sequences of different lengths into groups with little padding, evenly over the ranks."""

from itertools import accumulate


def balanced_groups(
    index: list[int], length: list[int], budget: int, rank: int = 0, world: int = 1
) -> list[list[int]]:
    """This rank's groups of the sequences in `index`; all ranks get equally many.

    length: tokens of every sequence. In each round every rank runs one group: at most `budget`
    tokens, padding included, or a single longer sequence; in the last round it may be empty. They
    are as even as the least number of rounds allows, since a round takes as long as its longest.
    """
    index = sorted(index, key=lambda i: -length[i])  # stable
    falling = [length[i] for i in index]
    count = -(-len(neighbours(falling, budget)) // world) * world
    limit = sum(falling) / max(1, count)
    while len(sizes := neighbours(falling, min(limit, budget))) > count:
        limit *= 1.02
    ends = [0, *accumulate(sizes + [0] * (count - len(sizes)))]
    groups = [index[start:end] for start, end in zip(ends, ends[1:], strict=False)]
    # In each round, groups of about the same number of padded tokens.
    padded_tokens = [len(group) * sum(length[i] for i in group[:1]) for group in groups]
    order = sorted(range(count), key=lambda g: -padded_tokens[g])
    return [groups[g] for g in order[rank::world]]


def neighbours(falling: list[int], budget: float) -> list[int]:
    """Cuts sequences of falling lengths into groups of similar lengths. Returns the groups' sizes.

    No sequence is padded to more than twice its length. With lengths [40, 7, 5] and a budget of 200
    the sizes are [1, 2].
    """
    sizes = []
    longest = 0
    for T in falling:
        if sizes and longest * (sizes[-1] + 1) <= budget and longest <= 2 * T:
            sizes[-1] += 1
        else:
            sizes.append(1)
            longest = T
    return sizes
