"""The files of a model, in a local Hugging Face folder or on the hub, and what is wrong with them.

Whatever a user's files make a library raise becomes one line here (`one_line`).
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
TOKENIZERS = ["tokenizer*", "vocab*", "*.model"]  # files of which a tokenizer has one at least


@contextmanager
def one_line(name: str | Path, trouble: str) -> Iterator[None]:
    """Turn whatever a library raises inside into one line, a UserError that names the trouble.

    The only place that does: nothing of ours belongs inside, for a bug keeps its traceback.
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
    """(folder, config, tokenizer) of a folder, or of a hub id, that can be loaded.

    No weight is read, but everything else is looked at. Raises UserError.
    """
    # Bars and reports of transformers would stand between our lines; `from_files` raises reports.
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()

    folder = Path(name)
    if not folder.is_dir():
        trouble = (
            "no model in such a folder, nor on the hub as far as it can be reached; with no "
            "network, pass a folder (elsewhere: hf download ID --local-dir FOLDER)"
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
            safe_open(path, "pt")  # its header and its length

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
    """The model's config, of a kind that can be trained here. Raises UserError."""
    if Path(folder).is_dir() and not (Path(folder) / "config.json").exists():
        raise UserError(f"--model {name}: no model in such a folder, for it holds no config.json")
    with one_line(name, f"cannot read config.json of {folder}"):
        config = AutoConfig.from_pretrained(folder)
    refuse_config(name, config)
    with one_line(name, "its config.json does not give one size for all heads of attention"):
        head_size(config)
    return config


def refuse_end(name: str | Path, end: int | list[int] | None, tokenizer) -> None:
    """Raise UserError where nothing says how a response ends, or a word does."""
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
    """What from_pretrained gives, on the CPU. Raises UserError where it would warn."""
    with one_line(name, f"cannot read the weights in {folder}"):
        lm, report = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # they are reported
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
