"""The advantages of other papers as token weights: W-REINFORCE, OPO and OTB.

Each replaces the group advantage A by its own A'. A method here is a weight for each token
(methods.py), so ρ = A'/A.

Departures: (1) a group of equal rewards has A = 0 and no gradient; in W-REINFORCE its tokens have
A' = λ or -1. (2) OPO and OTB keep the division by the group's standard deviation, like REINFORCE
here.

Shapes: B responses, G per prompt, N packed response tokens, n of them in a micro-batch, T tokens
of the longest response, V vocabulary.
Symbols: A advantage, R reward, ρ token weight, p the distribution of the drawn token y.
"""

import torch
from torch.nn.utils.rnn import pad_sequence

from infra.head import LOGIT_BLOCK_KEPT
from infra.packing import TokenBatch
from infra.rows import per_row


def in_place_of(wanted: torch.Tensor, advantage: torch.Tensor) -> torch.Tensor:
    """ρ = A'/A, scaled to mean 1 over the tokens with an advantage: [N].

    wanted: A' [N]. It has the sign of A if all rewards are 0 or 1. With other rewards, as from
    --overlong-buffer, a baseline may exceed a reward; ρ is then negative and refused.
    """
    sides = advantage != 0
    rho = torch.ones_like(advantage)  # tokens without an advantage have no gradient
    ratio = wanted[sides] / advantage[sides]
    rho[sides] = (ratio / ratio.mean()).to(rho.dtype)
    return rho


def w_reinforce(tokens: TokenBatch, flags) -> torch.Tensor:
    """A' = λ for a right response and -1 for a wrong one (W-REINFORCE, Zhu et al. 2025,
    arXiv 2506.01347: λ J_PSR + J_NSR with λ = 0.1). Its released code clips at 0.2."""
    A = tokens.advantage
    return in_place_of(torch.where(A > 0, flags.right_weight, -1.0), A)


def opo(tokens: TokenBatch, flags) -> torch.Tensor:
    """A' = R - Σ_j l_j R_j / Σ_j l_j over the group's responses, l_j tokens each (OPO, Hao et al.
    2025, arXiv 2505.23585).

    The minimum-variance baseline if squared gradients are proportional to lengths. OPO also makes
    one update per rollout batch: set --mini-batch equal to --prompts. `flags` is train.Config.
    """
    A = of_groups(tokens, flags)  # [groups, G]
    length = tokens.length.view_as(A)
    baseline = (length * A).sum(dim=1, keepdim=True) / length.sum(dim=1, keepdim=True)
    wanted = (A - baseline).flatten().repeat_interleave(tokens.length)
    return in_place_of(wanted, tokens.advantage)


def otb(tokens: TokenBatch, flags) -> torch.Tensor:
    """A'_t = R - Σ_j W_jt R_j / Σ_j W_jt over the group's responses that have a token t, with
    W_jt = Σ_{s<=t} ‖e_y - p‖² (OTB, Li et al. 2026, arXiv 2602.07078).

    The minimum-variance baseline at each position if a token's squared gradient is that of its
    logits. The longest response of a group has A' = 0 after all the others have ended.
    tokens.kept: ‖e_y - p‖² [N, 1]. `flags` is train.Config. Raises ValueError for another width.
    """
    if tokens.kept.shape[1:] != (1,):
        raise ValueError(f"otb needs one number per token, got {tuple(tokens.kept.shape)}")
    energy = per_row(tokens.kept, first_number, tokens.advantage.device)  # [N]
    lengths = tokens.length.tolist()
    W = pad_sequence(energy.double().split(lengths), batch_first=True).cumsum(dim=1)  # [B, T]
    exists = torch.arange(W.shape[1], device=W.device) < tokens.length[:, None]  # [B, T]

    A = of_groups(tokens, flags).double()[:, :, None]  # [groups, G, 1]
    W = (W * exists).view(*A.shape[:2], -1)  # [groups, G, T]
    mass = W.sum(dim=1, keepdim=True)
    baseline = (W * A).sum(dim=1, keepdim=True) / torch.where(mass == 0, 1.0, mass)
    wanted = (A - baseline).flatten(0, 1)[exists]  # [N]
    wanted[wanted.abs() < 1e-9] = 0.0  # rounding, after all other responses have ended
    return in_place_of(wanted, tokens.advantage)


def of_groups(tokens: TokenBatch, flags) -> torch.Tensor:
    """A = (R - mean) / std of each response: [groups, G]. Baselines use A in place of R."""
    first = tokens.length.cumsum(0) - tokens.length  # of each response
    return tokens.advantage[first].view(-1, flags.group_size)


def logit_energy(rows, head) -> torch.Tensor:
    """‖e_y - p‖², the squared norm of the gradient of log p(y) in the logits: [n, 1]."""
    W = head().to(rows.hidden.dtype)
    result = torch.empty_like(rows.logprob)
    size = max(1, LOGIT_BLOCK_KEPT // len(W))  # rows in a block
    for start in range(0, len(result), size):
        block = slice(start, start + size)
        p = (rows.hidden[block] @ W.T).softmax(dim=1)  # [size, V]
        p.scatter_add_(1, rows.token[block, None], -torch.ones_like(p[:, :1]))  # p - e_y
        result[block] = p.square().sum(dim=1)
    return result[:, None]


def first_number(block: torch.Tensor) -> torch.Tensor:
    return block[:, 0]
