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
    assert "pip install vllm==0.30.0" in error


def completion(*logprobs: float) -> SimpleNamespace:
    """Tokens 3, 4, ...; each position also lists a more likely token, as vLLM may do."""
    at = [
        {99: SimpleNamespace(logprob=-0.1), 3 + i: SimpleNamespace(logprob=value)}
        for i, value in enumerate(logprobs)
    ]
    return SimpleNamespace(token_ids=(*range(3, 3 + len(at)),), logprobs=at)


def test_tokens_have_their_own_log_probabilities():
    tokens, logprob = drawn(completion(-1.5, -0.25))
    assert tokens.tolist() == [3, 4]
    assert logprob.tolist() == [-1.5, -0.25]


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
