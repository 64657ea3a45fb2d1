"""Rollouts: G responses per prompt, sampled with Hugging Face `generate` (Sec. 5, App. I).

Each position in a response has a uniform random draw, fixed by (seed, step, problem, sample). A
logits processor turns this draw into a token by inverse CDF, and `generate` then takes that token
greedily. Methods can thus be compared under common random numbers, without global random state.

In exact arithmetic neither the number of ranks nor the batch would matter. In float32 a token
changes only if its draw falls within rounding error of a CDF step. In bfloat16 batching changes
log p by about 0.01, and most responses eventually differ. Each token comes with its log p under the
distribution it was drawn from, for the metric `mismatch`.

Departure: the released code samples with a serving engine (trl_delta.py can, too).

Shapes: B responses, R in flight, V vocabulary size, G group size.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from transformers import LogitsProcessor

from batch import Response
from infra import sampler
from infra.packed import packed_weights
from infra.progress import Progress
from infra.ranks import shared_by_ranks
from infra.sampler import Batch, Running, cache_capacity, room
from infra.tokens import end_tokens, text_decoder

# A run's other seeds: SEED_STRIDE * seed - epoch shuffles the problems of an epoch, and
# SEED_STRIDE * seed + step draws a step's random token weights. Runs of fewer steps share none.
SEED_STRIDE = 1_000_003

# Numbers of a float64 block of p on the CPU, 8 MB: allocating more than 32 MB for every token takes
# several times as long as the draw itself.
DRAW_BLOCK = 2**20


@dataclass(frozen=True)
class Sampling:
    """The distribution that tokens are drawn from, and the limits of sampling."""

    max_new_tokens: int  # per response, including the end token
    temperature: float = 1.0  # 0: greedy, always the likeliest token
    top_p: float = 1.0
    seed: int = 0
    in_flight: int = 256  # max responses sampled at once


# ---- one token -----------------------------------------------------------------------------------


def token_distribution(
    logits: torch.Tensor, temperature: float = 1.0, top_p: float = 1.0
) -> torch.Tensor:
    """Probabilities in float64 after temperature and top-p: logits [R, V] -> [R, V].

    Top-p keeps the smallest set of likeliest tokens whose mass reaches `top_p`. At temperature 0
    the likeliest token has probability 1.
    """
    if temperature == 0:
        likeliest = logits.argmax(dim=-1, keepdim=True)  # [R, 1]
        return torch.zeros_like(logits, dtype=torch.float64).scatter_(-1, likeliest, 1.0)

    p = (logits.float() / temperature).softmax(dim=-1).double()  # [R, V]
    if top_p < 1.0:
        ordered, index = p.sort(dim=-1, descending=True, stable=True)
        mass_before = ordered.cumsum(dim=-1).sub_(ordered)
        ordered[mass_before >= top_p] = 0.0
        p.scatter_(-1, index, ordered)
    return p.div_(p.sum(dim=-1, keepdim=True))


class InverseCDF(LogitsProcessor):
    """Chooses the token min{y : F(y) > u} for each response.

    F is the cumulative distribution over the vocabulary and u in [0, 1) the response's uniform
    draw at this position. The logits of all other tokens become -inf.
    """

    def __init__(self, uniforms: torch.Tensor, sampling: Sampling):
        self.uniforms = uniforms  # [R, new tokens] float64; column t is for the t-th new token
        self.sampling = sampling
        # On the device, so that the host waits only after a chunk, and a CUDA graph can write them.
        device = uniforms.device
        self.finite = torch.ones((), dtype=torch.bool, device=device)
        self.column = torch.zeros(1, dtype=torch.long, device=device)  # t, of the next token
        self.logprob = torch.zeros(uniforms.shape, device=device)  # of the drawn tokens

    def __call__(self, input_ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        self.finite &= logits.amax(dim=-1).isfinite().all()  # NaN and +inf are highest
        u = self.uniforms.index_select(1, self.column)  # [R, 1]
        blocks = 1 if logits.is_cuda else -(-logits.numel() // DRAW_BLOCK)
        pairs = zip(logits.tensor_split(blocks), u.tensor_split(blocks), strict=True)
        drawn = [self.draw(*pair) for pair in pairs]
        token, logprob = (torch.cat(column) for column in zip(*drawn, strict=True))  # [R, 1] each
        self.logprob.index_copy_(1, self.column, logprob)
        self.column += 1
        return logits.fill_(-torch.inf).scatter_(1, token, 0.0)  # a copy of its own

    def draw(self, logits: torch.Tensor, u: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(token, its log p) of m rows, [m, 1] each: logits [m, V], u [m, 1]."""
        p = token_distribution(logits, self.sampling.temperature, self.sampling.top_p)
        cdf = p.cumsum(dim=-1)  # [m, V]; the last F is 1 up to rounding
        token = torch.searchsorted(cdf, u * cdf[:, -1:], right=True)  # never one with p = 0
        token = token.clamp_max(cdf.shape[1] - 1)  # if p is NaN, it is V
        return token, p.gather(1, token).log().float()


def generator_of(seed: int, stream: int, problem: int, sample: int) -> np.random.Generator:
    """The generator of a response's uniform draws in [0, 1).

    stream: the step, or evaluate.py's hash of a benchmark's name. sample: the response's number
    among those to its problem in this stream.
    """
    return np.random.default_rng([seed, stream, problem, sample])


def draw_indices(size: int, position: int, count: int, seed: int) -> list[int]:
    """`count` problem indices, starting at `position` in an endless stream of epochs.

    Each epoch has all `size` problems, in an order fixed by (seed, epoch).
    """
    first_epoch = position // size
    stream = []
    for epoch in range(first_epoch, (position + count) // size + 1):
        generator = torch.Generator().manual_seed(SEED_STRIDE * seed - epoch)
        stream += torch.randperm(size, generator=generator).tolist()
    start = position - first_epoch * size
    return stream[start : start + count]


# ---- groups of responses, on all ranks -----------------------------------------------------------


def rollout(
    lm,
    tokenizer,
    prompts: list[list[int]],
    problem_ids: list[int],
    group_size: int,
    sampling: Sampling,
    step: int = 0,
) -> list[Response]:
    """Sample `group_size` responses to each prompt; the responses to a prompt are consecutive.

    Ranks share the sampling, and every rank returns all B responses.
    prompts: token ids. problem_ids: non-negative integers that identify their problems.
    A repeated problem gets new responses.
    Raises what `sample_responses` raises, on all ranks.
    """
    groups = Counter()  # problem -> its groups so far
    waiting = []
    for prompt, problem in zip(prompts, problem_ids, strict=True):
        for i in range(group_size):
            sample = groups[problem] * group_size + i
            draws = generator_of(sampling.seed, step, problem, sample)
            waiting.append(Running(prompt, draws))
        groups[problem] += 1
    ends = end_tokens(lm, tokenizer)
    text = text_decoder(tokenizer)

    def sample_share(share: list[Running]) -> list[Response]:
        sampled = {}
        for running in sample_responses(lm, share, ends, sampling):
            sampled[running] = finished(running, ends, text)
        return [sampled[running] for running in share]

    # A group is spread over the ranks. All responses to a hard prompt are long, so a rank with the
    # whole group would keep the others waiting.
    return shared_by_ranks(waiting, sample_share)


def finished(running: Running, ends: list[int], text: Callable) -> Response:
    """The response that `running` has become. text: a tokens.text_decoder."""
    tokens, logprob = running.result()
    truncated = bool(tokens[-1] not in ends)
    return Response(running.prompt, tokens, logprob, text(running.prompt, tokens), truncated)


# ---- the sampler ---------------------------------------------------------------------------------


@torch.no_grad()
def sample_responses(
    lm,
    responses: list[Running],
    ends: list[int],
    sampling: Sampling,
) -> Iterator[Running]:
    """Sample the responses, up to any token in `ends`, for training and for evaluation.

    Yields each response soon after it has finished. Hugging Face `generate` runs in chunks of CHUNK
    tokens, on a GPU a recording of its kernels (infra/captured.py). Between chunks finished
    responses leave. Once half a batch has left, or waits since the caches have grown too large, the
    others form a new batch with waiting ones, so a long response does not delay them.
    Raises FloatingPointError if a logit is NaN or +inf.
    """
    limit = min(sampling.in_flight, len(responses))
    capacity = cache_capacity(lm, limit, sampling.top_p)  # columns of cache that fit in a GPU
    record = sampling.temperature > 0 and sampling.top_p == 1  # the others are not tested on a GPU
    waiting = list(responses)
    with packed_weights(lm), Progress("sampling", len(responses), "responses") as progress:
        while waiting:
            # Those with the fewest new tokens come first: long ones run together at the end.
            waiting.sort(key=lambda response: response.count_new)  # stable
            size = room(waiting, limit, capacity)
            running, waiting = waiting[:size], waiting[size:]
            batch = Batch(lm, [response.tokens for response in running])
            while running:
                # The next tokens of R responses, [R, up to count], and their log p.
                remaining = max(sampling.max_new_tokens - each.count_new for each in running)
                count = min(sampler.CHUNK, remaining)
                # A response that goes on has used all its draws, so chunks change none.
                uniforms = np.stack([response.generator.random(count) for response in running])
                choose = InverseCDF(torch.from_numpy(uniforms).to(lm.device), sampling)
                new_tokens = batch.next_tokens(choose, count, ends, record)
                if not choose.finite:
                    raise FloatingPointError("the model's logits are not finite")

                drawn = zip(running, new_tokens, choose.logprob.cpu(), strict=True)
                for response, tokens, logprob in drawn:
                    response.append(tokens, logprob, ends, sampling.max_new_tokens)
                    if response.finished:
                        progress.update()
                        yield response

                rows = [i for i in range(len(running)) if not running[i].finished]
                rows.sort(key=lambda i: len(running[i]))  # the longest wait
                fit = room([running[i] for i in rows], limit, capacity)
                if waiting and fit <= size / 2:
                    fit = 0
                waiting += [running[i] for i in rows[fit:]]
                running = [running[i] for i in rows[:fit]]
                batch.keep(rows[:fit])
