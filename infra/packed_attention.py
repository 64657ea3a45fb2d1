"""Attention over sequences packed end to end in one row, without attention between sequences.

transformers recognises a packed row by position ids that restart. The kernels:

    GPU    `varlen_attention` below: torch's flash kernel for sequences of unequal lengths. It
           computes attention only within sequences, and only in half precision.
    CPU    training pads. For a packed row (in tests, which compare it with the padded pass),
           transformers gives `sdpa` a block-diagonal mask. The result is right, but the cost is
           quadratic in the length of the whole row.

Shapes: T tokens in the row. Keys and values may have fewer heads than queries.
"""

from inspect import signature

import torch
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import pad
from transformers import AttentionInterface

from infra.packing import uploaded

VARLEN = "delta_varlen"  # name of varlen_attention in transformers
MOST_HEAD_SIZE = 256  # the flash kernel's limit


def varlen_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    cu_seq_lens_q: torch.Tensor | None = None,
    max_length_q: int | None = None,
    **_,
) -> tuple[torch.Tensor, None]:
    """Causal attention within each sequence, with transformers' signature: [1, T, heads, size].

    query, key, value: [1, heads, T, size].
    cu_seq_lens_q: [sequences + 1] int32, the start of each sequence, then T. max_length_q: the
        longest length. An architecture that does not pass them on (StableLM) attends over the
        whole row. The check at load detects this and pads instead.
    sliding_window: how many tokens a token attends to, itself included; None: all up to itself.
    """
    if cu_seq_lens_q is None:
        max_length_q = query.shape[2]
        cu_seq_lens_q = torch.tensor([0, max_length_q], dtype=torch.int32, device=query.device)
    query, key, value = (x[0].transpose(0, 1) for x in (query, key, value))  # [T, heads, size]
    before = -1 if sliding_window is None else sliding_window - 1
    out = varlen_attn(
        query,
        key,
        value,
        cu_seq_lens_q,
        cu_seq_lens_q,
        max_length_q,
        max_length_q,
        scale=scaling,
        window_size=(before, 0),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return out[None], None


AttentionInterface.register(VARLEN, varlen_attention)


def can_pack(lm: torch.nn.Module) -> bool:
    """Whether the architecture declares support for packed rows, and the kernel supports it.

    infra/loading.py tests the declaration when a model is loaded.
    """
    arguments = signature(type(lm.base_model).forward).parameters
    soft_cap = getattr(lm.config, "attn_logit_softcapping", None)  # not in the kernel
    return (
        lm._supports_flash_attn
        and "position_ids" in arguments
        and "kwargs" in arguments  # to pass on the sequence boundaries
        and soft_cap is None
        and head_size(lm.config) <= MOST_HEAD_SIZE
    )


def head_size(config) -> int:
    """The query size of one attention head."""
    own = getattr(config, "head_dim", None)
    return own or config.hidden_size // config.num_attention_heads


def row_of(ids: torch.Tensor, length: torch.Tensor) -> tuple[dict, torch.Tensor]:
    """The arguments with which a model's body runs sequences as one row, and the tokens' positions.

    ids: [B, L], each sequence in the first `length` [B] columns.
    length: on the host, so that the host does not wait for the GPU.
    Returns (keyword arguments, [B, L] the position of each token in the row, on the host).
    """
    longest = ids.shape[1]
    columns = torch.arange(longest).expand(ids.shape)
    exists = columns < length[:, None]
    tokens = exists.flatten().nonzero().squeeze(1)  # [T] positions in the flattened ids
    bounds = uploaded(pad(length.cumsum(0), (1, 0)).int(), ids.device)  # 0, ..., T
    inputs = {
        "input_ids": ids.flatten()[uploaded(tokens, ids.device)][None],  # [1, T]
        "position_ids": uploaded(columns[exists], ids.device)[None],  # from 0 in each sequence
        "cu_seq_lens_q": bounds,
        "cu_seq_lens_k": bounds,
        "max_length_q": longest,
        "max_length_k": longest,
    }
    return inputs, exists.flatten().cumsum(0).view(exists.shape) - 1
