"""infra/flight.py: which responses are in flight, paused, or arriving."""

import numpy as np
import torch
from infra.flight import (
    Flight,
    Response,
    cache_bytes,
    free_cache_tokens,
    width,
    working_bytes,
)
from transformers import Qwen3Config

import toy
from infra import flight as flight_module


def response(prompt_length=2, new=0, limit=100, finished=False):
    one = Response(0, torch.zeros(prompt_length, dtype=torch.long), limit, None)
    one.tokens = torch.zeros(prompt_length + new, dtype=torch.long)
    one.finished = finished
    return one


def flight(waiting=(), responses=(), most=10, cache_tokens=10**6, chunk=8):
    return Flight(list(waiting), most, cache_tokens, chunk, list(responses))


def test_response_append_ends_at_an_end_token_or_at_its_limit():
    one = response(prompt_length=3, limit=6)
    one.append(torch.tensor([4, 5]), torch.tensor([-4.0, -5.0]), [9])
    assert (one.new, one.finished) == (2, False)
    one.append(torch.tensor([6, 9]), torch.tensor([-6.0, -9.0]), [9])
    assert (one.new, one.finished) == (4, True)
    assert one.tokens.tolist() == [0, 0, 0, 4, 5, 6, 9]
    assert torch.cat(one.logprobs).tolist() == [-4, -5, -6, -9]

    other = response(prompt_length=3, limit=3)
    other.append(torch.tensor([4, 5, 6, 7, 8]), -torch.arange(4.0, 9.0), [9])
    assert (other.new, other.finished) == (3, True)
    assert other.tokens.tolist() == [0, 0, 0, 4, 5, 6]
    assert torch.cat(other.logprobs).tolist() == [-4, -5, -6]
    tokens, logprobs = other.sampled()
    assert (tokens.dtype, logprobs.dtype) == (np.int32, np.float32)
    assert tokens.tolist() == [4, 5, 6]


def test_tokens_after_an_end_token_are_dropped():
    one = response(prompt_length=1, limit=9)
    one.append(torch.tensor([5, 9, 0, 9]), torch.zeros(4), [8, 9])
    assert one.sampled()[0].tolist() == [5, 9]
    assert one.finished


def test_width_is_at_least_two():
    assert width([]) == width([response(prompt_length=1)]) == 2
    assert width([response(3), response(2, new=5)]) == 7


def test_fits_counts_responses_and_tokens_and_always_admits_one():
    some = flight(most=3, cache_tokens=60, chunk=8)
    assert some.fits(3, 12)
    assert not some.fits(3, 13)
    assert not some.fits(4, 2)
    assert some.fits(1, 10**9)


def test_finished_responses_leave_and_the_longest_are_paused():
    """Three unfinished responses of up to 20 columns exceed the 80-token limit; two fit."""
    responses = [response(new=18), response(new=18, finished=True), response(new=5)]
    responses.append(response(prompt_length=14, new=4))
    first = response()
    some = flight([first], responses, cache_tokens=80)
    assert some.those_who_stay() == [responses[2], responses[3]]
    assert list(some.waiting) == [first, responses[0]]


def test_arrivals_come_in_order_until_one_does_not_fit():
    staying = [response(new=10)]
    waiting = [response(2), response(3), response(40), response(2)]
    some = flight(waiting, staying, cache_tokens=100)
    arriving = some.those_who_arrive(staying)
    assert arriving == waiting[:2]
    assert list(some.waiting) == waiting[2:]  # the short one does not overtake the long one


def test_paused_responses_wait_for_shorter_ones():
    waiting = [response(new=30), response(4), response(new=7), response(2)]
    some = flight(waiting, cache_tokens=75)
    arriving = some.those_who_arrive([])
    assert arriving == [waiting[1], waiting[3], waiting[2]]
    assert list(some.waiting) == [waiting[0]]


# ---- memory for their caches ---------------------------------------------------------------------


def qwen3_config(hidden, layers):
    """A Qwen3 config with 8 key-value heads of size 128."""
    return Qwen3Config(
        hidden_size=hidden, num_hidden_layers=layers, num_key_value_heads=8, head_dim=128
    )


def test_cache_bytes_for_qwen3_8b_and_14b():
    assert cache_bytes(qwen3_config(4096, 36), 2) == 147_456
    assert cache_bytes(qwen3_config(5120, 40), 2) == 163_840


def test_free_cache_tokens_leave_headroom(monkeypatch):
    """Room for 15 % of the free memory, one sampled token or prefill pass, and a copied layer."""
    model = toy.build_model()
    monkeypatch.setattr(flight_module, "free_bytes", lambda device: 1e9)
    config = model.config
    for rows, top_p in ((4, 1.0), (200_000, 1.0), (200_000, 0.7)):
        tokens = free_cache_tokens(model, rows, 100, top_p)
        working = working_bytes(config, 4, rows, 100, top_p)
        taken = tokens * cache_bytes(config, 4) * (1 + 1 / (2 * config.num_hidden_layers)) + working
        assert 0.849e9 < taken <= 0.85e9
    assert working_bytes(config, 4, 200_000, 100, 0.7) == 80 * 200_000 * config.vocab_size

    monkeypatch.setattr(flight_module, "free_bytes", lambda device: 1e5)
    assert free_cache_tokens(model, 4, 100, 1.0) == 0  # so one response at a time
    monkeypatch.undo()
    assert flight_module.free_bytes(torch.device("cpu")) > 0
