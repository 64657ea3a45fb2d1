"""A rollout batch as padded sequences, as packed token rows, and as the mini-batches of a step.

A rollout batch is stored as padded sequences (`Rollouts`), the model's input. The maths uses
*packed* tokens (`TokenBatch`): one row per response token, no padding. A sum over (i, t) in the
paper is thus a sum over rows. For two responses of 3 and 2 tokens:

    Rollouts.ids      [ q q a b c ]      packed rows   0 1 2 3 4
                      [ q d e . . ]      tokens        a b c d e
                                         of response   0 0 0 1 1

Shapes: B responses, T tokens in the longest sequence, N packed response tokens.
"""

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch.nn.functional import pad

from infra.balance import PADDED, Layout, deal
from infra.rows import Rows


@dataclass
class Rollouts:
    """B sampled responses; the G responses to a prompt are consecutive.

    The ids are on the model's device. Everything else is on the host, so planning a step does not
    wait for a GPU. Sequences start at column 0 and are padded on the right. With causal
    attention no real token attends to the padding.
    """

    ids: torch.Tensor  # [B, T] prompt, response (including its end token), padding
    prompt_length: torch.Tensor  # [B] tokens
    response_length: torch.Tensor  # [B] tokens, including the end token
    truncated: torch.Tensor  # [B] bool: stopped by max_new_tokens, not by an end token
    texts: list[str]  # B decoded responses without special tokens
    logprobs: list[torch.Tensor]  # B tensors [tokens] float32: the sampler's log p, on the CPU

    def __len__(self) -> int:
        return len(self.texts)

    def response_ids(self, i: int) -> torch.Tensor:
        """The tokens of response i, [response_length[i]]."""
        start = int(self.prompt_length[i])
        return self.ids[i, start : start + int(self.response_length[i])]

    def tokens(self) -> torch.Tensor:
        """The tokens of all responses, packed: [N]."""
        starts = torch.arange(len(self)) * self.ids.shape[1] + self.prompt_length
        places = ranges(starts, self.response_length)  # in the flattened ids
        return self.ids.flatten()[uploaded(places, self.ids.device)]

    def pick(self, index: list[int]) -> "Rollouts":
        """The responses `index`, in that order."""
        return Rollouts(
            self.ids[uploaded(torch.tensor(index), self.ids.device)],
            self.prompt_length[index],
            self.response_length[index],
            self.truncated[index],
            [self.texts[i] for i in index],
            [self.logprobs[i] for i in index],
        )


def padded_rollouts(
    prompts: list[list[int]],
    responses: list[np.ndarray],
    texts: list[str],
    end_tokens: list[int],
    device: torch.device,
    logprobs: list[np.ndarray] | None = None,
) -> Rollouts:
    """Concatenate each prompt with its response, starting at column 0.

    Columns to the right of a response are never read.
    responses: token ids below 2³¹, copied to the device in one transfer, four bytes each.
    logprobs: the sampler's log p of each response's tokens; NaN if the sampler has none.
    """
    if logprobs is None:
        logprobs = [np.full(len(response), np.nan, dtype=np.float32) for response in responses]
    prompt_length = torch.tensor([len(prompt) for prompt in prompts])
    response_length = torch.tensor([len(response) for response in responses])
    width = int((prompt_length + response_length).max())

    ids = np.full((len(prompts), width), end_tokens[0], dtype=np.int32)
    for row, prompt, response in zip(ids, prompts, responses, strict=True):
        row[: len(prompt)] = prompt
        row[len(prompt) : len(prompt) + len(response)] = response

    truncated = [response[-1] not in end_tokens for response in responses]
    return Rollouts(
        uploaded(torch.from_numpy(ids), device).long(),
        prompt_length,
        response_length,
        torch.tensor(truncated),
        texts,
        [torch.from_numpy(logprob) for logprob in logprobs],
    )


def join(parts: list[Rollouts]) -> Rollouts:
    """Several Rollouts as one, in order."""
    width = max(part.ids.shape[1] for part in parts)
    return Rollouts(
        torch.cat([pad(part.ids, (0, width - part.ids.shape[1])) for part in parts]),
        torch.cat([part.prompt_length for part in parts]),
        torch.cat([part.response_length for part in parts]),
        torch.cat([part.truncated for part in parts]),
        [text for part in parts for text in part.texts],
        [logprob for part in parts for logprob in part.logprobs],
    )


@dataclass
class TokenBatch:
    """A rollout batch as packed tokens: the input of a method.

    Every rank holds the whole batch, but only those rows of `kept` that it computed. A
    method without `kept` therefore needs no communication.

    Scoring sets the first group of fields. `completed` adds the second before a method gets the
    batch. `part` selects responses for a method that follows the policy through the updates.
    """

    logprob: torch.Tensor  # [N] log π_old of the sampled token, nats
    entropy: torch.Tensor  # [N] entropy of π_old at that position, nats
    mean_p: torch.Tensor  # [N] Σ_y p(y)² at that position: the mean of p over the drawn token
    token: torch.Tensor  # [N] id of the sampled token
    length: torch.Tensor  # [B] tokens of each response; they sum to N
    kept: Rows | None = None  # [N, ...] output of the method's `keep` on the hidden states
    sampler_logprob: torch.Tensor | None = None  # [N] the sampler's log p of the token, nats

    advantage: torch.Tensor | None = None  # [N] the response's A, repeated over its tokens
    current: torch.Tensor | None = None  # [N] log π_θ; equals `logprob` until an update moves θ
    problems: list[dict] = field(default_factory=list)  # B, from the data set
    generator: torch.Generator | None = None  # for random methods; fixed by seed and step
    memory: dict = field(default_factory=dict)  # a method's state across steps, in checkpoints

    def completed(self, advantages: torch.Tensor, **fields) -> "TokenBatch":
        """The scored batch with its responses' advantages [B], and other fields by name.

        At this point θ is θ_old, so log π_θ is log π_old.
        """
        advantage = advantages.to(self.length.device).repeat_interleave(self.length)  # [N]
        return replace(self, advantage=advantage, current=self.logprob, **fields)

    def part(self, index: torch.Tensor, current: torch.Tensor) -> "TokenBatch":
        """The responses `index` with their current log-probabilities; without `kept`."""
        problems = [self.problems[i] for i in index.tolist()] if self.problems else []
        index = index.to(self.length.device)
        rows = packed_rows(index, self.length)
        return replace(
            self,
            logprob=self.logprob[rows],
            entropy=self.entropy[rows],
            mean_p=self.mean_p[rows],
            token=self.token[rows],
            length=self.length[index],
            sampler_logprob=None if self.sampler_logprob is None else self.sampler_logprob[rows],
            advantage=self.advantage[rows],
            current=current,
            problems=problems,
            kept=None,
        )


def packed_rows(index: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
    """The packed rows of the tokens of responses `index`, in that order.

    index: [b] responses; length: [B] tokens of each response. Returns the rows, [n].
    With `length` [2, 3, 1], responses [2, 0] own rows [5, 0, 1].
    """
    return ranges((length.cumsum(0) - length)[index], length[index])


def ranges(start: torch.Tensor, size: torch.Tensor) -> torch.Tensor:
    """Concatenates the numbers start[i], ..., start[i] + size[i] - 1 over i."""
    first = (size.cumsum(0) - size).repeat_interleave(size)
    within = torch.arange(len(first), device=size.device) - first
    return start.repeat_interleave(size) + within


def uploaded(x: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A copy of the host tensor x on `device`, without waiting for pending GPU work."""
    if device.type == "cpu":
        return x
    return x.pin_memory().to(device, non_blocking=True)


@dataclass
class MiniBatch:
    """The responses of one optimiser step, as this rank's micro-batches of response indices.

    `silent` holds the responses with advantage 0. Eq. 8 gives them no gradient, so the update skips
    them. **A loss term on every token, such as a KL penalty, must use both lists.** Each list has
    the same length on every rank, with empty micro-batches at the end if needed: ranks gather each
    other's shards, so all must run the same number of passes.
    """

    token_count: int  # N, tokens in all its responses, on all ranks
    trained: list[torch.Tensor]  # micro-batches, each the indices [b] of its responses
    silent: list[torch.Tensor]  # micro-batches of responses with advantage 0

    @property
    def micro_batches(self) -> list[torch.Tensor]:
        return self.trained + self.silent


def plan_mini_batches(
    rollouts: Rollouts,
    advantages: torch.Tensor,
    mini_batch: int,
    budget: int,
    rank: int = 0,
    world: int = 1,
    layout: Layout = PADDED,
) -> list[MiniBatch]:
    """The optimiser steps of a rollout batch: `mini_batch` responses each, in order.

    advantages: [B]; responses with advantage 0 get micro-batches of their own.
    budget: limit on the tokens in a micro-batch, including padding.
    layout: padded or packed, and the cost of a micro-batch, which is balanced over ranks.
    The pass at θ_old and the updates run the same micro-batches, so the first update's ratio
    is exactly 1.
    """
    length = rollouts.prompt_length + rollouts.response_length
    plan = []
    for part in torch.arange(len(rollouts)).split(mini_batch):
        has_advantage = advantages[part] != 0
        plan.append(
            MiniBatch(
                token_count=int(rollouts.response_length[part].sum()),
                trained=deal(part[has_advantage], length, budget, rank, world, layout),
                silent=deal(part[~has_advantage], length, budget, rank, world, layout),
            )
        )
    return plan
