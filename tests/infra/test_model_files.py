"""infra/model_files.py: a model's files are read, or refused in one line."""

from functools import partial

import pytest
import torch
from models import change_config, change_weights, save_random_model

from infra.errors import UserError
from infra.model_files import from_files, locate


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
    (config(quantization_config={"quant_method": "fp8"}), "quantised: pass the original model"),
    (without_tokenizer, "no tokenizer in"),
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
    """Whatever stands on the standard input, as with `yes |`."""
    monkeypatch.setattr("builtins.input", lambda question: "y")
    (base_copy / "custom.py").write_text("raise SystemExit('it ran')")
    change_config(base_copy, auto_map={"AutoConfig": "custom.Config"}, model_type="unknown")
    with pytest.raises(UserError, match="contains custom code"):
        read(base_copy)


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
