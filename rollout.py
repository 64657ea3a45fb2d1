"""Rollouts: G responses per prompt, sampled with Hugging Face `generate` (Sec. 5, App. I).

Each position in a response has a uniform random draw, fixed by (seed, step, problem, sample). A
logits processor turns this draw into a token by inverse CDF, and `generate` then takes that token
greedily. Methods can thus be compared under common random numbers, without global random state.

In exact arithmetic neither the number of ranks nor the batch would matter. In float32 a token
changes only if its draw falls within rounding error of a CDF step. In bfloat16, as on
GPUs, batching changes log p by about 0.01, and most responses eventually differ. Each token
comes with its log p under the distribution it was drawn from, for the metric `mismatch`.

Departures: the released code samples with a serving engine. This code calls `generate` in chunks of
CHUNK tokens; between chunks, waiting responses replace finished ones. `--engine vllm` uses vLLM.

Temperature is 1.0. Top-p is 1.0 in training and 0.7 in evaluation, and affects only sampling. In
training the log-probabilities use the same temperature.

Shapes: B responses, R in flight, L columns in the longest, V vocabulary size, G group size.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from transformers import LogitsProcessor

from infra.cache import hf_generate, left_padded
from infra.errors import Interrupted
from infra.flight import Flight, Response, free_cache_tokens, tokens_done
from infra.packing import Rollouts, padded_rollouts, uploaded
from infra.progress import Progress
from infra.ranks import shared_by_ranks

CHUNK = 64  # tokens sampled before waiting responses replace finished ones


@dataclass(frozen=True)
class Sampling:
    """The distribution that tokens are drawn from, and the limits of sampling."""

    max_new_tokens: int  # per response, including the end token
    temperature: float = 1.0  # 0: greedy, always the likeliest token
    top_p: float = 1.0
    seed: int = 0
    in_flight: int = 256  # max responses sampled at once
    cache_tokens: int = 0  # max tokens in all caches together; 0: as many as fit in free memory


class Job(NamedTuple):
    """A response to sample: its prompt and the key that seeds its random draws."""

    prompt: list[int]  # token ids
    name: tuple[int, int, int, int]  # seed, step (in evaluate.py: benchmark), problem, sample
    begin: int = 0  # > 0: the prompt ends with this many tokens of a response (studies/truth.py)


class Sample(NamedTuple):
    """A sampled response."""

    tokens: np.ndarray  # [tokens] int32, without the prompt, with the end token
    logprob: np.ndarray  # [tokens] float32, log p under the sampling distribution, nats


# ---- one token -----------------------------------------------------------------------------------


def token_distribution(
    logits: torch.Tensor, temperature: float = 1.0, top_p: float = 1.0
) -> torch.Tensor:
    """Probabilities in float64 after temperature and top-p: logits [B, V] -> [B, V].

    Top-p keeps the smallest set of likeliest tokens whose mass reaches `top_p`. At temperature 0
    the likeliest token has probability 1. Logits that are not finite give NaN.
    """
    if temperature == 0:
        highest, likeliest = logits.max(dim=-1, keepdim=True)  # [B, 1]
        one = 1 + 0 * highest.double()  # NaN if the highest logit is NaN or inf
        return torch.zeros_like(logits, dtype=torch.float64).scatter_(-1, likeliest, one)

    p = (logits.float() / temperature).softmax(dim=-1).double()  # [B, V]
    if top_p < 1.0:
        ordered, index = p.sort(dim=-1, descending=True, stable=True)
        mass_before = ordered.cumsum(dim=-1).sub_(ordered)
        ordered[mass_before >= top_p] = 0.0
        p.scatter_(-1, index, ordered)
    return p.div_(p.sum(dim=-1, keepdim=True))


class InverseCDF(LogitsProcessor):
    """Chooses the token min{y : F(y) > u} for each response.

    F is the cumulative distribution over the vocabulary and u in [0, 1) the response's uniform
    draw at this position. The scores of all other tokens become -inf.
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

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        p = token_distribution(scores, self.temperature, self.top_p)
        cdf = p.cumsum(dim=-1)  # [R, V]
        total = cdf[:, -1:]  # [R, 1], 1 up to rounding
        self.finite &= total.isfinite().all()

        t = input_ids.shape[1] - self.prompt_width
        u = self.uniforms[:, t, None] * total  # [R, 1]
        token = torch.searchsorted(cdf, u, right=True)  # right: never a token with probability 0
        token = token.clamp_max(cdf.shape[1] - 1)  # [R, 1]; for NaN, which `finite` reports
        self.logprobs.append(p.gather(1, token).squeeze(1).log().float())
        return torch.full_like(scores, -torch.inf).scatter_(1, token, 0.0)


def random_numbers(seed: int, step: int, problem: int, sample: int) -> np.random.Generator:
    """The generator of a response's uniform draws in [0, 1), seeded by the job's name."""
    return np.random.default_rng([seed, step, problem, sample])


def end_tokens(lm, tokenizer) -> list[int]:
    """Ids that end a response: the tokenizer's end token and those in the generation config."""
    configured = lm.generation_config.eos_token_id
    ends = configured if isinstance(configured, list) else [configured]
    return sorted({tokenizer.eos_token_id, *ends} - {None})


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
    sampled_before: Counter | None = None,
) -> Rollouts:
    """Sample `group_size` responses to each prompt; the responses to a prompt are consecutive.

    prompts: token ids. problem_ids: non-negative integers that identify the prompts' problems.
    Ranks share the sampling, and every rank returns all responses, padded to [B, L].

    A repeated problem gets new responses, because its sample numbers continue. They also continue
    across calls that share `sampled_before` (responses per problem), which each call updates.

    Raises FloatingPointError if logits are not finite, Interrupted once stop() is true on any rank.
    """
    count = Counter() if sampled_before is None else sampled_before  # responses per problem
    jobs = []
    for prompt, problem in zip(prompts, problem_ids, strict=True):
        for _ in range(group_size):
            jobs.append(Job(prompt, (sampling.seed, step, problem, count[problem])))
            count[problem] += 1
    ends = end_tokens(lm, tokenizer)

    def sample_and_decode(mine: list[Job]) -> list[tuple[Sample, str]]:
        samples = generate(lm, mine, ends, sampling, stop)
        tokens = [sample.tokens for sample in samples]
        texts = tokenizer.batch_decode(tokens, skip_special_tokens=True)
        return list(zip(samples, texts, strict=True))

    # A group is spread over the ranks. All responses to a hard prompt are long, so a rank with the
    # whole group would keep the others waiting.
    samples, texts = zip(*shared_by_ranks(jobs, sample_and_decode), strict=True)
    tokens, logprobs = zip(*samples, strict=True)
    asked = [job.prompt for job in jobs]
    return padded_rollouts(asked, tokens, list(texts), ends, lm.device, logprobs)


# ---- the sampler ---------------------------------------------------------------------------------


@torch.no_grad()
def generate(
    lm,
    jobs: list[Job],
    ends: list[int],
    sampling: Sampling,
    stop: Callable[[], bool] | None = None,
    done: Callable[[int, Sample], None] | None = None,
) -> list[Sample]:
    """Sample a response for each job, up to any token in `ends`, for training and evaluation.

    Hugging Face `generate` runs in chunks of CHUNK tokens. Between chunks, waiting responses
    replace finished ones in the batch and cache, so a long response does not delay the others.
    done(i, sample) is called for each job i, soon after its response has finished. Raises
    FloatingPointError if logits are not finite, Interrupted once stop() is true.

    lm: a Hugging Face model, or the engine that --engine selects, which never calls `done`.
    """
    if not jobs:
        return []
    if not isinstance(lm, torch.nn.Module):
        return [Sample(*drawn) for drawn in lm.sample(jobs, ends, sampling, stop)]

    responses = []
    for i, job in enumerate(jobs):
        numbers = random_numbers(*job.name)
        numbers.random(job.begin)  # skips the draws for tokens already in the prompt
        responses.append(Response(i, torch.tensor(job.prompt), sampling.max_new_tokens, numbers))
    rows = min(sampling.in_flight, len(jobs))
    longest = max(response.limit for response in responses)  # tokens, with the prompt
    # Drawing tokens also needs memory, more with top-p, which sorts the vocabulary.
    cache_tokens = sampling.cache_tokens or free_cache_tokens(lm, rows, longest, sampling.top_p)
    flight = Flight(list(responses), rows, cache_tokens, CHUNK)
    with closing(Progress("sampling", len(jobs) * sampling.max_new_tokens)) as progress:
        while not all(response.finished for response in responses):
            flight.change(lm)  # removes finished responses; adds waiting ones, with their caches
            sample_chunk(lm, flight, ends, sampling)
            for response in flight.responses:
                if response.finished and done:
                    done(response.index, Sample(*response.sampled()))
            progress.show(*tokens_done(responses))
            if stop and stop():
                raise Interrupted
    return [Sample(*response.sampled()) for response in responses]


def sample_chunk(lm, flight: Flight, ends: list[int], sampling: Sampling) -> None:
    """Append the next tokens, at most CHUNK, to each of the R responses in flight."""
    ids, mask = left_padded([response.tokens for response in flight.responses], lm.device)  # [R, L]
    rest = max(response.limit - len(response) for response in flight.responses)
    count = min(CHUNK, rest)
    u = [response.numbers.random(count) for response in flight.responses]
    u = uploaded(torch.from_numpy(np.stack(u)), lm.device)  # [R, count]
    choose = InverseCDF(u, ids.shape[1], sampling.temperature, sampling.top_p)
    new = hf_generate(lm, ids, mask, flight.cache, choose, count, ends).cpu()  # [R, up to count]
    if not choose.finite:
        raise FloatingPointError("the model's logits are not finite")

    logprob = torch.stack(choose.logprobs, dim=1).cpu()
    for response, tokens, logs in zip(flight.responses, new, logprob, strict=True):
        response.append(tokens, logs, ends)
