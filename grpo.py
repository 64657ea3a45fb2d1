"""RLVR's update on packed tokens: group advantages, the clipped surrogate, and the linear discriminator inside it.

Follows Secs. 2 and 3.1 and App. E of the paper: near θ_old every method is Δθ ∝ Σ ρ A v (Eq. 9), and a method only picks
the token weights ρ. Departures: (1) dual clip for negative advantages, as in the released code; (2) the loss divides by
the tokens of a whole mini-batch, as in the text (the released code averages micro-batches); (3) statistics are those of the
whole rollout batch whatever the number of ranks (the released code takes each rank's shard).

Shapes: B responses, N packed response tokens (one row per token, no padding), H hidden, M candidate tokens, G group size.
Symbols: A advantage, r ratio, v token gradient, ρ token weight, μ centroid, M± mass.
"""
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch, torch.distributed as dist

EPS = 1e-6  # added to the group's standard deviation


def group_advantages(rewards: torch.Tensor, group_size: int) -> torch.Tensor:
    """A_i = (R_i - mean(R)) / (std(R) + 1e-6) inside each group of G responses (Sec. 2), std unbiased.

    rewards [B], groups contiguous -> [B]; exactly 0 throughout a group of equal rewards. Raises ValueError when
    group_size < 2, B is not a multiple of it, or a reward is not finite.
    """
    if group_size < 2: raise ValueError(f"group_size is {group_size}: an advantage compares at least 2 responses to the same prompt")
    if rewards.ndim != 1 or len(rewards) % group_size:
        raise ValueError(f"rewards of shape {tuple(rewards.shape)} do not split into groups of {group_size}")
    if not torch.isfinite(rewards).all(): raise ValueError("rewards hold a NaN or inf")
    groups = rewards.view(-1, group_size)
    advantages = (groups - groups.mean(dim=1, keepdim=True)) / (groups.std(dim=1, keepdim=True) + EPS)
    equal = (groups == groups[:, :1]).all(dim=1, keepdim=True)  # else rounding in the mean would make sides of nothing
    return advantages.masked_fill(equal, 0.0).view(-1)


def clipped_surrogate(logprob: torch.Tensor, old_logprob: torch.Tensor, advantage: torch.Tensor, clip_low: float = 0.2,
                      clip_high: float = 0.28, dual_clip: float | None = 10.0) -> torch.Tensor:
    """min(r A, clip(r, 1-ε_low, 1+ε_high) A) per token (Sec. 2), the quantity to maximise; all tensors [N].

    Where A < 0 it is bounded below by dual_clip * A (None: unbounded), so that one token whose ratio explodes cannot
    take over the update.
    """
    ratio = (logprob - old_logprob).clamp(-20, 20).exp()
    surrogate = torch.min(ratio * advantage, ratio.clamp(1 - clip_low, 1 + clip_high) * advantage)
    return surrogate if dual_clip is None else torch.where(advantage < 0, torch.max(surrogate, dual_clip * advantage), surrogate)


def reinforce_surrogate(logprob: torch.Tensor, old_logprob: torch.Tensor, advantage: torch.Tensor, **_) -> torch.Tensor:
    """A log π per token: no ratio and no clip."""
    return advantage * logprob


def sapo_surrogate(logprob: torch.Tensor, old_logprob: torch.Tensor, advantage: torch.Tensor, **_) -> torch.Tensor:
    """A (4/τ) σ(τ (r - 1)), τ = 1.0 where A > 0, else 1.05: a soft gate whose slope is 1 at r = 1 (App. J)."""
    tau = torch.where(advantage > 0, 1.0, 1.05)
    return advantage * 4 / tau * torch.sigmoid(tau * ((logprob - old_logprob).clamp(-20, 20).exp() - 1))


def clipped_tokens(logprob: torch.Tensor, old_logprob: torch.Tensor, advantage: torch.Tensor, clip_low: float = 0.2,
                   clip_high: float = 0.28) -> torch.Tensor:
    """Which tokens the clip silences: bool [N], true where the surrogate has no gradient because r left its interval."""
    ratio = (logprob - old_logprob).exp()
    return ((advantage > 0) & (ratio > 1 + clip_high)) | ((advantage < 0) & (ratio < 1 - clip_low))


# ---- the linear discriminator (Sec. 3.1) ------------------------------------------------------------------------------


def over_ranks(x: torch.Tensor, op=dist.ReduceOp.SUM) -> torch.Tensor:
    """x reduced over all ranks, in place: each holds some rows, and a sum over (i, t) is over all. x itself in one process."""
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(x, op)
    return x


def row_blocks(v: torch.Tensor, device: torch.device, elements: int = 0):
    """(slice, v[slice] on `device` in float32 or better) over blocks of rows: v may lie in host memory, and is never copied whole."""
    rows = max(1, (elements or 2**(20 if device.type == "cpu" else 24)) // max(1, v.shape[1]))  # fits a CPU's cache; outlasts a GPU's launch
    for start in range(0, len(v), rows):
        block = slice(start, start + rows)
        yield block, v[block].to(device, torch.promote_types(v.dtype, torch.float32), non_blocking=True)


def side_centroids(v: torch.Tensor, advantage: torch.Tensor, weight: torch.Tensor | None = None):
    """Centroids and masses of the two sides: Eq. 3, and Eqs. 10-11 with token weights ρ.

    v [N, H] token gradients, advantage [N], weight [N] or None (ρ = 1) -> (mu_pos [H], mu_neg [H], mass_pos [], mass_neg []),
    in float32 or better. An empty side has mass 0 and centroid 0. Rows are this rank's, sums those over all ranks.
    Eq. 2 then reads Δθ ∝ Σ ρ A v = mass_pos * mu_pos - mass_neg * mu_neg.
    """
    signed = advantage.double() if weight is None else advantage.double() * weight.double()  # ρ A
    side = torch.stack([advantage > 0, advantage < 0])  # [2, N]
    shares = torch.where(side, torch.stack([signed, -signed]), 0.0)  # [2, N] ρ|A|, each row on its own side
    mass = over_ranks(shares.sum(dim=1))  # M± (Eqs. 3, 11)
    shares = shares / torch.where(mass == 0, 1.0, mass)[:, None]
    mu = torch.zeros(2, v.shape[1], dtype=torch.promote_types(v.dtype, torch.float32), device=advantage.device)
    for rows, block in row_blocks(v, advantage.device):
        mu += shares[:, rows].to(block.dtype) @ block  # μ± (Eqs. 3, 11)
    return *over_ranks(mu), *mass


def discriminator_scores(u: torch.Tensor, mu_pos: torch.Tensor, mu_neg: torch.Tensor, mass_pos: torch.Tensor,
                         mass_neg: torch.Tensor) -> torch.Tensor:
    """Predicted Δ log π of M candidate tokens with gradients u [M, H], up to the learning rate -> [M] (Eq. 4).

    Positive exactly where the token's score on the positive side exceeds that on the negative side: the token goes up.
    """
    u = u.to(mu_pos.dtype)
    return mass_pos.to(u) * (u @ mu_pos) - mass_neg.to(u) * (u @ mu_neg)  # Eq. 4


# ---- methods: a method is a weight per token (App. E, Eq. 9) ---------------------------------------------------------


@dataclass
class TokenBatch:
    """A rollout batch as packed tokens, which is all that a method sees: N tokens of B responses.

    Every rank holds the whole batch but for the hidden states, so a method that does without them need not know of ranks.
    """
    advantage: torch.Tensor  # [N] the response's A, repeated over its tokens
    logprob: torch.Tensor    # [N] log π_old of the sampled token
    entropy: torch.Tensor    # [N] entropy of π_old where it was sampled, nats
    hidden: torch.Tensor     # [n, H] hidden state that entered the LM head, at the rows `mine`; perhaps in host memory
    length: torch.Tensor     # [B] tokens per response, sum N: the rows are response 0's, then response 1's, ...
    token: torch.Tensor      # [N] id of the sampled token
    mine: torch.Tensor       # [n] ascending, the rows this rank scored: all N in one process
    head: Callable           # () -> [V, H], LM-head weight W over the temperature: the logits are W h; all ranks call it together
    current: torch.Tensor | None = None  # [N] log π_θ; differs from logprob during the updates, which EVERY_UPDATE methods see

    def part(self, rows: torch.Tensor, length: torch.Tensor, current: torch.Tensor) -> "TokenBatch":
        """The rows of a micro-batch whose responses have `length` tokens, with their current log-probabilities; no hidden states."""
        return TokenBatch(*(x[rows] for x in (self.advantage, self.logprob, self.entropy)), None, length, self.token[rows],
                          rows, self.head, current)


SURROGATES = {"reinforce": reinforce_surrogate, "sapo": sapo_surrogate}  # all others: clipped_surrogate
METHODS = {}  # name -> function(TokenBatch, **flags) -> weights ρ [N] of mean 1
EVERY_UPDATE = {"fipo"}  # weights that follow the current policy; all others are computed once per rollout batch and frozen


def method(function):
    """Register a method under its function's name; train.py offers it as --method and passes every flag by name."""
    METHODS[function.__name__] = function
    return function


@method
def dapo(tokens: TokenBatch, **_) -> torch.Tensor:
    """ρ = 1: every token counts the same (Eq. 13)."""
    return torch.ones_like(tokens.advantage)


@method
def grpo(tokens: TokenBatch, **_) -> torch.Tensor:
    """ρ = 1/|o_i|, scaled to mean 1 by N/B: a mean inside each response, then over responses (Eq. 12)."""
    return (tokens.length.sum() / len(tokens.length) / tokens.length).repeat_interleave(tokens.length)


@method
def reinforce(tokens: TokenBatch, **_) -> torch.Tensor:
    """ρ = 1 under the ratio-free surrogate. The baseline is the group's mean; A keeps the division by std, for equal scales."""
    return torch.ones_like(tokens.advantage)


@method
def forking_tokens(tokens: TokenBatch, **_) -> torch.Tensor:
    """ρ = 1[entropy in the top 20 %], pooled over the rollout batch (Eq. 14), over the share kept: mean 1, as for every method.

    Sources differ on the normaliser: the official code divides by the kept tokens, as here, the paper's formula by all tokens.
    """
    return selected(tokens.entropy, 0.2)


@method
def sapo(tokens: TokenBatch, **_) -> torch.Tensor:
    """ρ as GRPO's, under SAPO's own surrogate (App. J)."""
    return grpo(tokens)


@method
def fipo(tokens: TokenBatch, **_) -> torch.Tensor:
    """ρ = clip(exp F, 1, 1.2), F_t = Σ_{k>=t} γ^(k-t) log r_k the discounted future KL of the response, γ = 2^(-1/32) (Eq. 15).
    log r counts as 0 where r > 10 (safety threshold). Not renormalised, as in the release; 1 wherever r = 1.
    """
    log_ratio = (tokens.current - tokens.logprob).clamp(-20, 20)
    z = torch.nn.utils.rnn.pad_sequence(torch.where(log_ratio.exp() <= 10, log_ratio, 0.0).split(tokens.length.tolist()))  # [T, B]
    for t in range(len(z) - 2, -1, -1):
        z[t] += 2 ** (-1 / 32) * z[t + 1]  # F_t = z_t + γ F_{t+1}
    future = torch.cat([column[:n] for column, n in zip(z.T, tokens.length.tolist())])
    return future.exp().clamp(1.0, 1.2)


def selected(score: torch.Tensor, share: float) -> torch.Tensor:
    """N / n on the n = ceil(share N) rows of highest score, else 0: weights of mean 1. score [N] -> [N]."""
    n = math.ceil(share * len(score))
    return torch.zeros_like(score).index_fill(0, score.topk(n).indices, len(score) / max(n, 1))
