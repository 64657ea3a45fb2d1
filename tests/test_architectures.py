"""Tests that training and sampling use the model that from_pretrained returns, whatever its kind.

Each architecture in EXACT (models.py) is compared with its plain forward pass, one sequence at a
time, and so are samples with each kind of cache. Each architecture in REFUSED is refused in one
line. Sliding windows have 8 tokens, and the head runs in blocks of 20 tokens.
"""

from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from models import (
    EXACT,
    RECURRENT,
    VOCABULARY,
    WHOLE,
    WITHOUT_CACHE,
    published_model,
    random_ids,
    response_logits,
    sampling_difference,
    save_random_model,
)
from torch.nn.utils.rnn import pad_sequence

from infra import cuda_graph, onednn
from infra import head as head_module
from infra.errors import UserError
from infra.head import scaled_head
from infra.ranks import full_tensor, start_ranks, this_device
from train import Policy, load_policy

TEMPERATURE = 0.7
PROMPTS = [random_ids(5), random_ids(11, seed=1)]
RESPONSES = [random_ids(30, seed=2), random_ids(19, seed=3)]
CACHES = ["llama", "mistral", "olmo3", "gemma2", "opt", "bloom", "gpt_oss", "llama4_text"]
CACHES += ["gemma4_text", "deepseek_v3", *RECURRENT, *WITHOUT_CACHE, *WHOLE]  # others are llama's
# These repeat another's layers, head, cache and files, and `load_policy` compares every model.
ALIKE = "qwen2 olmo2 gemma gemma3_text cohere2 glm4 smollm3 phi3 stablelm starcoder2 arcee apertus"
ALIKE += " gpt_neox_japanese ernie4_5 exaone4 hunyuan_v1_dense ministral ministral3 nanochat"
ALIKE += " seed_oss glm4_moe_lite"
DISTINCT = [name for name in EXACT if name not in ALIKE.split()]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(head_module, "LOGIT_BLOCK", 20 * VOCABULARY)
    monkeypatch.setattr(onednn, "SMALL", 0)  # as in a real model's layers


class Loaded(NamedTuple):
    """A random model: its folder, the training policy with recomputation, and the plain model."""

    folder: Path
    policy: Policy
    plain: torch.nn.Module


@pytest.fixture(scope="module")
def loaded(request, tmp_path_factory) -> Loaded:
    """The architecture request.param. All its tests come in a row, so that it is loaded once."""
    start_ranks()
    folder = tmp_path_factory.mktemp(request.param)
    save_random_model(request.param, folder)
    policy, _ = load_policy(folder, TEMPERATURE)
    return Loaded(folder, policy, published_model(request.param, folder))


def outputs(policy):
    """The policy's outputs for RESPONSES to PROMPTS, computed as one padded batch."""
    pairs = list(zip(PROMPTS, RESPONSES, strict=True))
    ids = pad_sequence([torch.cat(pair) for pair in pairs], batch_first=True)
    mask = torch.zeros_like(ids, dtype=torch.bool)
    for row, (prompt, response) in zip(mask, pairs, strict=True):
        row[len(prompt) : len(prompt) + len(response)] = True
    return policy(ids, mask)


def plain_outputs(lm):
    """(log p, entropy) of the same tokens, one unpadded sequence at a time."""
    numbers = []
    for prompt, response in zip(PROMPTS, RESPONSES, strict=True):
        logp = (response_logits(lm, prompt, response) / TEMPERATURE).log_softmax(-1)
        p = logp.exp()
        logprob = logp.gather(1, response[:, None]).squeeze(1)
        numbers.append(torch.stack([logprob, -(p * logp).sum(1)]))
    return torch.cat(numbers, dim=1)


@pytest.mark.parametrize("loaded", DISTINCT, indirect=True)
def test_policy_outputs_and_gradients_match_the_plain_model(loaded):
    """All parameters are compared, through recomputed layers, head, bias, scale and soft cap."""
    upstream = torch.randn(49, generator=torch.Generator().manual_seed(0))
    plain = plain_outputs(loaded.plain)
    with torch.no_grad():
        ours = outputs(loaded.policy)
    numbers = torch.stack([ours.logprob, ours.entropy])
    torch.testing.assert_close(numbers, plain, rtol=0, atol=1e-4)
    (plain[0] * upstream).sum().backward()
    (outputs(loaded.policy).logprob * upstream).sum().backward()

    expected = dict(loaded.plain.named_parameters())
    for key, parameter in loaded.policy.lm.named_parameters():
        ours, wanted = full_tensor(parameter.grad), expected[key].grad
        if wanted is None:  # an unused part
            assert not ours.any(), key
        else:
            # Gradients reach 284 in one tensor. That of OPT's k_proj.bias is 0 up to rounding.
            assert (ours - wanted).norm() < 1e-4 * wanted.norm() + 1e-5, key


@pytest.mark.parametrize("loaded", CACHES, indirect=True)
def test_sampled_log_p_is_the_published_model_s(loaded):
    assert sampling_difference(loaded.plain, loaded.folder, loaded.policy) < 1e-4


@torch.no_grad()
@pytest.mark.parametrize("loaded", ["granite"], indirect=True)
def test_the_head_gives_the_logits(loaded):
    ids = RESPONSES[0][None]
    hidden = loaded.plain.base_model(ids).last_hidden_state
    logits = hidden @ scaled_head(loaded.policy.lm, TEMPERATURE).T
    expected = loaded.plain(ids).logits / TEMPERATURE
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("loaded", ["phi", "gemma2"], indirect=True)
def test_the_head_with_a_bias_or_a_soft_cap_is_refused(loaded):
    with pytest.raises(UserError, match="needs logits W h"):
        scaled_head(loaded.policy.lm, TEMPERATURE)


@pytest.mark.parametrize(
    "name, said",
    [
        ("bert", "log-probabilities in training differ"),
        ("recurrent_gemma", "log-probabilities in training differ"),
        ("qwen4_exp_text", "layer 1 needs a cache of its own kind, DynamicIndexedLayer"),
    ],
)
def test_other_models_are_refused_in_one_line(name, said, tmp_path):
    start_ranks()
    save_random_model(name, tmp_path)
    with pytest.raises(UserError, match=said) as error:
        load_policy(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("loaded", CACHES, indirect=True)
def test_sampled_log_p_of_a_recorded_pass(loaded, monkeypatch):
    """Tests infra/cuda_graph.py: without a GPU, the pass runs as often as it would be replayed."""
    recorded = []

    def run(kernels, times):
        recorded.append(times)
        if torch.cuda.is_available():
            repeat(kernels, times)
        else:
            for _ in range(times):
                kernels()

    repeat = cuda_graph.repeat
    monkeypatch.setattr(cuda_graph, "repeat", run)
    monkeypatch.setattr(cuda_graph, "DEVICE", this_device().type)
    for first in (1, 11):  # also without padding, when no mask would hide the empty columns
        assert sampling_difference(loaded.plain, loaded.folder, loaded.policy, first) < 1e-4
    assert any(recorded) == (loaded.policy.lm.config.model_type in cuda_graph.RECORDED)
