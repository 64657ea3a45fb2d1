"""Does the credit land where it should? On the toy, which knows the tokens that decided each reward (toy.decisive).

For every method, proxy and K, over batches of 16 prompts x 8 responses from the base model: the AUC with which its weights rank decisive
above other tokens, on each side; and the cosine between the batch's update, the gradient of Σ ρ A log π, and the policy gradient,
estimated from 32,768 other responses with the group's mean as the baseline. Then other fillers, and rewards flipped at random.
Rows go to results/credit.csv; about six minutes on two cores.
"""
import csv
from pathlib import Path

import numpy as np, torch
from tqdm import tqdm

import delta, toy  # noqa: F401
from benchmarks.compare import mean_interval
from data import grade, plan_micro_batches
from grpo import METHODS, group_advantages
from policy import Policy, score
from rollout import rollout

BATCHES = 16
ROWS = {  # name -> flags of the method
    "dapo": ("dapo", {}), "grpo": ("grpo", {}), "forking_tokens": ("forking_tokens", {}), "random": ("delta", {"delta_variant": "random"}),
    **{f"{proxy}, K = {K}": ("delta", {"proxy": proxy, "K": K}) for proxy in ("lm_head", "topk", "exact") for K in (0, 1, 2, 3)},
    "lm_head, no range map": ("delta", {"delta_variant": "no_range_map"}), "exact, no range map": ("delta", {"delta_variant": "no_range_map", "proxy": "exact"}),
    "oracle": (None, {})}


def auc(score: torch.Tensor, positive: torch.Tensor) -> float:
    """The chance that a positive has the higher score than a negative, ties one half; NaN where there is no pair."""
    ranks = torch.empty(len(score), dtype=torch.float64)
    values, place, count = score.unique(return_inverse=True, return_counts=True)
    ranks = (count.cumsum(0) - (count - 1) / 2)[place].double()  # mid-ranks
    n, m = int(positive.sum()), int((~positive).sum())
    return float((ranks[positive].sum() - n * (n + 1) / 2) / (n * m)) if n and m else float("nan")


def batch(lm, tokenizer, problems: list[dict], group: int, seed: int, limit: int = 96, flip: float = 0.0):
    """(rollouts, tokens, advantages, decisive [N]) of `group` responses to each problem; a share `flip` of the rewards is turned over."""
    prompts = tokenizer([p["problem"] for p in problems]).input_ids
    rollouts = rollout(lm, tokenizer, prompts, list(range(len(problems))), group, limit, seed=seed)
    rewards = torch.tensor([grade(text, problems[i // group]) for i, text in enumerate(rollouts.texts)])
    noise = torch.rand(len(rewards), generator=torch.Generator().manual_seed(seed)) < flip
    advantages = group_advantages(torch.where(noise, 1 - rewards, rewards), group)
    length = rollouts.prompt_length + rollouts.response_length
    tokens = score(Policy(lm), rollouts, advantages, plan_micro_batches(length, advantages, len(length), 8192))
    decisive = torch.cat([toy.decisive(problems[i // group]["problem"], rollouts.response_ids(i)) for i in range(len(length))])
    return rollouts, tokens, rewards, decisive


def weights_of(name: str, tokens, decisive: torch.Tensor, seed: int = 0) -> torch.Tensor:
    """ρ [N] of a row: its method's weights, or the oracle's, 1.1 on decisive tokens and 0.1 on others, scaled to mean 1."""
    function, flags = ROWS[name]
    weights = METHODS[function](tokens, **flags, generator=torch.Generator().manual_seed(seed), memory={}) if function else 0.1 + decisive.float()
    return weights / weights.mean()


def direction(lm, rollouts, coefficient: torch.Tensor) -> torch.Tensor:
    """The gradient of Σ coefficient log π over all parameters, flat; `coefficient` [N] over packed tokens."""
    policy, length = Policy(lm), rollouts.response_length
    lm.zero_grad()
    first = length.cumsum(0) - length
    for part in torch.arange(len(length)).split(256):
        inside = slice(int(first[part[0]]), int(first[part[-1]] + length[part[-1]]))
        (coefficient[inside] * policy.rows(rollouts, part).logprob).sum().backward()
    flat = torch.cat([p.grad.flatten() for p in lm.parameters()])
    lm.zero_grad()
    return flat


def policy_gradient(lm, tokenizer, prompts: int = 256, group: int = 64, halves: int = 2) -> list[torch.Tensor]:
    """Independent estimates of ∇ E[R] from prompts x group responses each: Σ (R - its group's mean) ∇ log π."""
    estimates = []
    for half in range(halves):
        problems = toy.problems(prompts, seed=1000 + half)
        rollouts, tokens, rewards, _ = batch(lm, tokenizer, problems, group, seed=500 + half)
        centred = (rewards.view(-1, group) - rewards.view(-1, group).mean(1, keepdim=True)).flatten()
        estimates.append(direction(lm, rollouts, centred.repeat_interleave(tokens.length)))
    return estimates


def credit(args) -> list[dict]:
    """Fill --csv and print its means with 95 % intervals over batches."""
    rows = []
    cases = [(1, 0.0, list(ROWS))] + [(filler, 0.0, ["dapo", "lm_head, K = 1", "exact, K = 1", "oracle"]) for filler in (0, 2, 4)] + [
        (1, flip, ["dapo", "lm_head, K = 1", "exact, K = 1", "oracle"]) for flip in (0.1, 0.2, 0.4)]
    truth = None
    for filler, flip, names in tqdm(cases, desc="cases", disable=None):
        lm, tokenizer = toy.base_model(filler=filler)
        if truth is None:
            first, second = policy_gradient(lm, tokenizer)
            truth, agreement = first + second, float(torch.cosine_similarity(first, second, dim=0))
        for seed in range(BATCHES):
            rollouts, tokens, _, decisive = batch(lm, tokenizer, toy.problems(16, seed=2000 + seed), 8, seed, flip=flip)
            clean = batch(lm, tokenizer, toy.problems(16, seed=2000 + seed), 8, seed)[1] if flip else tokens
            for name in names:
                w = weights_of(name, tokens, decisive, seed)
                pos, neg, both = tokens.advantage > 0, tokens.advantage < 0, (tokens.advantage != 0) & (clean.advantage != 0)
                cosine = torch.cosine_similarity(direction(lm, rollouts, w * tokens.advantage), truth, dim=0) if filler == 1 else torch.nan
                rank = lambda x: x.unique(return_inverse=True)[1].double()
                pair = torch.stack([rank(w[both]), rank(weights_of(name, clean, decisive, seed)[both])])
                rows.append({"row": name, "filler": filler, "flip": flip, "batch": seed, "tokens": len(w), "auc_pos": auc(w[pos], decisive[pos]),
                             "auc_neg": auc(w[neg], decisive[neg]), "cosine": float(cosine), "rank_correlation": float(torch.corrcoef(pair)[0, 1])})
    Path(args.csv).parent.mkdir(exist_ok=True)
    with open(args.csv, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()} for row in rows)
    print(f"cosine between the two halves of the policy gradient's estimate: {agreement:.3f}\n")
    print("| row | filler | flipped rewards | AUC, positive side | AUC, negative side | cosine with the policy gradient |\n|---|---|---|---|---|---|")
    for filler, flip, names in cases:
        for name in names:
            some = [r for r in rows if (r["row"], r["filler"], r["flip"]) == (name, filler, flip)]
            cells = [mean_interval([r[k] for r in some]) for k in ("auc_pos", "auc_neg", "cosine")]
            print(f"| {name} | {filler} | {flip:.0%} | {' | '.join(cells).replace('nan ± nan', '-')} |")
    return rows
