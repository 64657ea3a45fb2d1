"""The optimiser step, guarded against gradients that are not finite."""

import math

import torch

from infra.checkpoints import RunState
from infra.policy import Policy
from infra.ranks import full_tensor

MOST_SKIPPED = 3  # updates in a row


def clip_and_step(
    policy: Policy, optimizer: torch.optim.Optimizer, max_grad_norm: float, state: RunState
) -> float:
    """Clip the gradient to a global norm, step, and forget it; returns the norm before clipping.

    Where that is not finite (inf or NaN is returned) the update is skipped. state.streak counts
    such updates in a row, over steps too; the third raises FloatingPointError.
    """
    norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), max_grad_norm)
    norm = float(full_tensor(norm))
    if math.isfinite(norm):
        optimizer.step()
        state.streak = 0
    else:
        state.streak += 1
    optimizer.zero_grad()

    if state.streak == MOST_SKIPPED:
        raise FloatingPointError(
            f"the gradient norm was not finite in {MOST_SKIPPED} updates in a row"
        )
    return norm
