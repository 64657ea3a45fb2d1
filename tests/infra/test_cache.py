"""infra/cache.py: after keep, merge and growth, a cache equals one built from scratch."""

import pytest
import torch
from infra.cache import SPARE, GrowingLayer, keep, left_padded, merged, prefill
from infra.flight import cache_bytes
from transformers import DynamicCache

import toy
from infra import cache as cache_module

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
    """Each layer's (keys, values) for all tokens but the last, from one unpadded sequence."""
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
        wanted = expected_cache(model, sequence)  # empty if the cache has no columns
        for layer, (keys, values) in zip(cache.layers, wanted, strict=columns > 0):
            torch.testing.assert_close(layer.keys[i, :, -columns:], keys, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(layer.values[i, :, -columns:], values, rtol=1e-4, atol=1e-5)


def test_left_padded_sequences_end_in_the_last_column():
    ids, mask = left_padded(SEQUENCES[:3], torch.device("cpu"))
    assert ids.tolist() == [[5, 6, 7, 8], [0, 0, 0, 9], [0, 0, 10, 11]]
    assert mask.tolist() == [[1, 1, 1, 1], [0, 0, 0, 1], [0, 0, 1, 1]]


def test_left_padded_mask_comes_from_lengths_and_has_at_least_two_columns():
    ids, mask = left_padded([torch.tensor([0]), torch.tensor([3])], torch.device("cpu"))
    assert ids.tolist() == [[0, 0], [0, 3]]
    assert mask.tolist() == [[0, 1], [0, 1]]


def test_prefill_computes_each_distinct_sequence_once_without_its_last_token(model, monkeypatch):
    seen = []
    forward = model.base_model.forward

    def spy(**options):
        seen.append(options["input_ids"].shape)
        return forward(**options)

    monkeypatch.setattr(model.base_model, "forward", spy)
    cache = prefill(model, SEQUENCES)
    monkeypatch.undo()
    assert sum(rows for rows, _ in seen) == 3  # short and long ones may take separate passes
    assert max(columns for _, columns in seen) == 3
    assert_holds(model, cache, SEQUENCES)


def test_keep_and_merged_preserve_the_sequences(model):
    """As in the module docstring's picture: rows leave, padding is trimmed, new rows arrive."""
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


def test_growing_layer_equals_dynamic_layer():
    """Many columns at first, then one at a time beyond the spare columns, then more after keep."""
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
    assert len(rooms) == 2  # reallocated once, not for every token

    keep(growing, [2, 0], 5)
    keep(plain, [2, 0], 5)
    keys, values = torch.randn(2, 2, 2, 1, 4, generator=generator)
    ours = growing.update(keys, values, 0)
    wanted = plain.update(keys, values, 0)
    assert torch.equal(ours[0], wanted[0])
    assert torch.equal(ours[1], wanted[1])


def held_bytes(cache):
    """Bytes of all tensors that the cache keeps alive."""
    tensors = [x for layer in cache.layers for x in vars(layer).values() if torch.is_tensor(x)]
    storages = {x.untyped_storage().data_ptr(): x.untyped_storage() for x in tensors}
    return sum(storage.nbytes() for storage in storages.values())


def needed_bytes(model, responses, columns):
    return responses * columns * cache_bytes(model.config, 4)


def test_only_kept_and_merged_rows_stay_in_memory(model):
    """Keys and values must be freed when some of 32 responses leave."""
    cache = prefill(model, SEQUENCES * 8)
    for step in range(2):
        for i, layer in enumerate(cache.layers):
            states = torch.zeros(32 - step, *layer.keys.shape[1:2], 1, layer.keys.shape[3])
            cache.update(states, states, i)
        columns = 3 + 1 + step
        cache = keep(cache, list(range(31 - step)), columns)
        assert held_bytes(cache) == needed_bytes(model, 31 - step, columns)

    other = prefill(model, SEQUENCES)
    cache = merged(cache, other)
    assert held_bytes(cache) == needed_bytes(model, 30 + 4, columns)
    assert held_bytes(other) == 0


def test_prefill_reads_long_sequences_in_several_passes(model, monkeypatch):
    monkeypatch.setattr(cache_module, "PREFILL_TOKENS", 5)
    seen = []
    forward = model.base_model.forward

    def spy(**options):
        seen.append(tuple(options["input_ids"].shape))
        return forward(**options)

    monkeypatch.setattr(model.base_model, "forward", spy)
    cache = prefill(model, SEQUENCES)
    monkeypatch.undo()
    assert seen == [(1, 3), (2, 1)]  # the four-token sequence, then the two shorter ones
    assert_holds(model, cache, SEQUENCES)


def test_cache_bytes_match_an_actual_cache(model):
    """Four rows of three columns in float32."""
    cache = prefill(model, SEQUENCES)
    held = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    assert held == 4 * 3 * cache_bytes(model.config, 4)
