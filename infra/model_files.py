"""Finds a model's files in a local folder or on the hub, and refuses models that cannot run here.

Models refused here would later run out of memory, or fail with a traceback or misleading message.
infra/loading.py checks at every load that a model's results are correct.
"""

import os
from inspect import signature
from pathlib import Path

import torch
from huggingface_hub import HfApi, snapshot_download
from safetensors import safe_open
from torch import distributed as dist
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    DynamicCache,
    GenerationConfig,
)
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer
from transformers.utils import logging as hf_logging

from infra.errors import UserError, one_line
from infra.hub import asked_once
from infra.packed_attention import head_size
from infra.ranks import this_device

DOWNLOADED = ["*.json", "*.safetensors", "*.txt", "*.jinja", "*.model"]
TOKENIZERS = ["tokenizer*", "vocab*", "*.model"]  # a tokenizer has at least one of these files

# Cache layers that hold only keys and values, like infra/cache.py.
KEYS_AND_VALUES = (DynamicLayer, DynamicSlidingWindowLayer)


def locate(name: str | Path) -> tuple:
    """(folder, config, tokenizer) of a model, given its folder or hub id.

    Checks all files, but reads no weights. Raises UserError.
    """
    # Keep progress bars and load reports out of the output; `from_files` raises load problems.
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()

    folder = Path(name)
    if not folder.is_dir():
        trouble = (
            "no model folder or hub id with this name, or the hub cannot be reached; without a "
            "network, pass a folder (on another machine: hf download ID --local-dir FOLDER)"
        )
        asked_once(HfApi().model_info, str(folder))
        with one_line(name, trouble):
            # One rank of a node downloads while the others wait.
            folder = Path(snapshot_download(str(folder), allow_patterns=DOWNLOADED))
    config = read_config(name, folder)

    weights = list(folder.glob("*.safetensors"))
    if not weights:
        raise UserError(
            f"--model {name}: no .safetensors in {folder}, and other formats are not read: convert "
            "them (AutoModelForCausalLM.from_pretrained(...).save_pretrained(FOLDER))"
        )
    for path in weights:
        with one_line(name, f"{path} is damaged or cut off, or needs git lfs pull"):
            safe_open(path, "pt")  # checks header and length

    if not any(path for pattern in TOKENIZERS for path in folder.glob(pattern)):
        raise UserError(
            f"--model {name}: no tokenizer in {folder}: put the model's tokenizer.json and "
            "tokenizer_config.json there"
        )
    with one_line(name, f"cannot read the tokenizer in {folder}"):
        tokenizer = AutoTokenizer.from_pretrained(folder)
        words = max(tokenizer.get_vocab().values()) + 1
    if words > config.vocab_size:
        raise UserError(
            f"--model {name}: its tokenizer has {words} ids, its embedding {config.vocab_size}: "
            "use the tokenizer that belongs to the model, or resize the embedding"
        )

    end = getattr(config, "eos_token_id", None)
    if (folder / "generation_config.json").exists():
        with one_line(name, f"cannot read generation_config.json of {folder}"):
            end = GenerationConfig.from_pretrained(folder).eos_token_id
    ends = [tokenizer.eos_token_id, *(end if isinstance(end, list) else [end])]
    ends = [each for each in ends if each is not None]
    if not ends or not all(isinstance(each, int) for each in ends):
        raise UserError(
            f"--model {name}: its eos_token_id is {end!r} in generation_config.json and "
            f"{tokenizer.eos_token_id!r} in the tokenizer: set it to the id of an end token, or a "
            "list of ids"
        )
    return folder, config, tokenizer


def read_config(name: str | Path, folder: str | Path):
    """The model's config. Raises UserError if the architecture cannot be trained here."""
    if Path(folder).is_dir() and not (Path(folder) / "config.json").exists():
        raise UserError(f"--model {name}: no model in this folder, because it has no config.json")
    with one_line(name, f"cannot read config.json of {folder}"):
        config = AutoConfig.from_pretrained(folder)
    refuse_config(name, config)
    with one_line(name, "its config.json does not give one size for all attention heads"):
        head_size(config)
    return config


def from_files(name: str | Path, folder: Path, dtype: torch.dtype) -> torch.nn.Module:
    """from_pretrained's model, on the CPU. Raises UserError if from_pretrained warns."""
    with one_line(name, f"cannot read the weights in {folder}"):
        lm, report = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # these are reported
            output_loading_info=True,
        )
    troubles = {
        "is missing": sorted(report["missing_keys"]),
        "has another shape": sorted(key for key, *_ in report["mismatched_keys"]),
        "has no place in the model": sorted(report["unexpected_keys"]),
    }
    for trouble, keys in troubles.items():
        if keys:
            raise UserError(
                f"--model {name}: its safetensors do not fit its config.json: {keys[0]} {trouble} "
                f"({len(keys)} in all)"
            )
    asked = lm.get_expanded_tied_weights_keys(all_submodels=True)
    for target in sorted(asked.keys() - lm.all_tied_weights_keys.keys()):
        raise UserError(
            f"--model {name}: its config.json ties {target} to {asked[target]}, but its "
            'safetensors hold two different ones: set "tie_word_embeddings": false in config.json'
        )
    return lm.eval()


# ---- models that cannot run here -----------------------------------------------------------------


def refuse_config(name: str | Path, config) -> None:
    """Raise UserError for an architecture that cannot be trained or sampled here."""
    kind = config.model_type
    if config.get_text_config() is not config:
        raise UserError(
            f"--model {name}: {kind} wraps a language model for images or sound: pass a text model"
        )
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING or config.is_encoder_decoder:
        raise UserError(f"--model {name}: {kind} is not a causal language model")
    if getattr(config, "quantization_config", None) is not None:
        raise UserError(f"--model {name}: its weights are quantised: pass the original model")

    for layer in DynamicCache(config=config).layers:
        if type(layer) not in KEYS_AND_VALUES:
            raise UserError(
                f"--model {name}: {kind} keeps more of the past than keys and values in each layer "
                f"({type(layer).__name__}), but the sampler does not: pass a plain transformer"
            )


def refuse_model(name: str | Path, lm: torch.nn.Module) -> None:
    """Raise UserError for a model without the parts of a causal transformer, such as XLNet."""
    lacks = None
    takes = signature(type(lm.base_model).forward).parameters
    if lm.base_model is lm or "past_key_values" not in takes:
        lacks = "body of its own that takes a cache of keys and values"
    elif not isinstance(lm.get_output_embeddings(), torch.nn.Linear):
        lacks = "matrix as its head"
    elif not any(isinstance(part, torch.nn.ModuleList) for part in lm.base_model.modules()):
        lacks = "list of layers"
    if lacks:
        raise UserError(
            f"--model {name}: {type(lm).__name__} has no {lacks}: pass a plain transformer"
        )


def refuse_too_large(name: str | Path, lm: torch.nn.Module) -> None:
    """Raise UserError if no flags can make training the model fit on a node's GPUs.

    lm: a model on the meta device; nothing is allocated. `bench.py plan` estimates all memory.
    """
    if this_device().type == "cpu":
        return
    shards = int(os.environ.get("LOCAL_WORLD_SIZE", dist.get_world_size()))
    parameters = lm.num_parameters()
    needs = least_bytes(parameters, shards)
    has = torch.cuda.get_device_properties(this_device()).total_memory
    if needs > has:
        raise UserError(
            f"--model {name}: {parameters / 1e9:.2f} billion parameters take at least "
            f"{needs / 1e9:.0f} GB on each of {shards} GPUs, but this one has {has / 1e9:.0f}: "
            "use more GPUs of a node (python bench.py plan estimates the memory for any number)"
        )


def least_bytes(parameters: int, shards: int) -> float:
    """Bytes that each GPU in a node must hold at once in any run.

    A GPU always holds its float32 shards of the weights and Adam's two moments. The larger of two
    peaks is added: all weights in bfloat16 (sampling), or its float32 gradient shards (backward).
    """
    return 12 * parameters / shards + max(2 * parameters, 4 * parameters / shards)


def most_tokens(config) -> int | None:
    """The longest sequence that the positions support; None without a limit."""
    limit = getattr(config, "max_position_embeddings", None)
    if limit is None or limit < 1:
        return None
    scheme = getattr(config, "rope_parameters", None) or {}
    if scheme.get("rope_type") == "longrope":
        # Beyond this limit, the longest sequence in a batch sets the frequencies for all.
        limit = min(limit, scheme["original_max_position_embeddings"])
    return limit


def refuse_length(config, prompts: list[list[int]], max_new_tokens: int) -> None:
    """Raise UserError if a prompt and its response may exceed the model's positions."""
    limit = most_tokens(config)
    if limit is None:
        return
    longest = max((len(prompt) for prompt in prompts), default=0)
    if longest + max_new_tokens > limit:
        raise UserError(
            f"--max-new-tokens {max_new_tokens} after a prompt of {longest} tokens exceeds the "
            f"{limit} tokens that the positions of this {config.model_type} support: "
            f"lower it to {max(0, limit - longest)}; if a scheme such as yarn extends the "
            "positions, raise max_position_embeddings in config.json"
        )
