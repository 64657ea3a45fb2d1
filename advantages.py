"""Other papers' advantages as token weights: W-REINFORCE, OPO and OTB, which are not in this one.

Each has another A' in the place of the group advantage A. As a method is a weight on each token
(methods.py), ρ = A'/A.

Departures: (1) a group of equal rewards has A = 0 and stays without a gradient, where W-REINFORCE
has λ or -1 throughout. (2) OPO and OTB keep the division by the group's standard deviation, as
REINFORCE does here.

Shapes: B responses, G of them to a prompt, N packed response tokens, n of them in a micro-batch,
T tokens of the longest response, V vocabulary.
Symbols: A advantage, R reward, ρ token weight, p distribution from which the word y was drawn.
"""

import torch
from torch.nn.utils.rnn import pad_sequence

from infra.head import LOGIT_BLOCK_KEPT
from infra.packing import TokenBatch
from infra.rows import per_row


def in_place_of(wanted: torch.Tensor, advantage: torch.Tensor) -> torch.Tensor:
    """ρ = A'/A, so that ρ A is the wanted A', at mean 1 over tokens with an advantage: [N].

    wanted: A' [N], of the sign of A where rewards are 0 or 1. With others, such as
    --overlong-buffer gives, a baseline may lie beyond a reward: ρ is then negative and refused.
    """
    sides = advantage != 0
    rho = torch.ones_like(advantage)  # tokens without an advantage move nothing
    ratio = wanted[sides] / advantage[sides]
    rho[sides] = (ratio / ratio.mean()).to(rho.dtype)
    return rho


def w_reinforce(tokens: TokenBatch, flags) -> torch.Tensor:
    """A' = λ for a right response and -1 for a wrong one (W-REINFORCE, Zhu et al. 2025,
    arXiv 2506.01347: λ J_PSR + J_NSR with λ = 0.1). Its release clips at 0.2."""
    A = tokens.advantage
    return in_place_of(torch.where(A > 0, flags.right_weight, -1.0), A)


def opo(tokens: TokenBatch, flags) -> torch.Tensor:
    """A' = R - Σ_j l_j R_j / Σ_j l_j, over the group's responses of l_j tokens (OPO, Hao et al.
    2025, arXiv 2505.23585).

    The baseline of least variance where squared gradients are proportional to lengths. OPO also
    wants one update a rollout batch: --mini-batch as large as --prompts. `flags` is train.Config.
    """
    A = of_groups(tokens, flags)  # [groups, G]
    length = tokens.length.view_as(A)
    baseline = (length * A).sum(dim=1, keepdim=True) / length.sum(dim=1, keepdim=True)
    wanted = (A - baseline).flatten().repeat_interleave(tokens.length)
    return in_place_of(wanted, tokens.advantage)


def otb(tokens: TokenBatch, flags) -> torch.Tensor:
    """A'_t = R - Σ_j W_jt R_j / Σ_j W_jt over the group's responses that have a token t, with
    W_jt = Σ_{s<=t} ‖e_y - p‖² (OTB, Li et al. 2026, arXiv 2602.07078).

    The baseline of least variance at each position, where a token's squared gradient is that of
    its logits. A response that is longer than all others of its group has A' = 0 beyond them.
    tokens.kept: ‖e_y - p‖² [N, 1]. `flags` is train.Config. Raises ValueError on another width.
    """
    if tokens.kept.shape[1:] != (1,):
        raise ValueError(f"otb needs one number a token, got {tuple(tokens.kept.shape)}")
    energy = per_row(tokens.kept, first_number, tokens.advantage.device)  # [N]
    lengths = tokens.length.tolist()
    W = pad_sequence(energy.double().split(lengths), batch_first=True).cumsum(dim=1)  # [B, T]
    exists = torch.arange(W.shape[1], device=W.device) < tokens.length[:, None]  # [B, T]

    A = of_groups(tokens, flags).double()[:, :, None]  # [groups, G, 1]
    W = (W * exists).view(*A.shape[:2], -1)  # [groups, G, T]
    mass = W.sum(dim=1, keepdim=True)
    baseline = (W * A).sum(dim=1, keepdim=True) / torch.where(mass == 0, 1.0, mass)
    wanted = (A - baseline).flatten(0, 1)[exists]  # [N]
    wanted[wanted.abs() < 1e-9] = 0.0  # rounding, where one response alone goes on
    return in_place_of(wanted, tokens.advantage)


def of_groups(tokens: TokenBatch, flags) -> torch.Tensor:
    """A of each response, [groups, G]: (R - mean) / std, so that R's baselines are A's as well."""
    first = tokens.length.cumsum(0) - tokens.length  # of each response
    return tokens.advantage[first].view(-1, flags.group_size)


def logit_energy(rows, head) -> torch.Tensor:
    """‖e_y - p‖², the squared length of the gradient of log p(y) in the logits: [n, 1]."""
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
