"""Tests that a trained model is evaluated with its run's prompts, and that these are printed."""

import json

import pytest
from models import byte_tokenizer, random_lm
from toy_runs import refusal

import evaluate
import train

TEMPLATE = r"Q: {problem}\nA:"
CHAT = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(a data file, the run of a model with a chat template that was trained with another one)."""
    folder = tmp_path_factory.mktemp("asked")
    rope = {"rope_type": "default", "rope_theta": 1e6}
    sizes = {"vocab_size": 258, "eos_token_id": 256, "max_position_embeddings": 256}
    random_lm("qwen3", rope_parameters=rope, **sizes).save_pretrained(folder / "published")
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = CHAT
    tokenizer.save_pretrained(folder / "published")
    data = folder / "p.jsonl"
    data.write_text('{"problem": "1+1?", "answer": "2"}\n{"problem": "2+3?", "answer": "5"}\n')
    sizes = "--prompts 2 --group-size 2 --mini-batch 2 --max-new-tokens 8 --steps 1"
    words = ["--model", folder / "published", "--data", data, "--eval-data", "", *sizes.split()]
    words += ["--prompt-template", TEMPLATE, "--stop", "zz", "--output-dir", folder / "run"]
    train.main([str(word) for word in words])
    return data, folder / "run"


def evaluated(trained, folder, *flags) -> dict:
    """The config.json in `folder` after an evaluation of the trained model there."""
    data, run = trained
    flags = ["--output-dir", str(folder), *flags]
    sizes = ["--samples", "2", "--max-new-tokens", "8"]
    evaluate.main(["--model", str(run / "model"), "--benchmarks", str(data), *sizes, *flags])
    return json.loads((folder / "config.json").read_text())


def test_the_runs_prompt_and_stop_are_the_default(trained, tmp_path, capsys):
    found = evaluated(trained, tmp_path / "evaluation")
    asked = "Q: 1+1?\nA:"
    of_run = json.loads((trained[1] / "config.json").read_text())
    assert found["first_prompt"] == of_run["first_prompt"] == asked
    assert (found["stop"], found["prompt_template"]) == ("zz", TEMPLATE)
    assert f"a prompt: {asked!r}; a response ends with '<end>'" in capsys.readouterr().out


def test_other_prompts_are_named(trained, tmp_path, capsys):
    shown = evaluated(trained, tmp_path / "other", "--system", "Be brief.")["first_prompt"]
    assert shown.startswith("<system>Be brief.<user>1+1?") and shown.endswith("<assistant>")
    assert "was trained with other prompts: {'prompt_template': " in capsys.readouterr().out


def test_temperature_0_takes_one_sample(trained, tmp_path):
    lines = []
    for seed in "07":
        evaluated(trained, tmp_path / seed, "--temperature", "0", "--seed", seed)
        lines.append((tmp_path / seed / "p.jsonl/responses.jsonl").read_text())
    averages = json.loads((tmp_path / "0/averages.json").read_text())
    assert averages["sampling"]["samples"] == 1 and averages["sampling"]["temperature"] == 0
    assert lines[0] == lines[1] and lines[0].count("\n") == 2


def test_other_rewards_are_not_compared(trained, tmp_path, capsys):
    for name in "ab":
        (tmp_path / f"{name}.py").write_text("def f(response, problem):\n    return 0.5\n")
        evaluated(trained, tmp_path / name, "--reward", f"{tmp_path}/{name}.py:f")
    said = refusal(evaluate.main, ["compare", tmp_path / "a", tmp_path / "b"], capsys)
    assert "were graded by different rewards" in said


def test_an_exported_config_can_be_read_by_transformers_4(trained):
    config = json.loads((trained[1] / "model/config.json").read_text())
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] == 1e6
    assert config["torch_dtype"] == config["dtype"]
