"""Chooses the responses that are sampled together; they may change between chunks.

Finished responses leave at once, and as many waiting ones enter as the cache can hold. If the
caches grow too large, some responses are paused: they keep their tokens, and only their cache is
recomputed later.

    in flight 0 1 2, waiting 3 4      1 finishes: it leaves, 3 enters
    in flight 0 2 3, waiting 4        the caches grow too large: 0, the longest, is paused
    in flight 2 3,   waiting 4 0

All are padded to the longest in flight. The longest are paused first, and resumed only after those
with fewer new tokens, so long responses are sampled together at the end.

Shapes: R responses in flight, L columns in their longest sequence.
"""

from dataclasses import dataclass, field
from operator import attrgetter

import numpy as np
import torch
from transformers import DynamicCache

from infra.cache import keep, let_grow, merged, prefill


@dataclass(eq=False)  # compared by identity
class Response:
    """A response being sampled."""

    index: int  # of its job
    tokens: torch.Tensor  # [prompt and new tokens so far]
    most: int  # limit on new tokens
    uniforms: np.ndarray | None = None  # one for each new token, while in flight
    logprobs: list[torch.Tensor] = field(default_factory=list)  # of the new tokens, by chunk
    finished: bool = False

    def __post_init__(self):
        self.prompt_length = len(self.tokens)
        self.limit = self.prompt_length + self.most  # on prompt and response

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def new(self) -> int:
        """Tokens sampled so far."""
        return len(self) - self.prompt_length

    def append(self, tokens: torch.Tensor, logprob: torch.Tensor, ends: list[int]) -> None:
        """Add `tokens` and their log p, up to the first of `ends` or its limit."""
        at_end = torch.isin(tokens, torch.tensor(ends)).nonzero()
        up_to_end = int(at_end[0]) + 1 if len(at_end) else len(tokens)
        count = min(up_to_end, self.limit - len(self))
        self.tokens = torch.cat([self.tokens, tokens[:count]])
        self.logprobs.append(logprob[:count])
        self.finished = int(self.tokens[-1]) in ends or len(self) == self.limit
        if self.finished:
            self.uniforms = None

    def sampled(self) -> tuple[np.ndarray, np.ndarray]:
        """(its new tokens, int32; their log p, float32)."""
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
    cache: DynamicCache | None = None  # [R, heads, L - 1, size]: all but each last token

    def exchange(self) -> tuple[list[Response], list[Response]]:
        """(responses that stay, responses that enter). Finished and paused ones have left."""
        staying = self.those_who_stay()
        return staying, self.those_who_arrive(staying)

    def change(self, lm) -> list[Response]:
        """Remove finished responses; pause some if needed. Returns the responses that enter."""
        staying, arriving = self.exchange()
        if not staying:
            self.cache = None
        elif staying != self.responses:
            index = [self.responses.index(response) for response in staying]
            self.cache = keep(self.cache, index, width(staying) - 1)
        if arriving:
            new = prefill(lm, [response.tokens for response in arriving])
            self.cache = merged(self.cache, new) if staying else new
        self.responses = staying + arriving

        longest = max(response.limit for response in self.responses)
        let_grow(self.cache, min(longest, self.cache_tokens // len(self.responses)))
        return arriving

    def those_who_stay(self) -> list[Response]:
        """The unfinished responses that still fit. The longest are paused."""
        staying = [response for response in self.responses if not response.finished]
        while not self.fits(len(staying), width(staying)):
            longest = max(staying, key=len)
            staying.remove(longest)
            self.waiting.append(longest)
        return staying

    def those_who_arrive(self, staying: list[Response]) -> list[Response]:
        """The waiting responses that fit alongside `staying`.

        Those with the fewest new tokens come first; ties keep their order.
        """
        arriving = []
        widest = width(staying)
        for response in sorted(self.waiting, key=attrgetter("new")):  # a stable sort
            widest = max(widest, len(response))
            if not self.fits(len(staying) + len(arriving) + 1, widest):
                break
            arriving.append(response)

        gone = set(arriving)
        self.waiting = [response for response in self.waiting if response not in gone]
        return arriving

    def fits(self, count: int, widest: int) -> bool:
        """Whether `count` responses, the longest with `widest` tokens, may grow by a chunk.

        A single response always may, so that it can finish.
        """
        if count < 2:
            return True
        return count <= self.most and count * (widest + self.chunk) <= self.cache_tokens


def tokens_done(responses: list[Response]) -> tuple[int, int]:
    """(tokens sampled so far, the most that may be sampled)."""
    done = sum(response.new for response in responses)
    rest = sum(response.limit - len(response) for response in responses if not response.finished)
    return done, done + rest


def width(responses: list[Response]) -> int:
    """Columns of the longest sequence, at least 2: the cache has one column fewer."""
    return max([2, *(len(response) for response in responses)])
