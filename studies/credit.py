"""Graded batches from the toy, each row's weights on them, and the policy gradient.

The toy marks the tokens that decided each reward, so the weights can be checked against the marks.
studies/credit_study.py measures many batches. The notebooks show single batches.

Shapes: B responses, G per prompt, N packed response tokens, D parameters.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from unittest.mock import patch

import torch

import grading
import methods
from batch import Rollout, TokenBatch, packed, plan_mini_batches
from delta import Pieces, delta_coefficients, temperatures
from grpo import group_advantages
from infra.rows import Rows
from policy import Policy, old_log_probabilities
from rollout import Sampling, rollout
from studies.gradients import direction
from studies.ranking import auc, near_ties
from studies.rows import ROWS, configured, decisive_tokens
from studies.rows import permuted as permuted

MICRO_BATCH = 8192  # tokens
IN_FLIGHT = 1024  # responses
SATURATED = 0.01  # a score is saturated below this value, or above 1 minus it
NEARLY = 0.004  # weights this close count as tied: 1 % of DelTA's range


# ---- graded batches ------------------------------------------------------------------------------


@dataclass
class GradedBatch:
    """Responses with their rewards, advantages and decisive tokens."""

    rollouts: list[Rollout]
    tokens: TokenBatch
    rewards: torch.Tensor  # [B]
    advantages: torch.Tensor  # [B]
    decisive: torch.Tensor  # [N] bool: which tokens decided the reward
    group: int  # G


def batch(
    lm,
    tokenizer,
    problems: list[dict],
    group: int,
    seed: int,
    limit: int = 96,
    keep: Callable | None = None,
) -> GradedBatch:
    """Sample and grade `group` responses to each problem of the toy or the code toy.

    limit: the longest response, in tokens.
    keep: (outputs, head) -> [n, ...], stored as tokens.kept, for example methods.row_proxy.
        Without it, no hidden states are kept.
    """
    rollouts, rewards = graded_rollouts(lm, tokenizer, problems, group, seed, limit)
    advantages = group_advantages(rewards, group)  # [B]

    tokens = packed_tokens(lm, rollouts, advantages, keep)
    tokens.problems = repeated(problems, group)
    marks = decisive_tokens(tokens)
    return GradedBatch(rollouts, tokens, rewards, advantages, marks, group)


def graded_rollouts(
    lm, tokenizer, problems: list[dict], group: int, seed: int, limit: int
) -> tuple[list[Rollout], torch.Tensor]:
    """Sample `group` responses to each problem. Returns them and their rewards [B]."""
    prompts = tokenizer([each["problem"] for each in problems]).input_ids
    numbers = list(range(len(problems)))
    sampling = Sampling(limit, seed=seed, in_flight=IN_FLIGHT)
    rollouts = rollout(lm, tokenizer, prompts, numbers, group, sampling)
    asked = repeated(problems, group)
    return rollouts, torch.tensor(grading.graded_rollouts(grading.grades, rollouts, asked))


def repeated(problems: list[dict], group: int) -> list[dict]:
    """The problem behind each of the B responses."""
    return [problem for problem in problems for _ in range(group)]


def packed_tokens(
    lm, rollouts: list[Rollout], advantages: torch.Tensor, keep: Callable | None = None
) -> TokenBatch:
    """The tokens in `rollouts` with log-probabilities, advantages and the output of `keep`."""
    plan = plan_mini_batches(rollouts, advantages, len(rollouts), MICRO_BATCH, lm.device)
    tokens = packed(rollouts, advantages, lm.device)
    old_log_probabilities(Policy(lm), plan, tokens, keep)
    return tokens


# ---- a row's weights -----------------------------------------------------------------------------


@dataclass
class Weighed:
    """A row's weights on a batch. Pairs: (positive side, negative side), NaN without margins."""

    weights: torch.Tensor  # ρ [N], mean 1
    spread: tuple[float, float] = (float("nan"),) * 2  # std of the margins / current γ
    saturated: tuple[float, float] = (float("nan"),) * 2  # share of scores near 0 or 1


def weights_of(name: str, lm, graded: GradedBatch, seed: int = 0) -> torch.Tensor:
    """ρ [N] for a row in ROWS on a batch from `lm`, scaled to mean 1.

    Computes the proxy that the row's method needs. seed: for rows that draw random numbers.
    """
    return weighed(name, lm, graded, seed).weights


def weighed(
    name: str, lm, graded: GradedBatch, seed: int = 0, scored: dict | None = None
) -> Weighed:
    """ρ for a row in ROWS on a batch from `lm`, and how saturated its scores are.

    seed: for rows that draw random numbers. scored: a cache of the tokens with the latest proxy,
    which the next row reuses if it has the same proxy. Use one cache per batch.
    """
    method, cfg = configured(ROWS[name], ["--group-size", str(graded.group)])
    scored = {} if scored is None else scored
    tokens = graded.tokens
    if method.keep:
        kept = (cfg.method, cfg.proxy, cfg.proxy_topk)
        if kept not in scored:
            scored.clear()  # the exact proxy takes 1.7 GB for 2,048 responses
            scored[kept] = packed_tokens(lm, graded.rollouts, graded.advantages, method.keep)
        tokens = scored[kept]
    tokens = replace(tokens, generator=torch.Generator().manual_seed(seed), memory={})

    seen = {}
    watched = partial(watched_coefficients, seen, cfg.gamma == "fresh")
    with patch.object(methods, "delta_coefficients", watched):
        weights = method.weights(tokens, cfg)
    return Weighed(weights / weights.mean(), **seen)


def watched_coefficients(
    seen: dict,
    fresh: bool,
    v: torch.Tensor | Rows,
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


# ---- the weights of decisive tokens --------------------------------------------------------------


def singled_out(weights: torch.Tensor, graded: GradedBatch) -> dict[str, float]:
    """How well weights [N] separate decisive tokens from others, for each side.

    Returns the AUC, the share of near ties, and how much higher the mean weight of decisive tokens
    is than the mean weight of other tokens. Also returns two means of the side's weights: a plain
    mean over its tokens, and a mean weighted by |A| (1 - p), the gradient mass. A token with p near
    1 has almost no gradient, so its weight hardly matters.
    """
    advantage = graded.tokens.advantage
    mass = advantage.abs() * -torch.expm1(graded.tokens.logprob)  # |A| (1 - p)
    numbers = {}
    for name, side in (("pos", advantage > 0), ("neg", advantage < 0)):
        here, decisive = weights[side], graded.decisive[side]
        numbers[f"auc_{name}"] = auc(here, decisive)
        numbers[f"tied_{name}"] = near_ties(here, decisive, NEARLY)
        numbers[f"lift_{name}"] = float(here[decisive].mean() - here[~decisive].mean())
        numbers[f"mean_{name}"] = float(here.mean())
        numbers[f"mass_{name}"] = float((here * mass[side]).sum() / mass[side].sum())
    return numbers


# ---- the policy gradient -------------------------------------------------------------------------


def gradient_estimate(
    lm, tokenizer, problems: list[dict], group: int, seed: int, limit: int = 96
) -> torch.Tensor:
    """An estimate of ∇ E[R] from `group` responses to each problem: [D]."""
    rollouts, rewards = graded_rollouts(lm, tokenizer, problems, group, seed, limit)
    by_group = rewards.view(-1, group)
    centred = (by_group - by_group.mean(dim=1, keepdim=True)).flatten()  # [B]
    return direction(lm, rollouts, centred.repeat_interleave(rollouts.response_length))
