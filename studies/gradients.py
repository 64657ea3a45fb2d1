"""The directions in which token weights move the parameters, and their cosines.

An update is linear in its tokens' coefficients. With token gradients v, its direction is Σ ρ A v =
g₊ + g₋, the sum of the two sides' parts. The effect of the weights therefore has two parts:

    means   m₊ d₊ + m₋ d₋ changes the balance between the sides, but not within a side.
            d₊ and d₋ are the parts of plain DAPO (ρ = 1), m₊ and m₋ the sides' mean weights.
    shape   g₊ / m₊ + g₋ / m₋ rescales each side to mean weight 1 and keeps ratios within it.

Shapes: B responses, N packed response tokens, D parameters, M weightings.
"""

import torch

from batch import Rollout, micro_batch
from policy import Policy

PARTS = ("full", "shape", "means")
AT_ONCE = 32  # responses: few enough for their activations to stay in the processor's cache


def direction(lm, rollouts: list[Rollout], coefficient: torch.Tensor) -> torch.Tensor:
    """The flat gradient of Σ coefficient log π in all parameters: coefficient [N] -> [D]."""
    return directions(lm, rollouts, coefficient[None], torch.arange(len(rollouts)))[0]


def directions(
    lm, rollouts: list[Rollout], coefficients: torch.Tensor, index: torch.Tensor
) -> torch.Tensor:
    """`direction` for M weightings, summed over the responses in `index`: [M, N] -> [M, D].

    All weightings share one forward pass. The parameters' .grad is not touched.
    """
    policy = Policy(lm)
    parameters = list(lm.parameters())
    total = torch.zeros(len(coefficients), sum(p.numel() for p in parameters))
    for some in index.split(AT_ONCE):
        micro = micro_batch(rollouts, some.tolist(), lm.device)
        logprob = policy(micro.ids, micro.mask).logprob
        for m, coefficient in enumerate(coefficients):
            gradients = torch.autograd.grad(
                logprob, parameters, coefficient[micro.places], retain_graph=True
            )
            total[m] += torch.cat([g.flatten() for g in gradients])
    return total


def side_directions(
    lm, rollouts: list[Rollout], advantages: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """g₊ and g₋ for M weightings: advantages [B] and weights [M, N] -> [M, 2, D]."""
    length = torch.tensor([len(each.tokens) for each in rollouts])
    coefficients = weights * advantages.repeat_interleave(length)
    sides = []
    for side in (advantages > 0, advantages < 0):
        sides.append(directions(lm, rollouts, coefficients, side.nonzero().flatten()))
    return torch.stack(sides, dim=1)


def side_means(weights: torch.Tensor, advantage: torch.Tensor) -> torch.Tensor:
    """m₊ and m₋, the mean weight of each side's tokens: [N] and [N] -> [2]."""
    return torch.stack([weights[advantage > 0].mean(), weights[advantage < 0].mean()])


def parts_of(sides: torch.Tensor, dapo: torch.Tensor, means: torch.Tensor) -> torch.Tensor:
    """The complete update and its split, in the order of PARTS: [3, D].

    sides: g₊ and g₋ [2, D]; dapo: d₊ and d₋ [2, D]; means: m₊ and m₋ [2].
    """
    full = sides.sum(dim=0)
    shape = (sides / means[:, None]).sum(dim=0)
    only_means = (dapo * means[:, None]).sum(dim=0)
    return torch.stack([full, shape, only_means])


def cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    """The cosine between two directions [D], in float64."""
    return float(torch.cosine_similarity(a.double(), b.double(), dim=0))


def reliability(agreement: float) -> float:
    """The squared cosine between an estimate and the true value (Spearman-Brown).

    agreement: the cosine between the estimate's two independent halves. NaN if agreement <= 0.
    """
    if agreement <= 0:
        return float("nan")
    return 2 * agreement / (1 + agreement)
