"""Every method as token weights: near θ_old each update is Δθ ∝ Σ ρ A v, and a method chooses ρ.

App. E (Eqs. 9-15) and App. J of the paper. A method is one record, `Method`. train.py offers every
entry of METHODS as `--method NAME`. To add a method, write its weights and add its record to
METHODS; add its flags to MethodFlags.

Departures: (1) forking tokens divide by the number of kept tokens in a rollout batch, as in their
official code; the paper's formula divides by all tokens, which makes the loss five times smaller.
(2) FIPO's released code drops a response with more than one dual-clipped token; the paper's
objective and this code keep it. (3) REINFORCE still divides by the group's standard
deviation, so that one learning rate suits all methods. (4) The weights of GRPO and forking tokens
have mean 1 over the rollout batch, not over each mini-batch.

Shapes: B responses, N packed response tokens, n in a micro-batch, H hidden size, F values kept
per token, T length of the longest response, V vocabulary size.
Symbols: A advantage, r ratio, ρ token weight, λ coefficient.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn.utils.rnn import pad_sequence

from batch import TokenBatch
from delta import PAPER, Pieces, delta_coefficients, token_gradient_proxy
from grpo import clipped_surrogate
from infra.errors import UserError
from infra.flags import flag
from infra.rows import per_row
from policy import LOGITS_PER_BLOCK, TokenOutputs


@dataclass
class MethodFlags:
    """The methods' command-line flags; `of` names the method that uses a flag."""

    method: str = flag("delta", "token weights (App. E)")  # ablations.py adds the choices
    clip_low: float = flag(0.2, "ε_low for the ratio clip", low=0, high=1)
    clip_high: float = flag(0.28, "ε_high for the ratio clip (grpo, w_reinforce: 0.2)", low=0)
    K: int = flag(1, "number of centroid refinements", low=0, of="delta")
    lam_min: float = flag(0.8, "λ_min, lower end of the coefficients' range", low=0, of="delta")
    lam_max: float = flag(1.2, "λ_max, upper end of the coefficients' range", low=0, of="delta")
    right_weight: float = flag(0.1, "w, weight for right responses", above=0, of="w_reinforce")


def clipped(logprob, old_logprob, advantage, flags: MethodFlags) -> torch.Tensor:
    """DAPO's surrogate (Sec. 2), used by most methods, with the clip range in `flags`: [N]."""
    return clipped_surrogate(logprob, old_logprob, advantage, flags.clip_low, flags.clip_high)


@dataclass(frozen=True)
class Method:
    """One method, as its differences from DAPO. Only `weights` is required."""

    # (tokens, flags) -> ρ [N] >= 0, called once per rollout batch with all N tokens: a TokenBatch
    # (batch.py) with logprob (log π_old), entropy and advantage [N], length [B], current
    # (log π_θ, here still log π_old) [N], a generator seeded from the run's seed and the step, and
    # `memory`, a dictionary that persists across steps and is saved in checkpoints.
    # ρ has mean 1 over the N tokens, so methods are comparable at the same learning rate
    # (exceptions: FIPO, DelTA's no_norm).
    weights: Callable[[TokenBatch, MethodFlags], torch.Tensor]

    # True: ρ is recomputed in every update, from tokens.current = log π_θ. `weights` then gets
    # one micro-batch of one rank, without tokens.kept, so it cannot take a mean over the batch. It
    # must not use tokens.generator or tokens.memory, or ranks would diverge.
    follows_policy: bool = False

    # (log π_θ, log π_old, A, flags) -> [N], each token's term in the objective to maximise; the
    # loop multiplies it by ρ. Responses with A = 0 are skipped in an update, since Eq. 8 gives
    # them no gradient. A loss term on every token, such as a KL penalty, goes into train.update.
    surrogate: Callable[..., torch.Tensor] = clipped

    # The defaults of --clip-low and --clip-high for this method; train.parse_config applies them.
    # Both flags are refused with any surrogate other than `clipped`.
    default_clip: tuple[float, float] = (0.2, 0.28)

    # (outputs, head) -> [n, F], computed from the hidden states at θ_old and passed to `weights` as
    # tokens.kept. outputs is a policy.TokenOutputs with hidden [n, H] in float32; head() is the LM
    # head divided by the temperature, W [V, H]: logits = hidden @ W.T. Each rank keeps the rows of
    # its own responses; the functions in infra/rows.py, such as per_row, read them and return
    # results for all N.
    keep: Callable[..., torch.Tensor] | None = None

    @property
    def clips(self) -> bool:
        return self.surrogate is clipped


# ---- DAPO and its relatives ----------------------------------------------------------------------


def ones(tokens: TokenBatch, flags: MethodFlags) -> torch.Tensor:
    """ρ = 1: every token counts equally (Eq. 13)."""
    return torch.ones_like(tokens.advantage)


def by_response(tokens: TokenBatch, flags: MethodFlags) -> torch.Tensor:
    """ρ ∝ 1/|o_i|: a mean within each response, then over responses (Eq. 12; GRPO and SAPO)."""
    mean_length = tokens.length.sum() / len(tokens.length)
    weight = mean_length / tokens.length  # [B], scaled to mean 1 over tokens
    return weight.repeat_interleave(tokens.length)


def reinforce_surrogate(logprob, old_logprob, advantage, flags: MethodFlags) -> torch.Tensor:
    """A log π per token: no ratio and no clip."""
    return advantage * logprob


# ---- forking tokens ------------------------------------------------------------------------------


def forking_tokens(tokens: TokenBatch, flags: MethodFlags) -> torch.Tensor:
    """ρ ∝ 1[entropy in the top 20 %], pooled over the rollout batch (Eq. 14)."""
    return top_share(tokens.entropy, 0.2)


def top_share(values: torch.Tensor, share: float) -> torch.Tensor:
    """N / n for the n = ceil(share N) tokens with the highest values, else 0: [N], mean 1."""
    n = math.ceil(share * len(values))
    weights = torch.zeros_like(values)
    weights[values.topk(n).indices] = len(values) / max(n, 1)  # n is 0 if N is 0
    return weights


# ---- SAPO ----------------------------------------------------------------------------------------


def sapo_surrogate(logprob, old_logprob, advantage, flags: MethodFlags) -> torch.Tensor:
    """A (4/τ) σ(τ (r - 1)), τ = 1.0 where A > 0, else 1.05 (App. J).

    A soft gate replaces the clip: its slope in r is A at r = 1 and decays on both sides.
    """
    ratio = (logprob - old_logprob).clamp(-20, 20).exp()  # r
    tau = torch.where(advantage > 0, 1.0, 1.05)
    return advantage * 4 / tau * torch.sigmoid(tau * (ratio - 1))


# ---- FIPO ----------------------------------------------------------------------------------------

# App. I's "decay 32.0" is a half-life of 32 tokens in the released code, and its "chunk 128" only
# limits that code's memory: the sum is the same without chunks.
FIPO_DECAY = 2 ** (-1 / 32)
FIPO_SAFETY = 10  # the log-ratio counts as 0 if r is above this
FIPO_CLIP = (1.0, 1.2)  # the range of the weights


def fipo(tokens: TokenBatch, flags: MethodFlags) -> torch.Tensor:
    """ρ_t = clip(exp F_t, 1, 1.2), F_t = Σ_{k>=t} decay^(k-t) log r_k within a response (Eq. 15).

    F is the discounted future KL, including the current token. ρ is not renormalised, as in the
    released code. It is 1 if every r is 1, as in the first update of a rollout batch.
    """
    log_ratio = (tokens.current - tokens.logprob).clamp(-20, 20)
    future = torch.where(log_ratio.exp() <= FIPO_SAFETY, log_ratio, 0.0)
    responses = torch.arange(len(tokens.length), device=future.device)
    response = responses.repeat_interleave(tokens.length, output_size=len(future))  # [n]

    # F_t = log r_t + decay F_{t+1}, by doubling: future[t] is the discounted sum over the next
    # `reach` tokens of the response, starting at t. Each pass doubles `reach`.
    reach = 1
    while reach < len(future):
        inside = response[reach:] == response[:-reach]
        future[:-reach] += FIPO_DECAY**reach * future[reach:] * inside
        reach *= 2
    return future.exp().clamp(*FIPO_CLIP)


# ---- other papers' advantages --------------------------------------------------------------------

# Each of these methods replaces the group advantage A with another advantage A', so its weight is
# ρ = A'/A. A group with equal rewards has A = 0 and gets no gradient; the W-REINFORCE paper gives
# such a group A' = w (all right) or -1 (all wrong).
# OPO and OTB still divide by the group's standard deviation, as REINFORCE does here.


def in_place_of(wanted: torch.Tensor, advantage: torch.Tensor) -> torch.Tensor:
    """ρ = A'/A, scaled to mean 1 over the tokens with an advantage: [N].

    wanted: A' [N]. It has the sign of A if all rewards are 0 or 1. With other rewards, as with
    --overlong-buffer, a reward may lie between the baseline and the group's mean; ρ is then
    negative and rejected.
    """
    sides = advantage != 0
    rho = torch.ones_like(advantage)  # tokens without an advantage have no gradient
    ratio = wanted[sides] / advantage[sides]
    rho[sides] = (ratio / ratio.mean()).to(rho.dtype)
    return rho


def w_reinforce(tokens: TokenBatch, flags: MethodFlags) -> torch.Tensor:
    """A' = w for a right response and -1 for a wrong one (W-REINFORCE, Zhu et al. 2025,
    arXiv 2506.01347: w J_PSR + J_NSR with w = 0.1). Its released code clips at 0.2."""
    A = tokens.advantage
    return in_place_of(torch.where(A > 0, flags.right_weight, -1.0), A)


def opo(tokens: TokenBatch, flags: MethodFlags) -> torch.Tensor:
    """A' = R - Σ_j l_j R_j / Σ_j l_j over the group's responses j, with lengths l_j (OPO, Hao et
    al. 2025, arXiv 2505.23585).

    The baseline has minimum variance if squared gradients are proportional to lengths. OPO also
    makes one update per rollout batch: set --mini-batch equal to --prompts.
    """
    A = of_groups(tokens)  # [groups, G]; serves as R, see of_groups
    length = tokens.length.view_as(A)
    baseline = (length * A).sum(dim=1, keepdim=True) / length.sum(dim=1, keepdim=True)
    wanted = (A - baseline).flatten().repeat_interleave(tokens.length)
    return in_place_of(wanted, tokens.advantage)


def otb(tokens: TokenBatch, flags: MethodFlags) -> torch.Tensor:
    """A'_t = R - Σ_j E_jt R_j / Σ_j E_jt over the group's responses j with a token t, where the
    energy so far is E_jt = Σ_{s<=t} ‖e_y - p‖² (OTB, Li et al. 2026, arXiv 2602.07078).

    The baseline has minimum variance at each position if a token's gradient is taken with respect
    to its logits. The longest response of a group has A' = 0 after all the others have ended.
    tokens.kept: ‖e_y - p‖² [N, 1]. Raises ValueError for other widths.
    """
    if tokens.kept.shape[1:] != (1,):
        raise ValueError(f"otb needs one number per token, got {tuple(tokens.kept.shape)}")
    # Each rank holds some rows [·, 1] of tokens.kept. per_row gives their values [N] to all ranks.
    energy = per_row(tokens.kept, first_column, tokens.advantage.device)
    lengths = tokens.length.tolist()
    so_far = pad_sequence(energy.double().split(lengths), batch_first=True).cumsum(dim=1)  # [B, T]
    column = torch.arange(so_far.shape[1], device=so_far.device)
    exists = column < tokens.length[:, None]  # [B, T]

    A = of_groups(tokens).double()[:, :, None]  # [groups, G, 1]
    so_far = (so_far * exists).view(*A.shape[:2], -1)  # E [groups, G, T]
    total = so_far.sum(dim=1, keepdim=True)
    baseline = (so_far * A).sum(dim=1, keepdim=True) / torch.where(total == 0, 1.0, total)
    wanted = (A - baseline).flatten(0, 1)[exists]  # [N]
    wanted[wanted.abs() < 1e-9] = 0.0  # rounding, after all other responses have ended
    return in_place_of(wanted, tokens.advantage)


def of_groups(tokens: TokenBatch) -> torch.Tensor:
    """A = (R - mean) / std for each response: [groups, G].

    Baselines use A in place of R: A is affine in R within a group, so
    A - baseline(A) = (R - baseline(R)) / std.
    """
    first = tokens.length.cumsum(0) - tokens.length  # index of each response's first token
    return tokens.advantage[first].view(-1, tokens.group_size)


def logit_energy(outputs: TokenOutputs, head: Callable) -> torch.Tensor:
    """‖e_y - p‖², the squared norm of ∇ log p(y) with respect to the logits: [n, 1]."""
    W = head().to(outputs.hidden.dtype)
    result = torch.empty_like(outputs.logprob)
    size = max(1, LOGITS_PER_BLOCK // len(W))  # tokens per block
    for start in range(0, len(result), size):
        block = slice(start, start + size)
        p = (outputs.hidden[block] @ W.T).softmax(dim=1)  # [size, V]
        p.scatter_add_(1, outputs.token[block, None], -torch.ones_like(p[:, :1]))  # p - e_y
        result[block] = p.square().sum(dim=1)
    return result[:, None]


def first_column(block: torch.Tensor) -> torch.Tensor:
    """[size, 1] -> [size]."""
    return block[:, 0]


# ---- DelTA ---------------------------------------------------------------------------------------


def row_proxy(outputs: TokenOutputs, head: Callable) -> torch.Tensor:
    """v = (1 - p) h for each token (App. F), DelTA's default proxy: [n, H]."""
    return token_gradient_proxy(outputs.hidden, outputs.logprob)


def delta_weights(tokens: TokenBatch, flags: MethodFlags, pieces: Pieces = PAPER) -> torch.Tensor:
    """ρ = λ̄, the discriminative coefficients (Sec. 3.2); ablations.py passes other pieces."""
    bounds = (flags.lam_min, flags.lam_max)
    return delta_coefficients(tokens.kept, tokens.advantage, flags.K, *bounds, pieces)


METHODS = {
    "dapo": Method(weights=ones),
    "grpo": Method(weights=by_response, default_clip=(0.2, 0.2)),
    "reinforce": Method(weights=ones, surrogate=reinforce_surrogate),
    "forking_tokens": Method(weights=forking_tokens),
    "sapo": Method(weights=by_response, surrogate=sapo_surrogate),
    "fipo": Method(weights=fipo, follows_policy=True),
    "w_reinforce": Method(weights=w_reinforce, default_clip=(0.2, 0.2)),
    "opo": Method(weights=opo),
    "otb": Method(weights=otb, keep=logit_energy),
    "delta": Method(weights=delta_weights, keep=row_proxy),
}


def token_weights(method: Method, tokens: TokenBatch, flags: MethodFlags) -> torch.Tensor:
    """The weights ρ [N] of `method`. Raises UserError unless they are N finite numbers >= 0."""
    weights = method.weights(tokens, flags)
    if weights.shape != tokens.logprob.shape:
        raise UserError(
            f"--method {flags.method} gave weights of shape {tuple(weights.shape)}: "
            f"it must return one weight for each of the {len(tokens.logprob)} tokens"
        )
    # θ may be NaN in an update (follows_policy): train.clip_and_step skips and counts it.
    policy_is_finite = tokens.current.isfinite().all()
    if policy_is_finite and not weights.isfinite().all():
        raise UserError(f"--method {flags.method} gave a weight that is NaN or infinite")
    if (weights < 0).any():
        raise UserError(
            f"--method {flags.method} gave a negative weight: "
            "its token would move to the other side"
        )
    return weights
