"""A model's files in a local folder or on the hub: its config, its tokenizer and its weights.

Of a model of text and images, the language model inside is read. A model whose files are incomplete or contradict each other is refused in one line. loading.py
checks at every load that the results are right.
"""

import json
from collections import Counter
from pathlib import Path

import torch
from huggingface_hub import snapshot_download
from safetensors import safe_open
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMultimodalLM,
    AutoTokenizer,
    GenerationConfig,
)
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightRenaming, rename_source_key
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MULTIMODAL_LM_MAPPING,
)
from transformers.utils import logging as hf_logging

from infra.errors import UserError, one_line
from infra.hub import prefer_cache
from infra.ranks import is_first_rank

DOWNLOADED = ["*.json", "*.safetensors", "*.txt", "*.jinja", "*.model"]
TOKENIZERS = ["tokenizer*", "vocab*", "*.model"]  # a tokenizer has at least one of these files


def locate(name: str | Path) -> tuple:
    """(folder, config, tokenizer) of a language model, given its folder or hub id.

    Reads no weights. The config of a model of text and images is that of the language model inside.
    Raises UserError.
    """
    # Keep progress bars and load reports out of the output; `from_files` raises load problems.
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()

    folder = Path(name)
    if not folder.is_dir():
        trouble = "no model folder or hub id, or no network: hf download ID --local-dir FOLDER"
        prefer_cache()
        with one_line(name, trouble):
            # One rank of a node downloads while the others wait.
            folder = Path(snapshot_download(str(folder), allow_patterns=DOWNLOADED))
    _, config = read_configs(name, folder)
    return folder, config, read_tokenizer(name, folder, config)


def read_configs(name: str | Path, folder: str | Path) -> tuple:
    """(config of the files, config of the language model): the same unless there is more than text.

    Raises UserError for a model that is quantised, or has no causal language model.
    """
    if (Path(folder) / "adapter_config.json").exists():
        raise UserError(f"--model {name} is an adapter: merge it into its model (docs/models.md)")
    with one_line(name, f"cannot read config.json of {folder}"):
        whole = AutoConfig.from_pretrained(folder)
        config = whole.get_text_config()
    trouble = None
    causal = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING and not whole.is_encoder_decoder
    if not causal or config is not whole and type(whole) not in MODEL_FOR_MULTIMODAL_LM_MAPPING:
        trouble = "has no causal language model: pass a text model"
    elif getattr(whole, "quantization_config", None) is not None:
        trouble = "is quantised: pass the original model"
    if trouble:
        raise UserError(f"--model {name}: this {whole.model_type} {trouble}")
    config.name_or_path = whole.name_or_path
    config.tie_word_embeddings = whole.tie_word_embeddings
    return whole, config


def read_tokenizer(name: str | Path, folder: Path, config):
    """The model's tokenizer. Raises UserError if it cannot be read or has no end token."""
    if not [path for kind in TOKENIZERS for path in folder.glob(kind)]:
        raise UserError(f"--model {name}: no tokenizer in {folder}")  # else transformers makes one
    with one_line(name, f"cannot read the tokenizer in {folder}"):
        tokenizer = AutoTokenizer.from_pretrained(folder)

    end = getattr(config, "eos_token_id", None)
    if (folder / "generation_config.json").exists():
        with one_line(name, f"cannot read generation_config.json of {folder}"):
            end = GenerationConfig.from_pretrained(folder).eos_token_id
    ends = {tokenizer.eos_token_id, *(end if isinstance(end, list) else [end])} - {None}
    if not ends or not all(isinstance(token, int) for token in ends):
        raise UserError(f"--model {name}: set eos_token_id to the id of an end token, not {end!r}")
    return tokenizer


def from_files(name: str | Path, folder: Path, dtype: torch.dtype) -> tuple:
    """(from_pretrained's model, the language model inside), on the CPU; one and the same for text.

    Raises UserError if the files do not fit their config.
    """
    config, text = read_configs(name, folder)
    auto = AutoModelForCausalLM if config is text else AutoModelForMultimodalLM
    with one_line(name, f"cannot read {folder}: its weights must be whole .safetensors files"):
        whole, report = auto.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # these are reported
            output_loading_info=True,
        )
    lm = whole if config is text else language_model(name, whole, text)
    others = other_parts(whole, lm)
    report["doubled_keys"] = doubled(folder, whole)
    for kind in ("missing_keys", "mismatched_keys", "unexpected_keys", "doubled_keys"):
        wrong = sorted(key for key in map(str, report[kind]) if not key.startswith(others))
        if wrong:
            raise UserError(
                f"--model {name}: its safetensors do not fit its config.json: "
                f"{kind.replace('_', ' ')} {wrong[0]}"
            )
    if not isinstance(lm.get_output_embeddings(), torch.nn.Linear):
        raise UserError(f"--model {name}: {type(lm).__name__} has no matrix as its head")
    if others and is_first_rank():
        parts = ", ".join(part.rstrip(".") for part in others)
        print(f"{name}: {type(lm).__name__} is read from this {config.model_type}, without {parts}")
    return whole.eval(), lm.eval()  # with dropout the ratio would not be 1 at θ_old


def decoder_of(lm: torch.nn.Module) -> torch.nn.Module:
    """The layers below the head; the base_model of Llama4ForCausalLM is that model itself."""
    return lm.model if lm.base_model is lm else lm.base_model


# ---- a model of text and images ------------------------------------------------------------------


def language_model(name: str | Path, whole: torch.nn.Module, config) -> torch.nn.Module:
    """The language model inside: the decoder and the head of `whole`, which are not copied.

    config: the language model's. Raises UserError if no causal language model has this decoder.
    """
    decoder, head = whole.get_decoder(), whole.get_output_embeddings()
    if decoder.get_output_embeddings() is head:
        decoder = decoder_of(decoder)  # in Llama4 it is a causal language model with its head
    config.tie_word_embeddings = head.weight is whole.get_input_embeddings().weight  # in the files
    with torch.device("meta"):
        lm = AutoModelForCausalLM.from_config(config)
    (place,) = [each for each, part in lm.named_children() if part is decoder_of(lm)]
    if type(decoder) is not type(lm.get_submodule(place)):
        raise UserError(f"--model {name}: {type(decoder).__name__} is no causal language model")
    setattr(lm, place, decoder)
    lm.set_output_embeddings(head)
    lm.generation_config = whole.generation_config
    return lm


def other_parts(whole: torch.nn.Module, lm: torch.nn.Module) -> tuple[str, ...]:
    """The outermost modules of `whole` without any parameter of `lm`: their names, with a dot."""
    own = {id(parameter) for parameter in lm.parameters()}
    parts = ()
    for name, module in whole.named_modules():
        its = {id(parameter) for parameter in module.parameters()}
        if its and not its & own and not name.startswith(parts):
            parts += (name + ".",)
    return parts


def doubled(folder: Path, whole: torch.nn.Module) -> list[str]:
    """Tensors of the model that the files hold under two names, of which one would be ignored."""
    if (folder / "model.safetensors").exists():
        with safe_open(folder / "model.safetensors", "pt") as file:
            names = list(file.keys())
    else:
        names = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    renamings = [x for x in get_model_conversion_mapping(whole) if isinstance(x, WeightRenaming)]
    prefix, tensors = whole.base_model_prefix, whole.state_dict()
    count = Counter(rename_source_key(name, renamings, [], prefix, tensors)[0] for name in names)
    return [name for name in count if count[name] > 1]
