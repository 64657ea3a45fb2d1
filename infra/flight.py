"""Before every chunk, chooses the responses that are sampled together.

Finished responses leave at once, and as many waiting ones enter as the cache can hold. If the
caches grow too large, some responses are paused. They keep their tokens, and their cache is
recomputed when they resume.

    in flight 0 1 2, waiting 3 4      1 finishes: it leaves, 3 enters
    in flight 0 2 3, waiting 4        the caches grow too large: 0, the longest, is paused
    in flight 2 3,   waiting 4 0

Responses in flight are padded to the longest. The longest are paused first, and resume after
responses with fewer new tokens, so long responses are sampled together at the end.

The memory for caches (`free_cache_tokens`) limits the number of responses in flight.

Shapes: R responses in flight, L columns in their longest sequence.
"""

import os
from dataclasses import dataclass, field
from operator import attrgetter

import numpy as np
import torch
from transformers import DynamicCache

from infra.cache import PREFILL_TOKENS, keep, merged, prefill
from infra.packed_attention import head_size

SHARE_OF_FREE_MEMORY = 0.85  # for caches and draws; the rest allows for fragmentation
DRAW_BYTES = 28  # per response and token id: float32 logits twice and choice; float64 p and F
TOP_P_DRAW_BYTES = 80  # also a sorted copy of p and a GPU's workspace for sorting (estimated)
UNKNOWN_FREE_BYTES = 4e9  # assumed free memory if the system does not report it


@dataclass(eq=False)  # compared by identity
class Response:
    """A response being sampled."""

    index: int  # index of its job
    tokens: torch.Tensor  # [prompt and new tokens so far]
    most: int  # limit on new tokens
    numbers: np.random.Generator  # one uniform draw per new token
    logprobs: list[torch.Tensor] = field(default_factory=list)  # log p of the new tokens, by chunk
    finished: bool = False

    def __post_init__(self):
        self.prompt_length = len(self.tokens)
        self.limit = self.prompt_length + self.most  # limit on prompt and response together

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
        count = min(up_to_end, self.limit - len(self))
        self.tokens = torch.cat([self.tokens, tokens[:count]])
        self.logprobs.append(logprob[:count])
        self.finished = int(self.tokens[-1]) in ends or len(self) == self.limit

    def sampled(self) -> tuple[np.ndarray, np.ndarray]:
        """(new tokens, int32; their log p, float32)."""
        new = self.tokens[self.prompt_length :]
        return new.numpy().astype(np.int32), torch.cat(self.logprobs).numpy()


@dataclass
class Flight:
    """The responses sampled together, their cache, and the waiting responses."""

    waiting: list[Response]
    most: int  # limit on responses in flight
    cache_tokens: int  # limit on tokens in their caches
    chunk: int  # tokens by which responses grow between changes
    responses: list[Response] = field(default_factory=list)  # R, in the order of the cache
    cache: DynamicCache | None = None  # [R, heads, L - 1, size], without the last tokens

    def change(self, lm) -> None:
        """Drop finished responses, pause some if needed, and add waiting ones."""
        staying = self.those_who_stay()
        arriving = self.those_who_arrive(staying)
        if not staying:
            self.cache = None
        elif staying != self.responses:
            index = [self.responses.index(response) for response in staying]
            self.cache = keep(self.cache, index, width(staying) - 1)
        if arriving:
            new = prefill(lm, [response.tokens for response in arriving])
            self.cache = merged(self.cache, new) if staying else new
        self.responses = staying + arriving

    def those_who_stay(self) -> list[Response]:
        """The unfinished responses that fit. The longest are paused until the others fit."""
        staying = [response for response in self.responses if not response.finished]
        while not self.fits(len(staying), width(staying)):
            longest = max(staying, key=len)
            staying.remove(longest)
            self.waiting.append(longest)
        return staying

    def those_who_arrive(self, staying: list[Response]) -> list[Response]:
        """The waiting responses that fit alongside `staying`.

        Those with the fewest new tokens enter first; ties keep their order.
        """
        self.waiting.sort(key=attrgetter("new"))  # a stable sort
        arriving = []
        widest = width(staying)
        while self.waiting:
            widest = max(widest, len(self.waiting[0]))
            if not self.fits(len(staying) + len(arriving) + 1, widest):
                break
            arriving.append(self.waiting.pop(0))
        return arriving

    def fits(self, count: int, widest: int) -> bool:
        """Whether `count` responses, the longest with `widest` tokens, may grow by a chunk.

        A single response always may, so that it can finish.
        """
        tokens = count * (widest + self.chunk)
        return count < 2 or count <= self.most and tokens <= self.cache_tokens


def tokens_done(responses: list[Response]) -> tuple[int, int]:
    """(tokens sampled so far, the maximum that may be sampled)."""
    done = sum(response.new for response in responses)
    rest = sum(response.limit - len(response) for response in responses if not response.finished)
    return done, done + rest


def width(responses: list[Response]) -> int:
    """Columns of the longest sequence, at least 2: the cache has one column fewer."""
    return max([2, *(len(response) for response in responses)])


# ---- memory for caches ---------------------------------------------------------------------------


def cache_bytes(config, itemsize: int) -> int:
    """Bytes of keys and values per token: 147,456 for Qwen3-8B in bfloat16."""
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return 2 * config.num_hidden_layers * heads * head_size(config) * itemsize


def working_bytes(config, itemsize: int, rows: int, longest: int, top_p: float) -> float:
    """Bytes that sampling needs in addition to weights and cache: the larger of prefill and draw.

    rows: maximum responses in flight. longest: maximum tokens in a prompt and its response.
    The constants are fitted to runs on fake tensors: see benchmarks/plan.py.
    """
    mlp = getattr(config, "intermediate_size", None) or 4 * config.hidden_size  # as in GPT-2
    tokens = max(PREFILL_TOKENS, longest)
    a_pass = itemsize * tokens * (3 * mlp + 4.3 * config.hidden_size)
    a_draw = (DRAW_BYTES if top_p == 1 else TOP_P_DRAW_BYTES) * rows * config.vocab_size
    return max(a_pass, a_draw)


def cache_room(config, itemsize: int, free: float, working: float) -> int:
    """The tokens whose keys and values fit in `free` bytes after `working` bytes are reserved.

    While a layer grows, one tensor (its keys or its values) exists twice.
    """
    bytes_a_token = cache_bytes(config, itemsize) * (1 + 1 / (2 * config.num_hidden_layers))
    return max(0, int((SHARE_OF_FREE_MEMORY * free - working) / bytes_a_token))


def free_cache_tokens(lm, rows: int, longest: int, top_p: float) -> int:
    """`cache_room` for the memory that is free now; arguments as for `working_bytes`."""
    itemsize = lm.dtype.itemsize
    working = working_bytes(lm.config, itemsize, rows, longest, top_p)
    return cache_room(lm.config, itemsize, free_bytes(lm.device), working)


def free_bytes(device: torch.device) -> float:
    """Free memory of the GPU, or of the host if `device` is the CPU."""
    if device.type == "cuda":
        torch.cuda.empty_cache()  # torch's cached blocks count as free
        free, _ = torch.cuda.mem_get_info(device)
        return free
    if "SC_AVPHYS_PAGES" not in os.sysconf_names:
        return UNKNOWN_FREE_BYTES
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
