"""Where a method puts the credit, on the toy, which knows the tokens that decided each reward.

Graded batches, the weights that each method gives them, how well weights rank decisive above other
tokens, and the direction in which they move the parameters. benchmarks/credit_study.py measures
them over many batches; the notebooks look at single ones.

Shapes: B responses, N packed response tokens, D parameters.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import torch

import ablations
import toy
import train
from evaluate import grades
from grpo import group_advantages
from infra.packing import Rollouts, TokenBatch, packed_rows, plan_mini_batches
from infra.policy import Policy, old_log_probabilities
from methods import METHODS, Method
from rollout import rollout

MICRO_BATCH = 8192  # tokens

ORACLE = "oracle"
ROWS = {  # name -> flags of train.py
    "dapo": "--method dapo",
    "grpo": "--method grpo",
    "forking_tokens": "--method forking_tokens",
    "random": "--delta-variant random",
    "lm_head, K = 0": "--proxy lm_head --K 0",
    "lm_head, K = 1": "--proxy lm_head --K 1",
    "lm_head, K = 2": "--proxy lm_head --K 2",
    "lm_head, K = 3": "--proxy lm_head --K 3",
    "topk, K = 0": "--proxy topk --K 0",
    "topk, K = 1": "--proxy topk --K 1",
    "topk, K = 2": "--proxy topk --K 2",
    "topk, K = 3": "--proxy topk --K 3",
    "exact, K = 0": "--proxy exact --K 0",
    "exact, K = 1": "--proxy exact --K 1",
    "exact, K = 2": "--proxy exact --K 2",
    "exact, K = 3": "--proxy exact --K 3",
    "lm_head, no range map": "--proxy lm_head --delta-variant no_range_map",
    "exact, no range map": "--proxy exact --delta-variant no_range_map",
    ORACLE: "",  # no method: 1.1 on decisive tokens, 0.1 on others
}


@dataclass
class GradedBatch:
    """Responses with all that is known of them."""

    rollouts: Rollouts
    tokens: TokenBatch
    rewards: torch.Tensor  # [B] as graded, before any are flipped
    advantages: torch.Tensor  # [B] of the flipped ones
    decisive: torch.Tensor  # [N] bool: which tokens decided the reward


def batch(
    lm,
    tokenizer,
    problems: list[dict],
    group: int,
    seed: int,
    limit: int = 96,
    flip: float = 0.0,
    keep: Callable | None = None,
) -> GradedBatch:
    """Sample and grade `group` responses to each problem of the toy, or of the code toy.

    limit: longest response, tokens.
    flip: share of the rewards that are turned over before the advantages are taken, at random.
    keep: (rows, head) -> [n, ...], what is kept of the hidden states as tokens.kept, for example
        methods.row_proxy; none of them without it.
    """
    prompts = tokenizer([each["problem"] for each in problems]).input_ids
    numbers = list(range(len(problems)))
    rollouts = rollout(lm, tokenizer, prompts, numbers, group, limit, seed=seed)
    asked = [problem for problem in problems for _ in range(group)]  # B

    rewards = torch.tensor(grades(rollouts.texts, asked))
    uniform = torch.rand(len(rewards), generator=torch.Generator().manual_seed(seed))
    flipped = torch.where(uniform < flip, 1 - rewards, rewards)
    advantages = group_advantages(flipped, group)  # [B]

    tokens = packed_tokens(lm, rollouts, advantages, keep)
    tokens.problems = asked
    marks = []
    for i, problem in enumerate(asked):
        marks.append(decisive(problem, rollouts.response_ids(i)))
    return GradedBatch(rollouts, tokens, rewards, advantages, torch.cat(marks))


def decisive(problem: dict, response_ids: torch.Tensor) -> torch.Tensor:
    """Which tokens decided the reward, bool [T], by the toy from which the problem is."""
    task = toy.code_task if "tests" in problem else toy
    return task.decisive(problem["problem"], response_ids)


def packed_tokens(
    lm, rollouts: Rollouts, advantages: torch.Tensor, keep: Callable | None = None
) -> TokenBatch:
    """The tokens of `rollouts` with their log-probabilities and advantages, and what is kept."""
    plan = plan_mini_batches(rollouts, advantages, len(rollouts), MICRO_BATCH)
    tokens = old_log_probabilities(Policy(lm), rollouts, plan, keep)
    tokens.advantage = advantages.repeat_interleave(tokens.length)  # [N]
    tokens.current = tokens.logprob
    return tokens


@cache
def configured(name: str) -> tuple[Method, train.Config]:
    """The method of a row, with its variant and proxy, and its flags."""
    cfg = train.parse_config(ROWS[name].split())
    return ablations.configured(METHODS[cfg.method], cfg), cfg


def weights_of(name: str, lm, graded: GradedBatch, seed: int = 0) -> torch.Tensor:
    """ρ [N] of a row of ROWS on a batch from `lm`, scaled to mean 1.

    What the row's method wants of the hidden states is computed here. The oracle's weights are 1.1
    on decisive tokens and 0.1 on others, before they are scaled. seed: of a row that draws.
    """
    if name == ORACLE:
        weights = 0.1 + graded.decisive.float()
        return weights / weights.mean()

    method, cfg = configured(name)
    tokens = graded.tokens
    if method.keep:
        tokens = packed_tokens(lm, graded.rollouts, graded.advantages, method.keep)
    tokens = replace(tokens, generator=torch.Generator().manual_seed(seed), memory={})
    weights = method.weights(tokens, cfg)
    return weights / weights.mean()


def direction(lm, rollouts: Rollouts, coefficient: torch.Tensor) -> torch.Tensor:
    """The gradient of Σ coefficient log π over all parameters, flat: coefficient [N] -> [D]."""
    policy = Policy(lm)
    lm.zero_grad()
    for index in torch.arange(len(rollouts)).split(256):
        rows = packed_rows(index, rollouts.response_length)
        logprob = policy.rows(rollouts, index).logprob
        (coefficient[rows] * logprob).sum().backward()
    flat = torch.cat([p.grad.flatten() for p in lm.parameters()])
    lm.zero_grad()
    return flat


def policy_gradient(
    lm, tokenizer, prompts: int = 256, group: int = 64, halves: int = 2
) -> list[torch.Tensor]:
    """Independent estimates of ∇ E[R], each [D]: Σ (R - its group's mean) ∇ log π.

    halves: how many estimates, each from `group` responses to each of `prompts` problems.
    """
    estimates = []
    for half in range(halves):
        problems = toy.problems(prompts, seed=1000 + half)
        graded = batch(lm, tokenizer, problems, group, seed=500 + half)
        by_group = graded.rewards.view(-1, group)
        centred = (by_group - by_group.mean(dim=1, keepdim=True)).flatten()  # [B]
        length = graded.rollouts.response_length
        estimates.append(direction(lm, graded.rollouts, centred.repeat_interleave(length)))
    return estimates


def auc(values: torch.Tensor, positive: torch.Tensor) -> float:
    """The chance that a positive has the higher value than a negative, ties one half.

    values: [N]; positive: bool [N]. NaN where there is no such pair.
    """
    n = int(positive.sum())
    m = len(positive) - n
    if n == 0 or m == 0:
        return float("nan")

    # Mann and Whitney: the positives' ranks, less what they would be among themselves.
    _, place, count = values.unique(return_inverse=True, return_counts=True)
    count = count.double()
    mid_rank = count.cumsum(0) - (count - 1) / 2  # of each distinct value; ties share theirs
    ranks = mid_rank[place]  # [N]
    return float((ranks[positive].sum() - n * (n + 1) / 2) / (n * m))
