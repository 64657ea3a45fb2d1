"""DelTA's token coefficients: how strongly each response token belongs to its own side.

Sec. 3.2 and Apps. F-H of the paper. Each side has an advantage-weighted centroid of a
token-gradient proxy. A token's margin compares its distances to both centroids. The margin gives a
score between 0 and 1, which gives a weight around 1 in the DAPO loss.

Departures: (1) all statistics are over the whole rollout batch, as in the text; the released code
computes them on each rank's shard. (2) If a side is empty, every coefficient is 1.

Shapes: N packed response tokens (one row per token, no padding), H hidden size.
Symbols: v proxy, A advantage, μ centroid, Δ margin, γ temperature, α score, λ coefficient.
`Rows` is a tensor [N, H] sharded over ranks; `products(v, d)` is v @ d, sharded or not.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from grpo import side_centroids
from infra.rows import Rows, all_finite, products

EPS_GAMMA = 1e-12  # ε_γ, the floor on the variance of Δ


def token_gradient_proxy(hidden: torch.Tensor, logprob: torch.Tensor) -> torch.Tensor:
    """v = (1 - p) h, the sampled token's row of the LM-head gradient (App. F).

    hidden: [N, H], the state that enters the LM head.
    logprob: [N], log p of the sampled token.
    Returns [N, H].
    """
    one_minus_p = -torch.expm1(logprob)  # 1 - exp(log p), accurate even for p near 1
    return one_minus_p[:, None].to(hidden.dtype) * hidden


def centroids(
    v: torch.Tensor | Rows, advantage: torch.Tensor, alpha: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(μ₊, μ₋), [H] each: Eq. 3, or Eq. 7 if the scores α [N] are given."""
    mu_pos, mu_neg, _, _ = side_centroids(v, advantage, alpha)
    return mu_pos, mu_neg


def margins(
    v: torch.Tensor | Rows, advantage: torch.Tensor, mu_pos: torch.Tensor, mu_neg: torch.Tensor
) -> torch.Tensor:
    """Δ [N]: ‖v - μ_other‖² - ‖v - μ_own‖², and 0 where A = 0.

    ‖v‖² cancels (App. G), so a margin is linear in v.
    """
    # The two norms are nearly equal, so their difference is taken in float64.
    # Adding this float64 scalar to a float32 tensor gives float32.
    offset = mu_neg.double().square().sum() - mu_pos.double().square().sum()
    margin_pos = products(v, 2 * (mu_pos - mu_neg)) + offset  # ‖v-μ₋‖² - ‖v-μ₊‖² (App. G)
    return require_finite(margin_pos * advantage.sign())  # swapped on the negative side


def temperatures(delta: torch.Tensor, advantage: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(γ₊, γ₋): the standard deviation of Δ over each side's tokens (App. H)."""
    variance_pos = delta[advantage > 0].double().var(correction=0)
    variance_neg = delta[advantage < 0].double().var(correction=0)
    return variance_pos.clamp(min=EPS_GAMMA).sqrt(), variance_neg.clamp(min=EPS_GAMMA).sqrt()


def scores(
    delta: torch.Tensor, advantage: torch.Tensor, gamma_pos: torch.Tensor, gamma_neg: torch.Tensor
) -> torch.Tensor:
    """α [N] = argmax over [0, 1] of α Δ + γ h(α), where h is the binary entropy (Eq. 5).

    γ is the temperature of the token's side. If A = 0, the score has no effect: λ is λ_min.
    """
    gamma = torch.where(advantage > 0, gamma_pos, gamma_neg).to(delta.dtype)
    return torch.sigmoid(delta / gamma)  # σ(Δ/γ) (Eq. 6)


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
class Pieces:
    """The steps of delta_coefficients. The defaults are the paper's; ablations.py has alternatives.

    A replacement takes the same arguments as the step it replaces. The order of the steps is fixed,
    so γ always lags by one pass. ablations.fresh_scores removes the lag: it computes γ itself.
    """

    centroids: Callable = centroids
    margins: Callable = margins
    temperatures: Callable = temperatures
    scores: Callable = scores
    range_map: Callable = range_map
    normalise: Callable = normalise


PAPER = Pieces()


@torch.no_grad()
def delta_coefficients(
    v: torch.Tensor | Rows,
    advantage: torch.Tensor,
    K: int = 1,
    lam_min: float = 0.8,
    lam_max: float = 1.2,
    pieces: Pieces = PAPER,
) -> torch.Tensor:
    """The normalised coefficients λ̄ of a rollout batch (Sec. 3.2): [N], without gradient.

    With the default pieces, their mean is 1.
    v: [N, H] token-gradient proxy for all tokens in the batch: a plain tensor with all N rows, or
        `Rows`, sharded over ranks. A plain tensor with one rank's shard gives wrong statistics.
    advantage: [N], A_i for each token of response i; all N on every rank. No padding.
    K: number of centroid refinements.
    lam_min, lam_max: range of the coefficients before normalisation.
    pieces: the steps, each replaceable.
    Raises ValueError for mismatched shapes, NaN or inf, K < 0, or lam_min > lam_max.
    """
    check(v, advantage, K, lam_min, lam_max)
    if not (advantage > 0).any() or not (advantage < 0).any():
        return torch.ones(len(v), device=advantage.device)  # a side is empty: nothing to separate

    mu_pos, mu_neg = pieces.centroids(v, advantage)  # μ⁽⁰⁾ (Eq. 3)
    delta = pieces.margins(v, advantage, mu_pos, mu_neg)  # Δ⁽⁰⁾ (App. G)
    gamma = pieces.temperatures(delta, advantage)  # γ⁽⁰⁾ (App. H)

    for _ in range(K):
        alpha = pieces.scores(delta, advantage, *gamma)  # α⁽ᵏ⁾ (Eq. 6)
        gamma = pieces.temperatures(delta, advantage)  # γ⁽ᵏ⁺¹⁾ from Δ⁽ᵏ⁾: lags; γ⁽¹⁾ = γ⁽⁰⁾
        mu_pos, mu_neg = pieces.centroids(v, advantage, alpha)  # μ⁽ᵏ⁺¹⁾ (Eq. 7)
        delta = pieces.margins(v, advantage, mu_pos, mu_neg)  # Δ⁽ᵏ⁺¹⁾

    alpha = pieces.scores(delta, advantage, *gamma)  # α*, from μ⁽ᴷ⁾ and γ⁽ᴷ⁾
    lam = pieces.range_map(alpha, advantage, lam_min, lam_max)  # λ (Sec. 3.2)
    return pieces.normalise(lam)  # λ̄ (Eq. 8)


def check(
    v: torch.Tensor | Rows, advantage: torch.Tensor, K: int, lam_min: float, lam_max: float
) -> None:
    """Raise ValueError for arguments that delta_coefficients cannot handle."""
    if len(v.shape) != 2 or advantage.shape != (len(v),):
        raise ValueError(
            f"v must be [N, H] and advantage [N], got {tuple(v.shape)} and {tuple(advantage.shape)}"
        )
    if not advantage.isfinite().all():
        raise ValueError("advantage contains NaN or inf")
    if not all_finite(v, advantage.device):
        raise ValueError("v contains NaN or inf: check the hidden states and log-probabilities")
    if K < 0 or int(K) != K:
        raise ValueError(f"K is {K}: the number of refinements must be an integer, 0 or more")
    if not 0 <= lam_min <= lam_max < torch.inf:
        raise ValueError(
            f"lam_min is {lam_min} and lam_max {lam_max}: need 0 <= lam_min <= lam_max"
        )


def require_finite(delta: torch.Tensor) -> torch.Tensor:
    """Return delta. Raises ValueError if a margin is not finite."""
    if not delta.isfinite().all():
        raise ValueError("a margin is not finite: the entries of v are too large for float32")
    return delta
