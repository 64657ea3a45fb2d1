"""The keys and values of the responses in flight, so that a new token costs one token's work.

A prompt's are computed once and copied for its responses (`prefill`); between two chunks of
sampling those of finished responses are dropped (`keep`), and those of arriving ones put below
(`merged`). Sequences end in the same column, as `generate` wants them, so padding is on the left:

    . a b c d     keep [0, 2],     a b c d     merged with     a b c d
    e f g h i     4 columns        . . j k     a new one       . . j k
    . . . j k                                                  . x y z

The last token of a sequence is not in its cache: `generate` feeds it, and samples the next. Layers
with a sliding window keep all columns, too: the mask that transformers makes hides the old ones.

Shapes: R responses in flight, L columns of the longest.
"""

import os

import torch
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from infra.architecture import takes

SPARE = 64  # columns that a layer has free after it grew; as many as rollout.CHUNK adds
SHARE_OF_FREE_MEMORY = 0.6  # for the cache; the rest is for logits, copies and what fragments
UNKNOWN_FREE_BYTES = 4e9  # taken as free where the system does not say


class GrowingLayer(DynamicLayer):
    """A cache layer with spare columns.

    DynamicLayer concatenates, and so copies all keys and values for every new token.
    """

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args, **kwargs
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append the new columns [R, heads, new, size]; all keys and values so far."""
        old = self.get_seq_length()
        total = old + key_states.shape[2]
        if old == 0 or not self.has_room(total):
            self.make_room(key_states, value_states, old, total + SPARE)

        self.key_room[:, :, old:total] = key_states
        self.value_room[:, :, old:total] = value_states
        self.keys = self.key_room[:, :, :total]
        self.values = self.value_room[:, :, :total]
        self.is_initialized = True
        return self.keys, self.values

    def has_room(self, columns: int) -> bool:
        """Whether the keys still stand in the room, and the room is wide enough."""
        # keep() and merged() put new tensors in the place of the keys and values.
        in_place = self.keys.data_ptr() == self.key_room.data_ptr()
        return in_place and columns <= self.key_room.shape[2]

    def make_room(
        self, key_states: torch.Tensor, value_states: torch.Tensor, old: int, columns: int
    ) -> None:
        """Move the `old` columns into new tensors of `columns` columns."""
        self.key_room = empty_columns(key_states, columns)
        self.value_room = empty_columns(value_states, columns)
        if old:
            self.key_room[:, :, :old] = self.keys
            self.value_room[:, :, :old] = self.values


def empty_columns(states: torch.Tensor, columns: int) -> torch.Tensor:
    """An uninitialised tensor like `states` [R, heads, new, size], but with `columns` columns."""
    responses, heads, _, size = states.shape
    return states.new_empty(responses, heads, columns, size)


def left_padded(
    sequences: list[torch.Tensor], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """(ids, mask) [R, L], L at least 2; the mask comes from lengths, never from ids."""
    two = torch.zeros(2, dtype=torch.long)  # makes L at least 2, and is cut off again
    ids = pad_sequence([*sequences, two], batch_first=True, padding_side="left")[:-1]
    ids = ids.to(device)

    length = torch.tensor([len(sequence) for sequence in sequences], device=device)
    first = ids.shape[1] - length[:, None]  # [R, 1] the column in which each sequence starts
    mask = torch.arange(ids.shape[1], device=device) >= first
    return ids, mask.long()


def prefill(lm, sequences: list[torch.Tensor]) -> DynamicCache:
    """The cache of all but the last token of each sequence.

    One pass over the distinct sequences: the G responses to a prompt get copies of its cache.
    """
    keys = [tuple(sequence.tolist()) for sequence in sequences]
    place = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    ids, mask = left_padded([torch.tensor(key) for key in place], lm.device)
    inputs = {"input_ids": ids[:, :-1], "attention_mask": mask[:, :-1]}
    if takes(lm.base_model, "position_ids"):  # without it positions come from the mask alone
        positions = (mask.cumsum(1) - 1).clamp_min(0)
        inputs["position_ids"] = positions[:, :-1]

    cache = DynamicCache()
    cache.layer_class_to_replicate = GrowingLayer
    lm.base_model(**inputs, past_key_values=cache, use_cache=True)
    return keep(cache, [place[key] for key in keys], ids.shape[1] - 1)


def keep(cache: DynamicCache, index: list[int], columns: int) -> DynamicCache:
    """The cache of responses `index` only, and of it the last `columns` columns.

    What stands to the left of them is padding in all of these.
    """
    for layer in cache.layers:
        layer.keys = layer.keys[index, :, -columns:]
        layer.values = layer.values[index, :, -columns:]
    return cache


def merged(cache: DynamicCache, other: DynamicCache) -> DynamicCache:
    """The responses of `cache`, then those of `other`, the shorter padded on the left."""
    for layer, below in zip(cache.layers, other.layers, strict=True):
        layer.keys = stacked(layer.keys, below.keys)
        layer.values = stacked(layer.values, below.values)
    return cache


def stacked(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """x [R, heads, L, size] above y, the one with fewer columns padded on the left."""
    columns = max(x.shape[2], y.shape[2])
    x = pad(x, (0, 0, columns - x.shape[2], 0))
    y = pad(y, (0, 0, columns - y.shape[2], 0))
    return torch.cat([x, y])


def cache_bytes(config, itemsize: int) -> int:
    """Bytes of keys and values that a token takes: 147,456 for Qwen3-8B in bfloat16."""
    heads = config.num_attention_heads
    head_size = getattr(config, "head_dim", None) or config.hidden_size // heads
    key_value_heads = getattr(config, "num_key_value_heads", None) or heads
    return 2 * config.num_hidden_layers * key_value_heads * head_size * itemsize


def free_cache_tokens(lm) -> int:
    """The tokens whose keys and values take 60 % of the memory that is free now."""
    bytes_a_token = cache_bytes(lm.config, lm.dtype.itemsize)
    return int(SHARE_OF_FREE_MEMORY * free_bytes(lm.device) / bytes_a_token)


def free_bytes(device: torch.device) -> float:
    """Free memory of the GPU, or of the machine."""
    if device.type == "cuda":
        torch.cuda.empty_cache()  # what torch set aside for later counts as free
        free, _ = torch.cuda.mem_get_info(device)
        return free
    if "SC_AVPHYS_PAGES" not in os.sysconf_names:
        return UNKNOWN_FREE_BYTES
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
