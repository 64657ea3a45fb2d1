"""The data of a step: rollouts, their packed tokens, and the micro-batches that the model runs.

    Rollout      a sampled response with its prompt; a rollout batch is a list of B, on the host
    TokenBatch   one number per response token, without padding: [N]. The maths uses it, so that a
                 sum over (i, t) in the paper is a sum over tokens
    MicroBatch   some responses as the model's input, padded: [b, L], and the places of their
                 tokens among the N

For two responses of 3 and 2 tokens to the same prompt:

    MicroBatch.ids    [ q q a b c ]      packed tokens   a b c d e
                      [ q q d e . ]      places          0 1 2 3 4
                                         length          3 2

Shapes: B responses, L columns in the longest sequence, N packed response tokens; b and n of them in
a micro-batch.
"""

import math
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch

from infra.balance import deal
from infra.ranks import rank_and_world, this_device
from infra.rows import Rows


class Rollout(NamedTuple):
    """A sampled response. The G responses to a problem are consecutive in a rollout batch."""

    prompt: list[int]  # token ids
    tokens: np.ndarray  # [tokens] int32, without the prompt, with the end token
    logprob: np.ndarray  # [tokens] float32, the sampler's log p, nats; NaN if it gives none
    text: str  # decoded, without special tokens
    truncated: bool  # stopped by max_new_tokens, not by an end token

    # From grading.graded.
    problem: dict | None = None  # from the data set: its text, and its answer or tests
    reward: float = math.nan  # R


# ---- packed --------------------------------------------------------------------------------------


@dataclass
class TokenBatch:
    """A rollout batch, or one of its micro-batches, as packed tokens: the input of a method.

    Every rank holds the whole batch, but only those rows of `kept` that it computed. A method
    without `kept` therefore needs no communication.
    """

    token: torch.Tensor  # [N] id of the sampled token
    length: torch.Tensor  # [B] tokens of each response; they sum to N
    advantage: torch.Tensor  # [N] the response's A, repeated over its tokens
    sampler_logprob: torch.Tensor  # [N] the sampler's log p, nats; NaN if unknown
    problems: list[dict]  # B, one for each response
    group_size: int  # G, responses to a problem, which are consecutive
    generator: torch.Generator = field(default_factory=torch.Generator)  # for random methods
    memory: dict = field(default_factory=dict)  # a method's state across steps, in checkpoints

    # From the pass at θ_old: policy.old_log_probabilities.
    logprob: torch.Tensor | None = None  # [N] log π_old of the sampled token, nats
    entropy: torch.Tensor | None = None  # [N] entropy of π_old at that position, nats
    mean_p: torch.Tensor | None = None  # [N] Σ_y p(y)² there: the mean of p(y) over y ~ p
    kept: Rows | None = None  # [N, ...] output of the method's `keep` on the hidden states
    current: torch.Tensor | None = None  # [N] log π_old; log π_θ if the method follows_policy

    # From the method: methods.token_weights.
    weight: torch.Tensor | None = None  # [N] ρ

    def __len__(self) -> int:
        return len(self.token)

    def of(self, micro: "MicroBatch") -> "TokenBatch":
        """The n tokens of a micro-batch; without `kept`."""
        places = micro.places
        return TokenBatch(
            token=self.token[places],
            length=self.length[micro.index],
            advantage=self.advantage[places],
            sampler_logprob=self.sampler_logprob[places],
            problems=[self.problems[i] for i in micro.index],
            group_size=self.group_size,
            generator=self.generator,
            memory=self.memory,
            logprob=self.logprob[places],
            entropy=self.entropy[places],
            mean_p=self.mean_p[places],
            current=self.current[places],
            weight=self.weight[places],
        )

    def places(self, i: int) -> slice:
        """The places of the tokens of response i."""
        start = int(self.length[:i].sum())
        return slice(start, start + int(self.length[i]))


def packed(rollouts: list[Rollout], advantages: torch.Tensor, group_size: int) -> TokenBatch:
    """The tokens of a rollout batch, before the pass at θ_old: advantages [B]."""
    device = this_device()
    length = torch.tensor([len(each.tokens) for each in rollouts], device=device)
    token = torch.from_numpy(np.concatenate([each.tokens for each in rollouts]))
    sampler_logprob = torch.from_numpy(np.concatenate([each.logprob for each in rollouts]))
    return TokenBatch(
        token=token.long().to(device),
        length=length,
        advantage=advantages.to(device).repeat_interleave(length),
        sampler_logprob=sampler_logprob.to(device),
        problems=[each.problem for each in rollouts],
        group_size=group_size,
    )


# ---- padded --------------------------------------------------------------------------------------


class MicroBatch(NamedTuple):
    """Responses that run through the model together, built once per step. Tensors on its device.

    Sequences start at column 0, so with causal attention no real token attends to the padding on
    the right. Without responses there are two columns of padding: ranks gather each other's
    shards, so all must run equally many passes.
    """

    index: list[int]  # b numbers of its responses in the rollout batch
    ids: torch.Tensor  # [b, L] prompt, response, padding
    mask: torch.Tensor  # [b, L] bool: the response tokens, n in all
    places: torch.Tensor  # [n] their places among the N packed tokens


@dataclass
class MiniBatch:
    """The responses of one optimiser step, as this rank's micro-batches.

    `silent` holds the responses with advantage 0. Eq. 8 gives them no gradient, so the update skips
    them. **A loss term on every token, such as a KL penalty, must use both lists.** Each list has
    the same length on every rank.
    """

    token_count: int  # tokens in all its responses, on all ranks
    trained: list[MicroBatch]
    silent: list[MicroBatch]  # responses with advantage 0

    @property
    def micro_batches(self) -> list[MicroBatch]:
        return self.trained + self.silent


def plan_mini_batches(
    rollouts: list[Rollout], advantages: torch.Tensor, mini_batch: int, budget: int
) -> list[MiniBatch]:
    """The optimiser steps of a rollout batch: `mini_batch` responses each, in order.

    advantages: [B]; responses with advantage 0 get micro-batches of their own.
    budget: limit on the tokens in a micro-batch, including padding.
    The pass at θ_old and the updates run the same micro-batches, so the first update's ratio
    is exactly 1.
    """
    total = [len(each.prompt) + len(each.tokens) for each in rollouts]

    def dealt(index: list[int]) -> list[MicroBatch]:
        groups = deal(index, total, budget, *rank_and_world())
        return [micro_batch(rollouts, group) for group in groups]

    plan = []
    for start in range(0, len(rollouts), mini_batch):
        part = range(start, min(start + mini_batch, len(rollouts)))
        trained = [i for i in part if advantages[i] != 0]
        silent = [i for i in part if advantages[i] == 0]
        token_count = sum(len(rollouts[i].tokens) for i in part)
        plan.append(MiniBatch(token_count, dealt(trained), dealt(silent)))
    return plan


def micro_batch(rollouts: list[Rollout], index: list[int]) -> MicroBatch:
    """The responses `index` of a rollout batch, padded to the longest of them."""
    first = [0, *accumulate(len(each.tokens) for each in rollouts)]  # place of its first token
    width = max((len(rollouts[i].prompt) + len(rollouts[i].tokens) for i in index), default=2)
    ids = torch.zeros(max(1, len(index)), width, dtype=torch.long)
    mask = torch.zeros_like(ids, dtype=torch.bool)
    places = [torch.arange(0)]
    for j, i in enumerate(index):
        prompt, tokens = rollouts[i].prompt, rollouts[i].tokens
        own = slice(len(prompt), len(prompt) + len(tokens))
        ids[j, : own.start] = torch.tensor(prompt)
        ids[j, own] = torch.from_numpy(tokens)
        mask[j, own] = True
        places.append(torch.arange(first[i], first[i + 1]))
    device = this_device()
    return MicroBatch(index, ids.to(device), mask.to(device), torch.cat(places).to(device))
