"""Rollouts: responses sampled with Hugging Face `generate` (Sec. 5, App. I).

Each position in a response has a uniform random number, fixed by the response's key: (seed, step,
problem, sample). `draw` turns this number into a token by inverse CDF. `generate` then has no other
choice, because all other logits become -inf. Methods can thus be compared under common random
numbers, without global random state.

In exact arithmetic neither the number of ranks nor the batch would matter. In float32 a token
changes only if its number falls within rounding error of a CDF step. In bfloat16 batching changes
log p by about 0.01, and most responses eventually differ. Each token comes with its log p under the
distribution it was drawn from, for the metric `mismatch`.

The released code samples with a serving engine instead, as trl_delta.py can.

Shapes: B responses, R of them in flight, m of these in a block, T tokens of a chunk, V vocabulary
size.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from infra import sampler
from infra.onednn import packed_weights
from infra.progress import Progress
from infra.ranks import shared_by_ranks
from infra.sampler import Batch, Running, cache_capacity, next_rows, room
from infra.tokens import end_tokens, stop_finder, stop_texts, text_decoder

# A run's seeds lie around SEED_STRIDE * seed: plus the step for random token weights, minus the
# epoch for the order of problems. So runs with different --seed share none.
SEED_STRIDE = 1_000_003


@dataclass(frozen=True)
class Sampling:
    """The distribution that tokens are drawn from, and the limits of sampling."""

    max_new_tokens: int  # per response, including the end token
    temperature: float = 1.0  # 0: greedy, always the likeliest token
    top_p: float = 1.0
    in_flight: int = 256  # max responses sampled at once


class Response(NamedTuple):
    """A sampled response, on the host."""

    prompt: list[int]  # token ids
    tokens: np.ndarray  # [tokens] int32, the new ones, with the one that ends the response
    sampler_logprob: np.ndarray  # [tokens] float32, log p under the sampler's distribution, nats
    text: str  # decoded, up to a stop text, without special tokens other than tags of thought
    truncated: bool  # stopped by max_new_tokens, not by an end token or a stop text


# ---- one token -----------------------------------------------------------------------------------


def token_distribution(
    logits: torch.Tensor, temperature: float = 1.0, top_p: float = 1.0
) -> torch.Tensor:
    """Probabilities in float64 after temperature and top-p: logits [m, V] -> [m, V].

    Top-p keeps the smallest set of likeliest tokens whose mass reaches `top_p`. At temperature 0
    the likeliest token has probability 1.
    """
    if temperature == 0:
        likeliest = logits.argmax(dim=-1, keepdim=True)  # [m, 1]
        return torch.zeros_like(logits, dtype=torch.float64).scatter_(-1, likeliest, 1.0)

    p = (logits.float() / temperature).softmax(dim=-1).double()  # [m, V]
    if top_p < 1.0:
        ordered, index = p.sort(dim=-1, descending=True, stable=True)
        mass_before = ordered.cumsum(dim=-1).sub_(ordered)
        ordered[mass_before >= top_p] = 0.0
        p.scatter_(-1, index, ordered)
    return p.div_(p.sum(dim=-1, keepdim=True))


def draw(
    sampling: Sampling, logits: torch.Tensor, u: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(the token min{y : F(y) > u}, its log p), [m, 1] each: logits [m, V], u [m, 1] in [0, 1).

    F is the cumulative distribution over the vocabulary.
    """
    p = token_distribution(logits, sampling.temperature, sampling.top_p)
    cdf = p.cumsum(dim=-1)  # [m, V]; the last F is 1 up to rounding
    token = torch.searchsorted(cdf, u * cdf[:, -1:], right=True)  # never one with p = 0
    token = token.clamp_max(cdf.shape[1] - 1)  # with NaN in p, searchsorted returns V
    return token, p.gather(1, token).log().float()


# ---- responses -----------------------------------------------------------------------------------


def rollout(
    lm,
    tokenizer,
    prompts: list[list[int]],
    keys: list[tuple],
    max_new_tokens: int,
    temperature: float = 1.0,
    top_p: float = 1.0,
    in_flight: int = 256,
    stop: str = "",
) -> list[Response]:
    """Sample a response to each of B prompts. Ranks share the work; each gets all responses.

    prompts: token ids. keys: the numbers that fix a response's random draws: (seed, step, problem,
    sample); evaluate.py has a hash of a benchmark's name in place of the step.
    temperature: 0 is greedy. stop: the value of --stop, a text that ends a response, or a JSON list
    of such texts. Raises FloatingPointError, on all ranks, if a logit is NaN or +inf.
    """
    sampling = Sampling(max_new_tokens, temperature, top_p, in_flight)
    ends = end_tokens(lm, tokenizer)
    texts = stop_texts(stop)
    decode = text_decoder(tokenizer, texts)  # it reads the prompt too, which may open a thought
    at_stop = stop_finder(tokenizer, texts) if texts else never

    def sample_share(share: list[tuple]) -> list[Response]:
        # The tokens and the length of a Running include its prompt.
        running = [Running(prompt, np.random.default_rng(key)) for prompt, key in share]
        generate_all(lm, running, ends, sampling, at_stop)
        return [done(each) for each in running]

    def done(running: Running) -> Response:
        tokens, logprob = running.result()
        text = decode(running.prompt, tokens)
        return Response(running.prompt, tokens, logprob, text, truncated=not running.ended)

    # Neighbours, such as a prompt's group, are spread over the ranks. All responses to a hard
    # prompt are long, so a rank with the whole group would keep the others waiting.
    return shared_by_ranks(list(zip(prompts, keys, strict=True)), sample_share)


def never(earlier: torch.Tensor, new: torch.Tensor) -> int:
    """The `at_stop` of `generate_all` without stop texts: 0, since no token completes one."""
    return 0


@torch.no_grad()
def generate_all(
    lm, responses: list[Running], ends: list[int], sampling: Sampling, at_stop=never
) -> None:
    """Sample the responses, up to any token in `ends`, or to where `at_stop` finds a stop text.

    Hugging Face `generate` runs in chunks of CHUNK tokens. Between chunks finished responses leave.
    Once at most half of a batch is left, it waits, too, and the waiting ones with the fewest new
    tokens are a new batch. For example, 20 responses, of which 8 may be in flight:

        8 run                 12 wait
        5 of them go on       12 wait    after a chunk that 3 have ended in
        0                     16 wait    1 more has ended: 4 are half of 8, so they wait, too
        8 run                  8 wait    the 8 with the fewest new tokens

    Raises FloatingPointError if a logit is NaN or +inf.
    """
    limit = min(sampling.in_flight, len(responses))
    # Positions of the cache that fit in a GPU. Each response of a batch takes as many as its
    # longest one, so fewer run as they grow, and the longest then wait.
    capacity = cache_capacity(lm, limit, sampling.top_p)
    # CUDA graphs are recorded only where they were tested: not for greedy responses or top-p.
    record = sampling.temperature > 0 and sampling.top_p == 1
    # If a model has learned positions, no chunk may pass the last of them.
    positions = getattr(lm.config, "max_position_embeddings", None) or math.inf
    waiting = list(responses)
    with packed_weights(lm), Progress("sampling", len(responses), "responses") as progress:
        while waiting:
            # Those with the fewest new tokens come first: long ones run together at the end.
            waiting.sort(key=lambda each: each.count_new)  # stable
            size = room(waiting, limit, capacity)
            running, waiting = waiting[:size], waiting[size:]
            batch = Batch(lm, [each.tokens for each in running])  # prompts included
            while running:
                remaining = max(sampling.max_new_tokens - each.count_new for each in running)
                T = min(sampler.CHUNK, remaining, max(1, positions - max(map(len, running))))
                # Token t takes a response's t-th number, however its tokens are cut into chunks.
                u = np.stack([each.generator.random(T) for each in running])  # [R, T]
                chunk = batch.next_tokens(
                    partial(draw, sampling), torch.from_numpy(u), ends, record
                )  # tokens [R, up to T] and their log p
                if chunk[1].isnan().any():  # from a logit of NaN or +inf
                    raise FloatingPointError("the model's logits are not finite")
                for each, tokens, logprob in zip(running, *chunk, strict=True):
                    # How many of the new tokens lead to the end of a stop text, else 0
                    stopped = at_stop(each.tokens[len(each.prompt) :], tokens)
                    each.append(tokens, logprob, ends, sampling.max_new_tokens, stopped)
                    progress.update(each.finished)

                fewest = size // 2 + 1 if waiting else 1
                # The rows that go on, or none if these are too few; the unfinished others wait.
                rows, away = next_rows(running, fewest, limit, capacity)
                waiting += [running[i] for i in away]
                running = [running[i] for i in rows]
                batch.keep(rows)


# ---- problems ------------------------------------------------------------------------------------


def problems_of_step(size: int, step: int, count: int, seed: int) -> list[int]:
    """The indices of the `count` problems of a step, 1 or higher, out of `size`.

    Steps take the next problems from an endless stream of epochs. Each epoch has all problems once,
    in an order fixed by (seed, epoch).
    """
    position = count * (step - 1)
    first_epoch = position // size
    stream = []
    for epoch in range(first_epoch, (position + count) // size + 1):
        generator = torch.Generator().manual_seed(SEED_STRIDE * seed - epoch)
        stream += torch.randperm(size, generator=generator).tolist()
    start = position - first_epoch * size
    return stream[start : start + count]
