"""The LM head: from hidden states to log-probabilities, without a full [N, V] tensor.

Shapes: n or N rows, one per token; H hidden size, V vocabulary.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch

# Logits in a block. Each block reads the head's weights and adds to its gradient: 14 GB of memory
# traffic for 8B. GPU blocks are therefore larger: 1,766 rows instead of 441 for 8B.
LOGIT_BLOCK_CPU = 2**26
LOGIT_BLOCK_GPU = 2**28
LOGITS_PER_BLOCK = 2**24  # in a method's `keep`, computed while the model is in memory


@dataclass(frozen=True)
class Head:
    """Maps a hidden state h to logits: cap tanh(scale (W h + b) / cap) / temperature.

    Without a cap: scale (W h + b) / temperature.
    """

    weight: torch.Tensor  # W [V, H]
    bias: torch.Tensor | None = None  # b [V]
    scale: float = 1.0
    cap: float | None = None
    temperature: float = 1.0

    @property
    def is_matrix(self) -> bool:
        """Whether the logits are a matrix times h."""
        return self.bias is None and self.cap is None

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[n, H] -> [n, V] float32. Logits in bfloat16 would change log p by up to 0.06 nats."""
        logits = product(hidden, self.weight.T)
        if self.bias is not None:
            logits += self.bias
        if self.cap is None:
            return logits.mul_(self.scale / self.temperature)
        return logits.mul_(self.scale / self.cap).tanh_().mul_(self.cap / self.temperature)

    def slope(self, logits: torch.Tensor) -> torch.Tensor | float:
        """The derivative of `logits` [n, V] with respect to W h + b, elementwise."""
        slope = self.scale / self.temperature
        if self.cap is None:
            return slope
        tanh = logits * (self.temperature / self.cap)
        return tanh.square_().neg_().add_(1).mul_(slope)  # tanh' = 1 - tanh²


def scale_and_cap(config) -> tuple[float, float | None]:
    """(scale, cap) of the head, from the keys that Cohere, Granite and Gemma use in config.json.

    infra/loading.py refuses a model with any other operation between W h and its logits.
    """
    scale = 1.0
    if isinstance(getattr(config, "logit_scale", None), float):
        scale *= config.logit_scale
    if getattr(config, "logits_scaling", None):
        scale /= config.logits_scaling
    return scale, getattr(config, "final_logit_softcapping", None)


def token_logprobs(
    hidden: torch.Tensor, head: Head, token: torch.Tensor, with_means: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(log p of `token`, entropy, mean_p), [N] float32 each, under the softmax of the logits.

    The entropy -Σ_y p(y) log p(y) is minus the mean of log p, and mean_p = Σ_y p(y)² is the mean of
    p, both over the token y drawn in that state. They are NaN without `with_means`.
    hidden: [N, H]; token: [N].
    """
    return TokenLogprobs.apply(hidden, head.weight, head.bias, head, token, with_means)


class TokenLogprobs(torch.autograd.Function):
    """`token_logprobs`. weight and bias belong to `head`; as arguments they receive gradients.

    Forward and backward work in blocks of rows, so no [N, V] tensor exists. With V = 151,936 it
    would take 12 GB for one response of 20,000 tokens.
    """

    @staticmethod
    def forward(ctx, hidden, weight, bias, head, token, with_means):
        ctx.save_for_backward(hidden, token)
        ctx.head = head
        logprob = torch.empty(len(token), device=hidden.device)
        entropy = torch.full_like(logprob, torch.nan)
        mean_p = torch.full_like(logprob, torch.nan)
        for block, logits in TokenLogprobs.blocks(hidden, head):
            logp = logits.log_softmax(dim=-1)
            logprob[block] = logp.gather(1, token[block, None]).squeeze(1)
            if with_means:
                p = logp.exp()
                entropy[block] = -logp.mul_(p).nan_to_num_().sum(dim=1)  # 0 log 0 = 0
                mean_p[block] = p.square_().sum(dim=1)
                del p
            del logits, logp  # before the next block is made
        ctx.mark_non_differentiable(entropy, mean_p)
        return logprob, entropy, mean_p

    @staticmethod
    def backward(ctx, grad, *_):
        hidden, token = ctx.saved_tensors
        head = ctx.head
        weight, bias = head.weight, head.bias
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros_like(weight, dtype=torch.float32)
        grad_bias = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)
        for block, logits in TokenLogprobs.blocks(hidden, head):
            upstream = grad[block, None]  # [rows, 1] ∂L/∂log p
            slope = head.slope(logits)
            grad_z = logits.log_softmax(dim=-1).exp_().mul_(-upstream)  # [rows, V]
            grad_z.scatter_add_(1, token[block, None], upstream)  # (e_y - p) ∂L/∂log p
            grad_z *= slope  # with respect to z = W h + b
            grad_hidden[block] = grad_z.to(weight.dtype) @ weight
            grad_weight += product(grad_z.to(hidden.dtype).T, hidden[block])
            if bias is not None:
                grad_bias += grad_z.sum(dim=0)
            del logits, slope, grad_z
        if bias is not None:
            grad_bias = grad_bias.to(bias.dtype)
        return grad_hidden, grad_weight.to(weight.dtype), grad_bias, None, None, None

    @staticmethod
    def blocks(hidden: torch.Tensor, head: Head) -> Iterator[tuple[slice, torch.Tensor]]:
        """(slice, logits [rows, V]) over blocks of rows."""
        numbers = LOGIT_BLOCK_GPU if hidden.is_cuda else LOGIT_BLOCK_CPU
        size = max(1, numbers // len(head.weight))
        for start in range(0, len(hidden), size):
            block = slice(start, start + size)
            yield block, head.logits(hidden[block])


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a @ b, accumulated and returned in float32: [m, k], [k, n] -> [m, n]."""
    if a.is_cuda and a.dtype != torch.float32:
        return torch.mm(a, b, out_dtype=torch.float32)
    return a.float() @ b.float()


def float32_logits(linear: torch.nn.Linear, hidden: torch.Tensor) -> torch.Tensor:
    """The output of `linear` in float32, for weights of any dtype: [..., H] -> [..., V]."""
    logits = product(hidden.flatten(0, -2), linear.weight.T)
    if linear.bias is not None:
        logits += linear.bias
    return logits.unflatten(0, hidden.shape[:-1])


def give_float32_head(lm: torch.nn.Module) -> None:
    """Make the model's head compute float32 logits.

    The sampler then draws tokens from the distribution that `Head.logits` scores.
    """
    linear = lm.get_output_embeddings()
    linear.forward = partial(float32_logits, linear)
