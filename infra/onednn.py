"""Without this file float32 products on a CPU would be torch's own, which leave part of it idle.

Here they are by oneDNN, torch's own by MKL. Sampling multiplies a few rows by all weights for every
token. With weights packed in oneDNN's layout once, products of 8 to 64 rows are 2.4 to 3.9 times as
fast on an AMD processor with AVX-512. A pass with gradients multiplies many rows by unpacked
weights, which is 1.6 to 2.3 times as fast there. The operations are those of torch.compile, which
have no public name. If torch or the processor lacks them, torch's own products are used.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

NAMES = ("_reorder_linear_weight", "_linear_pointwise")
ROWS = 32  # oneDNN chooses its layout for products with this many rows
SMALL = 2**16  # a layer with this many weights or fewer stays as it is: a core's cache holds them
PLAIN = {"attr": "none", "scalars": [], "algorithm": ""}  # no operation after the product


def operations() -> list[Callable]:
    """The operations called NAMES, or [] if torch or the processor lacks one of them."""
    found = [getattr(torch.ops.mkldnn, name, None) for name in NAMES]
    fast = all(found) and torch.backends.cpu.get_cpu_capability().startswith("AVX")
    return found if fast else []


class FastLinear(torch.nn.Linear):
    """A linear layer that multiplies by oneDNN where that is faster."""

    packed: torch.Tensor | None = None  # within `packed_weights`: its weights in oneDNN's layout

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.packed is not None:
            return product(x, self.packed, self.bias)
        return fast_linear(x, self.weight, self.bias)


def use_fast_products(lm: torch.nn.Module) -> None:
    """Make all linear layers of a model FastLinear."""
    for layer in lm.modules():
        if type(layer) is torch.nn.Linear:
            layer.__class__ = FastLinear


@contextmanager
def packed_weights(lm: torch.nn.Module) -> Iterator[None]:
    """Let a float32 model on a CPU sample with packed copies of its weights, within the context.

    The copies take the memory that the gradients have in an update. Each context makes new ones,
    since the weights change between them.
    """
    layers = []
    if operations() and lm.device.type == "cpu" and lm.dtype == torch.float32:
        layers = [x for x in lm.modules() if isinstance(x, FastLinear) and x.weight.numel() > SMALL]
    for layer in layers:
        layer.packed = operations()[0](layer.weight.detach(), ROWS)
    try:
        yield
    finally:
        for layer in layers:
            layer.packed = None


def fast_linear(x: torch.Tensor, W: torch.Tensor, b: torch.Tensor | None = None) -> torch.Tensor:
    """W x + b with its gradients, like torch's `linear`: x [..., inputs], W [outputs, inputs]."""
    fits = x.device.type == "cpu" and x.dtype == W.dtype == torch.float32 and x.numel() > 0
    if fits and W.numel() > SMALL and operations():
        return Product.apply(x, W, b)
    return linear(x, W, b)


class Product(torch.autograd.Function):
    """`fast_linear` by oneDNN. A second derivative raises, since it would not be right."""

    @staticmethod
    def forward(ctx, x: torch.Tensor, W: torch.Tensor, b: torch.Tensor | None) -> torch.Tensor:
        ctx.save_for_backward(x, W)
        return product(x, W, b)

    @staticmethod
    @once_differentiable
    def backward(ctx, upstream: torch.Tensor) -> tuple:
        x, W = ctx.saved_tensors
        rows = upstream.flatten(0, -2)  # [n, outputs]
        needed = ctx.needs_input_grad
        return (
            product(upstream, W.T) if needed[0] else None,
            product(rows.T, x.flatten(0, -2).T) if needed[1] else None,
            rows.sum(dim=0) if needed[2] else None,
        )


def product(x: torch.Tensor, W: torch.Tensor, b: torch.Tensor | None = None) -> torch.Tensor:
    """W x + b, without a gradient. oneDNN reads b as if it were contiguous."""
    bias = None if b is None else b.contiguous()
    return operations()[1](x, W, bias, **PLAIN)
