"""Without this file `generate` would run every response on to the end of the longest.

It decides which responses are sampled together, and holds their cache. Responses are sampled in
chunks of CHUNK tokens with Hugging Face `generate`, or on a GPU by a recording of a token's kernels
(infra/cuda_graph.py). A batch of responses has one transformers cache, padded on the left. After a
chunk, finished responses leave the batch and its cache. Waiting ones enter with a new batch, whose
sequences run once more. The last token of a sequence is not in the cache: it runs to give the next
one.

Shapes: R responses in flight, L columns in the longest sequence.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from inspect import signature
from operator import attrgetter

import numpy as np
import torch
from transformers import DynamicCache, GenerationConfig, LogitsProcessor, LogitsProcessorList
from transformers.cache_utils import LinearAttentionLayer

from infra.cuda_graph import can_capture, captured_tokens

CHUNK = 64  # tokens sampled before finished responses leave
PREFILL_TOKENS = 2**14  # limit per pass of `prefilled`, including padding
SHARE_OF_FREE_MEMORY = 0.8  # of a GPU's, for the cache and draws; the rest is for `prefilled`
DRAW_BYTES = 28  # per response and token id: float32 logits twice, float64 p and F, 4 to spare
TOP_P_DRAW_BYTES = 80  # also a sorted copy of p, and a GPU's workspace for sorting (estimated)
# The logits in a block on the CPU, whose p is 8 MB in float64: allocating more than 32 MB for every
# token takes several times as long as the draw itself.
DRAW_BLOCK = 2**20


@dataclass(eq=False)  # compared by identity
class Running:
    """A response that is being sampled; rollout.Response is one that is done."""

    prompt: list[int]  # token ids
    generator: np.random.Generator  # one uniform draw per new token
    logprobs: list[torch.Tensor] = field(default_factory=list)  # log p of the new tokens, by chunk
    ended: bool = False  # by an end token or a stop text
    finished: bool = False  # or by the limit

    def __post_init__(self):
        self.tokens = torch.tensor(self.prompt)  # later with the new tokens

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def count_new(self) -> int:
        return len(self) - len(self.prompt)

    def append(
        self,
        tokens: torch.Tensor,
        logprob: torch.Tensor,
        ends: list[int],
        limit: int,
        at_stop: int = 0,
    ) -> None:
        """Add `tokens` and their log p, up to the first end token or `limit` new tokens.

        at_stop: how many of `tokens` there are up to the one that completes a stop text, else 0.
        """
        last = at_stop or len(tokens) + 1
        at_end = torch.isin(tokens, torch.tensor(ends)).nonzero()
        if len(at_end):
            last = min(last, int(at_end[0]) + 1)
        count = min(last, len(tokens), limit - self.count_new)
        self.tokens = torch.cat([self.tokens, tokens[:count]])
        self.logprobs.append(logprob[:count])
        self.ended = count == last
        self.finished = self.ended or self.count_new == limit

    def result(self) -> tuple[np.ndarray, np.ndarray]:
        """(new tokens, int32; their log p, float32)."""
        new = self.tokens[len(self.prompt) :]
        return new.numpy().astype(np.int32), torch.cat(self.logprobs).numpy()


# ---- who is in flight ----------------------------------------------------------------------------


def room(responses: list[Running], limit: int, capacity: float) -> int:
    """How many of the first responses can be sampled together for a chunk; at least one.

    limit: the most responses. capacity: the most columns of their cache, with padding.
    """
    columns = 0
    for count, response in enumerate(responses):
        columns = max(columns, len(response) + CHUNK)
        if count + 1 > min(limit, capacity / columns):
            return max(1, count)
    return len(responses)


def next_rows(
    running: list[Running], fewest: int, limit: int, capacity: float
) -> tuple[list[int], list[int]]:
    """(the rows that go on together, shortest first; the unfinished rows that wait).

    If fewer than `fewest` rows can go on, all of them wait. limit, capacity: as for `room`.
    """
    rows = [i for i in range(len(running)) if not running[i].finished]
    rows.sort(key=lambda i: len(running[i]))  # if the caches are full, the longest wait
    fit = room([running[i] for i in rows], limit, capacity)
    if fit < fewest:
        fit = 0
    return rows[:fit], rows[fit:]


def cache_capacity(lm, limit: int, top_p: float) -> float:
    """Columns whose keys and values fit in a GPU's free memory; on the CPU there is no limit.

    A reserve is left for the states of `limit` responses, and for drawing their tokens.
    """
    if lm.device.type == "cpu" or not takes_cache(lm):
        return math.inf
    column, states = cache_size(Batch(lm, [torch.zeros(3, dtype=torch.long)]).cache)
    torch.cuda.empty_cache()  # torch's cached blocks count as free
    free, _ = torch.cuda.mem_get_info(lm.device)
    draw = (DRAW_BYTES if top_p == 1 else TOP_P_DRAW_BYTES) * limit * lm.config.vocab_size
    left = SHARE_OF_FREE_MEMORY * free - draw - limit * states
    return max(0.0, left) / column


def cache_size(cache: DynamicCache, size: Callable = attrgetter("nbytes")) -> tuple[int, int]:
    """What one response holds: (bytes per column, bytes in the states of recurrent layers).

    Both are measured, as architectures differ. cache: of one response. size: of a tensor.
    """
    column = states = 0
    for layer in cache.layers:
        if getattr(layer, "keys", None) is not None:
            column += (size(layer.keys) + size(layer.values)) // layer.keys.shape[2]
        for kind in ("conv_states", "recurrent_states"):
            states += sum(size(x) for x in getattr(layer, kind, {}).values() if x is not None)
    return column, states


# ---- a batch -------------------------------------------------------------------------------------


class Batch:
    """R responses that are sampled together: their ids and mask [R, L], and their cache."""

    def __init__(self, lm, sequences: list[torch.Tensor]):
        """The sequences are padded on the left; their cache is computed."""
        self.lm = lm
        self.ids, self.mask = left_padded(sequences, lm.device)
        self.cache = prefilled(lm, self.ids, self.mask) if takes_cache(lm) else None

    def next_tokens(
        self, draw: Callable, u: torch.Tensor, ends: list[int] | None = None, record: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(up to T next tokens of each response [R, new], their log p), on the host.

        draw: like rollout.draw, (logits [m, V], u [m, 1]) -> (tokens [m, 1], log p [m, 1]). u
        [R, T]: its random numbers. ends: tokens that may end a response early; what follows one has
        no meaning. None: none does. record: whether a GPU may record the kernels of a token and
        replay them; then `draw` must read no value on the host. log p is NaN where a logit is NaN
        or +inf.
        """
        draws = ChunkDraws(draw, u.to(self.lm.device))
        if record and self.cache is not None and can_capture(self.lm):
            new = captured_tokens(self.lm, self.ids, self.mask, self.cache, draws)
        else:
            inputs = {"attention_mask": self.mask, "past_key_values": self.cache}
            new = generated_tokens(self.lm, self.ids, inputs, draws, ends)
        self.ids = torch.cat([self.ids, new], dim=1)
        self.mask = torch.nn.functional.pad(self.mask, (0, new.shape[1]), value=1)
        return new.cpu(), draws.logprob.cpu()

    def keep(self, rows: list[int]) -> None:
        """Go on with these responses only."""
        index = torch.tensor(rows, dtype=torch.long, device=self.ids.device)
        self.ids, self.mask = self.ids[index], self.mask[index]
        if self.cache is not None:
            self.cache.reorder_cache(index)


def left_padded(sequences: list, device) -> tuple[torch.Tensor, torch.Tensor]:
    """(ids, mask) [R, L] of R lists or tensors of token ids; the mask is 0 where ids are padded.

    L is at least 3: two columns or more without the last token. Recurrent layers ignore the mask of
    a single column, and padding would enter their states.
    """
    L = max([3, *map(len, sequences)])
    ids = torch.zeros(len(sequences), L, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, sequence in enumerate(sequences):
        ids[i, L - len(sequence) :] = torch.as_tensor(sequence)
        mask[i, L - len(sequence) :] = 1
    return ids.to(device), mask.to(device)


@torch.no_grad()
def prefilled(lm, ids: torch.Tensor, mask: torch.Tensor) -> DynamicCache:
    """The cache of all but the last tokens. Equal sequences, as in a group, run only once."""
    distinct, row = torch.stack([ids, mask]).unique(dim=1, return_inverse=True)
    ids, mask = distinct  # [u, L]
    position = (mask.cumsum(dim=1) - 1).clamp_min(0)
    takes_position = "position_ids" in signature(type(lm.base_model).forward).parameters
    cache = empty_cache(lm.config)
    width, last = max(1, PREFILL_TOKENS // len(ids)), ids.shape[1] - 1
    if any(isinstance(layer, LinearAttentionLayer) for layer in cache.layers):
        width = last  # a later pass would let padding enter their states
    for start in range(0, last, width):
        end = min(start + width, last)
        inputs = {"input_ids": ids[:, start:end], "attention_mask": mask[:, :end]}
        if takes_position:  # other models derive positions from the mask
            inputs["position_ids"] = position[:, start:end]
        lm.base_model(**inputs, past_key_values=cache, use_cache=True)
    cache.reorder_cache(row)
    return cache


def empty_cache(config) -> DynamicCache:
    """A cache in which sliding windows keep all columns, for a recording.

    Raises ValueError if a layer needs a cache of its own kind.
    """
    cache = DynamicCache(config=config)
    for i, layer in enumerate(cache.layers):
        if hasattr(layer, "update_indexer"):  # sampling is exact, but training it is not tested
            raise ValueError(f"layer {i} needs a cache of its own kind, {type(layer).__name__}")
        layer.sliding_window = 2**40  # longer than any sequence
    return cache


class ChunkDraws(LogitsProcessor):
    """Draws a chunk's tokens, one after another: `generate` then has no other choice.

    The count and the results live on the device, so that the host waits only after a chunk, and a
    recording can write them.
    """

    def __init__(self, draw: Callable, u: torch.Tensor):
        """draw, u [R, T]: as in sampler.Batch.next_tokens."""
        self.draw, self.u, self.count = draw, u, u.shape[1]
        self.column = torch.zeros(1, dtype=torch.long, device=u.device)  # of the next token
        self.logprob = torch.zeros(u.shape, device=u.device)  # of the drawn tokens

    def __call__(self, input_ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """logits [R, V], in which all but the drawn tokens become -inf."""
        u = self.u.index_select(1, self.column)  # [R, 1]
        blocks = 1 if logits.is_cuda else -(-logits.numel() // DRAW_BLOCK)
        pairs = zip(logits.tensor_split(blocks), u.tensor_split(blocks), strict=True)
        drawn = [self.draw(*pair) for pair in pairs]
        token, logprob = (torch.cat(column) for column in zip(*drawn, strict=True))  # [R, 1] each
        finite = logits.amax(dim=-1, keepdim=True).isfinite()  # amax finds NaN and +inf
        self.logprob.index_copy_(1, self.column, logprob.where(finite, torch.nan))
        self.column += 1
        return logits.fill_(-torch.inf).scatter_(1, token, 0.0)  # no one else reads these


def generated_tokens(
    lm, ids: torch.Tensor, inputs: dict, draws: ChunkDraws, ends: list[int] | None
) -> torch.Tensor:
    """`Batch.next_tokens` by `generate`, which stops when all responses have ended: [R, new].

    The model's own generation config is not used, because its penalties would change the logits.
    """
    settings = GenerationConfig(
        do_sample=False,
        max_new_tokens=draws.count,
        eos_token_id=ends,
        pad_token_id=ends[0] if ends else 0,
    )
    published, lm.generation_config = lm.generation_config, GenerationConfig()
    try:
        out = lm.generate(
            ids,
            **inputs,
            logits_processor=LogitsProcessorList([draws]),
            generation_config=settings,
        )
    finally:
        lm.generation_config = published
    return out[:, ids.shape[1] :]


def takes_cache(lm) -> bool:
    """Whether `generate` goes on from a cache. If not, as in Mamba, a chunk reads all tokens."""
    return "past_key_values" in signature(lm.forward).parameters
