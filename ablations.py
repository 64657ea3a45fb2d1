"""The paper's ablations of DelTA. Each replaces one piece of delta.py.

This file covers Tables 2 and 3, the other proxies and the random control of App. F, and token
selection by λ (Sec. 5.2). Two questions of ours: scores without the lag of γ, and proxies whose
mean over the vocabulary is zero, with a control that omits their centroids. Flags of
`--method delta` select all of these; `configured` turns the flags into a method.

Departures: (1) `fixed_gamma` keeps the temperatures from the run's first batch with both sides.
Freezing γ within a batch would change nothing: with K = 1 the lagged γ⁽¹⁾ equals γ⁽⁰⁾.
(2) Selection considers only tokens with an advantage: all others have the lowest λ and would fill
the bottom share. (3) The `exact`, `centred` and `surprise` proxies, the control `no_centroids` and
`--gamma fresh` are not in the paper.

Shapes: N packed response tokens, n in a micro-batch, H hidden size, V vocabulary size.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch

from batch import TokenBatch
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
from infra.flags import flag
from infra.rows import Rows, squared_distances
from methods import METHODS, Method, MethodFlags, delta_weights, row_proxy, top_share
from policy import LOGITS_PER_BLOCK, TokenOutputs

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


# The values of --delta-variant, except fixed_gamma, random and no_centroids (below).
# tests/references.py has a slow reference for each.
VARIANTS = {
    "full": Pieces(),
    "within_side": Pieces(margins=within_side_margins),
    "hard": Pieces(scores=hard_scores),
    "no_norm": Pieces(normalise=no_normalisation),
    "no_range_map": Pieces(range_map=no_range_map),
}


def fixed_temperatures(memory: dict) -> Callable:
    """A `temperatures` function that computes γ only once per run (Table 3, w/o adaptive γ).

    memory: stores the first (γ₊, γ₋). It is saved in checkpoints, so a resumed run has the same γ.
    """

    def first_temperatures(delta: torch.Tensor, advantage: torch.Tensor):
        if "gamma" not in memory:
            gamma_pos, gamma_neg = temperatures(delta, advantage)
            memory["gamma"] = [float(gamma_pos), float(gamma_neg)]
        gamma = torch.tensor(memory["gamma"], dtype=torch.float64, device=delta.device)
        return gamma[0], gamma[1]

    return first_temperatures


# ---- scores without the lag ----------------------------------------------------------------------


def fresh_scores(
    delta: torch.Tensor, advantage: torch.Tensor, gamma_pos: torch.Tensor, gamma_neg: torch.Tensor
) -> torch.Tensor:
    """α = σ(Δ/γ) with γ computed from the current margins: no lag (App. H).

    gamma_pos and gamma_neg, computed before the refinement, are ignored. At K = 0 nothing changes.
    """
    return scores(delta, advantage, *temperatures(delta, advantage))


def has_both_sides(advantage: torch.Tensor) -> bool:
    return bool((advantage > 0).any() and (advantage < 0).any())


# ---- App. F: other proxies for a token's gradient ------------------------------------------------


def top_k_hidden_gradient(outputs: TokenOutputs, head: Callable, k: int) -> torch.Tensor:
    """v = W_y - Σ_j p̃_j W_j over the k most likely tokens j: [n, H] (App. F).

    p̃ is the softmax renormalised over these k tokens; with k = V, v is ∇_h log p(y).
    outputs: hidden [n, H] and token [n]. head: () -> the scaled LM head W [V, H].
    """
    W = head().to(outputs.hidden.dtype)
    k = min(k, len(W))
    result = torch.empty_like(outputs.hidden)
    numbers_a_row = max(len(W), k * W.shape[1])  # the logits, or W[likeliest] if that is larger
    size = max(1, LOGITS_PER_BLOCK // numbers_a_row)  # tokens per block
    for start in range(0, len(outputs.hidden), size):
        block = slice(start, start + size)
        logits, likeliest = (outputs.hidden[block] @ W.T).topk(k, dim=1)  # [size, k]
        p = logits.softmax(dim=1)  # p̃
        expected = (p[:, :, None] * W[likeliest]).sum(dim=1)  # Σ_j p̃_j W_j
        result[block] = W[outputs.token[block]] - expected
    return result


MOST_NUMBERS = 2**16  # the largest product V H for --proxy exact


def lm_head_gradient(outputs: TokenOutputs, head: Callable) -> torch.Tensor:
    """v = (e_y - p) ⊗ h, the exact LM-head gradient, flattened: [n, V H], for toy-sized models.

    outputs: hidden [n, H] and token [n]. head: () -> the scaled LM head W [V, H].
    """
    W = head().to(outputs.hidden.dtype)
    p = (outputs.hidden @ W.T).softmax(dim=1)  # [n, V]
    residual = torch.nn.functional.one_hot(outputs.token, len(W)) - p  # e_y - p
    return (residual[:, :, None] * outputs.hidden[:, None, :]).flatten(1)


# ---- zero-mean proxies ---------------------------------------------------------------------------


def centred_p(tokens: TokenOutputs | TokenBatch) -> torch.Tensor:
    """s = p - Σ_y p(y)²: p of the sampled token minus its mean in that state: [N].

    tokens: logprob [N] and mean_p [N] of the state's distribution. The mean is
    E[p(y)] = Σ_y p(y) p(y), so E[s | state] = 0.
    """
    return tokens.logprob.exp() - tokens.mean_p


def centred_proxy(outputs: TokenOutputs, head: Callable) -> torch.Tensor:
    """v = (Σ_y p(y)² - p) h: the row proxy minus its mean in each state: [n, H].

    A token's gradient has mean zero: E[∇ log p(y) | state] = 0. The row proxy (1 - p) h does not:
    its mean is (1 - Σ_y p(y)²) h, which the state contributes whichever token is drawn. The state
    determines h, so without that mean E[v | state] = 0. The mean has to be the state's. If one
    vector, such as the batch's mean, is subtracted from every v, both centroids move by that vector
    too, and no margin changes.
    outputs: hidden [n, H], logprob [n] and mean_p [n], from the forward pass at θ_old. Not in the
    paper.
    """
    return -centred_p(outputs)[:, None].to(outputs.hidden.dtype) * outputs.hidden


def centred_logprob(tokens: TokenOutputs | TokenBatch) -> torch.Tensor:
    """s = log p + entropy: log p of the sampled token minus its mean in that state: [N].

    tokens: logprob [N] and entropy [N] of the state's distribution, nats. The mean is
    E[log p(y)] = Σ_y p(y) log p(y) = -entropy, so E[s | state] = 0.
    """
    return tokens.logprob + tokens.entropy


def surprise_proxy(outputs: TokenOutputs, head: Callable) -> torch.Tensor:
    """v = s h, s = log p + entropy: [n, H], with no extra forward pass; not in the paper.

    E[v | state] = 0, as for `centred_proxy`. The two proxies differ in the factor, log p or -p.
    outputs: hidden [n, H], logprob [n] and entropy [n], from the forward pass at θ_old; logprob and
    entropy at the same temperature.

    Earlier work uses related weights without a discriminator: selection by log p and entropy
    (relative surprisal index, Lv et al. 2026, arXiv 2606.31575), quantiles of -log p
    (STARE, Luo et al. 2026, arXiv 2606.19236), a kernel of the covariance of log p and A (Wang et
    al. 2026, arXiv 2605.11538).
    """
    return centred_logprob(outputs)[:, None].to(outputs.hidden.dtype) * outputs.hidden


# ---- controls and selection ----------------------------------------------------------------------


def random_coefficients(tokens: TokenBatch, flags) -> torch.Tensor:
    """λ uniform in [λ_min, λ_max], scaled to mean 1: the control in App. F."""
    uniform = torch.rand(len(tokens.logprob), generator=tokens.generator).to(tokens.logprob)
    return normalise(flags.lam_min + (flags.lam_max - flags.lam_min) * uniform)


SLOPE = 2.7  # for no_centroids


def no_centroids(tokens: TokenBatch, flags) -> torch.Tensor:
    """λ̄ from α = σ(2.7 s sign(A) / sd): a zero-mean proxy's scores without its centroids.

    s is centred_p with `--proxy centred`, and centred_logprob with `surprise` and by default; sd is
    its standard deviation over all N tokens. (The proxy centred is -s h, but the sign of a proxy
    changes no margin.) The range and the normalisation are DelTA's; all weights are 1 if a side is
    empty. The slope comes from a pilot: at K = 1 the proxy's Δ⁽¹⁾/γ⁽⁰⁾ has a standard deviation of
    2.8 (centred) and 2.9 (surprise) on one of the toy's base models, and of 5.8 and 6.6 on another.
    """
    if not has_both_sides(tokens.advantage):
        return torch.ones_like(tokens.advantage)
    s = SCALARS[flags.proxy](tokens)
    sd = s.double().var(correction=0).clamp(min=EPS_GAMMA).sqrt()
    alpha = torch.sigmoid(SLOPE * s * tokens.advantage.sign() / sd).to(s.dtype)
    return normalise(range_map(alpha, tokens.advantage, flags.lam_min, flags.lam_max))


def selected_by(coefficients: Callable, tokens: TokenBatch, flags) -> torch.Tensor:
    """Plain DAPO on the tokens that --select picks by their λ (Sec. 5.2).

    Tokens without an advantage have no gradient. They get weight 1, so the mean is 1.
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
    "centred": centred_proxy,
    "surprise": surprise_proxy,
}
SCALARS = {"centred": centred_p, "surprise": centred_logprob, "lm_head": centred_logprob}
CONTROLS = {"random": random_coefficients, "no_centroids": no_centroids}


@dataclass
class AblationFlags(MethodFlags):
    """The method flags, plus DelTA's flags for other pieces, proxies and selection."""

    method: str = flag("delta", "token weights (App. E)", sorted(METHODS))
    delta_variant: str = flag(
        "full",
        "ablation (Tables 2 and 3) or control",
        [*VARIANTS, "fixed_gamma", *CONTROLS],
        of="delta",
    )
    proxy: str = flag("lm_head", "proxy for a token's gradient (App. F)", list(PROXIES), of="delta")
    proxy_topk: int = flag(20, "number of tokens for --proxy topk", low=1, of="delta")
    gamma: str = flag(
        "lagged",
        "γ from the margins before a refinement (App. H), or from those after it",
        ["lagged", "fresh"],
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


# (flags, another flag, its values): with one of these values the flags do nothing.
NO_EFFECT = (
    (("proxy_topk",), "proxy", ("lm_head", "exact", "centred", "surprise")),
    (("select_share",), "select", ("none",)),
    (("lam_min", "lam_max"), "delta_variant", ("no_range_map",)),
    (("K", "gamma"), "delta_variant", tuple(CONTROLS)),
    (("proxy",), "delta_variant", ("random",)),
    (("gamma",), "delta_variant", ("hard", "fixed_gamma")),  # these do not recompute γ
    (("gamma",), "K", (0,)),  # no γ lags
    (("lam_min", "lam_max"), "select", ("top", "random", "bottom")),  # only the order of λ counts
    (("K", "gamma", "proxy"), "select", ("random",)),
)


def check_model(flags: AblationFlags, policy) -> None:
    """Raise UserError if the model is too large for the proxy, or its head is not a matrix.

    OTB and the proxies topk and exact need logits of the form W h.
    """
    if not policy.head_is_matrix:
        trouble = f"but the head of {type(policy.lm).__name__} has a bias or a soft cap: use"
        if flags.method == "otb":
            raise UserError(f"--method otb assumes that the logits are W h, {trouble} --method opo")
        if flags.proxy in ("topk", "exact"):
            raise UserError(
                f"--proxy {flags.proxy} assumes that the logits are W h, {trouble} "
                "--proxy lm_head, centred or surprise"
            )
    config = policy.lm.config
    if flags.proxy == "exact" and config.vocab_size * config.hidden_size > MOST_NUMBERS:
        raise UserError(
            "--proxy exact keeps vocabulary x hidden numbers per token, "
            "which fits only models as small as the toy: use --proxy topk"
        )


def weights_by_pieces(tokens: TokenBatch, flags: AblationFlags) -> torch.Tensor:
    """ρ = λ̄ with the pieces of --delta-variant and --gamma."""
    if flags.delta_variant == "fixed_gamma":
        pieces = Pieces(temperatures=fixed_temperatures(tokens.memory))
    else:
        pieces = VARIANTS[flags.delta_variant]
    if flags.gamma == "fresh":
        pieces = replace(pieces, scores=fresh_scores)
    return delta_weights(tokens, flags, pieces)


def configured(method: Method, flags: AblationFlags) -> Method:
    """`method`; if it is DelTA, with the pieces, proxy and selection that the flags set.

    train.parse_config has already refused flags that contradict each other or do not apply.
    """
    if flags.method != "delta":
        return method
    weights, keep = weights_by_pieces, PROXIES[flags.proxy]
    if flags.proxy == "topk":
        keep = partial(top_k_hidden_gradient, k=flags.proxy_topk)
    if flags.delta_variant in CONTROLS:
        weights, keep = CONTROLS[flags.delta_variant], None
    if flags.select != "none":
        weights = partial(selected_by, weights)
    return replace(method, weights=weights, keep=keep)
