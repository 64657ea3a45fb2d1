"""Without this file each micro-batch would be padded to the longest response of the whole batch.

It decides which responses run through the model together, and on which rank. Here responses of
similar lengths run together, up to a limit on tokens, and responses to one prompt stay together.
All ranks get equally many micro-batches, since they gather each other's shards in every pass. For
two responses of 3 and 2 tokens to the same prompt:

    ids    [ q q a b c ]      packed tokens   a b c d e
           [ q q d e . ]      token_index     0 1 2 3 4

Shapes: B responses, L columns in the longest sequence, N packed response tokens; b and n of them in
a micro-batch.
"""

from itertools import accumulate
from typing import NamedTuple

import torch

from infra import shared_prompts
from infra.ranks import rank_and_world, this_device


class MicroBatch(NamedTuple):
    """Responses that run through the model together, on its device.

    With causal attention no token attends to the padding on the right.
    """

    response_index: list[int]  # [b] indices of its responses among the B
    ids: torch.Tensor  # [b, L] prompt, response, padding
    is_token: torch.Tensor  # [b, L] bool: the response tokens, n in all
    token_index: torch.Tensor  # [n] their indices among the N packed tokens
    has_advantage: bool  # False: all its tokens have A = 0, on every rank


class MiniBatch(NamedTuple):
    """The responses of one optimiser step, as this rank's micro-batches.

    Micro-batches without an advantage come last: Eq. 8 gives them no gradient, so the update skips
    them. A KL penalty on every token would need them.
    """

    token_count: int  # tokens in all its responses, on all ranks
    micro_batches: list[MicroBatch]


def mini_batches(
    responses: list,
    advantage: torch.Tensor,
    responses_per_update: int,
    micro_batch_tokens: int,
    lm: torch.nn.Module | None = None,
) -> list[MiniBatch]:
    """The optimiser steps of a rollout batch: `responses_per_update` each, in order.

    responses: B rollout.Responses. advantage: [N], A of each token. micro_batch_tokens: limit on
    the tokens in a micro-batch, including padding. lm: the model that will run them; responses stay
    together if it runs their prompt once (infra/shared_prompts.py).
    """
    share_prompts = lm is not None and shared_prompts.shares_prompts(lm)
    prompts = [response.prompt for response in responses]
    length = [len(response.tokens) for response in responses]
    any_advantage = [bool(part.any()) for part in advantage.split(length)]  # of each response
    found = []
    for start in range(0, len(responses), responses_per_update):
        of_step = range(start, min(start + responses_per_update, len(responses)))
        micro_batches = []
        for has_advantage in (True, False):
            index = [i for i in of_step if any_advantage[i] == has_advantage]
            blocks = blocks_of_prompts(index, prompts, length, micro_batch_tokens, share_prompts)
            # Every rank gets equally many groups of similar lengths, and none if `index` is empty.
            for group in balanced_groups(blocks, micro_batch_tokens, *rank_and_world()):
                micro_batches.append(padded(responses, group, has_advantage))
        found.append(MiniBatch(sum(length[i] for i in of_step), micro_batches))
    return found


def padded(responses: list, index: list[int], has_advantage: bool) -> MicroBatch:
    """The responses `index` of a rollout batch, padded to the longest of them.

    A rank without responses runs padding, since ranks gather each other's shards: two columns,
    since the policy drops the last one.
    """
    first = [0, *accumulate(len(response.tokens) for response in responses)]  # packed token of each
    width = max((len(responses[i].prompt) + len(responses[i].tokens) for i in index), default=2)
    ids = torch.zeros(max(1, len(index)), width, dtype=torch.long)
    is_token = torch.zeros_like(ids, dtype=torch.bool)
    token_index = [torch.arange(0)]
    for row, i in enumerate(index):
        prompt, tokens = responses[i].prompt, responses[i].tokens
        columns = slice(len(prompt), len(prompt) + len(tokens))  # of the response
        ids[row, : columns.start] = torch.tensor(prompt)
        ids[row, columns] = torch.from_numpy(tokens)
        is_token[row, columns] = True
        token_index.append(torch.arange(first[i], first[i + 1]))
    tensors = [x.to(this_device()) for x in (ids, is_token, torch.cat(token_index))]
    return MicroBatch(index, *tensors, has_advantage)


# ---- which responses run together ----------------------------------------------------------------


class Block(NamedTuple):
    """Sequences of one group: a single one, or responses whose prompt runs once for all of them."""

    index: list[int]
    longest: int  # tokens of the longest, without that prompt
    prompt: int = 0  # tokens of that prompt


def blocks_of_prompts(
    index: list[int], prompts: list[list[int]], length: list[int], budget: int, share: bool
) -> list[Block]:
    """The responses `index` in blocks of one prompt each and of at most `budget` tokens.

    prompts: the prompt's ids for every response. length: response tokens of each. share: whether a
    long prompt runs once for its block; if not, each block has one whole sequence.
    """
    groups = {}
    for i in index:
        runs_once = share and len(prompts[i]) > shared_prompts.SHORT
        groups.setdefault(tuple(prompts[i]) if runs_once else i, []).append(i)
    blocks = []
    for key, group in groups.items():
        prompt = len(key) if isinstance(key, tuple) else 0  # tokens that run once
        rest = {i: len(prompts[i]) + length[i] - prompt for i in group}
        group.sort(key=lambda i: -rest[i])
        for part in parts_of(group, rest, prompt, budget):
            blocks.append(Block(part, rest[part[0]], prompt))
    return blocks


def parts_of(group: list[int], length: dict, prompt: int, budget: int) -> list[list[int]]:
    """Cut a group of falling lengths where padding would cost more than the prompt run again."""
    parts, waiting = [], [group]
    while waiting:
        group = waiting.pop()
        longest = length[group[0]]
        # What a cut before response k saves: the padding of all behind it.
        saved = [(len(group) - k) * (longest - length[i]) for k, i in enumerate(group)]
        k = max(range(len(group)), key=saved.__getitem__)
        if saved[k] <= prompt:
            k = max(1, (budget - prompt) // longest)  # as many as fit
        if k < len(group):
            waiting += [group[k:], group[:k]]  # the first part is next
        else:
            parts.append(group)
    return parts


def balanced_groups(
    blocks: list[Block], budget: int, rank: int = 0, world: int = 1
) -> list[list[int]]:
    """The sequences of this rank's groups of blocks; all ranks get equally many groups.

    In each round every rank runs one group: at most `budget` tokens, padding included, or a single
    larger block; in the last round it may be empty. The groups are as even as the least number of
    rounds allows, since a round takes as long as its largest group.
    """
    blocks = sorted(blocks, key=lambda block: -block.longest)  # stable
    count = -(-len(neighbours(blocks, budget)) // world) * world
    limit = sum(tokens_of([block]) for block in blocks) / max(1, count)
    while len(sizes := neighbours(blocks, min(limit, budget))) > count:
        limit *= 1.02
    ends = [0, *accumulate(sizes + [0] * (count - len(sizes)))]
    groups = [blocks[start:end] for start, end in zip(ends, ends[1:], strict=False)]
    # Sorted, so that the groups of a round have about the same number of tokens.
    groups.sort(key=tokens_of, reverse=True)  # stable
    return [[i for block in group for i in block.index] for group in groups[rank::world]]


def tokens_of(group: list[Block]) -> int:
    """A group's tokens, with padding: 80 for [40, 7], 44 for two rows of 7 with a prompt of 30."""
    rows = sum(len(block.index) for block in group)
    longest = max((block.longest for block in group), default=0)
    return rows * longest + len(group) * max((block.prompt for block in group), default=0)


def neighbours(falling: list[Block], budget: float) -> list[int]:
    """Cut blocks of falling lengths into groups of similar lengths. Returns the groups' sizes.

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
