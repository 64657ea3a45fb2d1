"""Attention over sequences that are packed end to end in one row, none of which sees another.

transformers knows a packed row by position ids that begin anew. What runs where:

    GPU    `varlen_attention` below: torch's own flash kernel for sequences of unequal lengths. It
           computes what is inside the sequences and nothing between them, in half precision only.
    CPU    training pads; where a row is packed all the same (tests, which hold it against the
           padded pass), transformers gives `sdpa` a mask of blocks on the diagonal. That is right,
           but computes the square of the whole row.

Shapes: T tokens of the row, heads of keys and values perhaps fewer than those of queries.
"""

import torch
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import pad
from transformers import AttentionInterface

from infra.architecture import head_size, takes, takes_keywords
from infra.packing import uploaded

VARLEN = "delta_varlen"  # of varlen_attention among transformers' attentions
MOST_HEAD_SIZE = 256  # of the flash kernel


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
    """Causal attention inside each sequence, as transformers calls it: [1, T, heads, size].

    query, key, value: [1, heads, T, size].
    cu_seq_lens_q: [sequences + 1] int32, where each begins, and T; max_length_q: of the longest.
        Architectures that do not hand them on (StableLM) attend over the whole row, which is seen
        when the model is loaded: they are padded.
    sliding_window: tokens that a token sees, itself included; None: all before it.
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
    """Whether the architecture says that it takes packed rows, and needs nothing beyond the kernel.

    What it says is measured when a model is loaded (infra/agreement.py).
    """
    soft_cap = getattr(lm.config, "attn_logit_softcapping", None)  # which the kernel lacks
    return (
        lm._supports_flash_attn
        and takes(lm.base_model, "position_ids")
        and takes_keywords(lm.base_model)
        and soft_cap is None
        and head_size(lm.config) <= MOST_HEAD_SIZE
    )


def row_of(ids: torch.Tensor, length: torch.Tensor) -> tuple[dict, torch.Tensor]:
    """What a model's body is called with to run sequences as one row, and where their tokens are.

    ids: [B, L], the sequences of `length` [B] tokens at the beginning of their lines.
    length: on the host, so that nobody waits for a GPU.
    Returns (keyword arguments, [B, L]: where each token stands in the row, on the host).
    """
    longest = ids.shape[1]
    columns = torch.arange(longest).expand(ids.shape)
    exists = columns < length[:, None]
    tokens = exists.flatten().nonzero().squeeze(1)  # [T] places among all ids
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
