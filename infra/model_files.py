"""Without this file weights that are missing in a model's files would be random, with a warning.

A model is a local folder or a hub id, with its config, its tokenizer and its weights. From a model
of text and images, the language model inside is read. A model whose files are incomplete or
contradict each other is refused in one line. loading.py checks at every load that the results are
right.
"""

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from huggingface_hub import logging as hub_logging
from huggingface_hub import snapshot_download
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.models.auto import modeling_auto
from transformers.utils import logging as hf_logging

from infra import folder as files
from infra.errors import UserError, one_line
from infra.ranks import is_first_rank
from infra.tokens import end_tokens
from toy.by_name import model_folder

DOWNLOADED = ["*.json", "*.txt", "*.jinja", "*.model"]  # before the weights
WEIGHTS = ["model*.safetensors"]
TOKENIZERS = ["tokenizer*", "vocab*", "*.model"]  # a tokenizer has at least one of these files
PROMPT = "prompt.json"  # in the folder of a trained model: the flags of its run's prompts


def locate(name: str | Path, regime: str = "learn") -> tuple:
    """(folder, config, tokenizer) of a language model, given its folder or hub id, or a toy's name.

    The weights of a hub id are downloaded last. Raises UserError.
    """
    name = model_folder(name, regime)
    # Keep progress bars and load reports out of the output; `from_files` raises load problems.
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    hub_logging.set_verbosity_error()  # else it reports each of its retries without a network

    folder = Path(name)
    if (folder / "metrics.jsonl").exists():
        raise UserError(f"--model {name} is a run: pass {folder / 'best'} or {folder / 'model'}")
    if not folder.is_dir():
        folder = downloaded(name, DOWNLOADED)
    _, config = read_configs(name, folder)
    if not [path for kind in TOKENIZERS for path in folder.glob(kind)]:
        raise UserError(f"--model {name}: no tokenizer in {folder}")  # else transformers makes one
    with one_line(name, f"cannot read the tokenizer in {folder}"):
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    if not Path(name).is_dir():
        downloaded(name, WEIGHTS)
    return folder, config, tokenizer


def downloaded(name: str | Path, files: list[str]) -> Path:
    """The cached folder of a hub id, with the files that match `files`. Raises UserError."""
    trouble = "no model folder or hub id, or no network: run hf download ID --local-dir FOLDER"
    with one_line(name, trouble):
        # One rank of a node downloads while the others wait. Subfolders hold copies in other forms.
        given = {"allow_patterns": files, "ignore_patterns": ["*/*"]}
        return Path(snapshot_download(str(Path(name)), **given))


def read_configs(name: str | Path, folder: str | Path) -> tuple:
    """(the model's config, its language model's), the same for a text model. Raises UserError."""
    if (Path(folder) / "adapter_config.json").exists():  # some hold their model's config.json, too
        raise UserError(f"--model {name} is an adapter: merge it into its model (docs/models.md)")
    with one_line(name, f"cannot read config.json of {folder}"):
        whole = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        config = whole.get_text_config()
    model = f"--model {name}: this {whole.model_type}"
    if type(config) not in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING or whole.is_encoder_decoder:
        raise UserError(f"{model} has no causal language model: pass a text model")
    if getattr(whole, "quantization_config", None) is not None:
        raise UserError(
            f"{model} is quantised: pass the original model, or one without quantisation "
            "(docs/models.md)"
        )
    config.name_or_path = whole.name_or_path
    return whole, config


def from_files(name: str | Path, folder: Path, dtype: torch.dtype) -> tuple:
    """(from_pretrained's model, its language model), on the CPU.

    Raises UserError if the files do not fit each other.
    """
    config, text = read_configs(name, folder)
    auto = AutoModelForCausalLM if config is text else modeling_auto.AutoModelForMultimodalLM
    if (folder / "generation_config.json").exists():
        with one_line(name, f"cannot read generation_config.json of {folder}"):
            GenerationConfig.from_pretrained(folder)
    trouble = f"no model can be built here from config.json of {folder}"
    with one_line(name, trouble), torch.device("meta"):
        auto.from_config(deepcopy(config), trust_remote_code=False)
    with one_line(name, f"cannot read {folder}: its weights must be whole .safetensors files"):
        whole, report = auto.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            trust_remote_code=False,  # with None, transformers asks on the terminal
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # `report` lists them
            output_loading_info=True,
        )
    lm = whole if config is text else language_model(name, whole, text)
    own = {id(parameter) for parameter in lm.parameters()}
    others = [key.split(".")[:2] for key, x in whole.named_parameters() if id(x) not in own]
    others = sorted({".".join(words) for words in others})  # such as model.visual
    for kind in ("missing_keys", "mismatched_keys", "unexpected_keys"):
        keys = [key for key in map(str, report[kind]) if not key.startswith(tuple(others))]
        if keys:
            raise UserError(
                f"--model {name}: its safetensors do not fit its config.json: "
                f"{kind.replace('_', ' ')} {min(keys)}"
            )
    if others and is_first_rank():
        print(f"{name}: only the {type(lm).__name__} inside is used, not {', '.join(others)}")
    return whole.eval(), lm.eval()  # with dropout the ratio would not be 1 at θ_old


def language_model(name: str | Path, whole: torch.nn.Module, config) -> torch.nn.Module:
    """The language model inside `whole`, which shares its weights. Raises UserError."""
    decoder, head = whole.get_decoder(), whole.get_output_embeddings()
    config.tie_word_embeddings = head.weight is whole.get_input_embeddings().weight  # in the files
    with torch.device("meta"):
        lm = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    if type(decoder) is not type(lm.base_model):
        raise UserError(f"--model {name}: {type(decoder).__name__} is no causal language model")
    setattr(lm, lm.base_model_prefix, decoder)
    lm.set_output_embeddings(head)
    lm.generation_config = whole.generation_config
    return lm


def with_old_names(config: dict) -> dict:
    """A config.json of transformers 5, with the names that transformers 4 reads beside its own.

    Without rope_theta, transformers 4 would take 10000.
    """
    rope = config.get("rope_parameters") or {}
    whole = rope.get("full_attention", rope)  # some models have others in layers with a window
    if "rope_theta" not in whole:
        return config
    scaling = {name: x for name, x in whole.items() if name != "rope_theta"}
    old = {"rope_theta": whole["rope_theta"], "torch_dtype": config.get("dtype")}
    if "partial_rotary_factor" in scaling:
        old["partial_rotary_factor"] = scaling.pop("partial_rotary_factor")
    if scaling.get("rope_type") != "default":
        old["rope_scaling"] = scaling
    if "sliding_attention" in rope:
        old["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
    return config | old


# ---- writing -------------------------------------------------------------------------------------


def refuse_unsavable(name: str | Path, lm: torch.nn.Module, tokenizer) -> None:
    """Raise UserError if transformers will not save the configs or the tokenizer of a model.

    lm: as it was read. Without this check its training would be lost at its end.
    """
    parts = {"config.json": lm.config, "generation_config.json": lm.generation_config}
    for part, writer in (parts | {"tokenizer": tokenizer}).items():
        trouble = f"transformers cannot save its {part}, so a trained model would be lost"
        with one_line(name, trouble), TemporaryDirectory() as folder:
            writer.save_pretrained(folder)


def save_model(folder: Path, lm: torch.nn.Module, tokenizer, prompt: dict) -> None:
    """Write a model to `folder`, in place of the one there. Raises Stop.

    prompt: the flags of the run's prompts, for PROMPT, which lets evaluate.py use them.
    """
    new = folder.with_name(f"{folder.name}.{files.UNFINISHED}")
    shutil.rmtree(new, ignore_errors=True)  # what a kill left
    with files.writing(folder):
        lm.save_pretrained(new)
        tokenizer.save_pretrained(new)
    config = files.read_json(new / "config.json")
    files.write_json(new / "config.json", with_old_names(config))
    write_end_tokens(new, end_tokens(lm, tokenizer))
    files.write_json(new / PROMPT, prompt)
    replace_model(folder, new)


@contextmanager
def saved_at_the_end(name: str, lm: torch.nn.Module, tokenizer, prompt: dict) -> Iterator[None]:
    """A context that ends with `save_model`, also after an error, Ctrl-C or SIGTERM.

    name: --save, whose folder is made at the start; empty: nothing is saved. prompt: as in
    save_model. Raises UserError if the folder has files, cannot be made, or its disk is too full.
    """
    if not name:
        yield
        return
    folder = Path(name).resolve()  # so that `.` has a name, too
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--save {name} cannot be made ({error.strerror}): name another") from error
    if any(folder.iterdir()):
        raise UserError(f"--save {name} has files: name a new folder")
    size, free = lm.get_memory_footprint() / 1e9, shutil.disk_usage(folder).free / 1e9
    if size > free:
        raise UserError(
            f"--save {name} needs {size:.1f} GB, but its disk has {free:.1f}: make room"
        )
    refuse_unsavable(lm.name_or_path, lm, tokenizer)
    signals = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(each, signal.default_int_handler) for each in signals]
    try:
        yield
    finally:
        for each in signals:
            signal.signal(each, signal.SIG_IGN)  # a second Ctrl-C would lose the model
        save_model(folder, lm, tokenizer, prompt)
        for each, handler in zip(signals, before, strict=True):
            signal.signal(each, handler)
        print(f"the model is in {name}", flush=True)


def write_end_tokens(folder: Path, ends: list[int]) -> None:
    """Give a saved generation config the end tokens of the run. Raises Stop.

    The published one may lack some, and other programs would not end responses where the run did.
    They are written into the file because transformers saves an odd config, such as Llama 2's, only
    if it is unchanged.
    """
    path = folder / "generation_config.json"
    files.write_json(path, files.read_json(path) | {"eos_token_id": ends})


def replace_model(folder: Path, new: Path) -> None:
    """Move a model's files into `folder`. Other files there stay, and so does a link's target.

    config.json is deleted first and moved last, so that a kill leaves no mixture that loads. Old
    weights are deleted too: if the new ones have shards, from_pretrained would prefer an old single
    file.
    """
    if folder.is_symlink():
        folder.unlink()
    folder.mkdir(exist_ok=True)
    old = ["config.json", "model.safetensors", "model.safetensors.index.json"]
    shards = folder.glob("model-?????-of-?????.safetensors")
    for path in (*(folder / name for name in old), *shards):
        path.unlink(missing_ok=True)
    for path in sorted(new.iterdir(), key=lambda path: path.name == "config.json"):
        os.replace(path, folder / path.name)
    new.rmdir()
