"""Estimates from independent batches what a step along a gradient is worth, to first order.

A row is a weighting ρ of the tokens. g is the row's gradient on a batch, Σ ρ A ∇log π / N, and J is
the batch's policy gradient of expected reward. ⟨J, g⟩ / ‖g‖ is the rise of expected reward for a
step of unit length. J comes from other batches than g, so that J and g share no noise.

The errors are jackknife errors: an estimate is computed from all batches, and again without each of
the C blocks of batches, whose J is left out too. Functions return these estimates as [1 + C, ...].

Shapes: n batches in C blocks, E pairs of halves of the blocks, W rows, D parameters, S of which are
sampled coordinates.
"""

from collections.abc import Iterator

import torch

from benchmarks.gradients import products
from infra.ranks import this_device

HALVINGS = 4  # random halvings of the blocks; each is used both ways
ADAM_EPS = 1e-8  # torch.optim.AdamW's default
GROUPS = 16  # groups of coordinates; their scatter is the error that sampling coordinates adds
SLICES = 256  # slices of coordinates, which are taken one after the other to save memory

# ---- the jackknife -------------------------------------------------------------------------------


def without_each(count: int) -> Iterator[torch.Tensor]:
    """Yields which of `count` blocks stay, bool [C]: first all blocks, then all but one in turn."""
    yield torch.ones(count, dtype=torch.bool)
    for out in range(count):
        yield torch.arange(count) != out


def jackknife_error(values: torch.Tensor) -> torch.Tensor:
    """The standard error of values[0], from values[1:], which leave out one block each."""
    without = values[1:]
    deviations = without - without.mean(dim=0)
    return (deviations.square().sum(dim=0) * (len(without) - 1) / len(without)).sqrt()


def halves(kept: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yields both halves of random halvings of the blocks that stay, bool [C] each, both ways."""
    for seed in range(HALVINGS):
        order = torch.randperm(len(kept), generator=torch.Generator().manual_seed(seed))
        first = kept.clone()
        first[order[kept[order]][: kept.sum() // 2]] = False
        yield first, kept & ~first
        yield kept & ~first, first


# ---- sampled coordinates ------------------------------------------------------------------------


def sampled_coordinates(J: torch.Tensor, count: int, seed: int) -> tuple:
    """(index [S], weight [S]): Σ weight x[index] is an unbiased estimate of Σ x over J's D.

    A coordinate's probability is proportional to |J| + mean |J|, because in Adam's metric it
    contributes about |J| at most. If D is at most `count`, all coordinates have weight 1.
    """
    if len(J) <= count:
        return torch.arange(len(J), device=J.device), torch.ones_like(J)
    share = J.abs() + J.abs().mean()
    cumulative = share.cumsum(0, dtype=torch.float64)
    start = torch.rand((), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    points = torch.arange(count, dtype=torch.float64, device=J.device) + start.item()
    index = torch.searchsorted(cumulative, points * (cumulative[-1] / count), right=True)
    index.clamp_max_(len(J) - 1)
    return index, (cumulative[-1] / count / share[index]).to(J.dtype)


# ---- the estimates -------------------------------------------------------------------------------


def estimates(blocks: list[dict], block: torch.Tensor, parameters: int) -> dict[str, torch.Tensor]:
    """Statistic -> its values for the rows, [1 + C, W]; "adam by coordinates" has [GROUPS, W].

    blocks: the result of Study.products_of_block (gain.py) for each block. Its lines are J, entropy
    and the rows. block: each batch's block, [n]. parameters: D.
    """
    gram, with_blocks, kl = (
        torch.cat([each[name] for each in blocks]) for name in ("gram", "with_blocks", "kl")
    )  # [n, 2 + W, 2 + W], [n, 2 + W, C, 2], [n, W]
    sums, squares = (
        torch.stack([each[name].to(this_device()) for each in blocks])
        for name in ("sums", "squares")
    )  # [C, 1 + W, S], [C, W, S]
    weight = blocks[0]["weight"].to(this_device())
    norm = gram.diagonal(dim1=1, dim2=2)[:, 2:].clamp(min=0).sqrt()  # [n, W]
    found = {}
    for place, name in enumerate(("gain", "entropy")):
        found[name] = step_gains(with_blocks[:, 2:, :, place], gram[:, place, 2:], norm, block)
    found["kl"] = means(kl, block)
    found["noise"], found["bias"] = noise_and_bias(sums, weight, norm, block)
    found["adam"], groups = adam_gains(sums, squares, weight, block)
    if len(weight) < parameters:
        found["adam by coordinates"] = groups  # [GROUPS, W]
    return found


def means(values: torch.Tensor, block: torch.Tensor) -> torch.Tensor:
    """The mean over batches of values [n, W]: [1 + C, W]. block: each batch's block, [n]."""
    kept = without_each(int(block.max()) + 1)
    return torch.stack([values[some[block]].mean(dim=0) for some in kept])


def step_gains(
    with_blocks: torch.Tensor, own: torch.Tensor, norm: torch.Tensor, block: torch.Tensor
) -> torch.Tensor:
    """The mean of ⟨J of the other batches, g⟩ / ‖g‖: [1 + C, W]. A g of 0 gains nothing.

    with_blocks: ⟨sum of J over block c, g⟩, [n, W, C]. own: ⟨J of g's own batch, g⟩ [n, W].
    norm: ‖g‖ [n, W]. block: each batch's block, [n].
    """
    results = []
    for kept in without_each(with_blocks.shape[2]):
        some = kept[block]  # [n]
        others = with_blocks[:, :, kept].sum(dim=2) - own
        each = others / (some.sum() - 1) / norm.clamp(min=1e-300)
        results.append(each[some].mean(dim=0))
    return torch.stack(results)


def noise_and_bias(
    sums: torch.Tensor, weight: torch.Tensor, norm: torch.Tensor, block: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(tr Cov g / ‖E g‖², the cosine of E g with E J), [1 + C, W] each.

    sums: the sums of J and of each row's g over each block, at the sampled coordinates,
    [C, 1 + W, S]. Only products of two different blocks count, because these share no noise.
    weight: the coordinates' weights, [S]. norm: ‖g‖ [n, W]. block: each batch's block, [n].
    """
    J = sums[:, 0]
    of_rows = [products(g * weight, [g, J]) for g in sums.unbind(dim=1)]
    crossed = torch.stack(of_rows).cpu().unflatten(2, (2, -1))  # [1 + W, C, 2, C]
    crossed *= ~torch.eye(len(sums), dtype=torch.bool)[:, None]
    count = torch.bincount(block).double()
    noise, bias = [], []
    for kept in without_each(len(sums)):
        pairs = count[kept].sum().square() - count[kept].square().sum()
        square, with_J = crossed[:, kept][..., kept].sum(dim=(1, 3)).T / pairs  # [1 + W] each
        noise.append(norm[kept[block]].square().mean(dim=0) / square[1:] - 1)
        bias.append((with_J / (square * square[0]).sqrt())[1:])
    return torch.stack(noise), torch.stack(bias)


def adam_gains(
    sums: torch.Tensor, squares: torch.Tensor, weight: torch.Tensor, block: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """⟨J, m / (sqrt(v) + ε)⟩ of each row: ([1 + C, W], [GROUPS, W] over groups of coordinates).

    m and v are the means of g and g² over half of the batches; J is from the other half.
    sums, weight, block: as in noise_and_bias. squares: the sums of g² over each block, [C, W, S].
    """
    pairs = [pair for kept in without_each(len(sums)) for pair in halves(kept)]
    of_J, of_g = torch.stack([torch.stack(pair) for pair in pairs], dim=1).to(sums)  # [E, C] each
    count = torch.bincount(block).to(sums)
    of_J, of_g = of_J / (of_J @ count)[:, None], of_g / (of_g @ count)[:, None]
    groups = torch.zeros(GROUPS, len(pairs), squares.shape[1], dtype=torch.float64)
    for start in range(SLICES):
        own = slice(start, None, SLICES)
        J = of_J @ (sums[:, 0, own] * weight[own])  # [E, S / SLICES]
        m = torch.einsum("ec,cws->ews", of_g, sums[:, 1:, own])
        v = torch.einsum("ec,cws->ews", of_g, squares[:, :, own])
        moved = m / (v.sqrt() + ADAM_EPS)
        groups[start % GROUPS] += torch.einsum("ews,es->ew", moved, J).double().cpu()
    by_halving = groups.unflatten(1, (1 + len(sums), -1)).mean(dim=2)
    return by_halving.sum(dim=0), by_halving[:, 0]


def sampling_variance(groups: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
    """The variance [] that sampling coordinates adds to Σ groups / Σ base, both [GROUPS]."""
    apart = groups - groups.sum() / base.sum() * base
    return apart.var() * len(apart) / base.sum().square()
