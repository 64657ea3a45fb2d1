"""Has what is not in the paper: other papers' methods, and our own questions about DelTA.

A method of your own belongs here too: write its weights and add its record to OTHER_METHODS.

Shapes: B responses, G per prompt, N packed response tokens, n in a micro-batch, H hidden size,
V vocabulary size.
Symbols: A advantage, ρ token weight, λ coefficient.
"""

from collections.abc import Callable

import torch

from grpo import likelihood_ratio
from infra.head import block_size
from methods import Method, TokenBatch, TokenOutputs, by_response, dapo_surrogate

# ---- other papers' methods -----------------------------------------------------------------------


def reinforce_surrogate(logprob: torch.Tensor, tokens: TokenBatch, cfg) -> torch.Tensor:
    """A log π per token: no ratio and no clip. A is still divided by the group's std."""
    return tokens.advantage * logprob


def cispo_surrogate(logprob: torch.Tensor, tokens: TokenBatch, cfg) -> torch.Tensor:
    """sg(min(r, C)) A log π: the ratio is a capped constant, so every token keeps its gradient.

    CISPO (MiniMax-M1, 2025, arXiv 2506.13585, Eqs. 4 and 5) has no lower bound either. Its paper
    does not state C; the default of --cispo-cap is that of Khatri et al. 2025 (arXiv 2510.13786) in
    TRL.
    """
    ratio = likelihood_ratio(logprob.detach(), tokens.old_logprob)  # r
    return ratio.clamp(max=cfg.cispo_cap) * tokens.advantage * logprob


def gspo_surrogate(logprob: torch.Tensor, tokens: TokenBatch, cfg) -> torch.Tensor:
    """min(s A, clip(s) A), s = (π_θ(o)/π_old(o))^(1/|o|) of the whole response o, for each token.

    GSPO (Zheng et al. 2025, arXiv 2507.18071, Eqs. 5 to 7), by its Eq. 14: log s is a constant, and
    each token keeps the gradient of its own log π. GSPO averages over responses, so its weights are
    ρ ∝ 1/|o_i|, as in GRPO. Its clip range is 3e-4 and 4e-4 (Sec. 5.1), because log s is small.
    """
    index = torch.arange(len(tokens.length), device=logprob.device)
    # [n]; with output_size the host does not wait for the GPU.
    response = index.repeat_interleave(tokens.length, output_size=len(logprob))
    log_ratio = logprob.detach() - tokens.old_logprob
    total = log_ratio.new_zeros(len(index)).index_add_(0, response, log_ratio)
    log_s = (total / tokens.length)[response]  # [n] the mean of log r_t over the response
    # It replaces log π_θ: its ratio is s, since the last term is 0; its slope is that of log π_θ.
    stand_in = tokens.old_logprob + log_s + (logprob - logprob.detach())
    return dapo_surrogate(stand_in, tokens, cfg)


def dr_grpo(tokens: TokenBatch, v, cfg) -> torch.Tensor:
    """ρ = A'/A for A' = R - mean(R), without the division by the group's standard deviation.

    Dr. GRPO (Liu et al. 2025, arXiv 2503.20783). All tokens of the batch count equally, and ρ has
    mean 1 over the tokens with an advantage; the others have no gradient.
    RLOO subtracts the mean of the *other* rewards, which gives G/(G-1) A' and the same weights
    here, since they are scaled to mean 1. Dr. GRPO divides by a constant, the longest length, and
    Eq. 8 by N, which changes a little from update to update. A constant is only a learning rate.
    """
    std = tokens.reward.view(-1, cfg.group_size).std(dim=1)  # of each group
    rho = std.repeat_interleave(cfg.group_size).repeat_interleave(tokens.length)  # [N] A'/A
    return torch.where(tokens.advantage == 0, 1.0, rho / rho[tokens.advantage != 0].mean())


# ---- other proxies -------------------------------------------------------------------------------


def lm_head_gradient(outputs: TokenOutputs, head: Callable) -> torch.Tensor:
    """v = (e_y - p) ⊗ h, the exact LM-head gradient, flattened: [n, V H], for toy-sized models.

    NTHR (arXiv 2505.18830) compares tokens by this gradient too, within each prompt.
    """
    W = head().to(outputs.hidden.dtype)
    p = (outputs.hidden @ W.T).softmax(dim=1)  # [n, V]
    residual = torch.nn.functional.one_hot(outputs.token, len(W)) - p  # e_y - p
    return (residual[:, :, None] * outputs.hidden[:, None, :]).flatten(1)


def centred_proxy(outputs: TokenOutputs, head: Callable) -> torch.Tensor:
    """v = (Σ_y p(y)² - p) h: the row proxy minus its mean in each state: [n, H].

    A token's gradient has mean zero: E[∇ log p(y) | state] = 0. The row proxy (1 - p) h does not:
    its mean is (1 - Σ_y p(y)²) h, which the state contributes whichever token is drawn.
    """
    W = head().to(outputs.hidden.dtype)
    blocks = outputs.hidden.split(block_size(W.device, len(W)))
    sum_p2 = torch.cat([(h @ W.T).softmax(dim=1).square().sum(dim=1) for h in blocks])
    scalar = sum_p2 - outputs.logprob.exp()  # [n], 0 on average over the tokens drawn in a state
    return scalar[:, None] * outputs.hidden


def scalar_proxy(outputs: TokenOutputs, head: Callable) -> torch.Tensor:
    """v = 1 - p: [n, 1], the row proxy if all hidden states were one vector."""
    return -torch.expm1(outputs.logprob)[:, None]


# ---- the values of --method and --proxy, beside the paper's --------------------------------------

OTHER_METHODS = {
    "reinforce": Method(surrogate=reinforce_surrogate, clip_range=None),
    "cispo": Method(surrogate=cispo_surrogate, clip_range=None),
    "gspo": Method(weights=by_response, surrogate=gspo_surrogate, clip_range=(3e-4, 4e-4)),
    "dr_grpo": Method(weights=dr_grpo, clip_range=(0.2, 0.2)),
}
OTHER_PROXIES = {
    "exact_gradient": lm_head_gradient,
    "centred": centred_proxy,
    "scalar": scalar_proxy,
}
