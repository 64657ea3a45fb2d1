"""The responses in flight: which of them are sampled together, and their caches.

Responses are sampled in chunks of CHUNK tokens with Hugging Face `generate`, or on a GPU by a
recording of a token's kernels (infra/captured.py). Between two chunks each response holds its own
cache: the keys and values of attention, with a column for each token, and the states of recurrent
layers, whose size is fixed. For a chunk the caches are copied into one, padded on the left. The
last token of a sequence is not in its cache: it runs to give the next one. Sliding-window layers
also keep all columns; transformers' mask hides the old ones.

Shapes: R responses in flight, L columns in the longest sequence.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from inspect import signature
from typing import NamedTuple

import numpy as np
import torch
from transformers import DynamicCache, GenerationConfig, LogitsProcessorList
from transformers.cache_utils import LinearAttentionAndFullAttentionLayer, LinearAttentionLayer

from infra.balance import Block, balanced_groups
from infra.captured import can_capture, captured_tokens

CHUNK = 64  # tokens sampled before waiting responses replace finished ones
PREFILL_TOKENS = 2**14  # limit per `prefill` pass, including padding; a longer sequence runs alone
SHARE_OF_FREE_MEMORY = 0.8  # of a GPU's, for caches and draws; the rest is for prefill
DRAW_BYTES = 28  # per response and token id: float32 logits twice, float64 p and F
TOP_P_DRAW_BYTES = 80  # also a sorted copy of p, and a GPU's workspace for sorting (estimated)


class LayerCache(NamedTuple):
    """What one layer holds of one response; either may be empty."""

    columns: list[torch.Tensor]  # keys and values of attention, [heads, tokens - 1, size] each
    states: dict[tuple[str, int], torch.Tensor]  # of recurrence, by kind and number


@dataclass(eq=False)  # compared by identity
class Running:
    """A response that is being sampled; batch.Rollout is one that is done."""

    prompt: list[int]  # token ids
    generator: np.random.Generator  # one uniform draw per new token
    logprobs: list[torch.Tensor] = field(default_factory=list)  # log p of the new tokens, by chunk
    cache: list[LayerCache] | None = None  # of each layer
    finished: bool = False

    def __post_init__(self):
        self.tokens = torch.tensor(self.prompt)  # and the new tokens so far

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def count_new(self) -> int:
        return len(self) - len(self.prompt)

    def append(
        self, tokens: torch.Tensor, logprob: torch.Tensor, ends: list[int], limit: int
    ) -> None:
        """Add `tokens` and their log p, up to the first end token or `limit` new tokens."""
        at_end = torch.isin(tokens, torch.tensor(ends)).nonzero()
        up_to_end = int(at_end[0]) + 1 if len(at_end) else len(tokens)
        count = min(up_to_end, limit - self.count_new)
        self.tokens = torch.cat([self.tokens, tokens[:count]])
        self.logprobs.append(logprob[:count])
        self.finished = int(self.tokens[-1]) in ends or self.count_new == limit
        if self.finished:
            self.cache = None

    def result(self) -> tuple[np.ndarray, np.ndarray]:
        """(new tokens, int32; their log p, float32)."""
        new = self.tokens[len(self.prompt) :]
        return new.numpy().astype(np.int32), torch.cat(self.logprobs).numpy()


# ---- who is in flight ----------------------------------------------------------------------------


def schedule(
    running: list[Running], waiting: list[Running], limit: int, capacity: float
) -> tuple[list[Running], list[Running]]:
    """(the responses of the next chunk: those in flight, then waiting ones; those left waiting).

    If they outgrow the capacity, the longest wait, and return when there is nothing shorter, so
    long responses are sampled together at the end. limit: on the responses. capacity: limit on the
    columns of their caches together, with padding; a single response may exceed it.
    """

    def fit(responses: list[Running]) -> bool:
        columns = max(map(len, responses)) + CHUNK
        return len(responses) == 1 or len(responses) <= min(limit, capacity / columns)

    chosen, left = sorted(running, key=len), list(waiting)
    while chosen and not fit(chosen):
        chosen[-1].cache = None  # computed again when it returns
        left.append(chosen.pop())
    left.sort(key=lambda response: response.count_new)  # stable: new ones come first, in order
    while left and fit([*chosen, left[0]]):
        chosen.append(left.pop(0))
    return chosen, left


def cache_capacity(lm, limit: int, top_p: float) -> float:
    """Columns whose keys and values fit in a GPU's free memory; on the CPU there is no limit.

    A reserve is left for the states of `limit` responses, and for drawing their tokens.
    """
    if lm.device.type == "cpu" or not takes_cache(lm):
        return math.inf
    # Measured, as architectures differ: the cache of two tokens has one column.
    (cache,) = prefill(lm, [torch.zeros(2, dtype=torch.long)])
    column = sum(x.nbytes for layer in cache for x in layer.columns)
    states = sum(x.nbytes for layer in cache for x in layer.states.values())
    torch.cuda.empty_cache()  # torch's cached blocks count as free
    free, _ = torch.cuda.mem_get_info(lm.device)
    draw = (DRAW_BYTES if top_p == 1 else TOP_P_DRAW_BYTES) * limit * lm.config.vocab_size
    left = SHARE_OF_FREE_MEMORY * free - draw - limit * states
    return max(0.0, left) / column


# ---- their caches ------------------------------------------------------------------------------


class CacheLayer(LinearAttentionAndFullAttentionLayer):
    """A cache layer of R responses with spare columns; its parent copies everything per token."""

    def __init__(self, keys: list, values: list, spare: int, number_of_states: int = 0):
        super().__init__(number_of_states)
        self.is_initialized = True
        columns = max(2, *(x.shape[1] for x in keys))  # those of left_padded, without the last
        self.storage = [right_aligned(x, columns, spare) for x in (keys, values)]
        self.keys, self.values = (x[:, :, :columns] for x in self.storage)

    def update(self, keys: torch.Tensor, values: torch.Tensor, *_, **__) -> tuple:
        """Append the new columns [R, heads, new, size]. Returns all keys and values so far."""
        old = self.keys.shape[2]
        total = old + keys.shape[2]
        for storage, new in zip(self.storage, (keys, values), strict=True):
            storage[:, :, old:total] = new
        self.keys, self.values = (x[:, :, :total] for x in self.storage)
        return self.keys, self.values


def right_aligned(parts: list[torch.Tensor], columns: int, spare: int) -> torch.Tensor:
    """R tensors [heads, any, size], padded on the left to `columns`, and spare columns."""
    heads, _, size = parts[0].shape
    storage = parts[0].new_zeros(len(parts), heads, columns + spare, size)
    for row, part in zip(storage, parts, strict=True):
        row[:, columns - part.shape[1] : columns] = part
    return storage


def joined(caches: list[list[LayerCache]], spare: int) -> DynamicCache:
    """One cache for R responses, from what `caches` hold of each layer; they hold nothing then."""
    joint = DynamicCache()
    joint.layers = []
    for i in range(len(caches[0])):
        parts = [cache[i] for cache in caches]  # R, of one layer
        joint.layers.append(joined_layer(parts, spare))
        for cache in caches:
            cache[i] = None  # so memory holds one layer twice, not all
    return joint


def joined_layer(parts: list[LayerCache], spare: int) -> LinearAttentionLayer | CacheLayer:
    """A layer of a cache for the R responses of which it holds `parts`."""
    names = list(parts[0].states)  # (kind, number), the same for all responses
    number_of_states = max((number + 1 for _, number in names), default=0)
    if parts[0].columns:
        keys = [part.columns[0] for part in parts]
        values = [part.columns[1] for part in parts]
        layer = CacheLayer(keys, values, spare, number_of_states)
    else:
        layer = LinearAttentionLayer(number_of_states)
    for kind, number in names:
        stacked = torch.stack([part.states[kind, number] for part in parts])
        update = layer.update_conv_state if kind == "conv_state" else layer.update_recurrent_state
        update(stacked, number)
    return layer


def split(cache: DynamicCache, lengths: list[int]) -> list[list[LayerCache]]:
    """What each layer holds of each sequence: its last `length` - 1 columns, and its states."""
    return [[part_of(layer, i, n - 1) for layer in cache.layers] for i, n in enumerate(lengths)]


def part_of(layer, i: int, count: int) -> LayerCache:
    """The last `count` columns of sequence i in a cache layer, and its states."""
    columns = []
    if getattr(layer, "keys", None) is not None:
        columns = [x[i, :, x.shape[2] - count :] for x in (layer.keys, layer.values)]
    states = {}
    for kind in ("conv_state", "recurrent_state"):
        for number, state in getattr(layer, f"{kind}s", {}).items():
            if state is not None:
                states[kind, number] = state[i]
    return LayerCache(columns, states)


def empty_cache(config) -> DynamicCache:
    """A cache in which sliding windows will keep all columns. Raises ValueError."""
    cache = DynamicCache(config=config)
    for i, layer in enumerate(cache.layers):
        # Layers that a model defines, and those with an index, hold more than `part_of` copies.
        is_known = type(layer).__module__ == DynamicCache.__module__
        if not is_known or hasattr(layer, "update_indexer"):
            raise ValueError(f"layer {i} needs a cache of its own kind, {type(layer).__name__}")
        layer.sliding_window = 2**40  # longer than any sequence
    return cache


@torch.no_grad()
def prefill(lm, sequences: list[torch.Tensor]) -> list[list]:
    """The cache of each sequence, for all but its last token; identical ones run only once."""
    distinct = {tuple(sequence.tolist()): sequence for sequence in sequences}
    names = list(distinct)  # tuples of token ids
    caches = {}
    blocks = [Block([i], len(name)) for i, name in enumerate(names)]
    for group in balanced_groups(blocks, PREFILL_TOKENS):
        keys = [names[i] for i in group]
        ids, mask = left_padded([distinct[key] for key in keys], lm.device)
        inputs = {"input_ids": ids[:, :-1], "attention_mask": mask[:, :-1]}
        if "position_ids" in signature(type(lm.base_model).forward).parameters:
            # Models without this argument derive positions from the mask.
            inputs["position_ids"] = (mask.cumsum(dim=1) - 1).clamp_min(0)[:, :-1]
        cache = empty_cache(lm.config)
        lm.base_model(**inputs, past_key_values=cache, use_cache=True)
        caches |= zip(keys, split(cache, [len(key) for key in keys]), strict=True)
    # A list for each sequence, since `joined` overwrites it.
    return [list(caches[tuple(sequence.tolist())]) for sequence in sequences]


# ---- the call to `generate` ----------------------------------------------------------------------


def left_padded(sequences: list[torch.Tensor], device) -> tuple[torch.Tensor, torch.Tensor]:
    """(ids, mask) [R, L], with L >= 3: two columns or more without the last token.

    Recurrent layers ignore the mask of a single column, and padding would enter their states.
    """
    L = max([3, *map(len, sequences)])
    ids = torch.zeros(len(sequences), L, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, sequence in enumerate(sequences):
        ids[i, L - len(sequence) :] = sequence
        mask[i, L - len(sequence) :] = 1
    return ids.to(device), mask.to(device)


def next_tokens(
    lm,
    responses: list[Running],
    choose: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    count: int,
    ends: list[int] | None = None,
    record: bool = False,
) -> torch.Tensor:
    """Up to `count` next tokens of each response, after any caches are computed: [R, new], host.

    choose: (ids, logits [R, V]) -> logits [R, V]; the highest wins. It is called for every token.
    ends: tokens that may end a response early; what follows one has no meaning. None: none does.
    record: whether a GPU may record a token's kernels, those of `choose` too, and replay them: then
    `choose` ignores ids, reads no value on the host and writes its own tensors in place.
    """
    ids, mask = left_padded([response.tokens for response in responses], lm.device)
    if not takes_cache(lm):
        return generated_tokens(lm, ids, {"attention_mask": mask}, choose, count, ends).cpu()
    arrived = [response for response in responses if response.cache is None]
    for response, cache in zip(arrived, prefill(lm, [r.tokens for r in arrived]), strict=True):
        response.cache = cache
    cache = joined([response.cache for response in responses], spare=count)
    if record and can_capture(lm):
        new = captured_tokens(lm, ids, mask, cache, choose, count).cpu()
    else:
        inputs = {"attention_mask": mask, "past_key_values": cache}
        new = generated_tokens(lm, ids, inputs, choose, count, ends).cpu()
    lengths = [len(response) + new.shape[1] for response in responses]
    for response, own in zip(responses, split(cache, lengths), strict=True):
        response.cache = own
    return new


def generated_tokens(
    lm, ids: torch.Tensor, inputs: dict, choose: Callable, count: int, ends: list[int] | None
) -> torch.Tensor:
    """The same by `generate`, which stops when all responses have ended: [R, new].

    The model's own generation config is not used, because its penalties would change the logits.
    """
    padding = ends[0] if ends else 0
    settings = GenerationConfig(
        do_sample=False, max_new_tokens=count, eos_token_id=ends, pad_token_id=padding
    )
    published, lm.generation_config = lm.generation_config, GenerationConfig()
    try:
        out = lm.generate(
            ids,
            **inputs,
            logits_processor=LogitsProcessorList([choose]),
            generation_config=settings,
        )
    finally:
        lm.generation_config = published
    return out[:, ids.shape[1] :]


def takes_cache(lm) -> bool:
    """Whether `generate` goes on from a cache. If not, as in Mamba, a chunk reads all tokens."""
    return "past_key_values" in signature(lm.forward).parameters
