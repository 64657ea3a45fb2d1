"""Graded batches from the toy, each row's weights on them, and the directions that they train in.

Shapes: B responses, G per prompt, N packed response tokens, D parameters, M weightings.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from unittest.mock import patch

import torch

import methods
from batch import Rollout, TokenBatch, micro_batch, packed, plan_mini_batches
from benchmarks.rows import ROWS, configured
from delta import Pieces, delta_coefficients, temperatures
from grading import graded
from grpo import group_advantages
from policy import Policy, old_log_probabilities
from rollout import Sampling, rollout

MICRO_BATCH = 8192  # tokens
IN_FLIGHT = 1024  # responses
AT_ONCE = 32  # responses: few enough for their activations to stay in the processor's cache
SATURATED = 0.01  # a score is saturated below this value, or above 1 minus it
NAN = float("nan")


def sampled(
    lm, tokenizer, problems: list[dict], group: int, seed: int, limit: int
) -> list[Rollout]:
    """`group` graded responses to each problem, of at most `limit` tokens."""
    prompts = tokenizer([each["problem"] for each in problems]).input_ids
    sampling = Sampling(limit, seed=seed, in_flight=IN_FLIGHT)
    rollouts = rollout(lm, tokenizer, prompts, list(range(len(problems))), group, sampling)
    return graded(rollouts, [problem for problem in problems for _ in range(group)])


def scored(lm, rollouts: list[Rollout], group: int, keep: Callable | None = None) -> TokenBatch:
    """Their tokens with advantages, log-probabilities and the output of `keep`."""
    rewards = torch.tensor([each.reward for each in rollouts])
    advantages = group_advantages(rewards, group)  # [B]
    plan = plan_mini_batches(rollouts, advantages, len(rollouts), MICRO_BATCH)
    tokens = packed(rollouts, advantages, group)
    old_log_probabilities(Policy(lm), plan, tokens, keep)
    return tokens


# ---- a row's weights -----------------------------------------------------------------------------


@dataclass
class Weighed:
    """A row's weights. Pairs: (positive side, negative side), NaN without margins."""

    weights: torch.Tensor  # ρ [N], mean 1
    spread: tuple[float, float] = (NAN, NAN)  # standard deviation of the margins / current γ
    saturated: tuple[float, float] = (NAN, NAN)  # share of scores near 0 or 1


def weighed(name: str, lm, rollouts: list[Rollout], group: int, seed: int = 0) -> Weighed:
    """The weights of the row ROWS[name], and how saturated its scores are.

    seed: for rows that draw random numbers.
    """
    method, cfg = configured(ROWS[name], ["--group-size", str(group)])
    tokens = scored(lm, rollouts, group, method.keep)
    tokens = replace(tokens, generator=torch.Generator().manual_seed(seed))
    seen = {}
    watched = partial(watched_coefficients, seen, cfg.gamma == "fresh")
    with patch.object(methods, "delta_coefficients", watched):
        weights = method.weights(tokens, cfg)
    return Weighed(weights / weights.mean(), **seen)


def watched_coefficients(
    seen: dict,
    fresh: bool,
    v: torch.Tensor,
    advantage: torch.Tensor,
    K: int,
    lam_min: float,
    lam_max: float,
    pieces: Pieces,
) -> torch.Tensor:
    """`delta_coefficients`, which also records the saturation of the last scores in `seen`.

    fresh: whether the scores use temperatures from the current margins.
    """

    def scores(delta, advantage, *gamma):
        alpha = pieces.scores(delta, advantage, *gamma)
        extreme = (alpha < SATURATED) | (alpha > 1 - SATURATED)
        if fresh:
            gamma = temperatures(delta, advantage)
        sides = (advantage > 0, advantage < 0)
        deviation = [delta[side].double().std(correction=0) for side in sides]
        seen["spread"] = tuple(float(a / b) for a, b in zip(deviation, gamma, strict=True))
        seen["saturated"] = tuple(float(extreme[side].double().mean()) for side in sides)
        return alpha

    return delta_coefficients(v, advantage, K, lam_min, lam_max, replace(pieces, scores=scores))


# ---- directions in parameter space ---------------------------------------------------------------


def directions(lm, rollouts: list[Rollout], coefficients: torch.Tensor) -> torch.Tensor:
    """The gradients of Σ coefficient log π in all parameters: [M, N] -> [M, D].

    All weightings share one forward pass. The parameters' .grad is not touched.
    """
    policy = Policy(lm)
    parameters = list(lm.parameters())
    total = torch.zeros(len(coefficients), sum(p.numel() for p in parameters))
    for some in torch.arange(len(rollouts)).split(AT_ONCE):
        micro = micro_batch(rollouts, some.tolist())
        logprob = policy(micro.ids, micro.mask).logprob
        for m, coefficient in enumerate(coefficients):
            gradients = torch.autograd.grad(
                logprob, parameters, coefficient[micro.places], retain_graph=True
            )
            total[m] += torch.cat([g.flatten() for g in gradients]).cpu()
    return total


def gradient_estimate(
    lm, tokenizer, problems: list[dict], group: int, seed: int, limit: int
) -> torch.Tensor:
    """An estimate of ∇ E[R] from `group` responses to each problem: [D]."""
    rollouts = sampled(lm, tokenizer, problems, group, seed, limit)
    rewards = torch.tensor([each.reward for each in rollouts]).view(-1, group)
    centred = (rewards - rewards.mean(dim=1, keepdim=True)).flatten()  # [B]
    length = torch.tensor([len(each.tokens) for each in rollouts])
    return directions(lm, rollouts, centred.repeat_interleave(length)[None])[0]


def cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    """The cosine between two directions [D], in float64."""
    return float(torch.cosine_similarity(a.double(), b.double(), dim=0))


# ---- ranking -------------------------------------------------------------------------------------


def auc(values: torch.Tensor, positive: torch.Tensor) -> float:
    """The probability that a positive has a higher value than a negative; a tie counts 1/2.

    values: [N]; positive: bool [N]. NaN if there is no pair.
    """
    n = int(positive.sum())
    m = len(positive) - n
    if n == 0 or m == 0:
        return NAN

    # Mann-Whitney: the rank sum of the positives, minus the smallest possible rank sum.
    _, place, count = values.unique(return_inverse=True, return_counts=True)
    count = count.double()
    mid_rank = count.cumsum(0) - (count - 1) / 2  # equal values share their mean rank
    ranks = mid_rank[place]
    return float((ranks[positive].sum() - n * (n + 1) / 2) / (n * m))
