"""On a GPU, a chunk's one-token pass as a CUDA graph: recorded once, then replayed for each token.

Launching its hundreds of short kernels one by one takes several times as long as they run. A graph
launches them at once, but always with the same shapes and addresses. So the cache has all columns
of the chunk from its start, causality hides those that are not filled yet, and the device counts:

    ids   [ . p q ]        [ q ] runs and gives a; then [ a ] runs and gives b, the next [ b ]
    cache [ . p _ _ ]      [ . p q _ ]             [ . p q a ]

Shapes: R responses, L columns of ids, V vocabulary size.
"""

from collections.abc import Callable
from inspect import signature

import torch
from transformers import Cache, DynamicCache
from transformers.cache_utils import StaticLayer

DEVICE = "cuda"


def can_capture(lm, cache: DynamicCache) -> bool:
    """Whether a one-token pass has fixed shapes. cache: of sampler.joined.

    Recurrent states are replaced, not written in place. Experts may be chosen on the host.
    """
    return (
        lm.device.type == DEVICE
        and lm._can_compile_fullgraph  # by transformers
        and not any("Experts" in type(part).__name__ for part in lm.modules())
        and all(hasattr(layer, "storage") and not layer.number_of_states for layer in cache.layers)
        and "position_ids" in signature(type(lm.base_model).forward).parameters
    )


class FixedLayer(StaticLayer):
    """The storage of a sampler.CacheLayer; the device counts the filled columns."""

    def __init__(self, layer):
        super().__init__(max_cache_len=layer.storage[0].shape[2])
        self.keys, self.values = layer.storage  # [R, heads, L - 1 + count, size]
        self.device = self.keys.device
        self.cumulative_length = torch.tensor(layer.keys.shape[2], device=self.device)
        self.is_initialized = True


def captured_tokens(
    lm,
    ids: torch.Tensor,
    mask: torch.Tensor,
    cache: DynamicCache,
    choose: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    count: int,
) -> torch.Tensor:
    """The next `count` tokens of each response: [R, count]. Fills all columns of `cache`.

    ids, mask [R, L]: padded on the left. choose: as for sampler.next_tokens. No token ends a
    response here: the caller cuts off what follows one.
    """
    fixed = Cache(layers=[FixedLayer(layer) for layer in cache.layers])
    seen = torch.nn.functional.pad(mask, (0, count - 1), value=1)
    token, position = ids[:, -1:].clone(), mask.sum(dim=1, keepdim=True) - 1  # [R, 1]
    new = ids.new_zeros(len(ids), count)
    column = ids.new_zeros(1)

    def one_token() -> None:
        inputs = {"input_ids": token, "position_ids": position, "attention_mask": seen}
        logits = lm(**inputs, past_key_values=fixed, use_cache=True).logits[:, -1].float()  # [R, V]
        token.copy_(choose(ids, logits).argmax(dim=-1, keepdim=True))
        new.index_copy_(1, column, token)
        column.add_(1)
        position.add_(1)

    one_token()  # loads the kernels, as no recording can
    if count > 1:
        repeat(one_token, count - 1)
    for layer in cache.layers:
        layer.keys, layer.values = layer.storage
    return new


def repeat(kernels: Callable[[], None], times: int) -> None:
    """Record what `kernels` launches, and launch it so often."""
    graph = torch.cuda.CUDAGraph()
    # NCCL's watchdog, a thread of its own, may call CUDA meanwhile.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        kernels()
    for _ in range(times):
        graph.replay()
