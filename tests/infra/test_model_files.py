"""infra/model_files.py: a model's files are read, or refused in one line."""

from functools import partial

import pytest
import torch
from models import change_config, change_weights

import toy
import train
from infra import model_files
from infra.errors import UserError
from infra.model_files import from_files, locate


def read(folder):
    """What train.py and evaluate.py read before they compare log-probabilities."""
    folder, _, _ = locate(folder)
    return from_files(folder, folder, torch.float32)


# ---- changes of a folder -------------------------------------------------------------------------


def write(name, content):
    def change(folder):
        (folder / name).write_bytes(content)

    return change


def config(**changes):
    return partial(change_config, **changes)


def weights(change):
    return partial(change_weights, change=change)


def cut_off(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def without_a_shard(folder):
    lm = from_files(folder, folder, torch.float32)
    (folder / "model.safetensors").unlink()
    lm.save_pretrained(folder, max_shard_size="20KB")
    min(folder.glob("model-0*")).unlink()


def without_tokenizer(folder):
    for path in folder.glob("tokenizer*"):
        path.unlink()


def without_end_token(folder):
    change_config(folder, eos_token_id=None)
    (folder / "generation_config.json").unlink()
    tokenizer = toy.build_tokenizer()
    tokenizer.eos_token = None
    tokenizer.save_pretrained(folder)


def with_a_larger_tokenizer(folder):
    tokenizer = toy.build_tokenizer()
    tokenizer.add_tokens(["word"])
    tokenizer.save_pretrained(folder)


NO_WEIGHTS = "its weights must be whole .safetensors files"
ONE_MATRIX = 'two different matrices: set "tie_word_embeddings": false in config.json'
WRONG = [
    (write("model.safetensors", b"version https://git-lfs.github.com/spec/v1"), NO_WEIGHTS),
    (cut_off, NO_WEIGHTS),
    (without_a_shard, "No such file or directory"),
    (weights(lambda ts: {k: v for k, v in ts.items() if "q_proj" not in k}), "missing keys model."),
    (weights(lambda ts: ts | {"score.weight": torch.ones(2)}), "unexpected keys score.weight"),
    (config(intermediate_size=96), "mismatched keys ('model.layers.0.mlp.down_proj.weight'"),
    (config(tie_word_embeddings=True), ONE_MATRIX),
    (write("config.json", b"{"), "cannot read config.json"),
    (config(model_type="nonsense"), "nonsense"),
    (config(model_type="t5"), "not a plain language model: pass a text model"),
    (config(model_type="gemma3", text_config={}), "not a plain language model: pass a text model"),
    (config(quantization_config={"quant_method": "fp8"}), "quantised: pass the original model"),
    (write("generation_config.json", b"{no"), "cannot read generation_config.json"),
    (write("generation_config.json", b'{"eos_token_id": "</s>"}'), "set eos_token_id to the id of"),
    (without_end_token, "set eos_token_id to the id of an end token"),
    (write("tokenizer.json", b"{}"), "cannot read the tokenizer"),
    (without_tokenizer, "no tokenizer in"),
    (with_a_larger_tokenizer, "its tokenizer has 31 ids, its embedding 30"),
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


def test_the_message_for_an_unreachable_hub_id_says_how_to_pass_a_folder(monkeypatch, capsys):
    def no_network(*_, **__):
        raise OSError("no network")

    monkeypatch.setattr(model_files, "snapshot_download", no_network)
    with pytest.raises(SystemExit) as stopped:
        train.main(["--model", "some/where", "--data", "toy", "--eval-data", ""])
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "some/where" in said and "hf download" in said
