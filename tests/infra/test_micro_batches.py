"""Tests infra/micro_batches.py: packed tokens, little padding, each rank's mini-batches."""

import numpy as np
import pytest
import torch

from infra import micro_batches
from infra.micro_batches import Block, balanced_groups, mini_batches, padded
from methods import packed
from rollout import Response

PROMPTS = [[5, 6, 7], [8], [9, 10]]
RESPONSES = [[20, 21, 1], [22, 23, 24, 25], [1]]
REWARDS = torch.tensor([0.0, 2.0, 4.0])
ADVANTAGE = torch.tensor([0.5, 0.5, 0.5, -1, -1, -1, -1, 0])
OLD_LOGPROB, ENTROPY = torch.arange(16.0).split(8)


def response_of(prompt, response, start=0):
    tokens = np.array(response, dtype=np.int32)
    logprob = -np.arange(start, start + len(response), dtype=np.float32)
    return Response(prompt, tokens, logprob, "", False)


@pytest.fixture
def rollouts():
    starts = (0, 3, 7)
    return [response_of(*x) for x in zip(PROMPTS, RESPONSES, starts, strict=True)]


@pytest.fixture
def tokens(rollouts):
    return packed(
        rollouts, rewards=REWARDS, advantage=ADVANTAGE, old_logprob=OLD_LOGPROB, entropy=ENTROPY
    )


def test_packed_joins_the_responses(tokens):
    assert len(tokens) == 8
    assert tokens.token.tolist() == [20, 21, 1, 22, 23, 24, 25, 1]
    assert tokens.length.tolist() == [3, 4, 1]
    assert tokens.reward.tolist() == [0, 2, 4]
    assert torch.equal(tokens.advantage, ADVANTAGE)
    assert tokens.sampler_logprob.tolist() == [0, -1, -2, -3, -4, -5, -6, -7]
    assert torch.equal(tokens.old_logprob, OLD_LOGPROB)
    assert torch.equal(tokens.entropy, ENTROPY)


def test_padded_puts_prompt_and_response_side_by_side_from_column_0(rollouts):
    micro = padded(rollouts, [2, 0], has_advantage=True)
    assert micro.response_index == [2, 0]
    assert micro.ids.tolist() == [[9, 10, 1, 0, 0, 0], [5, 6, 7, 20, 21, 1]]
    assert micro.is_token.int().tolist() == [[0, 0, 1, 0, 0, 0], [0, 0, 0, 1, 1, 1]]
    assert micro.token_index.tolist() == [7, 0, 1, 2]


def test_the_tokens_of_a_micro_batch(rollouts, tokens):
    micro = padded(rollouts, [2, 0], has_advantage=True)
    part = tokens.select(micro)
    for name in ("token", "advantage", "sampler_logprob", "old_logprob", "entropy"):
        assert torch.equal(getattr(part, name), getattr(tokens, name)[[7, 0, 1, 2]]), name
    assert part.length.tolist() == [1, 3]
    assert part.reward.tolist() == [4, 0]


LENGTHS = [30, 5, 18, 18, 7, 64, 3, 12, 26, 9, 31, 15]
OF_RESPONSE = torch.tensor([1.0, -1, 0, 0, 2, 0, 0.5, -0.5, 0, 0, 0, 0])


@pytest.mark.parametrize("world", [1, 3])
def test_a_plan_covers_each_mini_batch_once_in_equal_steps_within_the_budget(monkeypatch, world):
    rollouts = [response_of([5] * 4, [6] * length) for length in LENGTHS]
    advantage = OF_RESPONSE.repeat_interleave(torch.tensor(LENGTHS))
    plans = []
    for rank in range(world):
        monkeypatch.setattr(micro_batches, "rank_and_world", lambda rank=rank: (rank, world))
        plans.append(mini_batches(rollouts, advantage, 4, 60))
    for number, parts in enumerate(zip(*plans, strict=True)):
        responses = range(4 * number, 4 * number + 4)
        rounds = zip(*(part.micro_batches for part in parts), strict=True)  # all ranks have as many
        found = {True: [], False: []}
        for micros in rounds:
            (has_advantage,) = {micro.has_advantage for micro in micros}  # the same on every rank
            found[has_advantage] += [i for micro in micros for i in micro.response_index]
        for has_advantage, index in found.items():
            expected = [i for i in responses if (OF_RESPONSE[i] != 0) == has_advantage]
            assert sorted(index) == expected
        for part in parts:
            assert part.token_count == sum(LENGTHS[i] for i in responses)  # of all ranks
            active = [micro for micro in part.micro_batches if micro.has_advantage]
            assert part.micro_batches[: len(active)] == active
            for micro in part.micro_batches:
                assert len(micro.response_index) < 2 or micro.ids.numel() <= 60


def test_a_response_counts_if_any_of_its_tokens_has_an_advantage(rollouts):
    advantage = torch.tensor([0, 0, 0, 0, -0.5, 0, 0.5, 0])  # the second's sum to 0
    (plan,) = mini_batches(rollouts, advantage, 3, 6)
    of_micro = [(micro.has_advantage, micro.response_index) for micro in plan.micro_batches]
    assert of_micro == [(True, [1]), (False, [0]), (False, [2])]


def test_responses_of_similar_length_are_padded_together():
    blocks = [Block([i], length) for i, length in enumerate(LENGTHS)]
    for group in balanced_groups(blocks, 60):
        of_group = [LENGTHS[i] for i in group]
        assert max(of_group) <= 2 * min(of_group)
