"""The paper's ablations of DelTA. Most replace one step of delta.py.

Flags of `--method delta` select them (config.selected_method).

Two of them differ from what the paper's text suggests. `fixed_gamma` keeps the temperatures of the
run's first batch with both sides, because freezing γ within a batch would change nothing: with
K = 1 the lagged γ⁽¹⁾ equals γ⁽⁰⁾. Selection by λ considers only tokens with an advantage, since all
others have the lowest λ and would fill the bottom share. It ranks by Δ/γ, because λ saturates and
would tie, and breaks ties at random.

Shapes: N packed response tokens, n in a micro-batch, H hidden size, V vocabulary size.
"""

from collections.abc import Callable

import torch

from delta import PAPER, Formulas, Matrix, normalise, refined_margins, temperatures
from infra.head import block_size
from infra.rows import squared_distances
from methods import TokenBatch, TokenOutputs, row_proxy, top_share

# ---- Tables 2 and 3: other formulas --------------------------------------------------------------


def within_side_margins(
    v: Matrix, advantage: torch.Tensor, mu_pos: torch.Tensor, mu_neg: torch.Tensor
) -> torch.Tensor:
    """Δ = -‖v - μ_own‖²: no opposite side (Table 2); 0 where A = 0."""
    to_pos = squared_distances(v, mu_pos)
    to_neg = squared_distances(v, mu_neg)
    to_own = torch.where(advantage > 0, to_pos, to_neg)
    return -to_own * (advantage != 0)


def hard_scores(margin: torch.Tensor, gamma: torch.Tensor) -> torch.Tensor:
    """α = 1[Δ > 0], the limit γ -> 0 of Eq. 6, which drops H_b(α) (Table 3)."""
    return (margin > 0).to(margin.dtype)


def no_normalisation(lam: torch.Tensor) -> torch.Tensor:
    """λ unchanged: the loss divides by N instead of Z (Table 3)."""
    return lam


def no_range_map(
    alpha: torch.Tensor, advantage: torch.Tensor, lam_min: float, lam_max: float
) -> torch.Tensor:
    """The raw α as the coefficient (Table 3); 0 where A = 0."""
    return torch.where(advantage == 0, 0.0, alpha)


# The values of --delta-variant that replace a step. Two more are below: `fixed_gamma` needs a
# memory, and `random` needs no margins.
VARIANTS = {
    "full": PAPER,
    "within_side": Formulas(margins=within_side_margins),
    "hard": Formulas(scores=hard_scores),
    "no_norm": Formulas(normalise=no_normalisation),
    "no_range_map": Formulas(range_map=no_range_map),
}


def fixed_gamma(memory: dict) -> Formulas:
    """Formulas that compute γ only once per run (Table 3, w/o adaptive γ).

    memory: stores the first (γ₊, γ₋). It is saved in checkpoints, so a resumed run has the same γ.
    """

    def first_temperatures(margin: torch.Tensor, advantage: torch.Tensor) -> torch.Tensor:
        if "gamma" not in memory:
            gamma = temperatures(margin, advantage)
            memory["gamma"] = [float(gamma[advantage > 0][0]), float(gamma[advantage < 0][0])]
        gamma_pos, gamma_neg = memory["gamma"]
        return torch.full_like(margin, gamma_neg).masked_fill(advantage > 0, gamma_pos)

    return Formulas(temperatures=first_temperatures)


# ---- App. F: the other proxy for a token's gradient ----------------------------------------------


def top_k_hidden_gradient(outputs: TokenOutputs, head: Callable, k: int) -> torch.Tensor:
    """v = W_y - Σ_j p̃_j W_j over the k most likely tokens j: [n, H] (App. F).

    p̃ is the softmax renormalised over these k tokens; with k = V, v is ∇_h log p(y).
    """
    W = head().to(outputs.hidden.dtype)
    k = min(k, len(W))
    numbers_per_token = max(len(W), k * W.shape[1])  # its logits, or W[likeliest] if that is larger
    size = block_size(W.device, numbers_per_token)  # tokens per block
    parts = []
    for hidden, token in zip(outputs.hidden.split(size), outputs.token.split(size), strict=True):
        logits, likeliest = (hidden @ W.T).topk(k, dim=1)  # [size, k]
        p = logits.softmax(dim=1)  # p̃
        expected = (p[:, :, None] * W[likeliest]).sum(dim=1)  # [size, H] Σ_j p̃_j W_j
        parts.append(W[token] - expected)
    return torch.cat(parts)


PAPER_PROXIES = {"row": row_proxy, "topk": top_k_hidden_gradient}


# ---- App. F's control, and selection -------------------------------------------------------------


def random_coefficients(tokens: TokenBatch, v, cfg) -> torch.Tensor:
    """λ uniform in [λ_min, λ_max], scaled to mean 1: the control in App. F. [N]."""
    generator = torch.Generator().manual_seed(tokens.seed)
    uniform = torch.rand(len(tokens), generator=generator).to(tokens.advantage)
    return normalise(cfg.lam_min + (cfg.lam_max - cfg.lam_min) * uniform)


def selected_tokens(tokens: TokenBatch, v: Matrix | None, cfg) -> torch.Tensor:
    """Plain DAPO on the tokens that --select picks by their λ (Sec. 5.2): ρ [N].

    It picks at random for `--select random`, or if a side has no tokens. Tokens without an
    advantage get 1.
    """
    A = tokens.advantage
    rank = torch.zeros_like(A)  # Δ/γ
    if cfg.select != "random" and (A > 0).any() and (A < 0).any():
        margin, gamma = refined_margins(v, A, cfg.K)
        rank = margin / gamma
    if cfg.select == "bottom":
        rank = -rank
    weights = torch.ones_like(rank)
    weights[A != 0] = top_share(rank[A != 0], cfg.select_share, tokens.seed)
    return weights
