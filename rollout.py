"""Rollouts: G responses per prompt, sampled with Hugging Face `generate` (Sec. 5, App. I).

Each position in a response has a uniform random draw, fixed by (seed, step, problem, sample). A
logits processor turns this draw into a token by inverse CDF, and `generate` then takes that token
greedily. Methods can thus be compared under common random numbers, without global random state.

In exact arithmetic neither the number of ranks nor the batch would matter. In float32 a token
changes only if its draw falls within rounding error of a CDF step. In bfloat16, as on
GPUs, batching changes log p by about 0.01, and most responses eventually differ. Each token
comes with its log p under the distribution it was drawn from, for the metric `mismatch`.

Departures: the released code samples with a serving engine. This code calls `generate` in chunks of
64 tokens (infra.sampler.CHUNK); between chunks, waiting responses replace finished ones. With
`--engine vllm` it samples with vLLM.

Shapes: B responses, R in flight, V vocabulary size, G group size.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from transformers import LogitsProcessor

from batch import Rollout
from infra import sampler
from infra.errors import Interrupted
from infra.progress import Progress
from infra.ranks import shared_by_ranks
from infra.sampler import Response, cache_capacity, next_tokens, schedule
from infra.tokens import end_tokens, text_decoder

# The seeds of a run's other streams: SEED_STRIDE * seed - epoch for the order of the problems, and
# SEED_STRIDE * seed + step for random token weights.
SEED_STRIDE = 1_000_003


@dataclass(frozen=True)
class Sampling:
    """The distribution that tokens are drawn from, and the limits of sampling."""

    max_new_tokens: int  # per response, including the end token
    temperature: float = 1.0  # 0: greedy, always the likeliest token
    top_p: float = 1.0
    seed: int = 0
    in_flight: int = 256  # max responses sampled at once


class Request(NamedTuple):
    """A response to sample: its prompt and the key that seeds its random draws."""

    prompt: list[int]  # token ids
    key: tuple[int, int, int, int]  # seed, step (in evaluate.py: benchmark), problem, sample


# ---- one token -----------------------------------------------------------------------------------


def token_distribution(
    logits: torch.Tensor, temperature: float = 1.0, top_p: float = 1.0
) -> torch.Tensor:
    """Probabilities in float64 after temperature and top-p: logits [R, V] -> [R, V].

    Top-p keeps the smallest set of likeliest tokens whose mass reaches `top_p`. At temperature 0
    the likeliest token has probability 1. A logit that is NaN or +inf gives NaN.
    """
    if temperature == 0:
        highest, likeliest = logits.max(dim=-1, keepdim=True)  # [R, 1]
        one = 1 + 0 * highest.double()  # NaN if the highest logit is NaN or inf
        return torch.zeros_like(logits, dtype=torch.float64).scatter_(-1, likeliest, one)

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

    def __init__(
        self,
        uniforms: torch.Tensor,  # [R, new tokens] float64; column t is for the t-th new token
        prompt_width: int,  # columns before the first new token
        temperature: float,
        top_p: float,
    ):
        self.uniforms = uniforms
        self.prompt_width = prompt_width
        self.temperature = temperature
        self.top_p = top_p
        # Both are read once, after a chunk, so the host does not wait for the GPU at every token.
        self.finite = torch.ones((), dtype=torch.bool, device=uniforms.device)
        self.logprobs = []  # [R] float32 for each new token: log p of the drawn token

    def __call__(self, input_ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        p = token_distribution(logits, self.temperature, self.top_p)
        cdf = p.cumsum(dim=-1)  # [R, V]
        total = cdf[:, -1:]  # [R, 1], 1 up to rounding
        self.finite &= total.isfinite().all()

        t = input_ids.shape[1] - self.prompt_width
        u = self.uniforms[:, t, None] * total  # [R, 1]
        token = torch.searchsorted(cdf, u, right=True)  # right: never a token with probability 0
        token = token.clamp_max(cdf.shape[1] - 1)  # [R, 1]; for NaN, which `finite` reports
        self.logprobs.append(p.gather(1, token).squeeze(1).log().float())
        return torch.full_like(logits, -torch.inf).scatter_(1, token, 0.0)


def random_numbers(seed: int, step: int, problem: int, sample: int) -> np.random.Generator:
    """The generator of a response's uniform draws in [0, 1), seeded by the request's key."""
    return np.random.default_rng([seed, step, problem, sample])


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
    stop: Callable[[], bool] | None = None,
    sample_numbers: Counter | None = None,
) -> list[Rollout]:
    """Sample `group_size` responses to each prompt; the responses to a prompt are consecutive.

    lm: a Hugging Face model, or the engine that --engine selects.
    prompts: token ids.
    problem_ids: non-negative integers that identify the prompts' problems.
    Ranks share the sampling, and every rank returns all B responses.

    sample_numbers: the next sample number of each problem, which each call advances; a repeated
    problem gets new responses, in this call and in others that share the counter.

    Raises FloatingPointError for a logit that is NaN or +inf, Interrupted once stop() is true on
    any rank.
    """
    number = Counter() if sample_numbers is None else sample_numbers
    requests = []
    for prompt, problem in zip(prompts, problem_ids, strict=True):
        for _ in range(group_size):
            requests.append(Request(prompt, (sampling.seed, step, problem, number[problem])))
            number[problem] += 1
    ends = end_tokens(lm, tokenizer)
    text = text_decoder(tokenizer)

    def sampled(mine: list[Request]) -> list[Rollout]:
        if isinstance(lm, torch.nn.Module):
            drawn = generate(lm, mine, ends, sampling, stop)
        else:
            drawn = lm.sample(mine, ends, sampling, stop)
        rollouts = []
        for (prompt, _), (tokens, logprob) in zip(mine, drawn, strict=True):
            truncated = tokens[-1] not in ends
            rollouts.append(Rollout(prompt, tokens, logprob, text(prompt, tokens), truncated))
        return rollouts

    # A group is spread over the ranks. All responses to a hard prompt are long, so a rank with the
    # whole group would keep the others waiting.
    return shared_by_ranks(requests, sampled)


# ---- the sampler ---------------------------------------------------------------------------------


@torch.no_grad()
def generate(
    lm,
    requests: list[Request],
    ends: list[int],
    sampling: Sampling,
    stop: Callable[[], bool] | None = None,
    done: Callable[[int, np.ndarray], None] | None = None,
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Sample a response for each request, up to any token in `ends`, for training and evaluation.

    Hugging Face `generate` runs in chunks of CHUNK tokens. Between chunks, waiting responses
    replace finished ones in the batch and cache, so a long response does not delay the others.
    done(i, tokens) is called for each request i, soon after its response has finished.
    Returns for each response its tokens, int32, without the prompt and with the end token, and
    their log p under the sampling distribution, float32, nats.
    Raises FloatingPointError if a logit is NaN or +inf, Interrupted once stop() is true.
    """
    responses = []
    for i, request in enumerate(requests):
        numbers = random_numbers(*request.key)
        responses.append(
            Response(i, torch.tensor(request.prompt), sampling.max_new_tokens, numbers)
        )
    limit = min(sampling.in_flight, len(requests))
    capacity = cache_capacity(lm, limit, sampling.top_p)  # columns; top-p needs memory too
    waiting, running = list(responses), []
    with closing(Progress("sampling", len(requests), "responses")) as progress:
        while waiting or running:
            running = schedule(running, waiting, limit, capacity)  # takes from `waiting`
            sample_chunk(lm, running, ends, sampling)
            for response in running:
                if response.finished and done:
                    done(response.index, response.sampled()[0])
            unfinished = [response for response in running if not response.finished]
            progress.update(len(running) - len(unfinished))
            running = unfinished
            if stop and stop():
                raise Interrupted
    return [response.sampled() for response in responses]


def sample_chunk(lm, responses: list[Response], ends: list[int], sampling: Sampling) -> None:
    """Append the next tokens, at most CHUNK, to each of the R responses."""
    rest = max(response.max_new_tokens - response.new for response in responses)
    count = min(sampler.CHUNK, rest)
    u = np.stack([response.numbers.random(count) for response in responses])
    columns = max(3, *(len(response) for response in responses))  # as next_tokens pads
    uniforms = torch.from_numpy(u).to(lm.device)  # [R, count]
    choose = InverseCDF(uniforms, columns, sampling.temperature, sampling.top_p)
    new = next_tokens(lm, responses, choose, count, ends)  # [R, up to count]
    if not choose.finite:
        raise FloatingPointError("the model's logits are not finite")

    logprob = torch.stack(choose.logprobs, dim=1).cpu()
    for response, tokens, logs in zip(responses, new, logprob, strict=True):
        response.append(tokens, logs, ends)
