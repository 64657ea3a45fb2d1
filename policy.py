"""The policy π_θ: a causal language model and the log-probabilities of its response tokens.

Log-probabilities are computed in float32, in blocks of m tokens: no [n, V] tensor exists. With
V = 151,936 it would take 12 GB for one response of 20,000 tokens.

Shapes: b responses in a micro-batch, L columns in the longest sequence, n response tokens, N in the
rollout batch, H hidden size, V vocabulary.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from itertools import chain
from typing import NamedTuple

import torch
from torch.distributed.fsdp import FSDPModule
from torch.nn.functional import nll_loss
from torch.utils.checkpoint import checkpoint

from batch import MiniBatch
from infra.errors import UserError
from infra.packed import fast_linear
from infra.progress import Progress
from infra.prompts import can_share, states_after_prompts
from infra.ranks import full_tensor, sum_over_ranks, this_device
from infra.rows import Rows

# A block of logits in a pass; three such tensors exist at once. A GPU's blocks are large, because
# each block also reads the head's weights and adds to their gradient.
LOGIT_BLOCK = 2**26  # logits, on the CPU
BLOCK_SHARE = 1 / 75  # of a GPU's memory: of 80 GB 2^28 logits; larger blocks were no faster


class TokenOutputs(NamedTuple):
    """Results of a pass for n response tokens: those of the first response, then of the next."""

    logprob: torch.Tensor  # [n] float32, log p of the token at the sampling temperature, nats
    entropy: torch.Tensor | None  # [n] float32, -Σ_y p(y) log p(y), nats; None with gradients
    sum_p2: torch.Tensor | None  # [n] float32, Σ_y p(y)²; None with gradients
    hidden: torch.Tensor  # [n, H] the state h that enters the LM head; no gradient
    token: torch.Tensor  # [n] ids


class Policy(torch.nn.Module):
    """A causal language model `lm`, with the temperature for sampling and log-probabilities.

    loading.load_policy shards the Policy itself as FSDP's root, so inside `forward` the head's
    parameters are full tensors. unsharded_lm: the same modules without shards or hooks; None if
    `lm` is not sharded.
    """

    def __init__(self, lm: torch.nn.Module, temperature: float = 1.0, unsharded_lm=None):
        super().__init__()
        self.lm = lm
        self.temperature = temperature
        self.shares_prompts = can_share(lm)
        # A list, so that its parameters are not the policy's: `unsharded` says what it is for.
        self.unsharded_lm = [unsharded_lm or lm]

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> TokenOutputs:
        """The outputs of the response tokens: ids [b, L] from column 0, mask [b, L] selects n."""
        token = ids[mask]  # [n]
        decoder = decoder_of(self.lm)
        hidden = states_after_prompts(decoder, ids, mask) if self.shares_prompts else None  # [n, H]
        if hidden is None:  # these run whole
            states = decoder(input_ids=ids, use_cache=False).last_hidden_state  # [b, L, H]
            hidden = states[:, :-1][mask[:, 1:]]  # the state at t-1 predicts token t

        # Converted here, not per block, so autograd sums the blocks' gradients in float32.
        head_parameters = [x.float() for x in self.lm.get_output_embeddings().parameters()]
        parts = []
        size = max(1, logit_block(ids.device) // self.lm.config.vocab_size)
        for block in zip(hidden.split(size), token.split(size), strict=True):
            # The backward pass computes each block's logits again. A rank with n = 0 has one empty
            # block: its passes run, and its gradients are 0.
            parts.append(
                checkpoint(self.block_outputs, *block, *head_parameters, use_reentrant=False)
            )
        columns = zip(*parts, strict=True)
        joined = [None if column[0] is None else torch.cat(column) for column in columns]
        return TokenOutputs(*joined, hidden.detach(), token)

    def block_outputs(
        self, hidden: torch.Tensor, token: torch.Tensor, *head: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """(log p of `token`, entropy, Σ p²), [m] each: hidden [m, H], token [m], head W and b."""
        logits = float32_linear(hidden, *head)  # [m, V]
        scale, cap = scale_and_cap(self.lm.config)
        # The model's logits are scale W h, or cap tanh(scale W h / cap); then the temperature.
        if cap is not None:
            logits = cap * torch.tanh(logits * (scale / cap))
            scale = 1.0
        if scale != self.temperature:  # a factor of 1 would still cost a pass
            logits = logits * (scale / self.temperature)
        logp = logits.log_softmax(dim=-1)
        del logits
        logprob = -nll_loss(logp, token, reduction="none")

        if torch.is_grad_enabled():  # no update uses them; they would cost a tenth of it
            return logprob, None, None
        p = logp.exp()
        entropy = -logp.mul_(p).sum(dim=1)  # a p of 0 has a finite log p
        return logprob, entropy, p.square_().sum(dim=1)

    @contextmanager
    def unsharded(self) -> Iterator[torch.nn.Module]:
        """The model for `generate`, without hooks, with full weights. All ranks enter together.

        FSDP's hooks would gather each layer for each token. So a second tree of modules, without
        hooks, gets the gathered tensors.
        """
        shards = [module for module in self.modules() if isinstance(module, FSDPModule)]
        for module in shards:
            module.unshard()
        lm = self.unsharded_lm[0]
        for module, sharded in zip(lm.modules(), self.lm.modules(), strict=True):
            own = (sharded.named_parameters(recurse=False), sharded.named_buffers(recurse=False))
            for name, tensor in chain(*own):
                setattr(module, name, tensor)  # shared, not copied
        try:
            yield lm
        finally:
            for module in shards:
                module.reshard()  # frees the memory that `lm`'s tensors share

    @contextmanager
    def sampler(self) -> Iterator[torch.nn.Module]:
        """`unsharded`, with its head converted once for all tokens. All ranks enter together."""
        with self.unsharded() as lm:
            head = lm.get_output_embeddings()
            own = dict(head.named_parameters())
            give_float32_head(lm)
            try:
                yield lm
            finally:
                for name, parameter in own.items():
                    setattr(head, name, parameter)  # frees the converted head


def logit_block(device: torch.device) -> int:
    """The number of float32 logits in a block of a pass."""
    if device.type == "cpu":
        return LOGIT_BLOCK
    return int(BLOCK_SHARE * torch.cuda.get_device_properties(device).total_memory / 4)


def decoder_of(lm: torch.nn.Module) -> torch.nn.Module:
    """The layers below the head. The base_model of Llama4ForCausalLM is that model itself."""
    return lm.model if lm.base_model is lm else lm.base_model


# ---- the LM head ---------------------------------------------------------------------------------


def scale_and_cap(config) -> tuple[float, float | None]:
    """(scale, cap) of the head, from the keys that Cohere, Granite and Gemma use in config.json.

    logits = scale (W h + b), or cap tanh(scale (W h + b) / cap). loading.py refuses a model with
    any other operation between W h + b and its logits.
    """
    scale = getattr(config, "logit_scale", None)
    scale = scale if isinstance(scale, float) else 1.0
    scale /= getattr(config, "logits_scaling", None) or 1.0
    return scale, getattr(config, "final_logit_softcapping", None)


def scaled_head(lm: torch.nn.Module, temperature: float) -> torch.Tensor:
    """The full matrix [V, H] from h to logits, on all ranks. UserError for a bias or a soft cap."""
    head = lm.get_output_embeddings()
    scale, cap = scale_and_cap(lm.config)
    if head.bias is not None or cap is not None:
        raise UserError(
            "--proxy topk and exact_gradient need logits W h, but the head has a bias or a soft "
            "cap: use --proxy row, centred or scalar"
        )
    return full_tensor(head.weight.detach()) * (scale / temperature)


def float32_linear(
    hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """W h + b in float32: [..., H] -> [..., V]. In bfloat16 log p would err by 0.06 nats."""
    if hidden.is_cuda and hidden.dtype != torch.float32:
        logits = Float32Product.apply(hidden.flatten(0, -2), weight).unflatten(0, hidden.shape[:-1])
        return logits if bias is None else logits + bias
    return fast_linear(hidden.float(), weight.float(), None if bias is None else bias.float())


def give_float32_head(lm: torch.nn.Module) -> None:
    """Make a model that samples compute float32 logits, as the policy does for its log p.

    On a CPU its head becomes float32, else every token would convert it; an embedding tied to it
    stays. A GPU needs no copy: its product has a float32 result.
    """

    def forward(head: torch.nn.Linear, hidden: torch.Tensor) -> torch.Tensor:
        return float32_linear(hidden, head.weight, head.bias)

    head = lm.get_output_embeddings()
    head.forward = partial(forward, head)  # not a closure: deepcopy points it at the copied head
    if head.weight.is_cuda or head.weight.dtype == torch.float32:
        return
    for name, parameter in list(head.named_parameters()):
        setattr(head, name, torch.nn.Parameter(parameter.detach().float(), requires_grad=False))


class Float32Product(torch.autograd.Function):
    """h W.T in float32 from factors in h's dtype: h [n, H], W [V, H] in any dtype. CUDA only.

    A Function, so that the gradient of W is in float32 too.
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


# ---- the pass at θ_old ---------------------------------------------------------------------------


def kept_features(features: Callable, outputs: TokenOutputs, head: Callable) -> torch.Tensor:
    """features(outputs, head) [n, F], computed in float32 and kept in the dtype of the model's h.

    In bfloat16 h has 8 significant bits, so v is no more accurate, and in float32 the rows of a
    batch would take twice the memory. One number per token, F = 1, stays in float32.
    """
    v = features(outputs._replace(hidden=outputs.hidden.float()), head)
    return v.to(outputs.hidden.dtype) if v.shape[1] > 1 else v


@torch.no_grad()
def old_log_probabilities(
    policy: Policy, plan: list[MiniBatch], features: Callable | None = None
) -> tuple[torch.Tensor, torch.Tensor, Rows | None]:
    """One pass at θ_old over the rollout batch: (log π_old [N], entropy [N], v or None).

    Each rank runs its own micro-batches, and all get the numbers of all tokens. The rows
    v = features(outputs, head) [n, F] stay where they are computed: DelTA needs no further pass
    (App. L.1).
    """
    N = sum(mini_batch.token_count for mini_batch in plan)
    micro_batches = [micro for mini_batch in plan for micro in mini_batch.micro_batches]
    both = torch.zeros(2, N, device=this_device())  # log π_old, entropy
    v = Rows(N) if features else None
    # Gathered at most once, if `features` calls it.
    head = cache(partial(scaled_head, policy.lm, policy.temperature))
    progress = Progress("old log p", sum(len(micro.token_index) for micro in micro_batches))
    for micro in micro_batches:
        outputs = policy(micro.ids, micro.mask)
        both[:, micro.token_index] = torch.stack([outputs.logprob, outputs.entropy])
        if features:
            v.add(micro.token_index, kept_features(features, outputs, head))
        progress.update(len(micro.token_index))
    progress.close()
    old_logprob, entropy = sum_over_ranks(both)  # those of other ranks' tokens are 0
    return old_logprob, entropy, v
