"""The LM head in float32: in bfloat16 log p would err by 0.06 nats.

It also applies the scale and the soft cap that some architectures put between W h and their logits.

Shapes: m tokens, H hidden size, V vocabulary size.
"""

import torch

from infra.errors import UserError
from infra.onednn import FastLinear, fast_linear, use_fast_products
from infra.ranks import full_tensor

# The size of a block of logits in a pass; three such tensors exist at once. A GPU's blocks are
# large, because each block also reads the head's weights and adds to their gradient.
LOGIT_BLOCK = 2**26  # logits, on the CPU
BLOCK_SHARE = 1 / 75  # of a GPU's memory: 2^28 logits of 80 GB; larger blocks were no faster


class Head(FastLinear):
    """A head that gives float32 logits to `generate`, as the policy computes them."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        if self.packed is not None:
            return super().forward(hidden)
        if self.weight.dtype == torch.float32:
            hidden = hidden.float()  # else a GPU would round W to the dtype of h
        with torch.autocast(hidden.device.type, enabled=False):  # minimal.py samples inside one
            return float32_linear(hidden, self.weight, self.bias)


def use_our_products(lm: torch.nn.Module) -> None:
    """Make the linear layers of a model FastLinear, and its head a Head."""
    use_fast_products(lm)
    lm.get_output_embeddings().__class__ = Head


def float32_linear(
    hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """W h + b in float32: [..., H] -> [..., V]. A GPU needs no float32 copy of W for it."""
    if hidden.is_cuda and hidden.dtype != torch.float32:
        logits = Float32Product.apply(hidden.flatten(0, -2), weight).unflatten(0, hidden.shape[:-1])
        return logits if bias is None else logits + bias
    return fast_linear(hidden.float(), weight.float(), None if bias is None else bias.float())


class Float32Product(torch.autograd.Function):
    """h W.T in float32 from factors in h's dtype: h [m, H], W [V, H] in any dtype. CUDA only.

    It is a Function, so that the gradient of W is in float32 too.
    """

    @staticmethod
    def forward(ctx, h: torch.Tensor, W: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(h, W)
        return torch.mm(h, W.to(h.dtype).T, out_dtype=torch.float32)

    @staticmethod
    def backward(ctx, upstream: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h, W = ctx.saved_tensors
        upstream = upstream.to(h.dtype)
        return upstream @ W.to(h.dtype), torch.mm(upstream.T, h, out_dtype=torch.float32)


def scaled_logits(
    hidden: torch.Tensor, head: list[torch.Tensor], config, temperature: float
) -> torch.Tensor:
    """The model's logits over the temperature, in float32: hidden [m, H] -> [m, V].

    head: W, or W and b. The model's logits are scale W h, or cap tanh(scale W h / cap).
    """
    logits = float32_linear(hidden, *head)
    scale, cap = scale_and_cap(config)
    if cap is not None:
        logits = cap * torch.tanh(logits * (scale / cap))
        scale = 1.0
    if scale != temperature:  # a factor of 1 would still cost a pass
        logits = logits * (scale / temperature)
    return logits


def full_logits(lm: torch.nn.Module, hidden: torch.Tensor) -> torch.Tensor:
    """The logits in float32 of a model that is not sharded: hidden [m, H] -> [m, V]."""
    head = [*lm.get_output_embeddings().parameters()]  # W, or W and b
    return scaled_logits(hidden, head, lm.config, temperature=1.0)


def scale_and_cap(config) -> tuple[float, float | None]:
    """(scale, cap) of the head, from the keys that Cohere, Granite and Gemma use in config.json.

    logits = scale (W h + b), or cap tanh(scale (W h + b) / cap). infra/loading.py refuses a
    model with any other operation between W h + b and its logits.
    """
    scale = getattr(config, "logit_scale", None)
    scale = scale if isinstance(scale, float) else 1.0
    scale /= getattr(config, "logits_scaling", None) or 1.0
    return scale, getattr(config, "final_logit_softcapping", None)


def scaled_head(lm: torch.nn.Module, temperature: float) -> torch.Tensor:
    """The full matrix [V, H] from h to logits, on all ranks.

    Raises UserError if the head has a bias or a soft cap.
    """
    scale, cap = scale_and_cap(lm.config)
    if lm.get_output_embeddings().bias is not None or cap is not None:
        raise UserError(
            "this --proxy needs logits W h, but the head has a bias or a soft cap: use --proxy row "
            "or scalar"
        )
    return full_tensor(lm.get_output_embeddings().weight.detach()) * (scale / temperature)


def block_size(device: torch.device, numbers: int) -> int:
    """How many tokens a pass takes at once, each with this many numbers, such as V logits."""
    block = LOGIT_BLOCK
    if device.type != "cpu":
        block = int(BLOCK_SHARE * torch.cuda.get_device_properties(device).total_memory / 4)
    return max(1, block // numbers)
