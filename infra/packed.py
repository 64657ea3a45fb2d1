"""A CPU's float32 products by oneDNN, where torch's own, MKL's, leave part of the processor idle.

Sampling multiplies a few rows by all weights for every token: with 8 to 64 rows, and weights packed
in oneDNN's layout once, 2.4 to 3.9 times as fast on an AMD processor with AVX-512. A pass with
gradients multiplies many rows by weights as they are: 1.6 to 2.3 times as fast there. The
operations are those of torch.compile, which have no public name.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch.nn.functional import linear

NAMES = ("_reorder_linear_weight", "_linear_pointwise")  # a torch without them computes as ever
ROWS = 32  # oneDNN chooses its layout for products with as many rows
SMALL = 2**16  # weights of a layer that stays as it is: a core's cache holds them
PLAIN = {"attr": "none", "scalars": [], "algorithm": ""}  # no operation after the product


def operations() -> list[Callable]:
    """Those of NAMES, or [] if this torch or this processor has not all of them."""
    found = [getattr(torch.ops.mkldnn, name, None) for name in NAMES]
    fast = all(found) and torch.backends.cpu.get_cpu_capability().startswith("AVX")
    return found if fast else []


# ---- passes --------------------------------------------------------------------------------------


def fast_linear(x: torch.Tensor, W: torch.Tensor, b: torch.Tensor | None = None) -> torch.Tensor:
    """W x + b with its gradients, as torch's `linear`: x [..., inputs], W [outputs, inputs]."""
    fits = x.device.type == "cpu" and x.dtype == W.dtype == torch.float32 and x.numel() > 0
    if fits and W.numel() > SMALL and operations():
        return Product.apply(x, W, b)
    return linear(x, W, b)


class Product(torch.autograd.Function):
    """`fast_linear` by oneDNN."""

    @staticmethod
    def forward(ctx, x: torch.Tensor, W: torch.Tensor, b: torch.Tensor | None) -> torch.Tensor:
        ctx.save_for_backward(x, W)
        return product(x, W, b)

    @staticmethod
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
    """W x + b, without a gradient."""
    return operations()[1](x, W, b, **PLAIN)


def use_fast_products(lm: torch.nn.Module) -> None:
    """Let all linear layers of a model that is trained multiply by `fast_linear`."""

    def forward(layer: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
        return fast_linear(x, layer.weight, layer.bias)

    for layer in lm.modules():
        if type(layer) is torch.nn.Linear:
            layer.forward = partial(forward, layer)


# ---- sampling ------------------------------------------------------------------------------------


@contextmanager
def packed_weights(lm: torch.nn.Module) -> Iterator[None]:
    """Let a float32 model on a CPU multiply by packed copies of its weights, within the context.

    The copies take the memory that the gradients have in an update. Each context makes new ones,
    since the weights change between them.
    """
    found, layers = operations(), []
    if found and lm.device.type == "cpu" and lm.dtype == torch.float32:
        layers = [
            x for x in lm.modules() if type(x) is torch.nn.Linear and x.weight.numel() > SMALL
        ]
    replaced = [vars(layer).get("forward") for layer in layers]
    for layer in layers:
        W = found[0](layer.weight.detach(), ROWS)
        layer.forward = partial(found[1], W=W, B=layer.bias, **PLAIN)
    try:
        yield
    finally:
        for layer, forward in zip(layers, replaced, strict=True):
            del layer.forward  # frees the copy
            if forward is not None:
                layer.forward = forward
