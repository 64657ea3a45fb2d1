"""Without this file a GPU would wait, at each token, for the host to launch hundreds of kernels.

A chunk's one-token pass is recorded once, as a CUDA graph, and replayed for each token. Launching a
pass's hundreds of short kernels one by one takes several times as long as running them. A graph
launches them at once, but always with the same shapes and addresses. So the cache has all columns
of the chunk from its start, and the device counts the filled ones. Two tokens, count = 2:

    ids   [ . p q ]      runs [ q ], which gives a      runs [ a ], which gives b
    cache [ . p _ _ ]         [ . p q _ ]                    [ . p q a ]

Shapes: R responses, L columns of ids, V vocabulary size.
"""

from collections.abc import Callable
from functools import partial

import torch
from transformers import Cache, DynamicCache
from transformers.cache_utils import StaticLayer

DEVICE = "cuda"

# The model types that tests/test_architectures.py, or a run, has recorded on a GPU. Add a type only
# after its tests on a GPU: its pass may read a value on the host, and no recording can do that.
RECORDED = ["llama", "mistral", "ministral3", "olmo3", "opt", "qwen2", "qwen3"]
RECORDED += ["gemma2", "gemma3_text", "gemma4_text"]


def can_capture(lm) -> bool:
    """Whether a one-token pass of `lm` has fixed shapes and reads no value on the host."""
    return (
        lm.device.type == DEVICE
        and lm.config.model_type in RECORDED
        and not any(map(reads_values, lm.modules()))
    )


def reads_values(part: torch.nn.Module) -> bool:
    """Whether a part chooses by values: experts by the token, or frequencies by the length."""
    rope = str(getattr(part, "rope_type", ""))  # some models have one for each kind of layer
    return "dynamic" in rope or "longrope" in rope or "Experts" in type(part).__name__


class FixedLayer(StaticLayer):
    """transformers' cache of fixed length: the columns of a DynamicLayer and `spare` empty ones."""

    def __init__(self, layer, spare: int):
        columns = layer.keys.shape[2]
        super().__init__(max_cache_len=columns + spare)
        pad = partial(torch.nn.functional.pad, pad=(0, 0, 0, spare))
        self.keys, self.values = pad(layer.keys), pad(layer.values)  # [R, heads, columns, size]
        layer.keys = layer.values = None  # so memory holds one layer twice, not all
        self.device = self.keys.device
        self.cumulative_length = torch.tensor(columns, device=self.device)  # filled
        self.is_initialized = True


def captured_tokens(
    lm, ids: torch.Tensor, mask: torch.Tensor, cache: DynamicCache, draws
) -> torch.Tensor:
    """The next tokens of each response, as many as `draws` has: [R, T]. Fills all of `cache`.

    ids, mask [R, L]: padded on the left. cache: from sampler.prefilled. draws: a
    sampler.ChunkDraws. No token ends a response
    here: the caller cuts off what follows one.
    """
    count = draws.count
    fixed = Cache(layers=[FixedLayer(layer, count) for layer in cache.layers])
    padding = torch.nn.functional.pad(mask, (0, count - 1), value=1)  # 0 is on the left only
    token, position = ids[:, -1:].clone(), mask.sum(dim=1, keepdim=True) - 1  # [R, 1]
    new, column = ids.new_zeros(len(ids), count), ids.new_zeros(1)

    def one_token() -> None:
        inputs = {"input_ids": token, "position_ids": position, "attention_mask": padding}
        logits = lm(**inputs, past_key_values=fixed, use_cache=True).logits[:, -1].float()  # [R, V]
        token.copy_(draws(ids, logits).argmax(dim=-1, keepdim=True))
        new.index_copy_(1, column, token)
        column.add_(1)
        position.add_(1)

    one_token()  # the first one; this also loads the kernels, which no recording can do
    if count > 1:
        repeat(one_token, count - 1)
    for layer, filled in zip(cache.layers, fixed.layers, strict=True):
        layer.keys, layer.values = filled.keys, filled.values
    return new


def repeat(kernels: Callable[[], None], times: int) -> None:
    """Record what `kernels` launches without running it, then run the recording `times` times."""
    graph = torch.cuda.CUDAGraph()
    # By default a call from another thread, NCCL's watchdog, would end the recording.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        kernels()
    for _ in range(times):
        graph.replay()
