"""RLVR's update: group advantages and the clipped surrogate (Sec. 2).

This file differs from the paper's text in one point: tokens with a negative advantage get a dual
clip of 10, as in the released code. The group's standard deviation, of which the text does not say
more, is the unbiased estimate, and its ε is 1e-6.

Shapes: B responses, G per prompt, N packed response tokens (one row per token, no padding).
Symbols: A advantage, r ratio.
"""

import torch

EPS = 1e-6  # added to the group's standard deviation
DUAL_CLIP = 10.0


def group_advantages(rewards: torch.Tensor, group_size: int) -> torch.Tensor:
    """A_i = (R_i - mean(R)) / (std(R) + ε) inside each group of G responses (Sec. 2).

    rewards: [B], each prompt's G responses contiguous.
    Returns [B], exactly 0 in a group of equal rewards.
    Raises ValueError if group_size < 2.
    """
    if group_size < 2:
        raise ValueError(
            f"group_size is {group_size}: an advantage needs at least 2 responses per prompt"
        )

    groups = rewards.view(-1, group_size)  # [B / G, G]
    mean = groups.mean(dim=1, keepdim=True)
    std = groups.std(dim=1, keepdim=True)
    advantages = (groups - mean) / (std + EPS)

    # Equal rewards must give exactly 0, not ±1e-8.
    all_equal = (groups == groups[:, :1]).all(dim=1, keepdim=True)
    return advantages.masked_fill(all_equal, 0.0).view(-1)


def overlong_penalty(length: torch.Tensor, max_length: int, buffer: int) -> torch.Tensor:
    """DAPO's soft length penalty, added to the rewards: [B], from 0 down to -1 at the limit.

    It is 0 up to length max_length - buffer, then falls linearly to -1 at max_length. A buffer of 0
    disables it. length: [B], tokens per response. The paper's text uses a binary reward; its run
    script adds this penalty with a buffer of 4096 (here: --overlong-buffer).
    """
    if buffer == 0:
        return torch.zeros_like(length, dtype=torch.float32)
    beyond = length - (max_length - buffer)
    return (-beyond / buffer).clamp(max=0.0)


def likelihood_ratio(logprob: torch.Tensor, old_logprob: torch.Tensor) -> torch.Tensor:
    """exp(log p - log p_old) per token: [N], r = π_θ / π_old. The clamp keeps it finite."""
    return (logprob - old_logprob).clamp(-20, 20).exp()


def clipped_surrogate(
    logprob: torch.Tensor,
    old_logprob: torch.Tensor,
    advantage: torch.Tensor,
    clip_low: float,
    clip_high: float,
) -> torch.Tensor:
    """min(r A, clip(r, 1-ε_low, 1+ε_high) A) per token (Sec. 2), maximised by an update.

    All tensors are [N]. Once r has moved far enough in the direction of A, the minimum is the
    clipped term, a constant: the token has no gradient. For A < 0 the result is at least
    DUAL_CLIP * A, so one token whose ratio explodes cannot dominate the update.
    """
    ratio = likelihood_ratio(logprob, old_logprob)  # r
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    surrogate = torch.min(ratio * advantage, clipped * advantage)
    bounded = torch.max(surrogate, DUAL_CLIP * advantage)
    return torch.where(advantage < 0, bounded, surrogate)
