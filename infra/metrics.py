"""Without this file a step would log its update, and nothing of its responses and token weights.

metrics.jsonl and docs/metrics.md have the same names.

`tokens` is a methods.TokenBatch, `cfg` a config.Config.

Shapes: B responses, N packed response tokens.
"""

import torch

from delta import delta_coefficients
from infra.grading import states_answer
from infra.ranks import shared_by_ranks


def rollout_metrics(rollouts: list, tokens) -> dict:
    """The metrics of B train.Rollouts and their N tokens, at θ_old. All ranks call this."""
    answered = shared_by_ranks(rollouts, stated_answers)  # bool, of each response
    return {
        "reward": sum(rollout.reward for rollout in rollouts) / len(rollouts),
        "answered": sum(answered) / len(rollouts),
        "entropy": float(tokens.entropy.mean()),
        "response_length": float(tokens.length.float().mean()),
        "truncated": sum(rollout.response.truncated for rollout in rollouts) / len(rollouts),
        "without_advantage": float((tokens.advantage == 0).float().mean()),
        "mismatch": float((tokens.old_logprob - tokens.sampler_logprob).abs().mean()),
    }


def stated_answers(rollouts: list) -> list[bool]:
    """Whether each response states an answer: a gain in reward may be due to format alone."""
    return [states_answer(rollout.response.text, rollout.problem) for rollout in rollouts]


def weight_metrics(tokens, weight: torch.Tensor, cfg) -> dict:
    """The metrics of a method's weights ρ [N]: which tokens they single out.

    A number that is not defined (an empty side, equal weights, no range) is left out.
    """
    metrics = {
        "lambda_mean": float(weight.mean()),
        "lambda_std": float(weight.std()),
        "lambda_above_one": float((weight > 1).float().mean()),
    }
    surprise = -torch.expm1(tokens.old_logprob)  # 1 - p
    mass = tokens.advantage.abs()  # |A|
    for name, side in (("pos", tokens.advantage > 0), ("neg", tokens.advantage < 0)):
        if not side.any():
            continue
        metrics[f"surprise_{name}"] = float(surprise[side].mean())
        metrics[f"lambda_{name}"] = float(weight[side].mean())
        metrics[f"mass_{name}"] = float((weight * mass)[side].sum() / mass.sum())
        metrics[f"lambda_corr_{name}"] = correlation(weight[side], surprise[side])

    active = tokens.advantage != 0
    if not active.any():
        return metrics
    bounds = cfg.lam_min, cfg.lam_max
    scalar = delta_coefficients(surprise[:, None], tokens.advantage, cfg.K, *bounds)
    metrics["lambda_scalar"] = correlation(weight[active], scalar[active])
    return {name: number for name, number in metrics.items() if number is not None}


def correlation(x: torch.Tensor, y: torch.Tensor) -> float | None:
    """Pearson's correlation of x and y, [n] each; None if one is constant up to rounding."""
    pair = torch.stack([x, y]).double()  # [2, n]
    if not (pair.std(dim=1, correction=0) > 1e-9).all():
        return None
    return float(pair.corrcoef()[0, 1])
