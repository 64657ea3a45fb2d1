"""RLVR's update: group advantages, the clipped surrogate, and the linear discriminator inside it.

Secs. 2 and 3.1 and Apps. C and D of the paper: near θ_old an update moves the parameters along
M₊μ₊ - M₋μ₋, the mass-weighted difference of the two sides' token-gradient centroids. A token
becomes more likely exactly when its gradient has a positive inner product with this direction. This
holds for the raw gradient: Adam, weight decay and gradient clipping come after it (App. C).

Departures: (1) tokens with a negative advantage get a dual clip of 10, as in the released code;
(2) the group's standard deviation is the unbiased estimate plus 1e-6; (3) no denominator is
clamped: the centroid of an empty side is 0.

Shapes: B responses, G per prompt, N packed response tokens (one row per token, no padding),
H entries of a token gradient, C candidate tokens.
Symbols: A advantage, r ratio, v token gradient, ρ token weight, μ centroid, M₊ and M₋ masses.
v may be a tensor [N, H] or a `Rows`, the same matrix with its rows sharded over ranks:
`weighted_sums(v, w)` is w @ v in both cases.
"""

import torch

from infra.rows import Rows, weighted_sums

EPS = 1e-6  # added to the group's standard deviation


def group_advantages(rewards: torch.Tensor, group_size: int) -> torch.Tensor:
    """A_i = (R_i - mean(R)) / (std(R) + ε) inside each group of G responses (Sec. 2).

    rewards: [B], each prompt's G responses contiguous.
    Returns [B], exactly 0 in a group of equal rewards.
    Raises ValueError if group_size < 2, B is not a multiple of it, or a reward is not finite.
    """
    if group_size < 2:
        raise ValueError(
            f"group_size is {group_size}: an advantage needs at least 2 responses per prompt"
        )
    if rewards.ndim != 1 or len(rewards) % group_size:
        raise ValueError(
            f"rewards of shape {tuple(rewards.shape)} do not split into groups of {group_size}"
        )
    if not rewards.isfinite().all():
        raise ValueError("rewards contain NaN or inf")

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


def clipped_surrogate(
    logprob: torch.Tensor,
    old_logprob: torch.Tensor,
    advantage: torch.Tensor,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    dual_clip: float | None = 10.0,
) -> torch.Tensor:
    """min(r A, clip(r, 1-ε_low, 1+ε_high) A) per token (Sec. 2), maximised by an update.

    All tensors are [N]. For A < 0 the result is at least dual_clip * A, so one token whose ratio
    explodes cannot dominate the update. dual_clip=None disables this limit.
    """
    ratio = (logprob - old_logprob).clamp(-20, 20).exp()  # r; the clamp keeps exp finite
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    surrogate = torch.min(ratio * advantage, clipped * advantage)
    if dual_clip is None:
        return surrogate
    bounded = torch.max(surrogate, dual_clip * advantage)
    return torch.where(advantage < 0, bounded, surrogate)


def clipped_tokens(
    logprob: torch.Tensor,
    old_logprob: torch.Tensor,
    advantage: torch.Tensor,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
) -> torch.Tensor:
    """Tokens with zero gradient due to an active clip: bool [N], for the metric clip_fraction.

    The minimum selects the clipped term, a constant, once r has moved far enough in the direction
    of A: up for A > 0, down for A < 0. Tokens bounded by the dual clip are not counted.
    """
    ratio = (logprob - old_logprob).clamp(-20, 20).exp()
    risen_enough = (advantage > 0) & (ratio > 1 + clip_high)
    fallen_enough = (advantage < 0) & (ratio < 1 - clip_low)
    return risen_enough | fallen_enough


def importance_weights(
    old_logprob: torch.Tensor, sampler_logprob: torch.Tensor, cap: float
) -> torch.Tensor:
    """min(π_old / π_sampler, cap) per token: truncated importance sampling.

    Rounding, or a separate sampling engine, makes π_sampler differ from π_old. The ratio corrects
    this off-policy gap; `cap` bounds its variance (Ionides 2008, "Truncated importance sampling";
    for RL, Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL
    training"). Not in the paper (--importance-cap). A cap of 0 gives all ones.
    old_logprob, sampler_logprob: [N] log π_old and log π_sampler of the sampled token. Returns [N].
    Raises ValueError if one of the sampler's log-probabilities is missing or not finite.
    """
    if cap == 0:
        return torch.ones_like(old_logprob)
    log_ratio = old_logprob - sampler_logprob  # [N]
    missing = int((~log_ratio.isfinite()).sum())
    if missing:
        raise ValueError(
            f"--importance-cap: the sampler returned no finite log-probability for {missing} of "
            f"{len(sampler_logprob)} tokens: make it return one for every token, or drop the flag"
        )
    return log_ratio.clamp(-20, 20).exp().clamp(max=cap)


# ---- the linear discriminator (Sec. 3.1) ---------------------------------------------------------


def side_centroids(
    v: torch.Tensor | Rows, advantage: torch.Tensor, weight: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Centroids and masses of the two sides: Eq. 3, and Eq. 11 with token weights ρ.

    A side's centroid minimises Σ ρ|A| ‖v - μ‖² over that side (App. D).
    v: [N, H] token gradients.
    advantage: [N].
    weight: ρ [N], at least 0, or None for ρ = 1.
    Returns (mu_pos, mu_neg [H] float32, mass_pos, mass_neg [] float64); an empty side has mass 0
    and centroid 0. Then Δθ ∝ Σ ρ A v = mass_pos * mu_pos - mass_neg * mu_neg (Eqs. 2-3, 9-10).
    """
    signed = advantage.double()
    if weight is not None:
        signed = signed * weight.double()  # ρ A
    token_mass = torch.stack([signed.clamp(min=0), (-signed).clamp(min=0)])  # [2, N] ρ|A| by side
    mass = token_mass.sum(dim=1)  # [2] M₊, M₋ (Eqs. 3, 11)

    divisor = torch.where(mass == 0, 1.0, mass)  # avoids 0 / 0 for an empty side
    share = token_mass / divisor[:, None]  # [2, N] float64, each row sums to 1
    # weighted_sums casts the share to the dtype of its sums, float32 unless v is float64.
    mu_pos, mu_neg = weighted_sums(v, share)  # [2, H] = share @ v: μ₊, μ₋ (Eqs. 3, 11)
    return mu_pos, mu_neg, mass[0], mass[1]


def discriminator_scores(
    u: torch.Tensor,
    mu_pos: torch.Tensor,
    mu_neg: torch.Tensor,
    mass_pos: torch.Tensor,
    mass_neg: torch.Tensor,
) -> torch.Tensor:
    """The change in log π of C candidate tokens per unit step along Σ ρ A v (Eq. 4).

    For a small step, the update is a linear classifier of candidate tokens. Used in the notebooks,
    not in training.
    u: [C, H], the gradient of each candidate's log-probability.
    mu_pos, mu_neg, mass_pos, mass_neg: as side_centroids returns them.
    Returns [C]; a token's probability rises if and only if its score is positive.
    """
    u = u.to(mu_pos.dtype)
    return mass_pos.to(u) * (u @ mu_pos) - mass_neg.to(u) * (u @ mu_neg)  # Eq. 4
