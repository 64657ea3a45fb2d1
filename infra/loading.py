"""From the name of a model to a model: a local Hugging Face folder, or an id of the hub.

`load_model` gives it whole, for evaluation; `load_policy` sharded over all ranks, for training:
float32 weights, gradients and Adam moments, bfloat16 computation on GPUs, float32 on the CPU.
"""

import copy
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from huggingface_hub import snapshot_download
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from infra.errors import UserError
from infra.hub import prepare_for_hub
from infra.policy import Policy
from infra.ranks import device_mesh, shard, this_device

DOWNLOADED = ["*.json", "*.safetensors", "*.txt", "*.jinja", "*.model"]


def locate(name: str | Path) -> tuple:
    """(folder, config, tokenizer) of a folder, or of a hub id. Raises UserError."""
    try:
        folder = Path(name)
        if not folder.is_dir():
            prepare_for_hub()
            # One rank of a node downloads while the others wait.
            folder = Path(snapshot_download(str(folder), allow_patterns=DOWNLOADED))
        config = AutoConfig.from_pretrained(folder)
        return folder, config, AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise UserError(
            f"--model {name}: no model in such a folder, nor on the hub as far as it can be "
            f"reached ({str(error).splitlines()[0]}); with no network, pass a folder "
            "(elsewhere: hf download ID --local-dir FOLDER)"
        ) from error


def load_model(name: str, dtype: torch.dtype = torch.float32) -> tuple:
    """(model, tokenizer), whole, on the GPU if there is one. Raises UserError."""
    folder, _, tokenizer = locate(name)
    lm = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    return lm.to(this_device()).eval(), tokenizer


def load_policy(name: str, temperature: float = 1.0, recompute: bool = True) -> tuple:
    """(sharded Policy, tokenizer): built without memory, then each rank reads its slices.

    name: folder or hub id.
    temperature: of sampling and log-probabilities.
    recompute: activation checkpointing per layer.
    Raises UserError.
    """
    folder, config, tokenizer = locate(name)
    config.attention_dropout = 0.0  # with dropout the ratio would not be 1 at θ_old
    with torch.device("meta"):
        lm = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    if (folder / "generation_config.json").exists():
        lm.generation_config = GenerationConfig.from_pretrained(folder)

    policy = Policy(lm, temperature)
    policy.twin = [copy.deepcopy(lm)]
    if recompute:
        lm.activation_checkpointing_enable({"use_reentrant": False})
        lm.base_model.layers.train()  # transformers recomputes layers in training mode only

    shard(policy, lm.base_model.layers, device_mesh())
    policy.to_empty(device=this_device())
    lm.tie_weights()
    fill_rotary_buffers(lm, config)
    read_weights(policy, folder, config)
    initialise_sharding(policy)
    return policy, tokenizer


def fill_rotary_buffers(lm: torch.nn.Module, config) -> None:
    """Compute the rotary embeddings' buffers, which stand in no file."""
    for module in lm.modules():
        if hasattr(module, "inv_freq"):
            fresh = type(module)(config).to(this_device())
            module._buffers.update(fresh._buffers)


def read_weights(policy: Policy, folder: Path, config) -> None:
    """Every rank reads its slices of the safetensors and nothing else. Raises UserError."""
    weights = {
        name.removeprefix("lm."): shard for name, shard in get_model_state_dict(policy).items()
    }
    if config.tie_word_embeddings:
        del weights["lm_head.weight"]  # it is the embedding, and in no file
    try:
        dcp.load(weights, storage_reader=dcp.HuggingFaceStorageReader(str(folder)))
    except (dcp.api.CheckpointException, OSError, ValueError) as error:
        raise UserError(
            f"--model {folder}: its safetensors do not fit its config.json "
            f"({str(error).splitlines()[-1]})"
        ) from error


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
