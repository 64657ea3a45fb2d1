"""Loads a model by name: a local Hugging Face folder, or an id of the hub.

`load_model` loads the full model, for evaluation. `load_policy` shards it over all ranks, for
training: float32 weights, gradients and Adam moments, bfloat16 computation on GPUs, float32 on the
CPU. Both use the same `from_pretrained`, and refuse a model if it warns.
"""

import copy
from functools import partial
from pathlib import Path

import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM

from infra.agreement import (
    check_policy,
    check_sampler,
    computation_dtype,
    pack_where_equal,
    reference_logprobs,
)
from infra.errors import one_line
from infra.head import give_float32_head
from infra.model_files import from_files, locate, refuse_model, refuse_too_large
from infra.policy import Policy
from infra.ranks import (
    device_mesh,
    on_first_rank,
    prefer_expandable_segments,
    shard,
    this_device,
)


def load_model(name: str | Path, dtype: torch.dtype = torch.float32) -> tuple:
    """(full model, tokenizer), on the GPU if there is one. The logits are float32.

    Raises UserError.
    """
    before_any_model()
    folder, _, tokenizer = locate(name)
    lm = from_files(name, folder, dtype).to(this_device())
    refuse_model(name, lm)
    expected = reference_logprobs(name, lm, dtype)
    give_float32_head(lm)  # like train.py's sampler
    check_sampler(name, lm, expected)
    return lm, tokenizer


def load_policy(
    name: str | Path,
    temperature: float = 1.0,
    recompute: bool = True,
    packing: bool = True,
) -> tuple:
    """(sharded Policy, tokenizer). All ranks call this.

    The first rank reads the model once on its host and broadcasts it tensor by tensor. Each rank
    keeps its slices.

    name: folder or hub id.
    temperature: of sampling and log-probabilities.
    recompute: activation checkpointing per layer.
    packing: on GPUs pack micro-batches, if the model then gives the same results.
    Raises UserError, also if the result differs from the model of from_pretrained.
    """
    before_any_model()
    folder, config, tokenizer = locate(name)
    with one_line(name, f"cannot read config.json of {folder}"), torch.device("meta"):
        lm = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    lm.eval()  # with dropout the ratio would not be 1 at θ_old
    refuse_model(name, lm)
    refuse_too_large(name, lm)

    whole = []  # on the first rank: the model of from_pretrained

    def read() -> tuple:
        whole.append(from_files(name, folder, torch.float32))  # float32, so no weight is rounded
        expected = reference_logprobs(name, whole[0], computation_dtype())
        return expected, dict(whole[0].named_buffers()), whole[0].generation_config

    # Before the shards are on the GPU.
    expected, buffers, lm.generation_config = on_first_rank(read)

    policy = Policy(lm)
    policy.twin = [copy.deepcopy(lm)]
    give_float32_head(policy.twin[0])
    layers = decoder_layers(lm)
    if recompute:
        recompute_in_backward(layers)

    shard(policy, layers, device_mesh())
    policy.to_empty(device=this_device())
    lm.tie_weights()
    broadcast_weights(policy, whole)
    whole.clear()
    for key, buffer in lm.named_buffers():  # some buffers are in no file
        buffer.copy_(buffers[key])

    # Its first forward pass, before `plain`, also lets FSDP find its root.
    check_policy(name, policy, expected)
    if packing and this_device().type == "cuda":
        pack_where_equal(policy)
    policy.reshard()  # else an optimiser would hold the gathered parameters and train nothing
    policy.temperature = temperature
    return policy, tokenizer


def before_any_model() -> None:
    """Turn off cuDNN's attention, torch's first choice on H100 and later GPUs.

    It plans again for every length of the keys, so for every token of a response. On B200 its
    results are wrong for few key heads.
    """
    prefer_expandable_segments()
    torch.backends.cuda.enable_cudnn_sdp(False)


def broadcast_weights(policy: Policy, whole: list[torch.nn.Module]) -> None:
    """Copy the first rank's model to all shards, in float32; `whole` is empty on other ranks."""
    weights = {}
    for lm in whole:
        weights = {f"lm.{key}": weight for key, weight in lm.named_parameters()}
    how = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True, strict=False)
    set_model_state_dict(policy, weights, options=how)


def recompute_in_backward(layers: torch.nn.ModuleList) -> None:
    """Activation checkpointing: each layer stores only its input and runs again in backward."""
    for layer in layers:
        # Nothing in a layer is random, because the model is in eval mode.
        again = partial(checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False)
        layer.forward = again


def decoder_layers(lm: torch.nn.Module) -> torch.nn.ModuleList:
    """The body's layers: the module list with the most parameters."""
    lists = [part for part in lm.base_model.modules() if isinstance(part, torch.nn.ModuleList)]
    return max(lists, key=lambda layers: sum(p.numel() for p in layers.parameters()))
