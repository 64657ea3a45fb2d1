"""Tests infra/sampler.py: which responses are sampled together; equal sequences run only once."""

from unittest import mock

import pytest
import torch
from models import random_lm

from infra import sampler
from infra.sampler import CHUNK, Batch, Running, room


def responses(*lengths):
    return [Running([0] * length, None) for length in lengths]


@pytest.mark.parametrize(
    "lengths, limit, capacity, expected",
    [
        ([2, 3, 4], 2, 10**6, 2),
        ([5, 18, 20], 9, 2 * (18 + CHUNK), 2),  # three of 20 columns and a chunk exceed it
        ([40, 2], 9, 60, 1),  # a long one runs alone, and is not overtaken
        ([], 9, 60, 0),
    ],
)
def test_as_many_run_together_as_fit(lengths, limit, capacity, expected):
    assert room(responses(*lengths), limit, capacity) == expected


@pytest.mark.parametrize("most, shapes", [(2**14, [(3, 3)]), (6, [(3, 2), (3, 1)])])
def test_distinct_sequences_run_once_in_passes_of_limited_size(monkeypatch, most, shapes):
    """tests/test_architectures.py compares samples from the caches with plain passes."""
    monkeypatch.setattr(sampler, "PREFILL_TOKENS", most)
    model = random_lm("qwen3").requires_grad_(False)
    lm, twice = model.base_model, torch.tensor([5, 6, 7, 8])
    with mock.patch.object(lm, "forward", wraps=lm.forward) as forward:
        batch = Batch(model, [twice, torch.tensor([9]), torch.tensor([10, 11]), twice])
    assert [call.kwargs["input_ids"].shape for call in forward.call_args_list] == shapes
    keys = batch.cache.layers[0].keys
    assert len(keys) == 4 and torch.equal(keys[0], keys[3])
