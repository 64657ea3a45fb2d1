"""The paper's ablations of DelTA. Most replace one step of delta.py.

Flags of `--method delta` select them (config.selected_method).

Departures: (1) `fixed_gamma` keeps the temperatures from the run's first batch with both sides.
Freezing γ within a batch would change nothing: with K = 1 the lagged γ⁽¹⁾ equals γ⁽⁰⁾.
(2) Selection considers only tokens with an advantage: all others have the lowest λ and would fill
the bottom share. (3) It ranks by Δ/γ, not λ: λ saturates and would tie. Ties are broken at random.

Shapes: N packed response tokens, n in a micro-batch, H hidden size, V vocabulary size.
"""

from collections.abc import Callable

import torch

from batch import TokenBatch
from delta import Steps, normalise, refined_margins, temperatures
from infra.rows import Rows, squared_distances
from methods import row_proxy, top_share
from policy import TokenOutputs, logit_block

# ---- Tables 2 and 3: other steps -----------------------------------------------------------------


def within_side_margins(
    v: torch.Tensor | Rows, advantage: torch.Tensor, mu_pos: torch.Tensor, mu_neg: torch.Tensor
) -> torch.Tensor:
    """Δ = -‖v - μ_own‖²: no opposite side (Table 2); 0 where A = 0."""
    to_pos = squared_distances(v, mu_pos)
    to_neg = squared_distances(v, mu_neg)
    to_own = torch.where(advantage > 0, to_pos, to_neg)
    return -to_own * (advantage != 0)


def hard_scores(
    delta: torch.Tensor, advantage: torch.Tensor, gamma_pos: torch.Tensor, gamma_neg: torch.Tensor
) -> torch.Tensor:
    """α = 1[Δ > 0], the limit γ -> 0 of Eq. 6, which drops h(α) (Table 3)."""
    return (delta > 0).to(delta.dtype)


def no_normalisation(lam: torch.Tensor) -> torch.Tensor:
    """λ unchanged: the loss divides by N instead of Z (Table 3)."""
    return lam


def no_range_map(
    alpha: torch.Tensor, advantage: torch.Tensor, lam_min: float, lam_max: float
) -> torch.Tensor:
    """The raw α as the coefficient (Table 3); 0 where A = 0."""
    return torch.where(advantage == 0, 0.0, alpha)


# The values of --delta-variant that replace a step.
VARIANTS = {
    "full": Steps(),
    "within_side": Steps(margins=within_side_margins),
    "hard": Steps(scores=hard_scores),
    "no_norm": Steps(normalise=no_normalisation),
    "no_range_map": Steps(range_map=no_range_map),
}


def fixed_gamma(memory: dict) -> Steps:
    """Steps that compute γ only once per run (Table 3, w/o adaptive γ).

    memory: stores the first (γ₊, γ₋). It is saved in checkpoints, so a resumed run has the same γ.
    """

    def first_temperatures(delta: torch.Tensor, advantage: torch.Tensor):
        if "gamma" not in memory:
            gamma_pos, gamma_neg = temperatures(delta, advantage)
            memory["gamma"] = [float(gamma_pos), float(gamma_neg)]
        gamma = torch.tensor(memory["gamma"], dtype=torch.float64, device=delta.device)
        return gamma[0], gamma[1]

    return Steps(temperatures=first_temperatures)


# ---- App. F: the other proxy for a token's gradient ----------------------------------------------


def top_k_hidden_gradient(outputs: TokenOutputs, head: Callable, k: int) -> torch.Tensor:
    """v = W_y - Σ_j p̃_j W_j over the k most likely tokens j: [n, H] (App. F).

    p̃ is the softmax renormalised over these k tokens; with k = V, v is ∇_h log p(y).
    """
    W = head().to(outputs.hidden.dtype)
    k = min(k, len(W))
    result = torch.empty_like(outputs.hidden)
    numbers_a_row = max(len(W), k * W.shape[1])  # the logits, or W[likeliest] if that is larger
    size = max(1, logit_block(W.device) // numbers_a_row)  # tokens per block
    for start in range(0, len(outputs.hidden), size):
        block = slice(start, start + size)
        logits, likeliest = (outputs.hidden[block] @ W.T).topk(k, dim=1)  # [size, k]
        p = logits.softmax(dim=1)  # p̃
        expected = (p[:, :, None] * W[likeliest]).sum(dim=1)  # Σ_j p̃_j W_j
        result[block] = W[outputs.token[block]] - expected
    return result


PAPER_PROXIES = {"lm_head": row_proxy, "topk": top_k_hidden_gradient}


# ---- App. F's control, and selection -------------------------------------------------------------


def random_coefficients(tokens: TokenBatch, flags) -> torch.Tensor:
    """λ uniform in [λ_min, λ_max], scaled to mean 1: the control in App. F."""
    generator = torch.Generator().manual_seed(tokens.seed)
    uniform = torch.rand(len(tokens.logprob), generator=generator).to(tokens.logprob)
    return normalise(flags.lam_min + (flags.lam_max - flags.lam_min) * uniform)


def selected_tokens(tokens: TokenBatch, flags) -> torch.Tensor:
    """Plain DAPO on the tokens that --select picks by their λ (Sec. 5.2): ρ [N].

    At random for `--select random` or if a side has no tokens. Tokens without an advantage get 1.
    """
    A = tokens.advantage
    rank = torch.zeros_like(tokens.logprob)  # Δ/γ
    if flags.select != "random" and (A > 0).any() and (A < 0).any():
        delta, (gamma_pos, gamma_neg) = refined_margins(tokens.features, A, flags.K)
        rank = delta / torch.where(A > 0, gamma_pos, gamma_neg).to(delta.dtype)
    if flags.select == "bottom":
        rank = -rank
    weights = torch.ones_like(rank)
    weights[A != 0] = top_share(rank[A != 0], flags.select_share, tokens.seed)
    return weights
