"""From the name of a model to a model: a local Hugging Face folder, or an id of the hub.

`load_model` gives it whole, for evaluation; `load_policy` sharded over all ranks, for training:
float32 weights, gradients and Adam moments, bfloat16 computation on GPUs, float32 on the CPU. Both
stand on one `from_pretrained`, and refuse whatever that warns of.
"""

import copy
from pathlib import Path

import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from transformers import AutoModelForCausalLM

from infra.agreement import (
    check_policy,
    check_sampler,
    computation_dtype,
    pack_where_equal,
    reference_rows,
)
from infra.architecture import (
    decoder_layers,
    recompute_in_backward,
    refuse_model,
    without_dropout,
)
from infra.head import give_float32_head
from infra.model_files import from_files, locate, one_line
from infra.policy import Policy
from infra.ranks import (
    device_mesh,
    on_first_rank,
    prefer_expandable_segments,
    shard,
    this_device,
)


def load_model(name: str | Path, dtype: torch.dtype = torch.float32) -> tuple:
    """(model, tokenizer), whole, on the GPU if there is one; its logits are float32.

    Raises UserError.
    """
    before_any_model()
    folder, _, tokenizer = locate(name)
    lm = from_files(name, folder, dtype).to(this_device())
    refuse_model(name, lm)
    expected = reference_rows(name, lm, dtype)
    give_float32_head(lm)  # as train.py's sampler has it
    check_sampler(name, lm, expected)
    return lm, tokenizer


def load_policy(
    name: str | Path,
    temperature: float = 1.0,
    recompute: bool = True,
    packing: bool = True,
) -> tuple:
    """(sharded Policy, tokenizer). All ranks call.

    The first rank reads the model, once, on its host, and broadcasts it tensor by tensor; each rank
    keeps its slices.

    name: folder or hub id.
    temperature: of sampling and log-probabilities.
    recompute: activation checkpointing per layer.
    packing: on GPUs pack micro-batches, if the model then gives the same numbers.
    Raises UserError, also where the result is not the model that from_pretrained gives.
    """
    before_any_model()
    folder, config, tokenizer = locate(name)
    with one_line(name, f"cannot read config.json of {folder}"), torch.device("meta"):
        lm = AutoModelForCausalLM.from_config(without_dropout(config), dtype=torch.float32).eval()
    refuse_model(name, lm)

    whole = []  # on the first rank: the model as from_pretrained gives it

    def read() -> tuple:
        whole.append(from_files(name, folder, torch.float32))  # in which no weight is rounded
        rows = reference_rows(name, whole[0], computation_dtype())
        return rows, dict(whole[0].named_buffers()), whole[0].generation_config

    # Before shards take room on the GPU.
    expected, buffers, lm.generation_config = on_first_rank(read)

    policy = Policy(lm)
    policy.twin = [copy.deepcopy(lm)]
    give_float32_head(policy.twin[0])
    layers = decoder_layers(lm)
    if recompute:
        recompute_in_backward(lm, layers)

    shard(policy, layers, device_mesh())
    policy.to_empty(device=this_device())
    lm.tie_weights()
    broadcast_weights(policy, whole)
    whole.clear()
    for key, buffer in lm.named_buffers():  # those that stand in no file are found nowhere else
        buffer.copy_(buffers[key])

    initialise_sharding(policy)
    check_policy(name, policy, expected)
    if packing and this_device().type == "cuda":
        pack_where_equal(policy)
    policy.reshard()
    policy.temperature = temperature
    return policy, tokenizer


def before_any_model() -> None:
    """What torch must be told before a model runs.

    Of cuDNN's attention, the first choice on H100 and later: it plans anew for every length of the
    keys, which is every token of a response, and on B200 it is wrong for few heads of keys.
    """
    prefer_expandable_segments()
    torch.backends.cuda.enable_cudnn_sdp(False)


def broadcast_weights(policy: Policy, whole: list[torch.nn.Module]) -> None:
    """Fill every rank's shards, in float32, with the first rank's model; `whole` is empty else."""
    weights = {}
    for lm in whole:
        weights = {f"lm.{key}": weight for key, weight in lm.named_parameters()}
    how = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True, strict=False)
    set_model_state_dict(policy, weights, options=how)


def initialise_sharding(policy: Policy) -> None:
    """Let FSDP find its root, in a first forward over two tokens; `plain` must not come before.

    Reshard afterwards: else an optimiser made now would hold the gathered parameters, and training
    would do nothing.
    """
    ids = torch.zeros(1, 2, dtype=torch.long, device=this_device())
    one = torch.ones(1, dtype=torch.long, device=this_device())
    with torch.no_grad():
        policy(ids, one, one)
    policy.reshard()
