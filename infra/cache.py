"""The key-value cache of the responses in flight, and the call to `generate` that uses it.

A prompt's cache is computed only once, then copied for its responses (`prefill`). Between two
chunks of sampling, finished responses are dropped (`keep`) and new ones added below (`merged`).
All sequences end in the same column, as `generate` requires, so padding is on the left:

    . a b c d     keep [0, 2],     a b c d     merged with     a b c d
    e f g h i     4 columns        . . j k     a new one       . . j k
    . . . j k                                                  . x y z

The last token of a sequence is not in its cache: `generate` feeds it to sample the next token.
Sliding-window layers also keep all columns; transformers' mask hides the old ones.

Shapes: R responses in flight, L columns in the longest sequence.
"""

from collections.abc import Callable
from inspect import signature

import torch
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache, GenerationConfig, LogitsProcessorList
from transformers.cache_utils import DynamicLayer

from infra.balance import deal

SPARE = 64  # free columns in a layer after it grows: one chunk (rollout.CHUNK)
PREFILL_TOKENS = 2**14  # limit per `prefill` pass, including padding; a longer sequence runs alone


def hf_generate(
    lm,
    ids: torch.Tensor,
    mask: torch.Tensor,
    cache: DynamicCache,
    choose: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    count: int,
    ends: list[int] | None = None,
) -> torch.Tensor:
    """New tokens from Hugging Face `generate`: [R, up to count], padded after an end token.

    ids, mask: [R, L], left-padded sequences. cache: covers all columns but the last, so only the
    last is fed. choose: (ids so far, logits [R, V]) -> scores [R, V]; the highest score wins.
    ends: tokens that end a response; None: every response gets `count` tokens.

    The model's own generation config is not used, because its penalties would change the logits.
    """
    pad_token = ends[0] if ends else 0
    settings = GenerationConfig(
        do_sample=False, max_new_tokens=count, eos_token_id=ends, pad_token_id=pad_token
    )
    own, lm.generation_config = lm.generation_config, GenerationConfig()
    try:
        out = lm.generate(
            ids,
            attention_mask=mask,
            past_key_values=cache,
            logits_processor=LogitsProcessorList([choose]),
            generation_config=settings,
        )
    finally:
        lm.generation_config = own
    return out[:, ids.shape[1] :]


class GrowingLayer(DynamicLayer):
    """A cache layer with spare columns.

    DynamicLayer concatenates, which copies all keys and values for every new token. Here they are
    the first columns of larger tensors, key_room and value_room, copied only when these are full.
    """

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args, **kwargs
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append the new columns [R, heads, new, size]. Returns all keys and values so far."""
        old = self.get_seq_length()
        total = old + key_states.shape[2]
        if old == 0:
            self.keys = key_states[:, :, :0]
            self.values = value_states[:, :, :0]
            self.is_initialized = True
        if old == 0 or total > self.key_room.shape[2]:
            more = (0, 0, 0, total + SPARE - old)
            # The keys grow before the values, so only one of these tensors exists twice at a time.
            self.keys = self.key_room = pad(self.keys, more)
            self.values = self.value_room = pad(self.values, more)

        self.key_room[:, :, old:total] = key_states
        self.value_room[:, :, old:total] = value_states
        self.keys = self.key_room[:, :, :total]
        self.values = self.value_room[:, :, :total]
        return self.keys, self.values


def left_padded(
    sequences: list[torch.Tensor], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """(ids, mask) [R, L], with L >= 2. The mask is computed from lengths, not from ids."""
    two = torch.zeros(2, dtype=torch.long)  # makes L at least 2, and is then removed
    ids = pad_sequence([*sequences, two], batch_first=True, padding_side="left")[:-1]
    ids = ids.to(device)

    length = torch.tensor([len(sequence) for sequence in sequences], device=device)
    first = ids.shape[1] - length[:, None]  # [R, 1] the column in which each sequence starts
    mask = torch.arange(ids.shape[1], device=device) >= first
    return ids, mask.long()


def prefill(lm, sequences: list[torch.Tensor]) -> DynamicCache:
    """The cache for all but the last token of each sequence.

    Identical sequences run only once, and sequences of similar length share a pass. The G responses
    to a prompt get copies of its cache.
    """
    keys = [tuple(sequence.tolist()) for sequence in sequences]
    distinct = list(dict.fromkeys(keys))
    lengths = torch.tensor([len(key) for key in distinct])

    cache = None
    place = {}  # key -> row of the cache
    for group in deal(torch.arange(len(distinct)), lengths, PREFILL_TOKENS, rank=0, world=1):
        some = [distinct[i] for i in group.tolist()]
        new = one_pass(lm, [torch.tensor(key) for key in some])
        cache = new if cache is None else merged(cache, new)
        place |= {key: len(place) + i for i, key in enumerate(some)}
    return keep(cache, [place[key] for key in keys], cache.get_seq_length())


def one_pass(lm, sequences: list[torch.Tensor]) -> DynamicCache:
    """The cache for all but the last token of each sequence, from one forward pass."""
    ids, mask = left_padded(sequences, lm.device)
    inputs = {"input_ids": ids[:, :-1], "attention_mask": mask[:, :-1]}
    if "position_ids" in signature(type(lm.base_model).forward).parameters:
        # Models without this argument derive positions from the mask.
        positions = (mask.cumsum(1) - 1).clamp_min(0)
        inputs["position_ids"] = positions[:, :-1]

    cache = DynamicCache()
    cache.layer_class_to_replicate = GrowingLayer
    lm.base_model(**inputs, past_key_values=cache, use_cache=True)
    return cache


def keep(cache: DynamicCache, index: list[int], columns: int) -> DynamicCache:
    """The cache of the responses at `index`, cut to its last `columns` columns.

    The removed columns are padding in all of these responses.
    """
    for layer in cache.layers:
        # Assigning new tensors frees the old keys and values.
        layer.keys = layer.key_room = layer.keys[index, :, -columns:]
        layer.values = layer.value_room = layer.values[index, :, -columns:]
    return cache


def merged(cache: DynamicCache, other: DynamicCache) -> DynamicCache:
    """The responses of `cache`, then those of `other`. The narrower cache is padded on the left.

    Empties `other`.
    """
    for layer, below in zip(cache.layers, other.layers, strict=True):
        layer.keys = layer.key_room = stacked(layer.keys, below.keys)
        layer.values = layer.value_room = stacked(layer.values, below.values)
        below.keys = below.key_room = below.values = below.value_room = None
    return cache


def stacked(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """x [R, heads, L, size] above y; the narrower one is padded on the left with zeros."""
    responses, heads, columns, size = x.shape
    columns = max(columns, y.shape[2])
    both = x.new_zeros(responses + len(y), heads, columns, size)
    both[:responses, :, columns - x.shape[2] :] = x
    both[responses:, :, columns - y.shape[2] :] = y
    return both
