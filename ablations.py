"""The paper's ablations of DelTA, each as the one piece of delta.py that it replaces.

Tables 2 and 3, the other proxies and the random control of App. F, and token selection by λ
(Sec. 5.2). Beside them three interventions, each on one suspect of why the coefficients are what
they are: the lag of γ, the common normalisation of both sides, and that a token is judged by
centroids it is part of. Then a proxy whose mean over the vocabulary is zero, and its control
without centroids. All are flags of `--method delta`; `configured` turns the flags into a method.

Departures: (1) `fixed_gamma` keeps the temperatures of the run's first batch with two sides; frozen
inside a batch they would change nothing, for with K = 1 the lagged γ⁽¹⁾ is γ⁽⁰⁾. (2) Selection
looks only at tokens with an advantage: the others have the lowest λ of all and would fill the
bottom share. (3) The `exact` and `surprise` proxies, the control `no_centroids` and the
interventions are not in the paper.

Shapes: N packed response tokens, n of them in a micro-batch, H hidden size, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch

from delta import (
    EPS_GAMMA,
    Pieces,
    normalise,
    range_map,
    require_finite,
    scores,
    temperatures,
)
from infra.errors import UserError
from infra.flags import changed, flag
from infra.head import LOGIT_BLOCK_KEPT
from infra.packing import TokenBatch
from infra.rows import Rows, squared_distances
from methods import METHODS, Method, MethodFlags, delta_weights, row_proxy, top_share

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


# The pieces of delta_coefficients that --delta-variant names; it also takes fixed_gamma, random and
# no_centroids, below. tests/references.py has the slow counterpart of each.
VARIANTS = {
    "full": Pieces(),
    "within_side": Pieces(margins=within_side_margins),
    "hard": Pieces(scores=hard_scores),
    "no_norm": Pieces(normalise=no_normalisation),
    "no_range_map": Pieces(range_map=no_range_map),
}


def fixed_temperatures(memory: dict) -> Callable:
    """Computes γ once and reuses it for the whole run (Table 3, w/o adaptive γ).

    memory: part of the run's checkpoint; it holds the first (γ₊, γ₋), so that they survive a
    resumption.
    """

    def first_temperatures(delta: torch.Tensor, advantage: torch.Tensor):
        if "gamma" not in memory:
            gamma_pos, gamma_neg = temperatures(delta, advantage)
            memory["gamma"] = [float(gamma_pos), float(gamma_neg)]
        gamma = torch.tensor(memory["gamma"], dtype=torch.float64, device=delta.device)
        return gamma[0], gamma[1]

    return first_temperatures


# ---- interventions: one suspect each -------------------------------------------------------------


def fresh_scores(
    delta: torch.Tensor, advantage: torch.Tensor, gamma_pos: torch.Tensor, gamma_neg: torch.Tensor
) -> torch.Tensor:
    """α = σ(Δ/γ) with γ measured on these margins: no lag (App. H).

    The γ that the caller measured before the refinement is not used. At K = 0 both are the same.
    """
    return scores(delta, advantage, *temperatures(delta, advantage))


def equal_sides(
    mapped: Callable, alpha: torch.Tensor, advantage: torch.Tensor, lam_min: float, lam_max: float
) -> torch.Tensor:
    """λ of the range map `mapped`, divided by its mean on each side: both sides keep their mass.

    1 where A = 0. It replaces the range map, since a normaliser is not told the sides. The mean
    over the batch is then 1, and the common normalisation changes nothing.
    """
    lam = mapped(alpha, advantage, lam_min, lam_max)
    result = torch.ones_like(lam)
    for side in (advantage > 0, advantage < 0):
        result[side] = normalise(lam[side])
    return result


def halves(tokens: TokenBatch, group_size: int) -> torch.Tensor:
    """[N] 0 for the tokens of every other prompt, 1 for the rest."""
    prompt = torch.arange(len(tokens.length), device=tokens.length.device) // group_size  # [B]
    return (prompt % 2).repeat_interleave(tokens.length)


def held_out(pieces: Pieces, half: torch.Tensor) -> Pieces:
    """`pieces`, but the margins of each half of the tokens use the centroids of the other half.

    Otherwise a token pulls the centroid of its own side towards itself. half: [N], 0 or 1. Here
    μ₊ and μ₋ are [2, H], of half 0 and of half 1; no other piece sees them. Temperatures are those
    of all margins of a side.
    """

    def centroids_of_halves(v, advantage, alpha=None):
        """(μ₊, μ₋), [2, H] each: of half 0, of half 1."""
        pairs = [pieces.centroids(v, advantage * (half == h), alpha) for h in (0, 1)]
        mu_pos, mu_neg = zip(*pairs, strict=True)
        return torch.stack(mu_pos), torch.stack(mu_neg)

    def margins_by_the_other_half(v, advantage, mu_pos, mu_neg):
        """Δ [N]; a margin is 0 where the advantage is, so that the halves add up."""
        of_0 = pieces.margins(v, advantage * (half == 0), mu_pos[1], mu_neg[1])
        of_1 = pieces.margins(v, advantage * (half == 1), mu_pos[0], mu_neg[0])
        return of_0 + of_1

    return replace(pieces, centroids=centroids_of_halves, margins=margins_by_the_other_half)


def has_both_sides(advantage: torch.Tensor) -> bool:
    return bool((advantage > 0).any() and (advantage < 0).any())


# ---- App. F: other proxies for a token's gradient ------------------------------------------------


def top_k_hidden_gradient(rows, head, k: int) -> torch.Tensor:
    """v = W_y - Σ_j p̃_j W_j over the k likeliest tokens j: [n, H] (App. F).

    p̃ is the softmax renormalised among the k; with k = V this is ∇_h log p(y).
    rows: hidden [n, H] and token [n]. head: () -> the scaled LM head W [V, H].
    """
    W = head().to(rows.hidden.dtype)
    k = min(k, len(W))
    result = torch.empty_like(rows.hidden)
    numbers_a_row = max(len(W), k * W.shape[1])  # of the logits, and of W[likeliest]
    size = max(1, LOGIT_BLOCK_KEPT // numbers_a_row)  # rows in a block
    for start in range(0, len(rows.hidden), size):
        block = slice(start, start + size)
        logits, likeliest = (rows.hidden[block] @ W.T).topk(k, dim=1)  # [size, k]
        p = logits.softmax(dim=1)  # p̃
        expected = (p[:, :, None] * W[likeliest]).sum(dim=1)  # Σ_j p̃_j W_j
        result[block] = W[rows.token[block]] - expected
    return result


MOST_NUMBERS = 2**16  # V H, at most, for --proxy exact


def lm_head_gradient(rows, head) -> torch.Tensor:
    """v = (e_y - p) ⊗ h, the exact LM-head gradient, flattened: [n, V H], for models like the toy.

    rows: hidden [n, H] and token [n]. head: () -> the scaled LM head W [V, H].
    """
    W = head().to(rows.hidden.dtype)
    p = (rows.hidden @ W.T).softmax(dim=1)  # [n, V]
    residual = torch.nn.functional.one_hot(rows.token, len(W)) - p  # e_y - p
    return (residual[:, :, None] * rows.hidden[:, None, :]).flatten(1)


# ---- a proxy of mean zero ------------------------------------------------------------------------


def surprise(rows) -> torch.Tensor:
    """s = log p + H, how much likelier the sampled token was than tokens of its state are: [N].

    rows: logprob [N] and entropy H [N] of the state's distribution, nats. With y drawn from it,
    E[log p(y)] = Σ_y p(y) log p(y) = -H, so that E[s | state] = 0.
    """
    return rows.logprob + rows.entropy


def surprise_proxy(rows, head) -> torch.Tensor:
    """v = s h = (log p + H) h: [n, H], without a further pass; not in the paper.

    A token's gradient has mean zero: E[∇ log p(y) | state] = 0. The row proxy has not, since
    E[(1 - p(y)) h | state] = (1 - Σ_y p(y)²) h: its centroids compare states, not what was drawn
    in them. Here h is fixed by the state and E[s | state] = 0, so that E[v | state] = 0.
    rows: hidden [n, H], logprob [n] and entropy [n]. The entropy is that of scoring, at the
    temperature of log p.

    Weights by log p and H have been used before, without a discriminator: a selection by both
    (relative surprisal index, Lv et al. 2026, arXiv 2606.31575), quantiles of -log p (STARE, Luo
    et al. 2026, arXiv 2606.19236), a kernel of the covariance of log p and A (Wang et al. 2026,
    arXiv 2605.11538).
    """
    return surprise(rows)[:, None].to(rows.hidden.dtype) * rows.hidden


# ---- controls and selection: methods of their own ------------------------------------------------


def random_coefficients(tokens: TokenBatch, flags) -> torch.Tensor:
    """λ uniform in [λ_min, λ_max], at mean 1: the control of App. F."""
    uniform = torch.rand(len(tokens.logprob), generator=tokens.generator).to(tokens.logprob)
    return normalise(flags.lam_min + (flags.lam_max - flags.lam_min) * uniform)


SLOPE = 2.7  # of no_centroids


def no_centroids(tokens: TokenBatch, flags) -> torch.Tensor:
    """λ̄ of α = σ(2.7 s sign(A) / sd): the surprise proxy's scores without its centroids.

    s = log p + H, and sd is its standard deviation over all N tokens. The range, the normalisation
    and 1 throughout where a side is empty are DelTA's. The slope is not derived: a pilot set it,
    so that scores spread about as those of the surprise proxy at K = 1. There the deviation of
    Δ/γ is about 3 on the toy's base of 12 operations that sharpens. It varies from 1.5 to 7 from
    batch to batch on the one that learns.
    """
    if not has_both_sides(tokens.advantage):
        return torch.ones_like(tokens.advantage)
    s = surprise(tokens)
    sd = s.double().var(correction=0).clamp(min=EPS_GAMMA).sqrt()
    alpha = torch.sigmoid(SLOPE * s * tokens.advantage.sign() / sd).to(s.dtype)
    return normalise(range_map(alpha, tokens.advantage, flags.lam_min, flags.lam_max))


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

PROXIES = {
    "lm_head": row_proxy,
    "topk": top_k_hidden_gradient,
    "exact": lm_head_gradient,
    "surprise": surprise_proxy,
}
CONTROLS = {"random": random_coefficients, "no_centroids": no_centroids}


@dataclass
class AblationFlags(MethodFlags):
    """The methods, and --method delta with another piece, another proxy or a selection."""

    method: str = flag("delta", "token weights (App. E)", sorted(METHODS))
    delta_variant: str = flag(
        "full",
        "Tables 2, 3",
        [*VARIANTS, "fixed_gamma", *CONTROLS],
        of="delta",
    )
    proxy: str = flag(
        "lm_head", "what stands for a token's gradient (App. F)", list(PROXIES), of="delta"
    )
    proxy_topk: int = flag(20, "likeliest tokens of --proxy topk", low=1, of="delta")
    gamma: str = flag(
        "lagged",
        "γ of the margins before a refinement (App. H), or of the margins it is used with",
        ["lagged", "fresh"],
        of="delta",
    )
    normalise: str = flag(
        "batch",
        "λ̄ of mean 1 over the batch (Eq. 8), or on each side",
        ["batch", "side"],
        of="delta",
    )
    centroids: str = flag(
        "own",
        "centroids of all tokens, or of the other half of the prompts",
        ["own", "held_out"],
        of="delta",
    )
    select: str = flag(
        "none",
        "plain DAPO on tokens chosen by λ (Sec. 5.2)",
        ["none", "top", "random", "bottom"],
        of="delta",
    )
    select_share: float = flag(
        0.5, "share of tokens that --select keeps", above=0, high=1, of="delta"
    )


def check_model(flags: AblationFlags, policy) -> None:
    """Raise UserError where the model is too large for the proxy, or its head not a matrix."""
    asked, instead = f"--proxy {flags.proxy}", "--proxy lm_head or surprise"
    if flags.method == "otb":
        asked, instead = "--method otb", "--method opo"
    needs_matrix = flags.method == "otb" or flags.proxy in ("topk", "exact")
    if needs_matrix and not policy.lm_head().is_matrix:
        raise UserError(
            f"{asked} takes the logits for W h, and the head of {type(policy.lm).__name__} has a "
            f"bias or a soft cap: take {instead}"
        )
    config = policy.lm.config
    if flags.proxy == "exact" and config.vocab_size * config.hidden_size > MOST_NUMBERS:
        raise UserError(
            "--proxy exact keeps vocabulary x hidden numbers a token: "
            "only for models as small as the toy, take topk"
        )


def chosen_pieces(tokens: TokenBatch, flags: AblationFlags) -> Pieces:
    """The pieces of --delta-variant, and what the interventions make of them."""
    if flags.delta_variant == "fixed_gamma":
        pieces = Pieces(temperatures=fixed_temperatures(tokens.memory))
    else:
        pieces = VARIANTS[flags.delta_variant]

    if flags.gamma == "fresh":
        pieces = replace(pieces, scores=fresh_scores)
    if flags.normalise == "side":
        pieces = replace(pieces, range_map=partial(equal_sides, pieces.range_map))
    if flags.centroids == "held_out":
        pieces = held_out(pieces, halves(tokens, flags.group_size))
    return pieces


def weights_by_pieces(tokens: TokenBatch, flags: AblationFlags) -> torch.Tensor:
    """ρ = λ̄ by the pieces that the flags name; `flags` is train.Config, with the group size.

    1 throughout where --centroids held_out finds a half of the prompts without both sides.
    """
    advantage = tokens.advantage
    if flags.centroids == "held_out":
        half = halves(tokens, flags.group_size)
        if not all(has_both_sides(advantage[half == h]) for h in (0, 1)):
            return torch.ones_like(advantage)
    return delta_weights(tokens, flags, chosen_pieces(tokens, flags))


def configured(method: Method, flags: AblationFlags) -> Method:
    """`method` with the pieces, the proxy and the selection that the flags name."""
    if flags.delta_variant in CONTROLS:
        method = replace(method, weights=CONTROLS[flags.delta_variant], keep=None)
    elif any(changed(flags, name) for name in ("delta_variant", "gamma", "normalise", "centroids")):
        method = replace(method, weights=weights_by_pieces)

    if changed(flags, "proxy"):
        method = replace(method, keep=PROXIES[flags.proxy])
    if flags.proxy == "topk":
        method = replace(method, keep=partial(top_k_hidden_gradient, k=flags.proxy_topk))
    if flags.select != "none":
        method = replace(method, weights=partial(selected_by, method.weights))
    return method
