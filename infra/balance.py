"""Divides sequences of different lengths into groups with little padding, evenly over the ranks."""

from itertools import accumulate
from typing import NamedTuple


class Block(NamedTuple):
    """Sequences of one group: a single one, or responses whose prompt runs once for all of them."""

    index: list[int]
    longest: int  # tokens of the longest, without that prompt
    prompt: int = 0  # tokens of that prompt


def balanced_groups(
    blocks: list[Block], budget: int, rank: int = 0, world: int = 1
) -> list[list[int]]:
    """The sequences of this rank's groups of blocks; all ranks get equally many groups.

    In each round every rank runs one group: at most `budget` tokens, padding included, or a single
    larger block; in the last round it may be empty. They are as even as the least number of rounds
    allows, since a round takes as long as its longest.
    """
    blocks = sorted(blocks, key=lambda block: -block.longest)  # stable
    count = -(-len(neighbours(blocks, budget)) // world) * world
    limit = sum(tokens_of([block]) for block in blocks) / max(1, count)
    while len(sizes := neighbours(blocks, min(limit, budget))) > count:
        limit *= 1.02
    ends = [0, *accumulate(sizes + [0] * (count - len(sizes)))]
    groups = [blocks[start:end] for start, end in zip(ends, ends[1:], strict=False)]
    # In each round, groups of about the same number of tokens.
    groups.sort(key=tokens_of, reverse=True)  # stable
    return [[i for block in group for i in block.index] for group in groups[rank::world]]


def tokens_of(group: list[Block]) -> int:
    """Of a group, with padding: [40, 7] are 80, two rows of 7 with a prompt of 30 are 44."""
    rows = sum(len(block.index) for block in group)
    longest = max((block.longest for block in group), default=0)
    return rows * longest + len(group) * max((block.prompt for block in group), default=0)


def neighbours(falling: list[Block], budget: float) -> list[int]:
    """Cuts blocks of falling lengths into groups of similar lengths. Returns the groups' sizes.

    No sequence is padded to more than twice its length. With lengths [40, 7, 5] and a budget of 200
    the sizes are [1, 2].
    """
    sizes = [0]
    rows = longest = prompt = 0  # of the last group
    for block in falling:
        rows, prompt = rows + len(block.index), max(prompt, block.prompt)  # if the block joins it
        fits = rows * longest + (sizes[-1] + 1) * prompt <= budget
        if sizes[-1] and fits and longest + prompt <= 2 * (block.longest + block.prompt):
            sizes[-1] += 1
        else:
            sizes.append(1)
            rows, longest, prompt = len(block.index), block.longest, block.prompt
    return sizes[1:]
