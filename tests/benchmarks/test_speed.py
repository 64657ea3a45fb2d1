"""python -m benchmarks, the speed benchmarks and the graders, at small sizes."""

import importlib
from types import SimpleNamespace

import pytest
import torch
from toy_runs import refusal
from transformers import Qwen3Config

from benchmarks import gpu, graders
from benchmarks.__main__ import WHERE, main, parse_arguments
from benchmarks.rollouts import plain_generate, random_model, sampled


@pytest.mark.parametrize("name", WHERE)
def test_every_name_has_its_function_and_is_listed(name, capsys):
    module, does = WHERE[name]
    assert callable(getattr(importlib.import_module(f"benchmarks.{module}"), name))
    with pytest.raises(SystemExit):
        parse_arguments(["--help"])
    assert f"\n{name:11}{does}\n" in capsys.readouterr().out


def test_scripted_lengths_are_kept():
    lengths = [3, 70, 1, 9, 66]  # chunks have 64 tokens, and four responses share a prompt
    lm = random_model(64, vocabulary=40)
    assert [len(tokens) for tokens in sampled(lm, lengths)] == lengths
    assert plain_generate(lm, 5, 70).shape == (5, 16 + 70)


def test_gpu_steps_train_and_are_tabulated(monkeypatch):
    """Three steps of a tiny model on the CPU; the first is not counted."""
    tiny = Qwen3Config(
        vocab_size=40,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=512,
        eos_token_id=1,
        pad_token_id=0,
    )
    flags = gpu.FLAGS.replace("--max-new-tokens 512", "--max-new-tokens 24")
    steps = gpu.trained(tiny, flags, 3)
    assert [row["step"] for row in steps["metrics"]] == [2, 3]
    assert all(row["reward"] == 0.5 and row["grad_norm"] > 0 for row in steps["metrics"])
    table = dict(gpu.table_of(steps | {"planned bytes": 5e9}))
    assert list(table)[:4] == list(gpu.STAGES)
    assert table["peak memory, GB (planned, with 3 in reserve)"] == "0.0 (5.0)"
    seconds = sum(row["seconds_updating"] for row in steps["metrics"]) / 2  # two: also the median
    assert table["updating"].startswith(f"{seconds:.3g} s, ")


@pytest.mark.skipif(torch.cuda.is_available(), reason="only where there is no GPU")
def test_gpu_without_a_gpu_gets_one_line(capsys):
    assert "torch sees no GPU" in refusal(main, ["gpu"], capsys)


def test_graders_are_compared_on_labelled_answers(monkeypatch, capsys):
    pairs = [{"response": f"\\boxed{{{i}}}", "gold": "7", "truth": i == 7} for i in range(20)]
    pairs[3]["truth"] = True  # a right answer that the grader misses
    verdicts, milliseconds = graders.measure({"verify.py": graders.ours}, pairs, 2)
    assert verdicts["verify.py"] == [i == 7 for i in range(20)]
    graders.print_table(pairs, verdicts, {"verify.py": [1.0, 2.0, 4.0]})
    line = "| verify.py | 95.0% | 0 | 1 | 2.000 (1.000 to 4.000) |"
    assert line in capsys.readouterr().out
    assert graders.missed(pairs, verdicts["verify.py"]) == ["\\boxed{3} for 7"]
    assert len(milliseconds["verify.py"]) == 2
    without = SimpleNamespace(find_spec={}.get)
    monkeypatch.setattr(graders.importlib, "util", without)
    assert list(graders.installed_graders()) == ["verify.py"]
    assert "math_verify is not installed" in capsys.readouterr().out
