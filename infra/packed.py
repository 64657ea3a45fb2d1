"""A CPU's products with few rows, by oneDNN with weights packed in its own layout.

Sampling multiplies a few rows by all weights for every token. With 8 to 64 rows torch's product,
MKL's, takes 1.5 to 4 times as long as these operations of torch.compile, which have no public name.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch

NAMES = ("_reorder_linear_weight", "_linear_pointwise")  # a torch without them samples as ever
ROWS = 32  # oneDNN chooses its layout for products with as many rows
SMALL = 2**16  # weights of a layer that stays as it is: a core's cache holds them


@contextmanager
def packed_weights(lm: torch.nn.Module) -> Iterator[None]:
    """Let a float32 model on a CPU multiply by packed copies of its weights, within the context.

    The copies take the memory that the gradients have in an update. Each context makes new ones,
    since the weights change between them.
    """
    operations = [getattr(torch.ops.mkldnn, name, None) for name in NAMES]
    fast = all(operations) and torch.backends.cpu.get_cpu_capability().startswith("AVX")
    layers = []
    if fast and lm.device.type == "cpu" and lm.dtype == torch.float32:
        layers = [
            x for x in lm.modules() if type(x) is torch.nn.Linear and x.weight.numel() > SMALL
        ]
    replaced = [vars(layer).get("forward") for layer in layers]
    for layer in layers:
        W = operations[0](layer.weight.detach(), ROWS)
        named = {"W": W, "B": layer.bias, "attr": "none", "scalars": [], "algorithm": ""}
        layer.forward = partial(operations[1], **named)
    try:
        yield
    finally:
        for layer, forward in zip(layers, replaced, strict=True):
            del layer.forward  # frees the copy
            if forward is not None:
                layer.forward = forward
