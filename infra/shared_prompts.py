"""Without this file a prompt would run again for each of its responses.

`states` gives the decoder's states for response tokens, and runs a prompt once for all of them:

    ids [b, L]     [ p q r a b c ]      prompts [u, P]  [ p q ]      rest [b, T]  [ r a b ]
                   [ p q r d e . ]                      [ . s ]                   [ r d . ]
                   [ s t f g . . ]                                                [ t f . ]

The last token of a prompt runs with each response, since its state predicts their first tokens. The
responses attend to the keys and values of their prompt, whose gradients sum over them. So results
and gradients are those of whole sequences, within rounding.

Whole sequences run in three cases. The prompts are short. Or the model has recurrent layers, whose
states have no columns to attend to. Or there are several ranks: they must call each layer equally
often to gather its weights, but only some of their micro-batches would share a prompt.

Shapes: b responses to u prompts, L columns in the longest sequence, P columns of prompts, T of the
rest, n response tokens, H hidden size.
"""

from inspect import signature

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from infra.loading import decoder_of
from infra.ranks import rank_and_world
from infra.sampler import left_padded, takes_cache

SHORT = 32  # a prompt with no more tokens is not shared: a second pass costs more than it saves


def shares_prompts(lm: torch.nn.Module) -> bool:
    """Whether this rank is alone, and all layers of the model's cache keep keys and values."""
    if rank_and_world()[1] > 1 or not takes_cache(decoder_of(lm)):
        return False
    kinds = {type(layer) for layer in DynamicCache(config=lm.config).layers}
    return kinds <= {DynamicLayer, DynamicSlidingWindowLayer}


def states(lm: torch.nn.Module, ids: torch.Tensor, is_token: torch.Tensor) -> torch.Tensor:
    """The states [n, H] that predict the response tokens, from which the head makes logits.

    ids [b, L]: prompts, responses, then padding. is_token [b, L]: the response tokens, n in all.
    """
    start = is_token.int().argmax(dim=1).clamp_min(1)  # [b] the column of the first response token
    prompts = [tuple(x[:end]) for x, end in zip(ids.tolist(), start.tolist(), strict=True)]
    repeated = len(set(prompts)) < len(prompts)
    if repeated and start.max() > SHORT and shares_prompts(lm):
        return states_after_prompts(decoder_of(lm), ids, is_token, prompts)
    whole = decoder_of(lm)(input_ids=ids, use_cache=False).last_hidden_state  # [b, L, H]
    return whole[:, :-1][is_token[:, 1:]]  # the state at t-1 predicts token t


def states_after_prompts(
    decoder: torch.nn.Module, ids: torch.Tensor, is_token: torch.Tensor, prompts: list[tuple]
) -> torch.Tensor:
    """`states`, with each of the distinct prompts run once. prompts: token ids, b of them."""
    distinct = list(dict.fromkeys(prompts))  # u
    # Padded on the left, since sliding windows count columns: no gap may follow a prompt.
    shared, seen = left_padded([prompt[:-1] for prompt in distinct], ids.device)
    position = (seen.cumsum(dim=1) - 1).clamp_min(0)
    layers = [PromptLayer() for _ in DynamicCache(config=decoder.config).layers]
    of_prompts = run(decoder, shared, seen, position, layers)  # [u, P, H]

    row = torch.tensor([distinct.index(prompt) for prompt in prompts], device=ids.device)
    start = torch.tensor([len(prompt) for prompt in prompts], device=ids.device)  # [b]
    length = is_token.sum(dim=1)  # [b]
    step = torch.arange(int(length.max()), device=ids.device)  # [T]
    column = (start[:, None] - 1 + step).clamp_max(ids.shape[1] - 1)  # [b, T] in `ids`
    rest = ids.gather(1, column)
    seen = torch.cat([seen[row], torch.ones_like(rest)], dim=1)  # [b, P + T]
    layers = [ResponseLayer(layer, row) for layer in layers]
    found = run(decoder, rest, seen, column, layers)[step < length[:, None]]  # [n, H]
    # No result depends on the prompts' last states, but FSDP gathers a layer's weights for a
    # backward pass when the gradient of the layer's output arrives.
    return found + 0 * of_prompts[:, -1].sum()


class PromptLayer(DynamicLayer):
    """A cache layer that holds the keys and values of one pass, with their graph."""

    def update(self, keys: torch.Tensor, values: torch.Tensor, *_, **__) -> tuple:
        """Hold and return keys, values [u, heads, P, size]; --recompute calls this twice."""
        self.keys, self.values = keys, values
        return keys, values


class ResponseLayer(DynamicLayer):
    """The keys and values of a PromptLayer, for response j those of its prompt row[j]."""

    def __init__(self, prompts: PromptLayer, row: torch.Tensor):
        super().__init__()
        self.keys, self.values, self.row = prompts.keys, prompts.values, row
        self.is_initialized = True

    def update(self, keys: torch.Tensor, values: torch.Tensor, *_, **__) -> tuple:
        """All keys and values [b, heads, P + T, size], given those of the rest, which it drops."""
        pairs = (self.keys, keys), (self.values, values)
        return tuple(torch.cat([old.index_select(0, self.row), new], dim=2) for old, new in pairs)


def run(decoder, ids: torch.Tensor, seen: torch.Tensor, position: torch.Tensor, layers: list):
    """The last hidden states [rows, columns, H]. seen: the mask of all columns so far."""
    cache = DynamicCache()
    cache.layers = layers
    inputs = {"input_ids": ids, "attention_mask": seen}
    if "position_ids" in signature(type(decoder).forward).parameters:
        inputs["position_ids"] = position  # other models derive positions from the mask
    return decoder(**inputs, past_key_values=cache, use_cache=True).last_hidden_state
