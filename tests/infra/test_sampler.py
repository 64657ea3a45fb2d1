"""infra/sampler.py: which responses are in flight, and that their caches hold the right columns."""

from unittest import mock

import pytest
import torch
from models import random_lm

from infra import sampler
from infra.sampler import CHUNK, Running, prefill, schedule


def response(prompt_length=2, new=0):
    one = Running([0] * prompt_length, None)
    one.tokens = torch.zeros(prompt_length + new, dtype=torch.long)
    one.cache = []
    return one


def test_waiting_responses_enter_up_to_the_limit_in_order():
    running, first, second, third = response(new=10), response(2), response(3), response(4)
    chosen, waiting = schedule([running], [first, second, third], 3, 10**6)
    assert chosen == [running, first, second]
    assert waiting == [third]


def test_the_longest_wait_until_the_others_fit_and_lose_their_caches():
    """Three responses of up to 20 columns and a chunk each exceed the capacity; two fit."""
    long, short, middle, new = response(new=18), response(new=5), response(14, new=4), response()
    capacity = 2 * (18 + CHUNK)
    chosen, waiting = schedule([long, short, middle], [new], 10, capacity)
    assert chosen == [short, middle]
    assert waiting == [new, long]  # fewest new tokens first
    assert long.cache is None is not short.cache


def test_a_long_response_is_not_overtaken_and_always_runs_alone():
    long, short = response(40), response(2)
    chosen, waiting = schedule([], [long, short], 10, 60)
    assert chosen == [long]
    assert waiting == [short]


@pytest.mark.parametrize("most", [2**14, 6])
def test_prefill_runs_distinct_sequences_once_in_passes_of_limited_size(monkeypatch, most):
    """tests/test_architectures.py compares samples from the caches with plain passes."""
    monkeypatch.setattr(sampler, "PREFILL_TOKENS", most)
    model = random_lm("qwen3").requires_grad_(False)
    lm, twice = model.base_model, torch.tensor([5, 6, 7, 8])
    with mock.patch.object(lm, "forward", wraps=lm.forward) as forward:
        prefill(model, [twice, torch.tensor([9]), torch.tensor([10, 11]), twice])
    shapes = [each.kwargs["input_ids"].shape for each in forward.call_args_list]
    assert sum(count for count, _ in shapes) == 3
    assert all(count == 1 or count * (columns + 1) <= most for count, columns in shapes)
