"""infra/vllm_engine.py without vLLM: its absence, and the names of weights.

tests/engines/test_vllm.py runs it with vLLM.
"""

import sys
from types import SimpleNamespace

import pytest
import torch
from models import save_random_model
from safetensors.torch import load_file
from toy_runs import refusal
from transformers import AutoModelForCausalLM

import train
from infra.vllm_engine import VLLMEngine, drawn


def test_without_vllm_the_flag_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "vllm", None)  # as if not installed
    flags = ["--engine", "vllm", "--output-dir", tmp_path / "run"]
    error = refusal(train.main, flags, capsys)
    assert not (tmp_path / "run").exists()
    assert "vllm" in error and "install it (docs/running.md)" in error


def test_tokens_have_their_own_log_probabilities():
    """Each position also lists a more likely token, as vLLM may do."""
    likely, *own = [SimpleNamespace(logprob=x) for x in (-0.1, -1.5, -0.25)]
    at = [{99: likely, 3: own[0]}, {99: likely, 4: own[1]}]
    tokens, logprob = drawn(SimpleNamespace(token_ids=(3, 4), logprobs=at))
    assert (tokens.tolist(), logprob.tolist()) == ([3, 4], [-1.5, -0.25])


@pytest.mark.parametrize("name", ["qwen3_moe", "gpt_neox"])
def test_weights_have_the_names_and_shapes_of_the_models_files(name, tmp_path):
    """transformers joins, splits or renames the tensors of these models."""
    save_random_model(name, tmp_path)
    lm = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    engine = SimpleNamespace(policy=SimpleNamespace(lm=lm), dtype=torch.float32)
    sent = dict(VLLMEngine.weights(engine))
    files = load_file(tmp_path / "model.safetensors")
    assert sent.keys() == files.keys()
    assert all(torch.equal(sent[key], files[key]) for key in files)
