"""A model's files in a local folder or on the hub: its config, its tokenizer and its weights.

A model whose files are incomplete or contradict each other is refused in one line. loading.py
checks at every load that the results are right.
"""

from pathlib import Path

import torch
from huggingface_hub import snapshot_download
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.utils import logging as hf_logging

from infra.errors import UserError, one_line

DOWNLOADED = ["*.json", "*.safetensors", "*.txt", "*.jinja", "*.model"]
TOKENIZERS = ["tokenizer*", "vocab*", "*.model"]  # a tokenizer has at least one of these files


def locate(name: str | Path) -> tuple:
    """(folder, config, tokenizer) of a model, given its folder or hub id. Reads no weights.

    Raises UserError.
    """
    # Keep progress bars and load reports out of the output; `from_files` raises load problems.
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()

    folder = Path(name)
    if not folder.is_dir():
        trouble = "no model folder or hub id, or no network: hf download ID --local-dir FOLDER"
        with one_line(name, trouble):
            # One rank of a node downloads while the others wait.
            folder = Path(snapshot_download(str(folder), allow_patterns=DOWNLOADED))
    config = read_config(name, folder)
    return folder, config, read_tokenizer(name, folder, config)


def read_config(name: str | Path, folder: str | Path):
    """The model's config. Raises UserError for a model that is quantised, or has more than text."""
    with one_line(name, f"cannot read config.json of {folder}"):
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    trouble = None
    if config.get_text_config() is not config or config.is_encoder_decoder:
        trouble = "is not a plain language model: pass a text model"
    elif getattr(config, "quantization_config", None) is not None:
        trouble = "is quantised: pass the original model"
    if trouble:
        raise UserError(f"--model {name}: this {config.model_type} {trouble}")
    return config


def read_tokenizer(name: str | Path, folder: Path, config):
    """The model's tokenizer. Raises UserError if it cannot be read or has no end token."""
    if not [path for kind in TOKENIZERS for path in folder.glob(kind)]:
        raise UserError(f"--model {name}: no tokenizer in {folder}")  # else transformers makes one
    with one_line(name, f"cannot read the tokenizer in {folder}"):
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)

    end = getattr(config, "eos_token_id", None)
    if (folder / "generation_config.json").exists():
        with one_line(name, f"cannot read generation_config.json of {folder}"):
            end = GenerationConfig.from_pretrained(folder).eos_token_id
    ends = {tokenizer.eos_token_id, *(end if isinstance(end, list) else [end])} - {None}
    if not ends or not all(isinstance(token, int) for token in ends):
        raise UserError(f"--model {name}: set eos_token_id to the id of an end token, not {end!r}")
    return tokenizer


def from_files(name: str | Path, folder: Path, dtype: torch.dtype) -> torch.nn.Module:
    """from_pretrained's model, on the CPU. Raises UserError if its files do not fit its config."""
    with one_line(name, f"cannot read {folder}: its weights must be whole .safetensors files"):
        lm, report = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            trust_remote_code=False,  # None would ask, on the terminal
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # these are reported
            output_loading_info=True,
        )
    for kind in ("missing_keys", "mismatched_keys", "unexpected_keys"):
        if report[kind]:
            raise UserError(
                f"--model {name}: its safetensors do not fit its config.json: "
                f"{kind.replace('_', ' ')} {sorted(map(str, report[kind]))[0]}"
            )
    if not isinstance(lm.get_output_embeddings(), torch.nn.Linear):
        raise UserError(f"--model {name}: {type(lm).__name__} has no matrix as its head")
    return lm.eval()  # with dropout the ratio would not be 1 at θ_old
