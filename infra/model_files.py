"""The files of a model in a local Hugging Face folder or on the hub, and their defects.

`one_line` turns errors of libraries about a user's files into one line.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from huggingface_hub import HfApi, snapshot_download
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.utils import logging as hf_logging

from infra.architecture import head_size, refuse_config
from infra.errors import UserError
from infra.hub import asked_once

DOWNLOADED = ["*.json", "*.safetensors", "*.txt", "*.jinja", "*.model"]
TOKENIZERS = ["tokenizer*", "vocab*", "*.model"]  # a tokenizer has at least one of these files


@contextmanager
def one_line(name: str | Path, trouble: str) -> Iterator[None]:
    """Turn any exception of a library inside into one line, a UserError with `trouble`.

    Only library calls belong inside, so that bugs of this project keep their traceback.
    """
    try:
        yield
    except (UserError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())
        if len(said) > 300:
            said = said[:300] + " ..."
        raise UserError(f"--model {name}: {trouble} ({said})") from error


def locate(name: str | Path) -> tuple:
    """(folder, config, tokenizer) of a folder or a hub id that can be loaded.

    Checks all files, but reads no weights. Raises UserError.
    """
    # transformers' progress bars and reports would mix with the output; `from_files` raises them.
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()

    folder = Path(name)
    if not folder.is_dir():
        trouble = (
            "no model folder or hub id of this name, or the hub cannot be reached; without a "
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
            f"--model {name}: no .safetensors in {folder}, and other weights are not read: convert "
            "them (AutoModelForCausalLM.from_pretrained(...).save_pretrained(FOLDER))"
        )
    for path in weights:
        with one_line(name, f"{path} is damaged or cut off, or waits for git lfs pull"):
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
            f"--model {name}: its tokenizer has {words} ids and its embedding {config.vocab_size}: "
            "pass the tokenizer that belongs to it, or resize the embedding"
        )
    end = getattr(config, "eos_token_id", None)
    if (folder / "generation_config.json").exists():
        with one_line(name, f"cannot read generation_config.json of {folder}"):
            end = GenerationConfig.from_pretrained(folder).eos_token_id
    refuse_end(name, end, tokenizer)
    return folder, config, tokenizer


def read_config(name: str | Path, folder: str | Path):
    """The model's config. Raises UserError if the architecture cannot be trained here."""
    if Path(folder).is_dir() and not (Path(folder) / "config.json").exists():
        raise UserError(f"--model {name}: no model in this folder, because it has no config.json")
    with one_line(name, f"cannot read config.json of {folder}"):
        config = AutoConfig.from_pretrained(folder)
    refuse_config(name, config)
    with one_line(name, "its config.json does not give one size for all heads of attention"):
        head_size(config)
    return config


def refuse_end(name: str | Path, end: int | list[int] | None, tokenizer) -> None:
    """Raise UserError if no file names an end token, or the end token is not an id."""
    if end is None and tokenizer.eos_token_id is None:
        raise UserError(
            f"--model {name}: neither its tokenizer nor its generation_config.json names an end "
            "token: set eos_token in its tokenizer_config.json"
        )
    ids = end if isinstance(end, list) else [end]
    if end is not None and not all(isinstance(each, int) for each in ids):
        raise UserError(
            f"--model {name}: eos_token_id in its generation_config.json is {end!r}: "
            "it must be an id, or a list of ids"
        )


def from_files(name: str | Path, folder: Path, dtype: torch.dtype) -> torch.nn.Module:
    """The model of from_pretrained, on the CPU. Raises UserError if from_pretrained warns."""
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
                f"({len(keys)} such)"
            )
    asked = lm.get_expanded_tied_weights_keys(all_submodels=True)
    for target in sorted(asked.keys() - lm.all_tied_weights_keys.keys()):
        raise UserError(
            f"--model {name}: its config.json ties {target} to {asked[target]}, and its "
            'safetensors hold two that differ: say "tie_word_embeddings": false in config.json'
        )
    return lm.eval()
