"""Any causal language model: training and sampling use the model that from_pretrained returns.

Each architecture of EXACT and WHOLE (models.py) is compared with its plain forward pass, one
sequence at a time; each of REFUSED is refused in one line. Sliding windows have 8 tokens, and the
head runs in blocks of 20 tokens. Loading already compares log p (tests/test_loading.py), so the
means over the vocabulary are compared on one architecture of each kind of head.
"""

from functools import cache

import pytest
import torch
from forked import finished, torchrun
from models import (
    EXACT,
    VOCABULARY,
    WHOLE,
    published_model,
    random_ids,
    response_logits,
    sampling_difference,
    save_random_model,
)
from safetensors.torch import load_file
from torch.nn.utils.rnn import pad_sequence
from toy_runs import SMALL, read_lines, train_small
from transformers import AutoConfig

import policy as policy_module
from infra.errors import UserError
from infra.ranks import full_tensor, start_ranks
from loading import load_policy

HEADS = ("qwen3", "phi", "gemma2", "granite")  # tied, with a bias, a soft cap, a scale
TEMPERATURE = 0.7
PROMPTS = [random_ids(5), random_ids(11, seed=1)]
RESPONSES = [random_ids(30, seed=2), random_ids(19, seed=3)]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(policy_module, "LOGIT_BLOCK", 20 * VOCABULARY)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A function: architecture -> its model's folder, created on first use."""

    @cache
    def of(name):
        path = tmp_path_factory.mktemp(name)
        save_random_model(name, path)
        return path

    start_ranks()
    return of


@pytest.fixture(scope="module")
def policies(folder):
    """A function: architecture -> its training policy, with recomputation. Read-only."""

    @cache
    def of(name):
        policy, _ = load_policy(folder(name), TEMPERATURE)
        return policy

    return of


def outputs(policy):
    """The policy's outputs for RESPONSES to PROMPTS, computed as one padded batch."""
    pairs = list(zip(PROMPTS, RESPONSES, strict=True))
    ids = pad_sequence([torch.cat(pair) for pair in pairs], batch_first=True)
    mask = torch.zeros_like(ids, dtype=torch.bool)
    for row, (prompt, response) in zip(mask, pairs, strict=True):
        row[len(prompt) : len(prompt) + len(response)] = True
    return policy(ids, mask)


def plain_outputs(lm):
    """(log p, entropy, Σ p²) of the same tokens, one unpadded sequence at a time."""
    numbers = []
    for prompt, response in zip(PROMPTS, RESPONSES, strict=True):
        logp = (response_logits(lm, prompt, response) / TEMPERATURE).log_softmax(-1)
        p = logp.exp()
        logprob = logp.gather(1, response[:, None]).squeeze(1)
        numbers.append(torch.stack([logprob, -(p * logp).sum(1), (p * p).sum(1)]))
    return torch.cat(numbers, dim=1)


@pytest.mark.parametrize("name", HEADS)
def test_policy_outputs_match_the_plain_model(name, folder, policies):
    with torch.no_grad():
        ours = outputs(policies(name))
        expected = plain_outputs(published_model(name, folder(name)))
    ours = torch.stack([ours.logprob, ours.entropy, ours.mean_p])
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", EXACT)
def test_policy_gradients_match_the_plain_model(name, folder, policies):
    """All parameters, through recomputed layers, head, bias, scale and soft cap."""
    upstream = torch.randn(49, generator=torch.Generator().manual_seed(0))
    plain = published_model(name, folder(name))
    (plain_outputs(plain)[0] * upstream).sum().backward()
    policy = policies(name)
    (outputs(policy).logprob * upstream).sum().backward()

    expected = dict(plain.named_parameters())
    for key, parameter in policy.lm.named_parameters():
        ours, wanted = full_tensor(parameter.grad), expected[key].grad
        if wanted is None:  # an unused part
            assert not ours.any(), key
        else:
            torch.testing.assert_close(ours, wanted, rtol=1e-3, atol=1e-4, msg=key)
        parameter.grad = None


@pytest.mark.parametrize("name", [*EXACT, *WHOLE])
def test_sampled_log_p_is_the_published_model_s(name, folder, policies):
    assert sampling_difference(name, folder(name), policies(name)) < 1e-4


@pytest.mark.parametrize(
    "name, said",
    [
        ("bert", "log-probabilities in training differ"),
        ("recurrent_gemma", "log-probabilities in training differ"),
        ("qwen4_exp_text", "layer 1 needs a cache of its own kind, DynamicIndexedLayer"),
    ],
)
def test_other_models_are_refused_in_one_line(name, said, folder):
    with pytest.raises(UserError, match=said) as error:
        load_policy(folder(name))
    assert "\n" not in str(error.value)


@torch.no_grad()
def test_the_head_gives_the_logits(folder, policies):
    plain, ids = published_model("granite", folder("granite")), RESPONSES[0][None]
    logits = plain.base_model(ids).last_hidden_state @ policies("granite").head().T
    torch.testing.assert_close(logits, plain(ids).logits / TEMPERATURE, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["phi", "gemma2"])
def test_the_head_with_a_bias_or_a_soft_cap_is_refused(name, policies):
    with pytest.raises(UserError, match="need logits W h"):
        policies(name).head()


# ---- a run with recurrent layers -----------------------------------------------------------------


def test_a_hybrid_trains_on_two_ranks_as_on_one_and_resumes_bit_equal(folder, tmp_path):
    """Every answer is wrong, but shorter ones are penalised less, so there is a gradient."""
    flags = ["--model", str(folder("qwen3_5")), "--proxy", "topk", "--proxy-topk", "5"]
    flags += ["--max-new-tokens", "16", "--overlong-buffer", "16", "--eval-data", ""]
    one = train_small(tmp_path / "one", *flags, steps=2)
    assert all(row["grad_norm"] > 0 for row in one)

    words = [*SMALL, *flags, "--steps", "2", "--output-dir", str(tmp_path / "two")]
    finished(torchrun(2, "train.py", *words))
    for row, other in zip(one, read_lines(tmp_path / "two" / "metrics.jsonl"), strict=True):
        assert row == pytest.approx(other, rel=1e-5, abs=1e-5)

    train_small(tmp_path / "cut", *flags, steps=1)
    assert train_small(tmp_path / "cut", *flags, steps=2)[-1]["loss"] == one[-1]["loss"]
    models = [load_file(tmp_path / name / "model/model.safetensors") for name in ("one", "cut")]
    assert all(torch.equal(models[0][key], models[1][key]) for key in models[0])
    assert AutoConfig.from_pretrained(tmp_path / "one/model").model_type == "qwen3_5_text"
