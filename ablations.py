"""The paper's ablations of DelTA, each as the one piece of delta.py that it replaces.

Tables 2 and 3, the other proxies and the random control of App. F, and token selection by λ
(Sec. 5.2). All are flags of `--method delta`; `configured` turns the flags into a method.

Departures: (1) `fixed_gamma` keeps the temperatures of the run's first batch with two sides; frozen
inside a batch they would change nothing, for with K = 1 the lagged γ⁽¹⁾ is γ⁽⁰⁾. (2) Selection
looks only at tokens with an advantage: the others have the lowest λ of all and would fill the
bottom share. (3) The `exact` proxy is not in the paper.

Shapes: N packed response tokens, n of them in a micro-batch, H hidden size, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch

from delta import Pieces, normalise, require_finite, temperatures
from delta import delta_coefficients as paper_coefficients
from infra.errors import UserError
from infra.flags import AtLeastOne, PositiveShare, flag, refuse_changed, refuse_foreign
from infra.packing import TokenBatch
from infra.rows import Rows, squared_distances
from methods import Method, MethodFlags, top_share

# ---- Tables 2 and 3: other pieces ----------------------------------------------------------------


def within_side_margins(
    v: torch.Tensor | Rows, advantage: torch.Tensor, mu_pos: torch.Tensor, mu_neg: torch.Tensor
) -> torch.Tensor:
    """Δ = -‖v - μ_own‖²: no opposite side (Table 2)."""
    to_pos = squared_distances(v, mu_pos)
    to_neg = squared_distances(v, mu_neg)
    to_own = torch.where(advantage > 0, to_pos, to_neg)
    return require_finite(-to_own * (advantage != 0))


def hard_scores(
    delta: torch.Tensor, advantage: torch.Tensor, gamma_pos: torch.Tensor, gamma_neg: torch.Tensor
) -> torch.Tensor:
    """α = 1[Δ > 0], the limit γ -> 0 of Eq. 6: without h(α) (Table 3)."""
    return (delta > 0).to(delta.dtype)


def no_normalisation(lam: torch.Tensor) -> torch.Tensor:
    """λ itself, so that the loss divides by N and not by Z (Table 3)."""
    return lam


def no_range_map(
    alpha: torch.Tensor, advantage: torch.Tensor, lam_min: float, lam_max: float
) -> torch.Tensor:
    """The raw α as the coefficient (Table 3); 0 where A = 0."""
    return torch.where(advantage == 0, 0.0, alpha)


# Of delta_coefficients; --delta-variant also knows fixed_gamma and random, below. A new one comes
# with its slow counterpart in tests/references.py.
VARIANTS = {
    "full": Pieces(),
    "within_side": Pieces(margins=within_side_margins),
    "hard": Pieces(scores=hard_scores),
    "no_norm": Pieces(normalise=no_normalisation),
    "no_range_map": Pieces(range_map=no_range_map),
}


def delta_coefficients(
    v: torch.Tensor | Rows,
    advantage: torch.Tensor,
    K: int = 1,
    lam_min: float = 0.8,
    lam_max: float = 1.2,
    variant: str = "full",
) -> torch.Tensor:
    """delta.delta_coefficients with the pieces of a variant of Tables 2 and 3: [N].

    For use outside; training calls `variant_coefficients`, which has the same VARIANTS. Raises
    ValueError as delta.delta_coefficients does, and for an unknown variant.
    """
    if variant not in VARIANTS:
        raise ValueError(f"variant is {variant!r}: choose one of {', '.join(VARIANTS)}")
    return paper_coefficients(v, advantage, K, lam_min, lam_max, VARIANTS[variant])


def fixed_temperatures(memory: dict) -> Callable:
    """The piece that answers with its first (γ₊, γ₋) for ever after (Table 3, w/o adaptive γ).

    memory: belongs to the run's state; the two numbers are kept there and so survive a resumption.
    """

    def first_temperatures(delta: torch.Tensor, advantage: torch.Tensor):
        if "gamma" not in memory:
            gamma_pos, gamma_neg = temperatures(delta, advantage)
            memory["gamma"] = [float(gamma_pos), float(gamma_neg)]
        gamma = torch.tensor(memory["gamma"], dtype=torch.float64, device=delta.device)
        return gamma[0], gamma[1]

    return first_temperatures


# ---- App. F: other proxies for a token's gradient ------------------------------------------------


def top_k_hidden_gradient(rows, head, k: int) -> torch.Tensor:
    """v = W_y - Σ_j p̃_j W_j over the k likeliest tokens j: [n, H] (App. F).

    p̃ is the softmax renormalised among the k; with k = V this is ∇_h log p(y).
    rows: hidden [n, H] and token [n]. head: () -> W [V, H].
    """
    W = head().to(rows.hidden.dtype)
    k = min(k, len(W))
    result = torch.empty_like(rows.hidden)
    numbers_a_row = max(len(W), k * W.shape[1])  # of the logits, and of W[likeliest]
    size = max(1, 2**24 // numbers_a_row)  # rows in a block
    for start in range(0, len(rows.hidden), size):
        block = slice(start, start + size)
        logits, likeliest = (rows.hidden[block] @ W.T).topk(k, dim=1)  # [size, k]
        p = logits.softmax(dim=1)  # p̃
        expected = (p[:, :, None] * W[likeliest]).sum(dim=1)  # Σ_j p̃_j W_j
        result[block] = W[rows.token[block]] - expected
    return result


MOST_NUMBERS = 2**16  # of one token's exact LM-head gradient


def lm_head_gradient(rows, head) -> torch.Tensor:
    """v = (e_y - p) ⊗ h, the exact LM-head gradient, flattened: [n, V H], for models like the toy.

    rows: hidden [n, H] and token [n]. head: () -> W [V, H].
    """
    W = head().to(rows.hidden.dtype)
    p = (rows.hidden @ W.T).softmax(dim=1)  # [n, V]
    residual = torch.nn.functional.one_hot(rows.token, len(W)) - p  # e_y - p
    return (residual[:, :, None] * rows.hidden[:, None, :]).flatten(1)


# ---- controls and selection: methods of their own ------------------------------------------------


def random_coefficients(tokens: TokenBatch, flags) -> torch.Tensor:
    """λ uniform in [λ_min, λ_max], at mean 1: the control of App. F."""
    uniform = torch.rand(len(tokens.logprob), generator=tokens.generator).to(tokens.logprob)
    return normalise(flags.lam_min + (flags.lam_max - flags.lam_min) * uniform)


def selected_by(coefficients: Callable, tokens: TokenBatch, flags) -> torch.Tensor:
    """Plain DAPO on the tokens that --select picks by their λ (Sec. 5.2).

    Tokens without an advantage, which move nothing, get 1, so that the mean is 1.
    """
    lam = coefficients(tokens, flags)
    if flags.select == "top":
        priority = lam
    elif flags.select == "bottom":
        priority = -lam
    else:
        priority = torch.rand(len(lam), generator=tokens.generator).to(lam)

    sides = tokens.advantage != 0
    weights = torch.ones_like(lam)
    weights[sides] = top_share(priority[sides], flags.select_share)
    return weights


# ---- flags ---------------------------------------------------------------------------------------


@dataclass
class AblationFlags(MethodFlags):
    """--method delta with another piece, another proxy or a selection."""

    delta_variant: str = flag(
        "full",
        "delta: Tables 2 and 3, or a control",
        choices=[*VARIANTS, "fixed_gamma", "random"],
    )
    proxy: str = flag(
        "lm_head",
        "delta: what stands for a token's gradient (App. F)",
        choices=["lm_head", "topk", "exact"],
    )
    proxy_topk: AtLeastOne = flag(20, "delta: likeliest tokens of --proxy topk")
    select: str = flag(
        "none",
        "delta: plain DAPO on tokens chosen by λ (Sec. 5.2)",
        choices=["none", "top", "random", "bottom"],
    )
    select_share: PositiveShare = flag(0.5, "delta: share of tokens that --select keeps")


FLAGS = ("delta_variant", "proxy", "proxy_topk", "select", "select_share")


def check_flags(flags: AblationFlags) -> None:
    """Raise UserError for flags that contradict each other."""
    if flags.method != "delta":
        refuse_foreign(flags, FLAGS, owner="delta")
    if flags.proxy != "topk":
        refuse_changed(flags, ("proxy_topk",), "there is no --proxy topk")
    if flags.select == "none":
        refuse_changed(flags, ("select_share",), "there is no --select")
    if flags.delta_variant == "no_range_map":
        refuse_changed(flags, ("lam_min", "lam_max"), "no_range_map has no range")
    if flags.delta_variant == "random":
        refuse_changed(flags, ("K",), "random λ are not refined")
    if flags.lam_min > flags.lam_max:
        raise UserError(f"--lam-min {flags.lam_min} is above --lam-max {flags.lam_max}")
    if flags.delta_variant == "random" and flags.proxy != "lm_head":
        raise UserError(f"--delta-variant random uses no proxy: drop --proxy {flags.proxy}")


def check_model(flags: AblationFlags, policy) -> None:
    """Raise UserError where the model is too large for the proxy, or its head not a matrix."""
    if flags.proxy != "lm_head" and not policy.lm_head().is_matrix:
        raise UserError(
            f"--proxy {flags.proxy} takes the logits for W h, and the head of "
            f"{type(policy.lm).__name__} has a bias or a soft cap: take --proxy lm_head"
        )
    config = policy.lm.config
    if flags.proxy == "exact" and config.vocab_size * config.hidden_size > MOST_NUMBERS:
        raise UserError(
            "--proxy exact keeps vocabulary x hidden numbers a token: "
            "only for models as small as the toy, take topk"
        )


def variant_coefficients(tokens: TokenBatch, flags: AblationFlags) -> torch.Tensor:
    """ρ = λ̄ by the pieces of --delta-variant."""
    if flags.delta_variant == "fixed_gamma":
        pieces = Pieces(temperatures=fixed_temperatures(tokens.memory))
    else:
        pieces = VARIANTS[flags.delta_variant]
    return paper_coefficients(
        tokens.kept, tokens.advantage, flags.K, flags.lam_min, flags.lam_max, pieces
    )


def configured(method: Method, flags: AblationFlags) -> Method:
    """`method` with the pieces, the proxy and the selection that the flags name."""
    if flags.delta_variant == "random":
        method = replace(method, weights=random_coefficients, keep=None)
    elif flags.delta_variant != "full":
        method = replace(method, weights=variant_coefficients)

    if flags.proxy == "topk":
        method = replace(method, keep=partial(top_k_hidden_gradient, k=flags.proxy_topk))
    elif flags.proxy == "exact":
        method = replace(method, keep=lm_head_gradient)

    if flags.select != "none":
        method = replace(method, weights=partial(selected_by, method.weights))
    return method
