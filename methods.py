"""The paper's methods as token weights and surrogates (Apps. E, J).

Near θ_old every method moves the parameters along Σ ρ A v (Eq. 9), so it can be described by its
weights ρ and its surrogate. A method is a record, `Method`. extensions.py has other methods.
Each function's docstring lists its departures from the paper.

Shapes: B responses, N packed response tokens, n in a micro-batch, H hidden size, F features per
token, V vocabulary size.
Symbols: A advantage, r ratio, ρ token weight, λ coefficient.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch

from delta import PAPER, Formulas, delta_coefficients, token_gradient_proxy
from grpo import clipped_surrogate, likelihood_ratio
from infra.errors import UserError
from infra.ranks import is_equal_on_ranks, this_device
from rollout import SEED_STRIDE

DAPO_CLIP = (0.2, 0.28)


# ---- what a method reads -------------------------------------------------------------------------


class TokenOutputs(NamedTuple):
    """A pass's results for n response tokens, which are in the order of their responses."""

    hidden: torch.Tensor  # [n, H] the state h that enters the LM head; no gradient
    token: torch.Tensor  # [n] ids
    logprob: torch.Tensor  # [n] float32, log p of the token at the sampling temperature, nats
    entropy: torch.Tensor | None = None  # [n] float32, -Σ_y p(y) log p(y), nats; at θ_old alone


@dataclass(frozen=True)
class TokenBatch:
    """A rollout batch, or one of its micro-batches, as packed tokens.

    A sum over (i, t) in the paper is a sum over these tokens. Every rank holds the whole batch.
    """

    token: torch.Tensor  # [N] id of the sampled token
    length: torch.Tensor  # [B] tokens of each response; they sum to N
    reward: torch.Tensor  # [B] R of each response, with any length penalty
    advantage: torch.Tensor  # [N] the response's A, repeated over its tokens
    sampler_logprob: torch.Tensor  # [N] the sampler's log p, nats
    old_logprob: torch.Tensor  # [N] log π_old of the sampled token, nats
    entropy: torch.Tensor  # [N] entropy of π_old at that position, nats
    seed: int = 0  # of this step, for random weights

    def __len__(self) -> int:
        return len(self.token)

    def select(self, micro) -> "TokenBatch":
        """The n tokens of a micro_batches.MicroBatch, and its responses."""
        response_index, token_index = micro.response_index, micro.token_index
        return TokenBatch(
            token=self.token[token_index],
            length=self.length[response_index],
            reward=self.reward[response_index],
            advantage=self.advantage[token_index],
            sampler_logprob=self.sampler_logprob[token_index],
            old_logprob=self.old_logprob[token_index],
            entropy=self.entropy[token_index],
            seed=self.seed,
        )

    def span(self, i: int) -> slice:
        """The indices of the tokens of response i."""
        start = int(self.length[:i].sum())
        return slice(start, start + int(self.length[i]))


def packed(
    responses: list,
    rewards: torch.Tensor,
    advantage: torch.Tensor,
    old_logprob: torch.Tensor,
    entropy: torch.Tensor,
    seed: tuple[int, int] = (0, 0),
) -> TokenBatch:
    """The TokenBatch of B rollout.Responses.

    rewards: [B]. advantage, old_logprob, entropy: [N]. seed: (the run's seed, the step).
    """
    run_seed, step = seed
    device = this_device()
    length = torch.tensor([len(response.tokens) for response in responses], device=device)
    token = torch.from_numpy(np.concatenate([response.tokens for response in responses]))
    sampler_logprob = np.concatenate([response.sampler_logprob for response in responses])
    return TokenBatch(
        token=token.long().to(device),
        length=length,
        reward=rewards.to(device),
        advantage=advantage.to(device),
        sampler_logprob=torch.from_numpy(sampler_logprob).to(device),
        old_logprob=old_logprob,
        entropy=entropy,
        seed=SEED_STRIDE * run_seed + step,
    )


# ---- a method ------------------------------------------------------------------------------------


def dapo_surrogate(logprob: torch.Tensor, tokens: TokenBatch, cfg) -> torch.Tensor:
    """DAPO's surrogate (Sec. 2), used by most methods, with the clip range in `cfg`: [n]."""
    return clipped_surrogate(
        logprob, tokens.old_logprob, tokens.advantage, cfg.clip_low, cfg.clip_high
    )


def ones(tokens: TokenBatch, v, cfg) -> torch.Tensor:
    """ρ = 1: every token counts equally (Eq. 13)."""
    return torch.ones_like(tokens.advantage)


@dataclass(frozen=True)
class Method:
    """One method, as its differences from DAPO, which is `Method()`. `cfg` is a config.Config."""

    # (tokens, v, cfg) -> ρ [N] >= 0, called once per rollout batch with all N tokens. v: what
    # `features` kept, or None. ρ should have mean 1, so that methods share a learning rate.
    weights: Callable[..., torch.Tensor] = ones

    # (log π_θ [n], tokens, cfg) -> [n], each token's term in the objective to maximise, for the n
    # tokens of a micro-batch; the loop multiplies it by ρ. It is called again for clip_fraction.
    surrogate: Callable[..., torch.Tensor] = dapo_surrogate

    # The defaults of --clip-low and --clip-high. None: both are refused, as there is no clip.
    clip_range: tuple[float, float] | None = DAPO_CLIP

    # (outputs, head) -> v [n, F], computed from the hidden states at θ_old and passed to `weights`.
    # outputs: a TokenOutputs with hidden in float32. head() returns the LM head divided by the
    # temperature, W [V, H]: logits = hidden @ W.T. The first call gathers W. Each rank
    # holds the rows of its own responses (infra.rows.Rows): `v @ d` and `w @ v` give results for
    # all N.
    features: Callable[..., torch.Tensor] | None = None

    # What `weights` keeps from step to step; checkpoints save it.
    memory: dict = field(default_factory=dict)

    def kept_features(self, outputs: TokenOutputs, head: Callable) -> torch.Tensor:
        """features(outputs, head), computed in float32 and kept in the dtype of the model's h.

        In bfloat16 h has 8 significant bits, so v is no more accurate than that, and float32 rows
        would take twice the memory. One number per token, F = 1, stays in float32.
        """
        v = self.features(outputs._replace(hidden=outputs.hidden.float()), head)
        return v.to(outputs.hidden.dtype) if v.shape[1] > 1 else v

    def is_clipped(self, logprob: torch.Tensor, tokens: TokenBatch, cfg) -> torch.Tensor:
        """The tokens with an advantage to which the surrogate gives no gradient: bool [n].

        The surrogate's slope in log π decides, so this holds for any surrogate.
        """
        point = logprob.detach().requires_grad_()
        (slope,) = torch.autograd.grad(self.surrogate(point, tokens, cfg).sum(), point)
        return (slope == 0) & (tokens.advantage != 0)

    def checked_weights(self, tokens: TokenBatch, v, cfg) -> torch.Tensor:
        """ρ [N]. Raises UserError unless all are finite, >= 0, and the same on all ranks."""
        weights = self.weights(tokens, v, cfg)
        fits = weights.shape == tokens.token.shape and (weights.isfinite() & (weights >= 0)).all()
        is_equal = is_equal_on_ranks(weights if fits else weights.new_tensor([math.inf]))
        if not fits:
            raise UserError(
                f"--method {cfg.method} must give one finite weight >= 0 for each of "
                f"{len(tokens)} tokens: a negative one moves its token to the other side"
            )
        if not is_equal:
            raise UserError(
                f"--method {cfg.method} gives different weights on different ranks: a rank holds "
                "only its rows of v, so use `v @ d` or `w @ v`, which read all rows"
            )
        return weights


# ---- GRPO and forking tokens ---------------------------------------------------------------------


def by_response(tokens: TokenBatch, v, cfg) -> torch.Tensor:
    """ρ ∝ 1/|o_i|: a mean within each response, then over responses (Eq. 12; GRPO and SAPO).

    Unlike the paper's, ρ has mean 1 over the rollout batch, not over each mini-batch. For SAPO the
    paper states only the gate; SAPO's own paper (arXiv 2511.20347), verl and TRL take this mean.
    """
    mean_length = tokens.length.sum() / len(tokens.length)
    weight = mean_length / tokens.length  # [B], scaled to mean 1 over tokens
    return weight.repeat_interleave(tokens.length)


def forking_tokens(tokens: TokenBatch, v, cfg) -> torch.Tensor:
    """ρ ∝ 1[entropy in the top 20 %], pooled over the rollout batch (Eq. 14).

    The sum is divided by the number of selected tokens in the rollout batch, as in the official
    code. The paper's formula divides by all tokens, and its loss is five times smaller.
    """
    return top_share(tokens.entropy, 0.2, tokens.seed)


def top_share(values: torch.Tensor, share: float, seed: int) -> torch.Tensor:
    """N / n for the n = ceil(share N) tokens with the highest values, else 0: [N], mean 1.

    Ties are broken at random; by position, the first responses would win them.
    """
    n = math.ceil(share * len(values))
    shuffled = torch.randperm(len(values), generator=torch.Generator().manual_seed(seed))
    shuffled = shuffled.to(values.device)
    order = values[shuffled].argsort(descending=True, stable=True)
    weights = torch.zeros_like(values)
    weights[shuffled[order[:n]]] = len(values) / max(n, 1)  # N = 0: --select, every A is 0
    return weights


# ---- SAPO ----------------------------------------------------------------------------------------


def sapo_surrogate(logprob: torch.Tensor, tokens: TokenBatch, cfg) -> torch.Tensor:
    """A (4/τ) σ(τ (r - 1)), τ = 1.0 where A > 0, else 1.05 (App. J).

    A soft gate replaces the clip: its slope in r is A at r = 1 and decays on both sides.
    """
    ratio = likelihood_ratio(logprob, tokens.old_logprob)  # r
    tau = torch.where(tokens.advantage > 0, 1.0, 1.05)
    return tokens.advantage * 4 / tau * torch.sigmoid(tau * (ratio - 1))


# ---- FIPO ----------------------------------------------------------------------------------------

# App. I's "decay 32.0" is a half-life of 32 tokens in the released code, and its "chunk 128" only
# limits that code's memory: the sum is the same without chunks.
FIPO_DECAY = 2 ** (-1 / 32)
FIPO_SAFETY = 10  # the log-ratio counts as 0 if r is above this
FIPO_CLIP = (1.0, 1.2)  # the range of the weights


def fipo_surrogate(logprob: torch.Tensor, tokens: TokenBatch, cfg) -> torch.Tensor:
    """f min(r A, clip(r) A) with FIPO's weights f (Eq. 15).

    f depends on θ, so it is computed here and not in `weights`. As in the released code, f is not
    normalised. That code drops a response with more than one dual-clipped token; the paper's
    objective and this code keep it.
    """
    f = fipo_weights(logprob.detach(), tokens.old_logprob, tokens.length)
    return f * dapo_surrogate(logprob, tokens, cfg)


def fipo_weights(
    logprob: torch.Tensor, old_logprob: torch.Tensor, length: torch.Tensor
) -> torch.Tensor:
    """f_t = clip(exp F_t, 1, 1.2), F_t = Σ_{k>=t} decay^(k-t) log r_k within a response (Eq. 15).

    F is the discounted future KL, including the current token.
    logprob, old_logprob: [n]. length: [b], tokens of each response; they sum to n.
    """
    log_ratio = (logprob - old_logprob).clamp(-20, 20)
    future = torch.where(log_ratio.exp() <= FIPO_SAFETY, log_ratio, 0.0)
    responses = torch.arange(len(length), device=future.device)
    # With output_size known, the host does not wait for the GPU.
    response = responses.repeat_interleave(length, output_size=len(future))  # [n]

    # F_t = log r_t + decay F_{t+1}, by doubling: future[t] is the discounted sum over the next
    # `reach` tokens of the response, starting at t. Each pass doubles `reach`.
    reach = 1
    while reach < len(future):
        inside = response[reach:] == response[:-reach]
        future[:-reach] += FIPO_DECAY**reach * future[reach:] * inside
        reach *= 2
    return future.exp().clamp(*FIPO_CLIP)


# ---- DelTA ---------------------------------------------------------------------------------------


def row_proxy(outputs: TokenOutputs, head: Callable) -> torch.Tensor:
    """v = (1 - p) h for each token (App. F), DelTA's default proxy: [n, H]."""
    return token_gradient_proxy(outputs.hidden, outputs.logprob)


def delta_weights(tokens: TokenBatch, v, cfg, formulas: Formulas = PAPER) -> torch.Tensor:
    """ρ = λ̄, the discriminative coefficients (Sec. 3.2); ablations replace some formulas."""
    return delta_coefficients(v, tokens.advantage, cfg.K, cfg.lam_min, cfg.lam_max, formulas)


PAPER_METHODS = {
    "dapo": Method(),
    "grpo": Method(weights=by_response, clip_range=(0.2, 0.2)),
    "forking_tokens": Method(weights=forking_tokens),
    "sapo": Method(weights=by_response, surrogate=sapo_surrogate, clip_range=None),
    "fipo": Method(surrogate=fipo_surrogate),
    "delta": Method(weights=delta_weights, features=row_proxy),
}
