"""The data of a step: rollouts, their packed tokens, and the micro-batches that the model runs.

The maths has packed tokens, so that a sum over (i, t) in the paper is a sum over tokens. The model
runs padded sequences. For two responses of 3 and 2 tokens to the same prompt:

    MicroBatch.ids    [ q q a b c ]      packed tokens   a b c d e
                      [ q q d e . ]      index           0 1 2 3 4
                                         length          3 2

Shapes: B responses, L columns in the longest sequence, N packed response tokens; b and n of them in
a micro-batch.
"""

from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch

from infra.balance import balanced_groups
from infra.prompts import blocks_of_prompts
from infra.ranks import rank_and_world, this_device


class Response(NamedTuple):
    """A sampled response, on the host."""

    prompt: list[int]  # token ids
    tokens: np.ndarray  # [tokens] int32, without the prompt, with the end token
    sampler_logprob: np.ndarray  # [tokens] float32, log p under the sampler's distribution, nats
    text: str  # decoded, without special tokens other than tags of thought
    truncated: bool  # stopped by max_new_tokens, not by an end token


class Rollout(NamedTuple):
    """A response with its problem and reward. The G of a problem are consecutive in a batch."""

    prompt: list[int]  # these five as in Response
    tokens: np.ndarray
    sampler_logprob: np.ndarray
    text: str
    truncated: bool
    problem: dict  # from the data set: its text, and its answer or tests
    reward: float  # R


# ---- packed --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TokenBatch:
    """A rollout batch, or one of its micro-batches, as packed tokens: the input of a method.

    Every rank holds the whole batch.
    """

    token: torch.Tensor  # [N] id of the sampled token
    length: torch.Tensor  # [B] tokens of each response; they sum to N
    reward: torch.Tensor  # [B] R of each response, with any length penalty
    advantage: torch.Tensor  # [N] the response's A, repeated over its tokens
    sampler_logprob: torch.Tensor  # [N] the sampler's log p, nats
    old_logprob: torch.Tensor  # [N] log π_old of the sampled token, nats
    entropy: torch.Tensor  # [N] entropy of π_old at that position, nats

    def __len__(self) -> int:
        return len(self.token)

    def select(self, micro: "MicroBatch") -> "TokenBatch":
        """The n tokens of a micro-batch."""
        index = micro.token_index
        return TokenBatch(
            token=self.token[index],
            length=self.length[micro.response_index],
            reward=self.reward[micro.response_index],
            advantage=self.advantage[index],
            sampler_logprob=self.sampler_logprob[index],
            old_logprob=self.old_logprob[index],
            entropy=self.entropy[index],
        )

    def span(self, i: int) -> slice:
        """The indices of the tokens of response i."""
        start = int(self.length[:i].sum())
        return slice(start, start + int(self.length[i]))


def packed(
    rollouts: list[Response] | list[Rollout],
    *,
    rewards: torch.Tensor,
    advantages: torch.Tensor,
    old_logprob: torch.Tensor,
    entropy: torch.Tensor,
) -> TokenBatch:
    """The tokens of a rollout batch. rewards, advantages: [B]. old_logprob, entropy: [N]."""
    device = this_device()
    length = torch.tensor([len(response.tokens) for response in rollouts], device=device)
    token = torch.from_numpy(np.concatenate([response.tokens for response in rollouts]))
    sampler_logprob = np.concatenate([response.sampler_logprob for response in rollouts])
    return TokenBatch(
        token=token.long().to(device),
        length=length,
        reward=rewards.to(device),
        advantage=advantages.to(device).repeat_interleave(length),
        sampler_logprob=torch.from_numpy(sampler_logprob).to(device),
        old_logprob=old_logprob,
        entropy=entropy,
    )


# ---- padded --------------------------------------------------------------------------------------


class MicroBatch(NamedTuple):
    """Responses that run through the model together, on its device.

    With causal attention no token attends to the padding on the right.
    """

    response_index: list[int]  # [b] indices of its responses among the B
    ids: torch.Tensor  # [b, L] prompt, response, padding
    mask: torch.Tensor  # [b, L] bool: the response tokens, n in all
    token_index: torch.Tensor  # [n] their indices among the N packed tokens
    has_advantage: bool  # False: all its responses have A = 0, on every rank


@dataclass
class MiniBatch:
    """The responses of one optimiser step, as this rank's micro-batches.

    All ranks have equally many micro-batches. Those without an advantage come last: Eq. 8 gives
    them no gradient, so the update skips them. A KL penalty on every token would need them.
    """

    token_count: int  # tokens in all its responses, on all ranks
    micro_batches: list[MicroBatch]

    def with_advantage(self) -> list[MicroBatch]:
        """The micro-batches that have a gradient."""
        return [micro for micro in self.micro_batches if micro.has_advantage]


def plan_mini_batches(
    rollouts: list[Response] | list[Rollout],
    advantages: torch.Tensor,
    responses_per_update: int,
    micro_batch_tokens: int,
    share_prompts: bool = False,
) -> list[MiniBatch]:
    """The optimiser steps of a rollout batch: `responses_per_update` each, in order.

    advantages: [B]. micro_batch_tokens: limit on the tokens in a micro-batch, including padding.
    share_prompts: whether responses to one prompt run together, and it counts once.
    """
    prompts = [response.prompt for response in rollouts]
    length = [len(response.tokens) for response in rollouts]
    plan = []
    for start in range(0, len(rollouts), responses_per_update):
        responses = range(start, min(start + responses_per_update, len(rollouts)))
        micro_batches = []
        for has_advantage in (True, False):
            index = [i for i in responses if bool(advantages[i] != 0) == has_advantage]
            blocks = blocks_of_prompts(index, prompts, length, micro_batch_tokens, share_prompts)
            # This rank's groups of similar lengths, equally many on every rank; none for no index.
            for group in balanced_groups(blocks, micro_batch_tokens, *rank_and_world()):
                micro_batches.append(padded(rollouts, group, has_advantage))
        token_count = sum(len(rollouts[i].tokens) for i in responses)
        plan.append(MiniBatch(token_count, micro_batches))
    return plan


def padded(
    rollouts: list[Response] | list[Rollout], index: list[int], has_advantage: bool
) -> MicroBatch:
    """The responses `index` of a rollout batch, padded to the longest of them.

    A rank without responses runs two columns of padding, since ranks gather each other's shards,
    and the policy drops the last column.
    """
    lengths = [len(response.tokens) for response in rollouts]
    first = [0, *accumulate(lengths)]  # index of each response's first token
    width = max((len(rollouts[i].prompt) + len(rollouts[i].tokens) for i in index), default=2)
    ids = torch.zeros(max(1, len(index)), width, dtype=torch.long)
    mask = torch.zeros_like(ids, dtype=torch.bool)
    token_index = [torch.arange(0)]
    for j, i in enumerate(index):
        prompt, tokens = rollouts[i].prompt, rollouts[i].tokens
        columns = slice(len(prompt), len(prompt) + len(tokens))  # of the response
        ids[j, : columns.start] = torch.tensor(prompt)
        ids[j, columns] = torch.from_numpy(tokens)
        mask[j, columns] = True
        token_index.append(torch.arange(first[i], first[i + 1]))
    device = this_device()
    return MicroBatch(
        response_index=index,
        ids=ids.to(device),
        mask=mask.to(device),
        token_index=torch.cat(token_index).to(device),
        has_advantage=has_advantage,
    )
