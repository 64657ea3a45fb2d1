"""infra/cache.py: a cache that was kept, merged and grown is the cache of the sequences in it."""

import pytest
import torch
from transformers import DynamicCache, Qwen3Config

import toy
from infra import cache as cache_module
from infra.cache import (
    SPARE,
    GrowingLayer,
    cache_bytes,
    free_cache_tokens,
    keep,
    left_padded,
    merged,
    prefill,
)

SEQUENCES = [
    torch.tensor([5, 6, 7, 8]),
    torch.tensor([9]),
    torch.tensor([10, 11]),
    torch.tensor([5, 6, 7, 8]),
]


@pytest.fixture(scope="module")
def model():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return toy.build_model().eval().requires_grad_(False)


def expected_cache(model, sequence):
    """(keys, values) of each layer for all but the last token, computed alone, without padding."""
    cache = DynamicCache()
    if len(sequence) > 1:
        model(sequence[None, :-1], past_key_values=cache, use_cache=True)
    return [(layer.keys[0], layer.values[0]) for layer in cache.layers]


def assert_holds(model, cache, sequences):
    """Row i of the cache ends with the keys and values of sequences[i]."""
    for layer in cache.layers:
        assert len(layer.keys) == len(layer.values) == len(sequences)
    for i, sequence in enumerate(sequences):
        columns = len(sequence) - 1
        wanted = expected_cache(model, sequence)  # of no layer, where the cache has no column
        for layer, (keys, values) in zip(cache.layers, wanted, strict=columns > 0):
            torch.testing.assert_close(layer.keys[i, :, -columns:], keys, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(layer.values[i, :, -columns:], values, rtol=1e-4, atol=1e-5)


def test_left_padded_ends_in_the_last_column():
    ids, mask = left_padded(SEQUENCES[:3], torch.device("cpu"))
    assert ids.tolist() == [[5, 6, 7, 8], [0, 0, 0, 9], [0, 0, 10, 11]]
    assert mask.tolist() == [[1, 1, 1, 1], [0, 0, 0, 1], [0, 0, 1, 1]]


def test_left_padded_mask_comes_from_lengths_and_two_columns_are_the_least():
    ids, mask = left_padded([torch.tensor([0]), torch.tensor([3])], torch.device("cpu"))
    assert ids.tolist() == [[0, 0], [0, 3]]
    assert mask.tolist() == [[0, 1], [0, 1]]


def test_prefill_computes_distinct_sequences_once_and_without_their_last_token(model, monkeypatch):
    seen = []
    forward = model.base_model.forward

    def spy(**options):
        seen.append(options["input_ids"].shape)
        return forward(**options)

    monkeypatch.setattr(model.base_model, "forward", spy)
    cache = prefill(model, SEQUENCES)
    monkeypatch.undo()
    assert seen == [(3, 3)]
    assert_holds(model, cache, SEQUENCES)


def test_keep_and_merged_hold_the_sequences(model):
    """The picture in the file's head: some leave, columns of padding go, others arrive."""
    cache = prefill(model, SEQUENCES)
    cache = keep(cache, [2, 1], 1)
    assert cache.layers[0].keys.shape[2] == 1
    assert_holds(model, cache, [SEQUENCES[2], SEQUENCES[1]])

    longer = torch.tensor([20, 21, 22, 23, 24])
    cache = merged(cache, prefill(model, [longer]))
    assert cache.layers[0].keys.shape[2] == 4
    assert_holds(model, cache, [SEQUENCES[2], SEQUENCES[1], longer])

    shorter = torch.tensor([25, 26])
    cache = merged(cache, prefill(model, [shorter]))
    assert_holds(model, cache, [SEQUENCES[2], SEQUENCES[1], longer, shorter])


def test_growing_layer_holds_what_dynamic_layer_holds():
    """Many columns at first, then one at a time, beyond its spare columns, and after keep."""
    generator = torch.Generator().manual_seed(0)
    growing = DynamicCache()
    growing.layer_class_to_replicate = GrowingLayer
    plain = DynamicCache()
    rooms = set()
    for new in (7, *[1] * (SPARE + 5), 3):
        keys, values = torch.randn(2, 3, 2, new, 4, generator=generator)
        ours = growing.update(keys, values, 0)
        wanted = plain.update(keys, values, 0)
        assert torch.equal(ours[0], wanted[0])
        assert torch.equal(ours[1], wanted[1])
        rooms.add(growing.layers[0].keys.data_ptr())
    assert len(rooms) == 2  # it moved once, instead of at every token

    keep(growing, [2, 0], 5)
    keep(plain, [2, 0], 5)
    keys, values = torch.randn(2, 2, 2, 1, 4, generator=generator)
    ours = growing.update(keys, values, 0)
    wanted = plain.update(keys, values, 0)
    assert torch.equal(ours[0], wanted[0])
    assert torch.equal(ours[1], wanted[1])


def qwen3_config(hidden, layers):
    """What a Qwen3's config.json says of its keys and values: 8 heads of 128."""
    return Qwen3Config(
        hidden_size=hidden, num_hidden_layers=layers, num_key_value_heads=8, head_dim=128
    )


def test_cache_bytes_of_qwen3_8b_and_14b():
    assert cache_bytes(qwen3_config(4096, 36), 2) == 147_456
    assert cache_bytes(qwen3_config(5120, 40), 2) == 163_840


def test_cache_bytes_are_those_of_a_cache(model):
    """Four rows of three columns in float32."""
    cache = prefill(model, SEQUENCES)
    held = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    assert held == 4 * 3 * cache_bytes(model.config, 4)


def test_free_cache_tokens_leave_room(model, monkeypatch):
    monkeypatch.setattr(cache_module, "free_bytes", lambda device: 1e6)
    tokens = free_cache_tokens(model)
    assert 0.59e6 < tokens * cache_bytes(model.config, 4) <= 0.6e6
    monkeypatch.undo()
    assert cache_module.free_bytes(torch.device("cpu")) > 0
