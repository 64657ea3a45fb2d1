"""The data of a step: rollouts, their packed tokens, and the micro-batches that the model runs.

The maths has packed tokens, so that a sum over (i, t) in the paper is a sum over tokens. The model
runs padded sequences. For two responses of 3 and 2 tokens to the same prompt:

    MicroBatch.ids    [ q q a b c ]      packed tokens   a b c d e
                      [ q q d e . ]      index           0 1 2 3 4
                                         length          3 2

Shapes: B responses, L columns in the longest sequence, N packed response tokens; b and n of them in
a micro-batch.
"""

import math
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch

from infra.balance import balanced_groups
from infra.ranks import rank_and_world, this_device
from infra.rows import Rows


class Rollout(NamedTuple):
    """A sampled response, on the host. The G responses to a problem are consecutive in a batch."""

    prompt: list[int]  # token ids
    tokens: np.ndarray  # [tokens] int32, without the prompt, with the end token
    logprob: np.ndarray  # [tokens] float32, the sampler's log p, nats
    text: str  # decoded; of special tokens only tags of thoughts
    truncated: bool  # stopped by max_new_tokens, not by an end token

    # From train.sample.
    problem: dict | None = None  # from the data set: its text, and its answer or tests
    reward: float = math.nan  # R


# ---- packed --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TokenBatch:
    """A rollout batch, or one of its micro-batches, as packed tokens: the input of a method.

    Every rank holds the whole batch, but only those rows of `features` that it computed. A method
    without features therefore needs no communication.
    """

    token: torch.Tensor  # [N] id of the sampled token
    length: torch.Tensor  # [B] tokens of each response; they sum to N
    reward: torch.Tensor  # [B] R of each response, with any length penalty
    advantage: torch.Tensor  # [N] the response's A, repeated over its tokens
    sampler_logprob: torch.Tensor  # [N] the sampler's log p, nats
    problems: list[dict]  # B, one for each response; for methods of your own
    seed: int  # for random methods: differs from step to step

    # From the pass at θ_old.
    logprob: torch.Tensor  # [N] log π_old of the sampled token, nats
    entropy: torch.Tensor  # [N] entropy of π_old at that position, nats
    features: Rows | None  # [N, F] the method's features of the hidden states

    def __len__(self) -> int:
        return len(self.token)

    def select(self, micro: "MicroBatch") -> "TokenBatch":
        """The n tokens of a micro-batch; without features."""
        index = micro.token_index
        return TokenBatch(
            token=self.token[index],
            length=self.length[micro.response_index],
            reward=self.reward[micro.response_index],
            advantage=self.advantage[index],
            sampler_logprob=self.sampler_logprob[index],
            problems=[self.problems[i] for i in micro.response_index],
            seed=self.seed,
            logprob=self.logprob[index],
            entropy=self.entropy[index],
            features=None,
        )

    def span(self, i: int) -> slice:
        """The indices of the tokens of response i."""
        start = int(self.length[:i].sum())
        return slice(start, start + int(self.length[i]))


def packed(
    rollouts: list[Rollout],
    rewards: torch.Tensor,
    advantages: torch.Tensor,
    logprob: torch.Tensor,
    entropy: torch.Tensor,
    features: Rows | None = None,
    seed: int = 0,
) -> TokenBatch:
    """The tokens of a rollout batch: rewards, advantages [B]; the others are as in TokenBatch."""
    device = this_device()
    length = torch.tensor([len(response.tokens) for response in rollouts], device=device)
    token = torch.from_numpy(np.concatenate([response.tokens for response in rollouts]))
    sampler_logprob = torch.from_numpy(np.concatenate([response.logprob for response in rollouts]))
    return TokenBatch(
        token=token.long().to(device),
        length=length,
        reward=rewards.to(device),
        advantage=advantages.to(device).repeat_interleave(length),
        sampler_logprob=sampler_logprob.to(device),
        problems=[response.problem for response in rollouts],
        seed=seed,
        logprob=logprob,
        entropy=entropy,
        features=features,
    )


# ---- padded --------------------------------------------------------------------------------------


class MicroBatch(NamedTuple):
    """Responses that run through the model together, on its device.

    With causal attention no token attends to the padding on the right. A rank without responses
    passes two columns of padding: ranks gather each other's shards, so all run equally many passes.
    """

    response_index: list[int]  # [b] indices of its responses among the B
    ids: torch.Tensor  # [b, L] prompt, response, padding
    mask: torch.Tensor  # [b, L] bool: the response tokens, n in all
    token_index: torch.Tensor  # [n] their indices among the N packed tokens


@dataclass
class MiniBatch:
    """The responses of one optimiser step, as this rank's micro-batches.

    Eq. 8 gives responses with advantage 0 no gradient, so the update skips them. **A loss term on
    every token, such as a KL penalty, must use both lists in train.update.** Each list has the same
    length on every rank.
    """

    token_count: int  # tokens in all its responses, on all ranks
    with_gradient: list[MicroBatch]
    without_gradient: list[MicroBatch]  # responses with advantage 0


def plan_mini_batches(
    rollouts: list[Rollout], advantages: torch.Tensor, responses_per_update: int, budget: int
) -> list[MiniBatch]:
    """The optimiser steps of a rollout batch: `responses_per_update` each, in order.

    advantages: [B]. budget: limit on the tokens in a micro-batch, including padding.
    """
    total = [len(response.prompt) + len(response.tokens) for response in rollouts]

    def micro_batches(index: list[int]) -> list[MicroBatch]:
        # Similar lengths together, within budget; equally many groups on every rank.
        groups = balanced_groups(index, total, budget, *rank_and_world())
        return [micro_batch(rollouts, group) for group in groups]

    plan = []
    for start in range(0, len(rollouts), responses_per_update):
        part = range(start, min(start + responses_per_update, len(rollouts)))
        token_count = sum(len(rollouts[i].tokens) for i in part)
        with_gradient = micro_batches([i for i in part if advantages[i] != 0])
        without_gradient = micro_batches([i for i in part if advantages[i] == 0])
        plan.append(MiniBatch(token_count, with_gradient, without_gradient))
    return plan


def micro_batch(rollouts: list[Rollout], index: list[int]) -> MicroBatch:
    """The responses `index` of a rollout batch, padded to the longest of them."""
    lengths = [len(response.tokens) for response in rollouts]
    first = [0, *accumulate(lengths)]  # index of each response's first token
    width = max((len(rollouts[i].prompt) + len(rollouts[i].tokens) for i in index), default=2)
    ids = torch.zeros(max(1, len(index)), width, dtype=torch.long)
    mask = torch.zeros_like(ids, dtype=torch.bool)
    token_index = [torch.arange(0)]
    for j, i in enumerate(index):
        prompt, tokens = rollouts[i].prompt, rollouts[i].tokens
        own = slice(len(prompt), len(prompt) + len(tokens))
        ids[j, : own.start] = torch.tensor(prompt)
        ids[j, own] = torch.from_numpy(tokens)
        mask[j, own] = True
        token_index.append(torch.arange(first[i], first[i + 1]))
    device = this_device()
    return MicroBatch(index, ids.to(device), mask.to(device), torch.cat(token_index).to(device))
