"""Tests --dtype bfloat16 on a CPU, as on a GPU: weights, gradients and moments are in float32."""

import pytest
import torch
from models import save_random_model
from toy_runs import read_lines, same_weights, small_config, train_steps

from infra.loading import load_model

FLAGS = ["--dtype", "bfloat16", "--recompute", "True", "--prompts", "4"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run after two steps."""
    return train_steps(small_config(tmp_path_factory.mktemp("run"), *FLAGS, steps=2))


def dtypes(tensors) -> set:
    return {x.dtype for x in tensors}


def test_weights_and_moments_are_float32_and_the_sampler_is_not(run):
    assert dtypes(run.policy.parameters()) == {torch.float32}
    moments = [x for state in run.optimizer.state.values() for x in state.values()]
    assert dtypes(moments) == {torch.float32}
    with run.policy.unsharded() as lm:
        assert dtypes(lm.parameters()) == {torch.bfloat16}


def test_a_rollout_has_float32_logits(run):
    with run.policy.unsharded() as lm:
        assert lm(torch.tensor([[1, 2, 3]])).logits.dtype == torch.float32


def test_both_passes_of_a_step_round_alike(run):
    """The ratio of the first update is therefore exactly 1."""
    ids = torch.arange(40).view(2, 20) % 30
    mask = torch.arange(20) >= torch.tensor([[7], [11]])
    with torch.no_grad():
        old = run.policy(ids, mask).logprob
    logprob = run.policy(ids, mask).logprob
    logprob.sum().backward()  # else the policy would keep its weights in bfloat16
    run.optimizer.zero_grad()
    assert torch.equal(logprob, old)


def test_mismatch_is_rounding(run):
    mismatch = [line["mismatch"] for line in read_lines(run.folder / "metrics.jsonl")]
    assert len(mismatch) == 2
    assert max(mismatch) < 0.05, mismatch


def test_a_run_resumes_bit_equal(run, tmp_path):
    for steps in (1, 2):
        again = train_steps(small_config(tmp_path, *FLAGS, steps=steps))
    assert read_lines(tmp_path / "metrics.jsonl") == read_lines(run.folder / "metrics.jsonl")
    assert same_weights(again.policy, run.policy)


def test_an_evaluation_has_float32_logits(tmp_path):
    save_random_model("qwen3", tmp_path)
    lm, _ = load_model(tmp_path, torch.bfloat16)
    assert lm.get_input_embeddings().weight.dtype == torch.bfloat16
    assert lm(torch.tensor([[1, 2, 3]])).logits.dtype == torch.float32
