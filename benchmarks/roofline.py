"""A lower bound of the seconds of each stage of a step on a GPU.

A stage takes at least its FLOP over the GPU's peak FLOP per second, and at least the bytes that it
must read and write over the memory bandwidth. The peaks are from NVIDIA's data sheets.

    sampling   a new token of every response reads all weights and the caches so far: bandwidth
    scoring    a forward pass over all tokens: FLOP
    update     three times the FLOP of scoring, without recomputation; then Adam reads weights,
               gradients and both moments in float32, and writes all but the gradients

With R responses of T tokens, P parameters that multiply, L layers and q = heads x head size, a
forward pass takes 2 P R T FLOP, and 2 L q R T² for causal attention.
"""

import torch
from transformers import PreTrainedConfig

from benchmarks.flights import BANDWIDTH, PEAK_FLOP
from benchmarks.sizes import HALF, Sizes, sizes_of
from infra.flight import cache_bytes

GPUS = {  # by a part of its name: dense bfloat16 FLOP and bytes of memory, per second
    "H200": (PEAK_FLOP, 4.8e12),
    "H100": (PEAK_FLOP, BANDWIDTH),
    "A100": (312e12, 2.04e12),
}
ADAM_BYTES = 28  # per parameter: four numbers read, three written


def peaks_here() -> tuple[float, float]:
    """(FLOP per second, bytes per second) of this GPU; an H100's if the GPU is not in GPUS."""
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    return next((peaks for gpu, peaks in GPUS.items() if gpu in name), GPUS["H100"])


def forward_flop(size: Sizes, sequences: int, width: int) -> int:
    """FLOP of a forward pass over `sequences` of `width` tokens each."""
    tokens = sequences * width
    return 2 * size.multiplying * tokens + 2 * size.layers * size.attention * tokens * width


def least_seconds(
    config: PreTrainedConfig,
    responses: int,
    prompt: int,
    length: int,
    mini_batches: int,
    peaks: tuple[float, float],
) -> dict[str, float]:
    """The bounds for `responses` responses of `length` tokens after `prompt` tokens, by stage.

    peaks: FLOP and bytes per second.
    """
    flop, bandwidth = peaks
    size = sizes_of(config)
    sampling = 0.0
    for columns in range(prompt, prompt + length):
        read = HALF * size.multiplying + responses * columns * cache_bytes(config, HALF)
        attention = 4 * size.layers * size.attention * columns
        computed = responses * (2 * size.multiplying + attention)
        sampling += max(read / bandwidth, computed / flop)

    scoring = forward_flop(size, responses, prompt + length) / flop
    adam = mini_batches * ADAM_BYTES * size.parameters / bandwidth
    return {"sampling": sampling, "old_logprobs": scoring, "update": 3 * scoring + adam}
