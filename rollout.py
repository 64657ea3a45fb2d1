"""Rollouts: G responses per prompt by Hugging Face `generate` (Sec. 5, App. I).

Every response and position has one uniform number, fixed by (seed, step, problem, sample) alone; a
logits processor turns it into a token by inverse CDF, which `generate` then takes greedily. So two
methods can be compared under common random numbers, and no global random state matters.

Nor do the number of ranks and who shares the batch, as far as arithmetic is exact. In float32 it
nearly is: another token is drawn only where a random number falls within rounding of a step of the
CDF. In bfloat16, as on GPUs, another batch moves log p by a hundredth, and most responses differ
sooner or later. What was drawn comes with its log p under the law it was
drawn from, so that training can tell the sampler's law from the scored one.

Departures:
1. The released code samples with a serving engine; this is `generate`, in chunks of CHUNK tokens,
   between which finished responses leave and waiting ones arrive.

Temperature is 1.0, top-p 1.0 in training and 0.7 in evaluation. Top-p acts here alone; in training
the temperature is that of the log-probabilities, too.

Shapes: B responses, R of them in flight, L columns of their longest sequence, V vocabulary, G group
size.
"""

from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import distributed as dist
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList

from infra.cache import free_cache_tokens, left_padded
from infra.errors import Interrupted
from infra.flight import Flight, Response
from infra.packing import Rollouts, pack
from infra.progress import Progress
from infra.ranks import rank_and_world

CHUNK = 64  # tokens between two looks at who has finished

Job = tuple[list[int], Callable[[], np.ndarray]]  # a prompt, and what gives its uniform numbers


class Sample(NamedTuple):
    """A sampled response."""

    tokens: list[int]  # new tokens only, up to and with the end token
    logprob: np.ndarray  # [tokens] float32, log p of each under the law it was drawn from, nats


def token_distribution(
    logits: torch.Tensor, temperature: float = 1.0, top_p: float = 1.0
) -> torch.Tensor:
    """Probabilities in float64 after temperature and top-p: logits [B, V] -> [B, V].

    Top-p keeps the smallest set of likeliest tokens whose mass reaches `top_p`.
    """
    p = (logits.float() / temperature).softmax(dim=-1).double()  # [B, V]
    if top_p < 1.0:
        ordered, index = p.sort(dim=-1, descending=True, stable=True)
        mass_before = ordered.cumsum(dim=-1).sub_(ordered)
        ordered[mass_before >= top_p] = 0.0
        p.scatter_(-1, index, ordered)
    return p.div_(p.sum(dim=-1, keepdim=True))


class InverseCDF(LogitsProcessor):
    """Chooses for each response the token min{y : F(y) > u}.

    F is the cumulative distribution over the vocabulary and u in [0, 1) the response's uniform
    number at this position. All scores but the chosen token's become -inf.
    """

    def __init__(
        self,
        uniforms: torch.Tensor,  # [R, new tokens] float64; column t serves the t-th new token
        prompt_width: int,  # columns before the first new token
        temperature: float,
        top_p: float,
    ):
        self.uniforms = uniforms
        self.prompt_width = prompt_width
        self.temperature = temperature
        self.top_p = top_p
        # Both are read once at the end: a GPU need not be waited for at every token.
        self.finite = torch.ones((), dtype=torch.bool, device=uniforms.device)
        self.logprobs = []  # [R] float32 for each new token: log p of what was drawn

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        p = token_distribution(scores, self.temperature, self.top_p)
        cdf = p.cumsum(dim=-1)  # [R, V]
        total = cdf[:, -1:]  # [R, 1] not exactly 1, by rounding
        self.finite &= total.isfinite().all()

        t = input_ids.shape[1] - self.prompt_width
        u = self.uniforms[:, t, None] * total  # [R, 1]
        token = torch.searchsorted(cdf, u, right=True)  # right: never a token of probability 0
        token = token.clamp_max(cdf.shape[1] - 1)  # [R, 1]
        self.logprobs.append(p.gather(1, token).squeeze(1).log().float())
        return torch.full_like(scores, -torch.inf).scatter_(1, token, 0.0)


def uniforms(seed: int, step: int, problem: int, sample: int, count: int) -> np.ndarray:
    """[count] float64 in [0, 1), fixed by (seed, step, problem, sample)."""
    return np.random.default_rng([seed, step, problem, sample]).random(count)


def end_tokens(lm, tokenizer) -> list[int]:
    """Ids that end a response: the tokenizer's end token and those of the generation config."""
    configured = lm.generation_config.eos_token_id
    if not isinstance(configured, list):
        configured = [configured]
    ends = {tokenizer.eos_token_id, *configured}
    ends.discard(None)
    return sorted(ends)


def never() -> bool:
    """The default of `stop`: sampling goes on."""
    return False


def nothing(index: int, sample: Sample) -> None:
    """The default of `done`: a finished response is not looked at before the last one is there."""


def rollout(
    lm,
    tokenizer,
    prompts: list[list[int]],
    problem_ids: list[int],
    group_size: int,
    max_new_tokens: int,
    temperature: float = 1.0,
    top_p: float = 1.0,
    seed: int = 0,
    step: int = 0,
    in_flight: int = 256,
    cache_tokens: int = 0,
    stop: Callable[[], bool] = never,
    sampled_before: Counter | None = None,
) -> Rollouts:
    """Sample `group_size` responses to each prompt, the group of a prompt next to each other.

    Ranks, where there are several, share the prompts, and all get all responses. `problem_ids` are
    non-negative integers that name the problems. At most `in_flight` responses are sampled at once,
    with at most `cache_tokens` tokens in their caches (0: what fits in free memory).

    A problem that comes twice gets new responses: its samples are counted on, over several calls
    of a step in `sampled_before` (responses by problem; the call adds its own).

    Raises FloatingPointError when logits are not finite, Interrupted once stop() is true on a rank.
    """
    samples = Counter() if sampled_before is None else sampled_before
    jobs = []
    for prompt, problem in zip(prompts, problem_ids, strict=True):
        for _ in range(group_size):
            numbers = partial(uniforms, seed, step, problem, samples[problem], max_new_tokens)
            samples[problem] += 1
            jobs.append((prompt, numbers))

    def sampled(mine: list[Job]) -> list[tuple[Sample, str]]:
        samples = respond(
            lm, tokenizer, mine, max_new_tokens, temperature, top_p, in_flight, cache_tokens, stop
        )
        tokens = [sample.tokens for sample in samples]
        texts = tokenizer.batch_decode(tokens, skip_special_tokens=True)
        return list(zip(samples, texts, strict=True))

    dealt = dealt_to_ranks(jobs, group_size, sampled)
    return pack(
        [prompt for prompt, _ in jobs],
        [sample.tokens for sample, _ in dealt],
        [text for _, text in dealt],
        end_tokens(lm, tokenizer),
        lm.device,
        [sample.logprob for sample, _ in dealt],
    )


def respond(
    lm,
    tokenizer,
    jobs: list[Job],
    max_new_tokens: int,
    temperature: float,
    top_p: float,
    in_flight: int,
    cache_tokens: int = 0,
    stop: Callable[[], bool] = never,
    done: Callable[[int, Sample], None] = nothing,
) -> list[Sample]:
    """`generate`, given what it has to know of model and tokenizer; all sampling goes through it.

    cache_tokens: 0 for as many as fit in free memory.
    """
    if cache_tokens == 0:
        longest = max((len(prompt) for prompt, _ in jobs), default=0) + max_new_tokens
        cache_tokens = free_cache_tokens(lm, min(in_flight, len(jobs)), longest, top_p)
    return generate(
        lm,
        jobs,
        max_new_tokens,
        end_tokens(lm, tokenizer),
        temperature,
        top_p,
        in_flight,
        cache_tokens,
        stop,
        done,
    )


def dealt_to_ranks(jobs: list[Job], group_size: int, sampled: Callable[[list[Job]], list]) -> list:
    """sampled(jobs), of which each rank does its share; in the order of `jobs`, on all ranks."""
    rank, world = rank_and_world()

    # Whole groups go to a rank: the responses to a prompt share its cache.
    owners = [i // group_size % world for i in range(len(jobs))]
    mine = [job for job, owner in zip(jobs, owners, strict=True) if owner == rank]
    try:
        result = sampled(mine)
    except (FloatingPointError, Interrupted) as error:
        result = error  # the other ranks wait for this one's result: they must hear of it

    results = [result] * world
    if world > 1:
        dist.all_gather_object(results, result)
    for each in results:
        if isinstance(each, Exception):
            raise each

    in_turn = [iter(result) for result in results]
    return [next(in_turn[owner]) for owner in owners]


@torch.no_grad()
def generate(
    lm,
    jobs: list[Job],
    max_new_tokens: int,
    ends: list[int],
    temperature: float = 1.0,
    top_p: float = 1.0,
    in_flight: int = 256,
    cache_tokens: int = 2**40,
    stop: Callable[[], bool] = never,
    done: Callable[[int, Sample], None] = nothing,
) -> list[Sample]:
    """A response to each job.

    Hugging Face `generate` in chunks of CHUNK tokens. Between chunks finished responses leave batch
    and cache and waiting ones take their places, so one long response does not hold up hundreds.
    done(i, sample) is called once for each job i, soon after its response has finished.
    """
    responses = []
    for prompt, numbers in jobs:
        limit = len(prompt) + max_new_tokens
        responses.append(Response(torch.tensor(prompt), len(prompt), limit, numbers))
    flight = Flight(deque(responses), in_flight, cache_tokens, CHUNK)

    own_config = lm.generation_config
    lm.generation_config = GenerationConfig()  # a hub model's would change the sampling law
    progress = Progress("sampling", len(jobs) * max_new_tokens)
    place = {response: i for i, response in enumerate(responses)}
    samples = [None] * len(jobs)
    unfinished = len(jobs)
    try:
        while unfinished:
            flight.change(lm)
            new, logprob = sample_chunk(lm, flight, ends, temperature, top_p)
            for response in record_chunk(flight, new, logprob, ends):
                i = place[response]
                samples[i] = sample_of(response)
                done(i, samples[i])
                unfinished -= 1
            progress.show(*tokens_done(responses))
            if stop():
                raise Interrupted
    finally:
        lm.generation_config = own_config
        progress.close()
    return samples


def tokens_done(responses: list[Response]) -> tuple[int, int]:
    """(tokens sampled so far, the most that it may come to)."""
    done = sum(response.new for response in responses)
    rest = sum(response.limit - len(response) for response in responses if not response.finished)
    return done, done + rest


def sample_of(response: Response) -> Sample:
    """What a finished response came to."""
    tokens = response.tokens[response.prompt_length :].tolist()
    return Sample(tokens, torch.cat(response.logprobs).numpy())


def sample_chunk(
    lm, flight: Flight, ends: list[int], temperature: float, top_p: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The next tokens of all in flight, and their log p: two [R, at most CHUNK].

    Behind an end token stands padding.
    """
    ids, mask = left_padded([response.tokens for response in flight.responses], lm.device)
    longest_rest = max(response.limit - len(response) for response in flight.responses)
    count = min(CHUNK, longest_rest)

    u = [response.uniforms[response.new :][:count] for response in flight.responses]
    u = torch.from_numpy(np.stack(u)).to(lm.device)  # [R, count]
    choose = InverseCDF(u, ids.shape[1], temperature, top_p)
    out = lm.generate(
        ids,
        attention_mask=mask,
        past_key_values=flight.cache,
        logits_processor=LogitsProcessorList([choose]),
        generation_config=GenerationConfig(
            do_sample=False, max_new_tokens=count, eos_token_id=ends, pad_token_id=ends[0]
        ),
    )
    if not choose.finite:
        raise FloatingPointError("the model's logits are not finite")
    return out[:, ids.shape[1] :].cpu(), torch.stack(choose.logprobs, dim=1).cpu()


def record_chunk(
    flight: Flight, new: torch.Tensor, logprob: torch.Tensor, ends: list[int]
) -> list[Response]:
    """Append the tokens `new` and their log p, [R, count], to the responses.

    Returns those that are finished now.
    """
    ended = torch.isin(new, torch.tensor(ends))  # [R, count]
    up_to_end = ended.int().argmax(dim=1) + 1  # of the first one
    size = torch.where(ended.any(dim=1), up_to_end, new.shape[1])  # [R]

    for i, response in enumerate(flight.responses):
        response.append(new[i, : size[i]], logprob[i, : size[i]], ends)
    return [response for response in flight.responses if response.finished]
