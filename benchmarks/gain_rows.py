"""Defines the rows of `gain`: weightings ρ of a batch's tokens, such as DelTA's or DAPO's.

A line has the coefficients [N] of the tokens' ∇log π in one sum of gradients. The first two lines
are J, the policy gradient of expected reward, and entropy. Each row is one more line.
"""

from dataclasses import fields
from functools import partial

import torch

from benchmarks.known_credit import keep_masses, oracle_weights, words
from config import METHODS, Config, parse_config, selected_method
from delta import normalise
from grpo import group_advantages, overlong_penalty
from infra.flags import spelled
from infra.micro_batches import MicroBatch, mini_batches
from methods import Method, TokenBatch, dapo_surrogate, packed
from train import Policy, Rollout, pass_at_theta_old

ROWS = {  # row -> flags of train.py
    "dapo": "--method dapo",
    "delta": "",
    "delta, K = 0": "--K 0",
    "scalar": "--proxy scalar",
    "sure, sure": "--method sure_sure",
    "unsure, unsure": "--method unsure_unsure",
    "unsure, sure": "--method unsure_sure",
    "sure, unsure": "--method sure_unsure",
    "AR": "--method reweighting",
    "random": "--delta-variant random",
}
OF_THE_TOY = {"topk": "--proxy topk", "common": "--proxy common"}
BY_SIDE = ("dapo", "delta", "sure, sure")  # the A > 0 and A < 0 sides of these give others
FIRST = 2  # the line of the first row, dapo; J and entropy come before


def flags_of_rows(cfg: Config) -> dict[str, Config]:
    """Row -> its flags: those of ROWS, and cfg if it changes a method or a method's flags."""
    flags = ROWS | (OF_THE_TOY if cfg.data == "toy" else {})
    rows = {name: parse_config(text.split()) for name, text in flags.items()}
    own = [x for x in fields(Config) if x.name == "method" or x.metadata["method"]]
    changed = [x.name for x in own if getattr(cfg, x.name) != x.default]
    if changed:
        name = " ".join(f"{spelled(x)} {getattr(cfg, x)}" for x in changed)
        if selected_method(cfg).surrogate is not dapo_surrogate:
            name += " (its weights alone)"
        rows[name] = cfg
    return rows


def lines_of_batch(
    policy: Policy, rollouts: list[Rollout], rows: dict[str, Config], cfg: Config, b: int
) -> tuple[list[MicroBatch], dict[str, torch.Tensor]]:
    """(micro-batches, lines: name -> coefficients [N]) of batch b.

    rows: the result of `flags_of_rows`.
    """
    responses = [x.response for x in rollouts]
    length = torch.tensor([len(x.tokens) for x in responses])
    reward = torch.tensor([x.reward for x in rollouts])
    reward += overlong_penalty(length, cfg.max_new_tokens, cfg.overlong_buffer)
    advantage = group_advantages(reward, cfg.group_size).repeat_interleave(length)  # [N]
    limit = cfg.micro_batch_tokens
    (plan,) = mini_batches(responses, advantage, len(responses), limit, policy.lm)

    methods = {name: selected_method(own) for name, own in rows.items()}
    passes = {}  # a method's proxy, None for dapo -> (log π_old, entropy, v)
    for method in methods.values():
        if method.features not in passes:
            passes[method.features] = pass_at_theta_old(policy, [plan], method)
    old_logprob, entropy, _ = passes[None]
    tokens = packed(responses, reward, advantage, old_logprob, entropy, (cfg.seed, b))

    weights = {}
    for name, method in methods.items():
        _, _, v = passes[method.features]
        weights[name] = method.checked_weights(tokens, v, rows[name])
    weights |= derived_weights(weights["delta"], tokens.advantage)
    if cfg.data == "toy":
        tokens_of = [words(torch.from_numpy(x.response.tokens)) for x in rollouts]
        asked = [x.problem["problem"] for x in rollouts]
        right = [x.reward > 0 for x in rollouts]
        answered = list(zip(asked, tokens_of, right, strict=True))
        weights["oracle"] = oracle_weights(answered, tokens.advantage)
    return plan.micro_batches, coefficients(tokens, weights, cfg.group_size)


def derived_weights(lam: torch.Tensor, advantage: torch.Tensor) -> dict[str, torch.Tensor]:
    """Row -> ρ [N] for the rows that no method gives. lam: DelTA's token weights [N]."""
    of_sides = lam.clone()
    for side in (advantage > 0, advantage < 0):
        of_sides[side] = lam[side].mean()
    constants = torch.where(advantage > 0, 1.1, 0.9)
    return {
        "tokens only": keep_masses(lam, advantage),
        "sides only": of_sides,
        "two constants": constants,
        "inverse constants": 2 - constants,
    }


def coefficients(tokens: TokenBatch, weights: dict, G: int) -> dict[str, torch.Tensor]:
    """Line -> what multiplies each token's ∇log π in it, [N]. weights: row -> ρ [N].

    In J this is (R - the mean of the group's other rewards) / B, so J is unbiased for the gradient
    of expected reward. In entropy it is -(log p + H) / N, so the mean over the token's draw is the
    gradient of H / N at the token's state; how the policy moves the states is left out.
    """
    A, N = tokens.advantage, len(tokens)
    R = tokens.reward.view(-1, G)
    above = (R - R.mean(dim=1, keepdim=True)) * G / (G - 1) / R.numel()
    J = above.flatten().repeat_interleave(tokens.length)
    entropy = -(tokens.old_logprob + tokens.entropy) / N
    rows = {name: weight * A / N for name, weight in weights.items()}
    return {"J": J, "entropy": entropy} | rows


# ---- token weights by p: methods of `python -m benchmarks gain` alone ----------------------------


def weights_by_p(tokens: TokenBatch, v, cfg, pos: int, neg: int) -> torch.Tensor:
    """ρ by the rank of p on each side, from 0.8 to 1.2 as in DelTA, with DAPO's masses: [N].

    pos, neg: 1 gives sure tokens (p near 1) the larger weights of that side, -1 unsure ones.
    Published rules differ in these signs, and in their masses. AR-Lopti (Yang et al. 2025, arXiv
    2505.12929) and TR-GRPO (arXiv 2511.00066): 1, 1. arXiv 2603.22117: -1, -1. A3PO (Tang et al.
    2025, arXiv 2512.21625) and DG (arXiv 2603.14608): -1, 1. DelTA on real text: 1, -1.
    """
    weight = torch.ones_like(tokens.old_logprob)
    for side, sign in ((tokens.advantage > 0, pos), (tokens.advantage < 0, neg)):
        logprob, mass = tokens.old_logprob[side], tokens.advantage[side].abs()
        ordered = logprob.sort().values
        below = torch.searchsorted(ordered, logprob)
        not_above = torch.searchsorted(ordered, logprob, right=True)
        share = (below + not_above) / (2 * max(1, len(logprob)))  # 0 to 1; equal p, equal share
        ranked = 1 + sign * 0.2 * (2 * share - 1)
        weight[side] = ranked * mass.sum() / (ranked * mass).sum()  # Σ ρ|A| is DAPO's Σ|A|
    return weight


def advantage_reweighting(tokens: TokenBatch, v, cfg) -> torch.Tensor:
    """ρ ∝ 0.3 p + 0.7 (AR-Lopti, arXiv 2505.12929), here scaled to mean 1: [N]."""
    return normalise(0.3 * tokens.old_logprob.exp() + 0.7)


METHODS_BY_P = {
    "sure_sure": Method(weights=partial(weights_by_p, pos=1, neg=1)),
    "unsure_unsure": Method(weights=partial(weights_by_p, pos=-1, neg=-1)),
    "unsure_sure": Method(weights=partial(weights_by_p, pos=-1, neg=1)),
    "sure_unsure": Method(weights=partial(weights_by_p, pos=1, neg=-1)),
    "reweighting": Method(weights=advantage_reweighting),
}
METHODS.update(METHODS_BY_P)
