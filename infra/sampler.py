"""The responses in flight: which of them are sampled together, and their caches.

Responses are sampled in chunks of CHUNK tokens with Hugging Face `generate`. Between two chunks
each response holds its own cache: the keys and values of attention, with a column for each token,
and the states of recurrent layers, whose size is fixed. So finished responses leave and waiting
ones enter without bookkeeping. For a chunk the caches are copied into one, padded on the left. The
last token of a sequence is not in its cache: `generate` feeds it to sample the next token.
Sliding-window layers also keep all columns; transformers' mask hides the old ones.

Shapes: R responses in flight, L columns in the longest sequence.
"""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from inspect import signature
from typing import NamedTuple

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache, GenerationConfig, LogitsProcessorList
from transformers.cache_utils import (
    DummyLayer,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    LinearAttentionLayer,
)

from infra.balance import balanced_groups
from infra.model_files import decoder_of

CHUNK = 64  # tokens sampled before waiting responses replace finished ones
PREFILL_TOKENS = 2**14  # limit per `prefill` pass, including padding; a longer sequence runs alone
SHARE_OF_FREE_MEMORY = 0.8  # of a GPU's, for caches and draws; the rest is for prefill
DRAW_BYTES = 28  # per response and token id: float32 logits twice, float64 p and F
TOP_P_DRAW_BYTES = 80  # also a sorted copy of p, and a GPU's workspace for sorting (estimated)


class Kept(NamedTuple):
    """What one layer keeps of one response. A layer without attention has no columns, a layer
    without recurrence has no states, and some layers keep nothing."""

    columns: list[torch.Tensor]  # its keys and its values [heads, tokens - 1, size]
    states: list[tuple]  # (convolution's, recurrence's), each a tensor or None

KNOWN_LAYERS = (  # of transformers' caches
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    DummyLayer,
)


@dataclass(eq=False)  # compared by identity
class Response:
    """A response being sampled."""

    index: int  # index of its request
    tokens: torch.Tensor  # [prompt and new tokens so far]
    max_new_tokens: int
    numbers: np.random.Generator  # one uniform draw per new token
    logprobs: list[torch.Tensor] = field(default_factory=list)  # log p of the new tokens, by chunk
    cache: list[Kept] | None = None  # of each layer
    finished: bool = False

    def __post_init__(self):
        self.prompt_length = len(self.tokens)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def new(self) -> int:
        """Tokens sampled so far."""
        return len(self) - self.prompt_length

    def append(self, tokens: torch.Tensor, logprob: torch.Tensor, ends: list[int]) -> None:
        """Add `tokens` and their log p, up to the first end token or the limit."""
        at_end = torch.isin(tokens, torch.tensor(ends)).nonzero()
        up_to_end = int(at_end[0]) + 1 if len(at_end) else len(tokens)
        count = min(up_to_end, self.max_new_tokens - self.new)
        self.tokens = torch.cat([self.tokens, tokens[:count]])
        self.logprobs.append(logprob[:count])
        self.finished = int(self.tokens[-1]) in ends or self.new == self.max_new_tokens
        if self.finished:
            self.cache = None

    def sampled(self) -> tuple[np.ndarray, np.ndarray]:
        """(new tokens, int32; their log p, float32)."""
        new = self.tokens[self.prompt_length :]
        return new.numpy().astype(np.int32), torch.cat(self.logprobs).numpy()


# ---- who is in flight ----------------------------------------------------------------------------


def schedule(
    running: list[Response], waiting: list[Response], limit: int, capacity: float
) -> list[Response]:
    """The responses of the next chunk: those in flight, then waiting ones; removed from `waiting`.

    They are padded to the longest. If they outgrow the capacity, the longest wait, and return when
    there is nothing shorter to sample, so long responses are sampled together at the end.
    limit: on the responses. capacity: limit on the columns of their caches together; a single
        response may exceed it.
    """

    def fit(responses: list[Response]) -> bool:
        columns = max(map(len, responses)) + CHUNK
        if len(responses) == 1:
            return True
        return len(responses) <= limit and len(responses) * columns <= capacity

    chosen = sorted(running, key=len)
    while chosen and not fit(chosen):
        chosen[-1].cache = None  # computed again when it returns
        waiting.append(chosen.pop())
    waiting.sort(key=lambda response: response.new)  # stable
    while waiting and fit([*chosen, waiting[0]]):
        chosen.append(waiting.pop(0))
    return chosen


def cache_capacity(lm, limit: int, top_p: float) -> float:
    """Columns whose keys and values fit in a GPU's free memory; on the CPU there is no limit.

    A reserve is left for the states of `limit` responses, and for drawing their tokens: 3.1 GB for
    256 responses, V = 152k and top-p below 1.
    """
    if lm.device.type == "cpu" or not takes_cache(lm):
        return math.inf
    (cache,) = prefill(lm, [torch.zeros(2, dtype=torch.long)])  # one column
    column = sum(x.nbytes for layer in cache for x in layer.columns)
    states = sum(x.nbytes for layer in cache for pair in layer.states for x in pair if x is not None)
    torch.cuda.empty_cache()  # torch's cached blocks count as free
    free, _ = torch.cuda.mem_get_info(lm.device)
    draw = (DRAW_BYTES if top_p == 1 else TOP_P_DRAW_BYTES) * limit * lm.config.vocab_size
    left = SHARE_OF_FREE_MEMORY * free - draw - limit * states
    return max(0.0, left) / column


# ---- their caches ------------------------------------------------------------------------------


class Layer(DynamicLayer):
    """A cache layer of R responses with spare columns; DynamicLayer copies everything per token."""

    def __init__(self, keys: list[torch.Tensor], values: list[torch.Tensor], spare: int, **options):
        super().__init__(**options)
        self.is_initialized = True
        columns = max(2, *(x.shape[1] for x in keys))  # as left_padded
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


class HybridLayer(Layer, LinearAttentionAndFullAttentionLayer):
    """A layer with states besides keys and values, as in Falcon-H1."""


def right_aligned(parts: list[torch.Tensor], columns: int, spare: int) -> torch.Tensor:
    """R tensors [heads, own columns, size], padded on the left to `columns`, and spare columns."""
    heads, _, size = parts[0].shape
    storage = parts[0].new_zeros(len(parts), heads, columns + spare, size)
    for own, part in zip(storage, parts, strict=True):
        own[:, columns - part.shape[1] : columns] = part
    return storage


def joined(caches: list[list[Kept]], spare: int) -> DynamicCache:
    """One cache for the R responses that hold `caches`, which become empty, layer by layer."""
    joint = DynamicCache()
    joint.layers = []
    for _ in range(len(caches[0])):
        joint.layers.append(joined_layer([cache.pop(0) for cache in caches], spare))
    return joint


def joined_layer(parts: list[Kept], spare: int):
    """A cache layer that holds the parts of R responses, with spare columns."""
    columns = list(zip(*(part.columns for part in parts), strict=True))  # keys, values
    count = len(parts[0].states)
    if count == 0:
        return Layer(*columns, spare) if columns else DummyLayer()
    if columns:
        layer = HybridLayer(*columns, spare, number_of_states=count)
    else:
        layer = LinearAttentionLayer(number_of_states=count)
    for i, pairs in enumerate(zip(*(part.states for part in parts), strict=True)):
        convolution, recurrence = (stacked(of_one_kind) for of_one_kind in zip(*pairs, strict=True))
        if convolution is not None:
            layer.update_conv_state(convolution, i)
        if recurrence is not None:
            layer.update_recurrent_state(recurrence, i)
    return layer


def stacked(states: tuple) -> torch.Tensor | None:
    """R states [...] as one [R, ...], or None if they are None."""
    return None if states[0] is None else torch.stack(states)


def split(cache: DynamicCache, lengths: list[int]) -> list[list[Kept]]:
    """What each layer keeps of each sequence, for all but its last token."""
    return [[kept(layer, i, n) for layer in cache.layers] for i, n in enumerate(lengths)]


def kept(layer, i: int, length: int) -> Kept:
    """The last `length` - 1 columns of sequence i in a cache layer, and its states."""
    columns, states = [], []
    if isinstance(layer, DynamicLayer):
        columns = [x[i, :, x.shape[2] - length + 1 :] for x in (layer.keys, layer.values)]
    if isinstance(layer, LinearAttentionLayer):
        pairs = zip(layer.conv_states.values(), layer.recurrent_states.values(), strict=True)
        states = [tuple(None if x is None else x[i] for x in pair) for pair in pairs]
    return Kept(columns, states)


def empty_cache(config) -> DynamicCache:
    """A cache without columns, in which sliding windows will keep all of them.

    Raises ValueError for a layer that keeps something else than columns and states.
    """
    cache = DynamicCache(config=config)
    for i, layer in enumerate(cache.layers):
        if type(layer) not in KNOWN_LAYERS:
            raise ValueError(f"layer {i} needs a cache of its own kind, {type(layer).__name__}")
        if isinstance(layer, DynamicSlidingWindowLayer):
            layer.sliding_window = sys.maxsize
    return cache


@torch.no_grad()
def prefill(lm, sequences: list[torch.Tensor]) -> list[list]:
    """The cache of each sequence, for all but its last token; identical ones run only once."""
    distinct = {tuple(sequence.tolist()): sequence for sequence in sequences}
    names = list(distinct)
    caches = {}
    for group in balanced_groups(range(len(names)), [len(name) for name in names], PREFILL_TOKENS):
        keys = [names[i] for i in group]
        ids, mask = left_padded([distinct[key] for key in keys], lm.device)
        inputs = {"input_ids": ids[:, :-1], "attention_mask": mask[:, :-1]}
        decoder = decoder_of(lm)
        if "position_ids" in signature(type(decoder).forward).parameters:
            # Models without this argument derive positions from the mask.
            inputs["position_ids"] = (mask.cumsum(dim=1) - 1).clamp_min(0)[:, :-1]
        cache = empty_cache(lm.config)
        decoder(**inputs, past_key_values=cache, use_cache=True)
        caches |= zip(keys, split(cache, [len(key) for key in keys]), strict=True)
    return [list(caches[tuple(sequence.tolist())]) for sequence in sequences]


# ---- the call to `generate` ----------------------------------------------------------------------


def left_padded(sequences: list[torch.Tensor], device) -> tuple[torch.Tensor, torch.Tensor]:
    """(ids, mask) [R, L], with L >= 3.

    A pass over all but the last token then has two columns or more. Recurrent layers take a single
    column for the next token of a cache, and ignore its mask: padding would enter their states.
    """
    three = torch.zeros(3, dtype=torch.long)  # makes L at least 3, and is then removed
    ids = pad_sequence([*sequences, three], batch_first=True, padding_side="left")[:-1].to(device)
    length = torch.tensor([len(sequence) for sequence in sequences], device=device)
    return ids, (torch.arange(ids.shape[1], device=device) >= ids.shape[1] - length[:, None]).long()


def next_tokens(
    lm,
    responses: list[Response],
    choose: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    count: int,
    ends: list[int] | None = None,
) -> torch.Tensor:
    """Up to `count` next tokens of each response, after any caches are computed: [R, new], host.

    choose: (ids so far, logits [R, V]) -> logits [R, V]; the highest wins.
    ends: tokens that end a response, which is then padded; None: all get `count` tokens.
    The model's own generation config is not used, because its penalties would change the logits.
    """
    ids, mask = left_padded([response.tokens for response in responses], lm.device)
    cached = {}
    if takes_cache(lm):
        arrived = [response for response in responses if response.cache is None]
        for response, cache in zip(arrived, prefill(lm, [r.tokens for r in arrived]), strict=True):
            response.cache = cache
        cached["past_key_values"] = joined([response.cache for response in responses], spare=count)
    padding = ends[0] if ends else 0
    settings = GenerationConfig(
        do_sample=False, max_new_tokens=count, eos_token_id=ends, pad_token_id=padding
    )
    own, lm.generation_config = lm.generation_config, GenerationConfig()
    try:
        out = lm.generate(
            ids,
            attention_mask=mask,
            **cached,
            logits_processor=LogitsProcessorList([choose]),
            generation_config=settings,
        )
    finally:
        lm.generation_config = own
    new = out[:, ids.shape[1] :].cpu()
    lengths = [len(response) + new.shape[1] for response in responses]
    for cache in cached.values():
        for response, own in zip(responses, split(cache, lengths), strict=True):
            response.cache = own
    return new


def takes_cache(lm) -> bool:
    """Whether `generate` goes on from a cache that it is given.

    Mamba and others without attention do not: their `generate` reads all tokens in every chunk.
    """
    return "past_key_values" in signature(lm.forward).parameters
