"""Wraps a causal language model as a policy that returns packed rows, one per response token.

The forward pass of `Policy` takes whole sequences. For each response token it returns the
log-probability, the entropy of the distribution and the hidden state that enters the LM head. No
other file uses masks, padded positions or parts of the wrapped model.

Shapes: B responses, T tokens in the longest sequence, N packed response tokens, n on this
rank, H hidden size, V vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import NamedTuple

import torch
from torch.distributed.fsdp import FSDPModule
from torch.utils.checkpoint import checkpoint

from infra.balance import Layout
from infra.flight import free_bytes
from infra.head import Head, scale_and_cap, token_logprobs
from infra.packed_attention import VARLEN, head_size, row_of
from infra.packing import MiniBatch, Rollouts, TokenBatch, packed_rows, ranges, uploaded
from infra.progress import Progress
from infra.ranks import full_tensor
from infra.rows import Rows, sum_over_ranks

SHARE_FOR_KEPT = 0.7  # maximum share of a GPU's free memory for `kept`


class TokenRows(NamedTuple):
    """Packed rows: the tokens of response 0, then those of response 1, each in reading order."""

    logprob: torch.Tensor  # [N] float32, log π_θ(o_t | q, o_<t) at the sampling temperature, nats
    entropy: torch.Tensor  # [N] float32, of π_θ(. | q, o_<t), nats; NaN if gradients are enabled
    mean_p: torch.Tensor  # [N] float32, Σ_y π_θ(y | q, o_<t)²; NaN if gradients are enabled
    hidden: torch.Tensor  # [N, H] the state h that enters the LM head; no gradient
    token: torch.Tensor  # [N] ids


class Policy(torch.nn.Module):
    """A causal language model `lm`, with the temperature for sampling and log-probabilities.

    twin: the same model without shards or hooks, for `plain`; empty if `lm` is not sharded.
    packed: whether a forward pass packs its sequences end to end in one row; see `pack`.
    """

    def __init__(self, lm: torch.nn.Module, temperature: float = 1.0):
        super().__init__()
        self.lm = lm
        self.temperature = temperature
        self.twin = []  # a list, so that its parameters are not registered as the policy's
        self.packed = False
        self.own_attention = lm.config._attn_implementation

    def forward(
        self,
        ids: torch.Tensor,
        prompt_length: Sequence[int] | torch.Tensor,
        response_length: Sequence[int] | torch.Tensor,
    ) -> TokenRows:
        """Packed rows of the response tokens.

        ids: [B, T] prompt, response, then any padding up to T. Sequences start at column 0, so
        with causal attention no real token attends to the padding on the right.
        prompt_length, response_length: [B] tokens. Positions are computed on the host, but FSDP
        would first copy tensors to the GPU, so pass lists where speed matters.
        """
        start, size = (torch.as_tensor(x).cpu() for x in (prompt_length, response_length))  # [B]
        lines = torch.arange(len(ids)) * ids.shape[1]
        places = ranges(lines + start, size)  # [N] response tokens in the flattened ids
        inputs = {"input_ids": ids}
        before = places - 1  # the state at t-1 predicts token t
        if self.packed:
            inputs, in_row = row_of(ids, start + size)
            before = in_row.flatten()[places] - 1

        states = self.lm.base_model(**inputs, use_cache=False).last_hidden_state
        hidden = states.flatten(0, 1)[uploaded(before, ids.device)]  # [N, H]
        token = ids.flatten()[uploaded(places, ids.device)]  # [N]

        # Updates never use these means, which cost a tenth of an update with a large vocabulary.
        with_means = not torch.is_grad_enabled()
        logprob, entropy, mean_p = token_logprobs(hidden, self.lm_head(), token, with_means)
        # An FSDP module must not return a view, or its hooks warn.
        return TokenRows(logprob, entropy, mean_p, hidden.detach().clone(), token)

    def pack(self, packed: bool) -> None:
        """Set whether a forward pass packs its sequences into one row or pads them.

        The results differ only by rounding. Packing avoids computation on padding. The sampler's
        twin is unchanged.
        """
        self.packed = packed
        if self.lm.device.type == "cuda":
            self.lm.set_attn_implementation(VARLEN if packed else self.own_attention)

    def reduce_over_nodes(self, now: bool) -> None:
        """Set whether the next backward pass also sums gradients over nodes.

        Once per update is enough, and the network between nodes is the slowest link.
        """
        if isinstance(self, FSDPModule):
            self.set_requires_all_reduce(now)

    @property
    def layout(self) -> Layout:
        """Whether micro-batches are padded or packed, and what they cost.

        A token takes 2 P operations for the P parameters in matrix products. Attention adds 2 L q T
        in L layers, with q = heads x head size and T / 2 earlier tokens on average. So attention
        costs as much as everything else at T = P / (L q): 51,000 tokens for Qwen3-8B.
        """
        config = self.lm.config
        embedding = self.lm.get_input_embeddings().weight
        P = self.lm.num_parameters()
        if embedding is not self.lm.get_output_embeddings().weight:
            P -= embedding.numel()  # only looked up
        q = config.num_attention_heads * head_size(config)
        return Layout(self.packed, equal_at=P / (config.num_hidden_layers * q))

    def rows(self, rollouts: Rollouts, index: torch.Tensor) -> TokenRows:
        """The packed rows of the responses `index` [b] in `rollouts`, cut to the longest of them.

        An empty index runs two tokens and returns no rows: ranks gather each other's shards, so all
        ranks must run every forward pass.
        """
        if len(index) == 0:
            return self(rollouts.ids[:1, :2], [2], [0])
        prompt = rollouts.prompt_length[index]
        response = rollouts.response_length[index]
        longest = int((prompt + response).max())
        ids = rollouts.ids[uploaded(index, rollouts.ids.device), :longest]
        return self(ids, prompt.tolist(), response.tolist())

    def lm_head(self) -> Head:
        """The model's head; under FSDP its tensors are gathered only inside `forward`."""
        linear = self.lm.get_output_embeddings()
        scale, cap = scale_and_cap(self.lm.config)
        return Head(linear.weight, linear.bias, scale, cap, self.temperature)

    def head(self) -> torch.Tensor:
        """The full matrix [V, H] from h to logits. Raises ValueError for a bias or a soft cap.

        All ranks call this together.
        """
        head = self.lm_head()
        if not head.is_matrix:
            raise ValueError("logits are not a matrix times h: the head has a bias or a soft cap")
        return full_tensor(head.weight.detach()) * (head.scale / head.temperature)

    @contextmanager
    def plain(self) -> Iterator[torch.nn.Module]:
        """The model for `generate`, without hooks, with full weights. All ranks enter together."""
        shards = [module for module in self.modules() if isinstance(module, FSDPModule)]
        for module in shards:
            module.unshard()
        for twin in self.twin:
            for plain, sharded in zip(twin.modules(), self.lm.modules(), strict=True):
                plain._parameters = dict(sharded._parameters)  # shared, not copied
                plain._buffers = dict(sharded._buffers)
        try:
            yield self.twin[0] if self.twin else self.lm
        finally:
            for module in shards:
                module.reshard()


def decoder_layers(lm: torch.nn.Module) -> torch.nn.ModuleList:
    """The body's layers: the module list with the most parameters."""
    lists = [part for part in lm.base_model.modules() if isinstance(part, torch.nn.ModuleList)]
    return max(lists, key=lambda layers: sum(p.numel() for p in layers.parameters()))


def recompute_in_backward(layers: torch.nn.ModuleList) -> None:
    """Activation checkpointing: each layer stores only its input and runs again in backward."""
    for layer in layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)


@torch.no_grad()
def old_log_probabilities(
    policy: Policy,
    rollouts: Rollouts,
    plan: list[MiniBatch],
    keep: Callable | None = None,
    budget_gb: float = 30.0,
) -> TokenBatch:
    """One forward pass at θ_old over all responses: log π_old and entropies, packed.

    plan: this rank runs its own micro-batches; all ranks' results are gathered.
    keep: (rows, head) -> [n, ...], computed in float32 from the hidden states and stored, so that
        DelTA needs no further pass (App. L.1); None: nothing is kept.
    budget_gb: limit on `kept` on the GPU, in GB; a larger tensor goes to pinned host memory.
    """
    micro_batches = [index for mini_batch in plan for index in mini_batch.micro_batches]
    length = rollouts.response_length
    device = rollouts.ids.device
    N = int(length.sum())
    mine = packed_rows(torch.cat(micro_batches).sort().values, length)  # [n]

    logprob = torch.zeros(N, device=device)
    entropy = torch.zeros(N, device=device)
    mean_p = torch.zeros(N, device=device)
    kept = None
    head = cache(policy.head)  # gathered at most once, if `keep` calls it
    progress = Progress("scoring", len(mine))
    for index in micro_batches:
        out = policy.rows(rollouts, index)
        own = packed_rows(index, length)
        rows = uploaded(own, device)
        logprob[rows] = out.logprob
        entropy[rows] = out.entropy
        mean_p[rows] = out.mean_p
        progress.update(len(rows))
        if keep is None:
            continue
        values = keep(out._replace(hidden=out.hidden.float()), head)
        if kept is None:
            kept = Rows(room_for(len(mine), values, budget_gb), uploaded(mine, device), N)
        place = torch.searchsorted(mine, own)
        kept.values[uploaded(place, kept.values.device)] = values.to(kept.values)
    progress.close()

    return TokenBatch(
        logprob=sum_over_ranks(logprob),  # other ranks' rows are 0, so the sum joins all rows
        entropy=sum_over_ranks(entropy),
        mean_p=sum_over_ranks(mean_p),
        token=rollouts.tokens(),
        length=uploaded(length, device),
        kept=kept,
        sampler_logprob=uploaded(torch.cat(rollouts.logprobs), device),
    )


def room_for(count: int, values: torch.Tensor, budget_gb: float) -> torch.Tensor:
    """An empty tensor [count, ...] for rows shaped like `values` [n, ...]; bfloat16 on GPUs.

    It is in host memory if it exceeds budget_gb, or SHARE_FOR_KEPT of the GPU's free memory.
    """
    shape = (count, *values.shape[1:])
    if values.device.type == "cpu":
        return torch.empty(shape)
    needed = 2 * count * values.shape[1:].numel()  # bfloat16 takes 2 bytes
    if needed <= min(budget_gb * 1e9, SHARE_FOR_KEPT * free_bytes(values.device)):
        return torch.empty(shape, dtype=torch.bfloat16, device=values.device)
    return torch.empty(shape, dtype=torch.bfloat16, pin_memory=True)
