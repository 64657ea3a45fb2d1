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

from infra.agreement import (
    check_policy,
    check_sampler,
    own_logits,
    pack_where_equal,
    plain_model,
    random_sequences,
)
from infra.architecture import (
    decoder_layers,
    recompute_in_backward,
    refuse_config,
    refuse_model,
    without_dropout,
)
from infra.errors import UserError
from infra.hub import prepare_for_hub
from infra.policy import Policy, give_float32_head
from infra.ranks import device_mesh, prefer_expandable_segments, shard, this_device

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
    except (OSError, ValueError) as error:
        raise UserError(
            f"--model {name}: no model in such a folder, nor on the hub as far as it can be "
            f"reached ({str(error).splitlines()[0]}); with no network, pass a folder "
            "(elsewhere: hf download ID --local-dir FOLDER)"
        ) from error
    refuse_config(name, config)

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise UserError(
            f"--model {name}: no tokenizer in {folder} ({str(error).splitlines()[0]}): "
            "put the model's tokenizer.json and tokenizer_config.json there"
        ) from error
    return folder, config, tokenizer


def check_files(name: str | Path, folder: Path, config, tokenizer) -> None:
    """Raise UserError for weights and tokenizers that do not serve; nothing is loaded for it."""
    if not list(folder.glob("*.safetensors")):
        raise UserError(
            f"--model {name}: no .safetensors in {folder}, and other weights are not read: convert "
            "them (AutoModelForCausalLM.from_pretrained(...).save_pretrained(FOLDER))"
        )
    words = max(tokenizer.get_vocab().values()) + 1
    if words > config.vocab_size:
        raise UserError(
            f"--model {name}: its tokenizer has {words} ids and its embedding {config.vocab_size}: "
            "pass the tokenizer that belongs to it, or resize the embedding"
        )
    check_end_token(name, folder, config, tokenizer)


def check_end_token(name: str | Path, folder: Path, config, tokenizer) -> None:
    """Raise UserError where nothing says how a response ends."""
    if (folder / "generation_config.json").exists():
        end = GenerationConfig.from_pretrained(folder).eos_token_id
    else:
        end = GenerationConfig.from_model_config(config).eos_token_id
    if tokenizer.eos_token_id is None and end is None:
        raise UserError(
            f"--model {name}: neither its tokenizer nor its generation_config.json names an end "
            "token: set eos_token in its tokenizer_config.json"
        )


def load_model(name: str, dtype: torch.dtype = torch.float32) -> tuple:
    """(model, tokenizer), whole, on the GPU if there is one; its logits are float32.

    Raises UserError.
    """
    prefer_expandable_segments()
    folder, config, tokenizer = locate(name)
    check_files(name, folder, config, tokenizer)
    lm = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(this_device()).eval()
    refuse_model(name, lm)

    sequences = random_sequences(config.vocab_size)
    logits = own_logits(lm, sequences)
    give_float32_head(lm)  # as train.py's sampler has it
    check_sampler(name, lm, sequences, logits)
    return lm, tokenizer


def load_policy(
    name: str,
    temperature: float = 1.0,
    recompute: bool = True,
    packing: bool = True,
    compiled: bool = False,
) -> tuple:
    """(sharded Policy, tokenizer): built without memory, then each rank reads its slices.

    name: folder or hub id.
    temperature: of sampling and log-probabilities.
    recompute: activation checkpointing per layer.
    packing: on GPUs pack micro-batches, if the model then gives the same numbers.
    compiled: torch.compile each layer, as it is trained; the sampler's are not.
    Raises UserError, also where the result is not the model that from_pretrained gives.
    """
    folder, config, tokenizer = locate(name)
    check_files(name, folder, config, tokenizer)
    with torch.device("meta"):
        lm = AutoModelForCausalLM.from_config(without_dropout(config), dtype=torch.float32).eval()
    if (folder / "generation_config.json").exists():
        lm.generation_config = GenerationConfig.from_pretrained(folder)
    refuse_model(name, lm)

    policy = Policy(lm, temperature)
    policy.twin = [copy.deepcopy(lm)]
    give_float32_head(policy.twin[0])
    layers = decoder_layers(lm)
    if recompute:
        recompute_in_backward(lm, layers)
    if compiled:
        for layer in layers:  # before they are sharded, so that FSDP's hooks stay outside
            layer.compile(dynamic=True)  # lengths differ from one micro-batch to the next

    shard(policy, layers, device_mesh())
    policy.to_empty(device=this_device())
    lm.tie_weights()
    read_weights(policy, folder)

    plain = plain_model(folder, config)
    for buffer_name, buffer in lm.named_buffers():
        buffer.copy_(plain.buffers[buffer_name])
    initialise_sharding(policy)
    check_policy(name, policy, plain)
    if packing and this_device().type == "cuda":
        pack_where_equal(policy, plain)
    policy.reshard()
    return policy, tokenizer


def read_weights(policy: Policy, folder: Path) -> None:
    """Every rank reads its slices of the safetensors and nothing else. Raises UserError."""
    tied = policy.lm.all_tied_weights_keys  # {"lm_head.weight": ...}: one of the pair is in a file
    weights = {}
    for name, its_shard in get_model_state_dict(policy).items():
        name = name.removeprefix("lm.")
        if name not in tied:
            weights[name] = its_shard

    reader = dcp.HuggingFaceStorageReader(str(folder))
    try:
        held = reader.read_metadata().state_dict_metadata
        missing = sorted(weights.keys() - held.keys())
        if not missing:
            dcp.load(weights, storage_reader=reader)
    except (dcp.api.CheckpointException, OSError, ValueError) as error:
        raise UserError(
            f"--model {folder}: its safetensors do not fit its config.json "
            f"({str(error).splitlines()[-1]})"
        ) from error
    if missing:
        raise UserError(
            f"--model {folder}: its safetensors do not fit its config.json, or are of a kind whose "
            f"tensors transformers joins or renames as it loads them (experts, say), and not read "
            f"here: {type(policy.lm).__name__} wants {missing[0]} ({len(missing)} such)"
        )


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
