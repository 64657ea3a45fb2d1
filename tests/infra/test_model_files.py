"""Tests infra/model_files.py: a model's files are read, or refused in one line."""

import json
import os
import signal
import time
from contextlib import suppress
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from huggingface_hub.utils import filter_repo_objects
from models import change_config, change_weights, random_lm, save_random_model
from transformers import AutoConfig

from infra import model_files
from infra.errors import UserError
from infra.loading import published_model
from infra.model_files import (
    from_files,
    locate,
    refuse_unsavable,
    save_model,
    saved_at_the_end,
    with_old_names,
)


def read(folder):
    """What train.py and evaluate.py read before they compare log-probabilities."""
    folder, _, _ = locate(folder)
    return from_files(folder, folder, torch.float32)[1]


def write(name, content):
    return lambda folder: (folder / name).write_bytes(content)


def config(**changes):
    return partial(change_config, **changes)


def weights(change):
    return partial(change_weights, change=change)


def without_tokenizer(folder):
    for path in folder.glob("tokenizer*"):
        path.unlink()


NO_WEIGHTS = "its weights must be whole .safetensors files"
WRONG = [
    (write("model.safetensors", b"version https://git-lfs.github.com/spec/v1"), NO_WEIGHTS),
    (weights(lambda ts: {k: v for k, v in ts.items() if "q_proj" not in k}), "missing keys model."),
    (config(intermediate_size=96), "mismatched keys ('model.layers.0.mlp.down_proj.weight'"),
    (write("config.json", b"{"), "cannot read config.json"),
    (config(model_type="qwen2_5_vl"), "this qwen2_5_vl has no causal language model: pass a text"),
    (write("adapter_config.json", b"{}"), "is an adapter: merge it into its model"),
    (
        config(quantization_config={"quant_method": "fp8"}),
        "quantised: pass the original model, or ",
    ),
    (without_tokenizer, "no tokenizer in"),
    (config(attn_implementation="flash_attention_2"), "no model can be built here from config"),
    (config(hidden_act="unknown"), "no model can be built here from config"),
    (write("generation_config.json", b"{"), "cannot read generation_config.json"),
    (write("generation_config.json", b'{"max_new_tokens": 0}'), "cannot read generation_config"),
    (write("metrics.jsonl", b""), "is a run: pass "),
]


@pytest.mark.parametrize("change, said", WRONG)
def test_wrong_files_are_refused_in_one_line(change, said, base_copy, capfd):
    change(base_copy)
    capfd.readouterr()
    with pytest.raises(UserError) as error:
        read(base_copy)
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    assert capfd.readouterr().err == ""  # the library prints no progress bar or report


def test_code_in_a_models_folder_does_not_run(base_copy, monkeypatch):
    """The standard input cannot allow it either, as `yes |` would."""
    monkeypatch.setattr("builtins.input", lambda question: "y")
    (base_copy / "custom.py").write_text("raise SystemExit('it ran')")
    change_config(base_copy, auto_map={"AutoConfig": "custom.Config"}, model_type="unknown")
    with pytest.raises(UserError, match="contains custom code"):
        read(base_copy)


ODD = [  # transformers refuses to save each of them once it is changed
    {"do_sample": False, "temperature": 0.9, "top_p": 0.6},  # Llama 2
    {"top_k": 5},
    {"pad_token_id": -1},
    {"early_stopping": True},
    {"output_scores": True},
    {"output_attentions": True},
    {"length_penalty": 0.5},
]


@pytest.mark.parametrize("odd", ODD, ids=str)
def test_a_model_is_saved_whatever_its_generation_config_says(odd, base_copy, tmp_path):
    name = "generation_config.json"
    (base_copy / name).write_text(json.dumps(odd))
    _, _, tokenizer = locate(base_copy)
    refuse_unsavable(base_copy, read(base_copy), tokenizer)
    save_model(tmp_path / "saved", read(base_copy), tokenizer, {})
    saved = json.loads((tmp_path / "saved" / name).read_text())
    assert saved.pop("eos_token_id") == [tokenizer.eos_token_id]
    assert {key: saved.get(key) for key in odd} == odd
    assert read(tmp_path / "saved").generation_config.eos_token_id == [tokenizer.eos_token_id]


def test_a_model_that_cannot_be_saved_is_not_trained(base_copy):
    change_config(base_copy, output_attentions=True)
    with pytest.raises(UserError, match="cannot save its config.json.*output_attentions"):
        published_model(base_copy)


LAYER = "model.layers.0.mlp.down_proj.weight"
INSIDE, RENAMED = f"language_model.{LAYER}", LAYER.replace("model.", "model.language_model.")
TOWER = "vision_tower.vision_model.encoder.layers.0.layer_norm1.weight"


def without(name):
    return lambda ts: {key: x for key, x in ts.items() if key != name}


def beside(name):
    return lambda ts: ts | {name: torch.ones(32, 48)}


@pytest.mark.parametrize(
    "change, said",
    [
        (without(INSIDE), f"missing keys {RENAMED}"),
        (beside(f"{INSIDE}.more"), f"unexpected keys {RENAMED}.more"),
        (beside("score.weight"), "unexpected keys score.weight"),
        (without(TOWER), None),
        (beside(f"{TOWER}.more"), None),
    ],
)
def test_only_tensors_of_other_parts_may_be_missing_or_left_over(change, said, tmp_path, capsys):
    save_random_model("llava", tmp_path)
    change_weights(tmp_path, change)
    if said:
        with pytest.raises(UserError, match=f"{said}$"):
            read(tmp_path)
        return
    assert type(read(tmp_path)).__name__ == "LlamaForCausalLM"
    assert "not model.multi_modal_projector, model.vision_tower\n" in capsys.readouterr().out


# ---- what a hub id downloads ---------------------------------------------------------------------

OWN = ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"]
SHARDS = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
NEVER_READ = ["original/model.safetensors", "original/config.json", "consolidated.safetensors"]
NEVER_READ += ["checkpoint-500/model.safetensors", "metal/model.bin", "pytorch_model.bin"]


@pytest.fixture
def hub(base_copy, monkeypatch):
    """hub(files) makes base_copy a hub id with these files. Returns the list of downloads."""

    def start(files):
        taken = []

        def download(name, **patterns):
            assert name == "some/model"
            taken.append(sorted(filter_repo_objects(files, **patterns)))
            return str(base_copy)

        monkeypatch.setattr(model_files, "snapshot_download", download)
        return taken

    return start


def test_weights_come_last_and_only_those_that_are_read(hub):
    taken = hub([*OWN, "model.safetensors", *NEVER_READ])
    locate("some/model")
    assert taken == [sorted(OWN), ["model.safetensors"]]

    index = "model.safetensors.index.json"
    taken = hub([*OWN, index, *SHARDS, *NEVER_READ])
    locate("some/model")
    assert taken == [sorted([*OWN, index]), SHARDS]


def test_a_refused_model_downloads_no_weights(hub, base_copy):
    taken = hub([*OWN, "model.safetensors"])
    change_config(base_copy, quantization_config={"quant_method": "mxfp4"})
    with pytest.raises(UserError, match=r"quantised: .*\(docs/models.md\)"):
        locate("some/model")
    assert taken == [sorted(OWN)]


# ---- an exported config --------------------------------------------------------------------------

ROPES = [  # architecture, rope_parameters, the names of transformers 4
    ("qwen3", {"rope_type": "default", "rope_theta": 1e6}, {"rope_theta": 1e6}),
    (
        "llama",
        {"rope_type": "linear", "rope_theta": 5e5, "factor": 8.0},
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
    ),
    (
        "stablelm",
        {"rope_type": "default", "rope_theta": 1e5, "partial_rotary_factor": 0.5},
        {"rope_theta": 1e5, "partial_rotary_factor": 0.5},
    ),
    (
        "gemma3_text",
        {
            "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
        {
            "rope_theta": 1e6,
            "rope_local_base_freq": 1e4,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
    ),
]


@pytest.mark.parametrize("kind, rope, old", ROPES, ids=[kind for kind, *_ in ROPES])
def test_an_exported_config_has_the_names_of_transformers_4(kind, rope, old, tmp_path):
    lm = random_lm(kind, rope_parameters=rope)
    lm.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    change_config(tmp_path, **with_old_names(config))
    exported = json.loads((tmp_path / "config.json").read_text())
    added = {name: exported[name] for name in exported.keys() - config.keys()}
    assert added == old | {"torch_dtype": "float32"}
    again = AutoConfig.from_pretrained(tmp_path)
    assert again.rope_parameters == lm.config.rope_parameters


def test_a_config_without_rotary_positions_stays_as_it_is():
    config = random_lm("gpt2").config.to_dict()
    assert with_old_names(config) == config


@pytest.mark.parametrize("ending", [None, ValueError, signal.SIGINT, signal.SIGTERM])
def test_a_model_is_saved_however_the_training_ends(ending, base_copy, tmp_path, capsys):
    _, _, tokenizer = locate(base_copy)
    lm, place = read(base_copy), tmp_path / "new" / "saved"
    handlers = [signal.getsignal(x) for x in (signal.SIGINT, signal.SIGTERM)]
    saved = saved_at_the_end(str(place), lm, tokenizer, {"prompt_template": "{problem}"})
    with suppress(ValueError, KeyboardInterrupt), saved:
        assert place.is_dir() and not list(place.iterdir())
        lm.lm_head.weight.data.zero_()
        if isinstance(ending, signal.Signals):
            os.kill(os.getpid(), ending)
            time.sleep(5)  # the signal ends it
        elif ending:
            raise ending
    assert [signal.getsignal(x) for x in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert not read(place).lm_head.weight.any()
    assert json.loads((place / "prompt.json").read_text()) == {"prompt_template": "{problem}"}
    assert list(place.parent.iterdir()) == [place]  # nothing unfinished beside it


def test_a_place_that_cannot_hold_a_model_is_refused_before_the_training(
    base_copy, tmp_path, monkeypatch
):
    _, _, tokenizer = locate(base_copy)
    (tmp_path / "file").write_text("")
    for place, free, why in (
        (base_copy, 10**12, "has files"),
        (tmp_path / "file" / "x", 10**12, "cannot be made"),
        (tmp_path / "new", 10**5, "its disk has 0.0: make room"),
    ):
        monkeypatch.setattr("shutil.disk_usage", lambda _, free=free: SimpleNamespace(free=free))
        saved = saved_at_the_end(str(place), read(base_copy), tokenizer, {})
        with pytest.raises(UserError, match=why), saved:
            raise AssertionError("it was not refused")
