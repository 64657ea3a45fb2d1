"""DelTA's token coefficients: how strongly each response token belongs to its own side.

Near θ_old an update moves the parameters along M₊μ₊ - M₋μ₋, the mass-weighted difference of the
token-gradient centroids of the two sides, A > 0 and A < 0 (Sec. 3.1, Apps. C, D). A token becomes
more likely exactly when its gradient has a positive inner product with this direction. This holds
for the raw gradient: Adam, weight decay and gradient clipping come after it.

DelTA compares a token-gradient proxy with both centroids (Sec. 3.2, Apps. F-H). The difference of
the two distances is the token's margin. The margin gives a score between 0 and 1, which gives a
weight around 1 in the DAPO loss.

This file differs from the paper's released code in one point: the code computes all statistics on
each rank's shard, and this file, like the paper's text, over the whole rollout batch. It differs
from the text in two. The text clamps a side's mass from below by a small ε; here a side without
mass has the centroid 0. And if a side has no tokens, every coefficient is 1.

Shapes: N packed response tokens (one row per token, no padding), H hidden size.
Symbols: v proxy, A advantage, μ centroid, M mass, Δ margin, γ temperature, α score, λ coefficient.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

# A torch.Tensor [N, H], or in training an infra.rows.Rows: each rank holds some of the N rows, and
# `v @ x` and `x @ v` are full results on every rank.
Matrix = Any

EPS_GAMMA = 1e-12  # ε_γ, the floor on the variance of Δ


def token_gradient_proxy(hidden: torch.Tensor, logprob: torch.Tensor) -> torch.Tensor:
    """v [N, H] = (1 - p) h, the sampled token's row of the LM-head gradient (App. F).

    hidden: [N, H], the state that enters the LM head.
    logprob: [N], log p of the sampled token.
    """
    one_minus_p = -torch.expm1(logprob)  # 1 - exp(log p), accurate even for p near 1
    return one_minus_p[:, None] * hidden


def centroids(
    v: Matrix, advantage: torch.Tensor, weight: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(μ₊, μ₋), [H] each: a side's mean of v, weighted by |A| (Eq. 3), or by ρ|A| (Eqs. 7, 11).

    A side's centroid minimises Σ ρ|A| ‖v - μ‖² over that side (App. D). With the masses M = Σ ρ|A|,
    Δθ ∝ Σ ρ A v = M₊μ₊ - M₋μ₋ (Eqs. 2, 10).
    weight: ρ [N], at least 0: the scores α in Eq. 7, a method's weights in Eq. 11; None: ρ = 1.
    """
    signed = advantage.double()
    if weight is not None:
        signed = signed * weight.double()  # ρ A
    token_mass = torch.stack([signed.clamp(min=0), (-signed).clamp(min=0)])  # [2, N] ρ|A| by side
    mass = token_mass.sum(dim=1, keepdim=True)  # [2, 1] M₊, M₋
    share = token_mass / torch.where(mass == 0, 1.0, mass)  # [2, N], a side sums to 1, or 0
    mu_pos, mu_neg = share.to(v.dtype) @ v  # [2, H]
    return mu_pos, mu_neg


def margins(
    v: Matrix, advantage: torch.Tensor, mu_pos: torch.Tensor, mu_neg: torch.Tensor
) -> torch.Tensor:
    """Δ [N]: ‖v - μ_other‖² - ‖v - μ_own‖², and 0 where A = 0.

    ‖v‖² cancels (App. G), so a margin is linear in v.
    """
    # The two norms can be nearly equal, so their difference is taken in float64.
    offset = mu_neg.double().square().sum() - mu_pos.double().square().sum()
    margin_pos = 2 * (v @ (mu_pos - mu_neg)) + offset.to(mu_pos.dtype)  # ‖v-μ₋‖² - ‖v-μ₊‖²
    return margin_pos * advantage.sign()  # swapped on the negative side


def temperatures(margin: torch.Tensor, advantage: torch.Tensor) -> torch.Tensor:
    """γ [N]: the standard deviation of Δ over the tokens of the token's side (App. H)."""
    gamma_pos = margin[advantage > 0].double().var(correction=0).clamp(min=EPS_GAMMA).sqrt()
    gamma_neg = margin[advantage < 0].double().var(correction=0).clamp(min=EPS_GAMMA).sqrt()
    return torch.where(advantage > 0, gamma_pos, gamma_neg).to(margin.dtype)


def scores(margin: torch.Tensor, gamma: torch.Tensor) -> torch.Tensor:
    """α [N] = argmax over [0, 1] of α Δ + γ H_b(α), H_b the binary entropy (Eq. 5).

    Its derivative in α, Δ - γ log(α / (1 - α)), is 0 at α = σ(Δ/γ). If A = 0, the score has no
    effect: λ is λ_min.
    """
    return torch.sigmoid(margin / gamma)  # σ(Δ/γ) (Eq. 6)


def range_map(
    alpha: torch.Tensor, advantage: torch.Tensor, lam_min: float, lam_max: float
) -> torch.Tensor:
    """λ [N] = λ_min + (λ_max - λ_min) α; tokens without an advantage get λ_min (Sec. 3.2)."""
    lam = lam_min + (lam_max - lam_min) * alpha
    return torch.where(advantage == 0, lam_min, lam)


def normalise(lam: torch.Tensor) -> torch.Tensor:
    """λ̄ [N] = λ N / Z with Z = Σ λ: the coefficients, scaled to mean 1 (Eq. 8)."""
    mean = lam.double().mean()  # Z / N
    if mean == 0:
        return torch.ones_like(lam)  # every λ is 0: possible with hard scores and λ_min = 0
    return (lam / mean).to(lam.dtype)


@dataclass(frozen=True)
class Formulas:
    """The formulas that an ablation replaces by functions of the same arguments (ablations.py)."""

    margins: Callable = margins
    temperatures: Callable = temperatures
    scores: Callable = scores
    range_map: Callable = range_map
    normalise: Callable = normalise


PAPER = Formulas()


@torch.no_grad()
def delta_coefficients(
    v: Matrix,
    advantage: torch.Tensor,
    K: int = 1,
    lam_min: float = 0.8,
    lam_max: float = 1.2,
    formulas: Formulas = PAPER,
) -> torch.Tensor:
    """The normalised coefficients λ̄ of a rollout batch (Sec. 3.2): [N], without gradient.

    v: [N, H], one row for each token in the batch. A tensor with one rank's shard gives wrong
        statistics; infra.rows.Rows holds a shard and gives right ones.
    advantage: [N], A_i for each token of response i; all N on every rank. No padding. It must be
        exactly 0 for equal rewards: rounding such as 1e-8 would put a token on a side.
    K: number of centroid refinements.
    lam_min, lam_max: range of the coefficients before normalisation.
    Raises ValueError for mismatched shapes, K < 0, lam_min > lam_max, or a margin of NaN or inf.
    """
    if len(v.shape) != 2 or advantage.shape != v.shape[:1]:  # Rows has no dim()
        raise ValueError(
            f"v must be [N, H] and advantage [N], got {tuple(v.shape)} and {tuple(advantage.shape)}"
        )
    if K < 0 or not 0 <= lam_min <= lam_max:
        raise ValueError(f"need K >= 0, 0 <= lam_min <= lam_max: got {K}, {lam_min}, {lam_max}")
    if not (advantage > 0).any() or not (advantage < 0).any():
        return torch.ones(len(advantage), device=advantage.device)  # there is nothing to separate
    margin, gamma = refined_margins(v, advantage, K, formulas)  # Δ⁽ᴷ⁾, γ⁽ᴷ⁾
    alpha = formulas.scores(margin, gamma)  # α*, from μ⁽ᴷ⁾ and γ⁽ᴷ⁾
    lam = formulas.range_map(alpha, advantage, lam_min, lam_max)  # λ (Sec. 3.2)
    return formulas.normalise(lam)  # λ̄ (Eq. 8)


@torch.no_grad()
def refined_margins(
    v: Matrix, advantage: torch.Tensor, K: int, formulas: Formulas = PAPER
) -> tuple[torch.Tensor, torch.Tensor]:
    """(Δ⁽ᴷ⁾, γ⁽ᴷ⁾), [N] each: after K refinements of the centroids (App. H).

    The arguments are those of delta_coefficients; both sides have tokens. Raises ValueError if a
    margin is NaN or inf.
    """
    if v.dtype in (torch.bfloat16, torch.float16):
        v = v.float()  # a tensor; the dtype of Rows is float32 or float64

    mu_pos, mu_neg = centroids(v, advantage)  # μ⁽⁰⁾ (Eq. 3)
    margin = formulas.margins(v, advantage, mu_pos, mu_neg)  # Δ⁽⁰⁾ (App. G)
    gamma = formulas.temperatures(margin, advantage)  # γ⁽⁰⁾ (App. H)

    for _ in range(K):
        alpha = formulas.scores(margin, gamma)  # α⁽ᵏ⁾ (Eq. 6)
        # γ⁽ᵏ⁺¹⁾ is taken from Δ⁽ᵏ⁾, before the centroids move (App. H): so γ⁽¹⁾ = γ⁽⁰⁾.
        gamma = formulas.temperatures(margin, advantage)
        mu_pos, mu_neg = centroids(v, advantage, alpha)  # μ⁽ᵏ⁺¹⁾ (Eq. 7)
        margin = formulas.margins(v, advantage, mu_pos, mu_neg)  # Δ⁽ᵏ⁺¹⁾

    if not margin.isfinite().all():
        raise ValueError("a margin is not finite: v or A has NaN or inf, or huge numbers")
    return margin, gamma
