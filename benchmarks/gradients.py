"""Computes gradients of weighted sums of log-probabilities, their products, and the KL of a step.

A gradient is linear in the tokens' coefficients. So the rows of `gain` are mixes of a few parts,
and only the parts need a backward pass.

Shapes: P parts and W rows of coefficients, N tokens of a batch, n tokens of a micro-batch, D
parameters.
"""

import torch

from infra.micro_batches import MicroBatch
from infra.ranks import this_device

TOLERANCE = 1e-5  # relative; weights are in float32
CHUNK = 2**20  # coordinates summed in float32 at a time; the sums of chunks are added in float64
LENGTH = 1e-3  # length of the step whose change of log π is measured


def sides(coefficient: torch.Tensor) -> torch.Tensor:
    """The two parts of ρ A / N [N], where A > 0 and where A < 0: [2, N]."""
    return torch.stack([coefficient.clamp(min=0), coefficient.clamp(max=0)])


def decomposed(rows: torch.Tensor, parts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(parts [P, N], mix [W, P]) with rows = mix @ parts, float64 on the host.

    The rows' gradients are the same mix of the parts' gradients, so a row of two constants needs no
    backward pass of its own. rows: coefficients [W, N]. parts: candidates [any, N], which are tried
    first; a row that is no mix of the parts so far becomes a part.
    """
    basis = [part for part in parts.double().cpu() if part.any()]
    mixes = []
    for row in rows.double().cpu():
        known = torch.stack([*basis, torch.zeros_like(row)], dim=1)  # a column even if basis is []
        mix = torch.linalg.lstsq(known, row[:, None], driver="gelsd").solution.squeeze(1)
        if (row - known @ mix).norm() > TOLERANCE * row.norm():
            mix = (torch.arange(len(basis) + 1) == len(basis)).double()
            basis.append(row)
        mixes.append(mix[: len(basis)])
    return torch.stack(basis), torch.nn.utils.rnn.pad_sequence(mixes, batch_first=True)


def gradients(policy, micro_batches: list[MicroBatch], parts: torch.Tensor) -> torch.Tensor:
    """Σ_t part_t ∇log π_t of each part: [P, N] -> [P, D] float32. All share a forward pass."""
    parameters = list(policy.parameters())
    sizes = [x.numel() for x in parameters]
    parts = parts.float().to(this_device())
    total = torch.zeros(len(parts), sum(sizes), device=this_device())
    for micro in micro_batches:
        own = parts[:, micro.token_index]  # [P, n]
        wanted = own.any(dim=1).nonzero().flatten().tolist()
        logprob = policy(micro.ids, micro.is_token).logprob if wanted else None
        for p in wanted:
            again = {"retain_graph": p != wanted[-1], "materialize_grads": True}
            found = torch.autograd.grad(logprob, parameters, own[p], **again)
            for place, gradient in zip(total[p].split(sizes), found, strict=True):
                place += gradient.flatten()
    return total


@torch.no_grad()
def step_kls(
    policy,
    micro_batches: list[MicroBatch],
    parts: torch.Tensor,
    mix: torch.Tensor,
    norm: torch.Tensor,
) -> torch.Tensor:
    """KL(π ‖ π after a step of unit length) along each row's gradient, to second order: [W].

    It is the mean of (⟨∇log π_t, g⟩ / ‖g‖)² / 2 over the tokens of micro_batches, which π drew. The
    fraction is the change of log π_t over a step of length LENGTH, divided by LENGTH. The rows' g
    are mix [W, P] @ parts [P, D], and norm [W] is ‖g‖.
    """
    parameters = list(policy.parameters())
    sizes = [x.numel() for x in parameters]

    def logprobs() -> torch.Tensor:
        return torch.cat([policy(micro.ids, micro.is_token).logprob for micro in micro_batches])

    before = logprobs().double()  # [tokens of all micro-batches]
    found = []
    kept = [x.clone() for x in parameters]
    for own, length in zip(mix, norm, strict=True):
        step = (own.to(parts) @ parts) * float(LENGTH / length.clamp(min=1e-300))  # [D]
        for place, change in zip(parameters, step.split(sizes), strict=True):
            place += change.view_as(place)
        slope = (logprobs().double() - before) / LENGTH
        found.append(slope.square().mean() / 2)
        for place, old in zip(parameters, kept, strict=True):
            place.copy_(old)
    return torch.stack(found).cpu()


def products(a: torch.Tensor, b: list[torch.Tensor]) -> torch.Tensor:
    """Inner products of a [P, D] with all rows of the matrices b, [any, D] each: float64."""
    parts = []
    for start in range(0, a.shape[1], CHUNK):
        own = slice(start, start + CHUNK)
        parts.append((a[:, own] @ torch.cat([x[:, own].to(a) for x in b]).T).double())
    return torch.stack(parts).sum(dim=0)
