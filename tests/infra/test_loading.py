"""Tests infra/loading.py: weights equal from_pretrained's bit for bit, or the model is refused."""

import re
from types import SimpleNamespace

import pytest
import torch
from conftest import ROOT
from models import change_config, change_weights, published_model, save_random_model
from toy_runs import same_weights
from transformers import AutoModelForCausalLM

import toy
from infra import head as head_module
from infra import sampler
from infra.errors import UserError
from infra.head import use_our_products
from infra.loading import BOUNDS, Published, load_model, refuse_difference
from infra.ranks import start_ranks
from train import load_policy


@pytest.fixture(autouse=True)
def ranks():
    start_ranks()


def tied_under_the_other_name(folder):
    """Store the tied weights only as lm_head."""
    change_config(folder, tie_word_embeddings=True)
    change_weights(folder, lambda ts: {k: v for k, v in ts.items() if "embed" not in k})


def with_two_end_tokens(folder):
    (folder / "generation_config.json").write_text('{"eos_token_id": [1, 5]}')


def partly_float16(folder):
    change_weights(folder, lambda ts: {k: v.half() if "_proj" in k else v for k, v in ts.items()})


@pytest.mark.parametrize("change", [tied_under_the_other_name, with_two_end_tokens, partly_float16])
def test_the_models_equal_from_pretrained_s_bit_for_bit(change, base_copy):
    """The models' heads compute in float32 from states of any dtype."""
    change(base_copy)
    expected = AutoModelForCausalLM.from_pretrained(base_copy, dtype=torch.float32)
    policy, _ = load_policy(base_copy, temperature=1e-4)
    with policy.unsharded() as lm:
        for ours in (lm, load_model(base_copy)[0]):
            assert same_weights(ours, expected)
            assert not ours.training
            assert ours.generation_config.to_dict() == expected.generation_config.to_dict()
            states = torch.zeros(1, 64, dtype=torch.bfloat16)
            assert ours.get_output_embeddings()(states).dtype == torch.float32


def test_float32_head_gives_unrounded_logits(base):
    model = AutoModelForCausalLM.from_pretrained(toy.BASES["sharpen"], dtype=torch.bfloat16)
    model.lm_head.bias = torch.nn.Parameter(torch.randn(model.config.vocab_size).bfloat16())
    ids = torch.arange(5)[None]
    rounded = model(ids).logits
    use_our_products(model)
    hidden = model.base_model(ids).last_hidden_state.float()
    expected = hidden @ model.lm_head.weight.float().T + model.lm_head.bias.float()
    torch.testing.assert_close(model(ids).logits, expected)
    assert rounded.dtype == torch.bfloat16
    assert not torch.equal(rounded.float(), expected)


def without_scale(patch):
    patch.setattr(head_module, "scale_and_cap", lambda config: (1.0, None))


def with_dropout(patch):
    whole = Published.without_weights
    patch.setattr(Published, "without_weights", lambda self: whole(self).train())


def with_wrong_buffers(patch):
    give = Published.give_slices

    def give_zeros(self, lm):
        self.buffers = {key: torch.zeros_like(buffer) for key, buffer in self.buffers.items()}
        give(self, lm)

    patch.setattr(Published, "give_slices", give_zeros)


def with_wrong_positions(patch):
    without_positions = SimpleNamespace(parameters=["past_key_values"])
    patch.setattr(sampler, "signature", lambda _: without_positions)


@pytest.mark.parametrize(
    "load, name, change, where",
    [
        (load_policy, "granite", without_scale, "training"),
        (load_policy, "phi3", with_dropout, "training"),
        (load_policy, "gemma", with_wrong_buffers, "training"),  # the embedding's scale
        (load_policy, "gpt2", with_wrong_positions, "sampling"),
        (load_model, "gpt2", with_wrong_positions, "sampling"),  # for an evaluation
    ],
)
def test_a_model_that_would_run_differently_is_refused(
    load, name, change, where, tmp_path, monkeypatch
):
    save_random_model(name, tmp_path)
    change(monkeypatch)
    with pytest.raises(UserError, match=f"log-probabilities in {where} differ by"):
        load(tmp_path)


def test_damaged_weights_are_refused(base_copy):
    change_weights(base_copy, lambda ts: ts | {"model.norm.weight": torch.full((64,), torch.nan)})
    for load in (load_policy, load_model):
        with pytest.raises(UserError, match="differ by inf nats"):
            load(base_copy)


def test_only_a_mean_difference_within_rounding_passes_the_check():
    expected = torch.full((3, 8), -2.0)
    bound = BOUNDS[torch.float32]
    shifted = expected.clone()
    shifted[:, ::2] += 1.8 * bound  # 0.9 times the bound on average
    refuse_difference("m", "training", shifted, expected, torch.float32)
    for wrong in (1.1 * bound, -1.1 * bound, torch.nan):
        with pytest.raises(UserError, match="--model m: log-probabilities in training"):
            refuse_difference("m", "training", expected + wrong, expected, torch.float32)


@pytest.mark.parametrize("name", ["qwen3_5", "llava"])  # the head is tied, or separate
@torch.no_grad()
def test_the_recipe_puts_trained_weights_back_into_the_whole_model(name, tmp_path):
    """Tests the recipe of docs/models.md. The language model is exported as a run exports it."""
    save_random_model(name, tmp_path / "whole")
    lm, _ = load_model(tmp_path / "whole")
    for parameter in lm.parameters():
        parameter += 0.1
    lm.save_pretrained(tmp_path / "trained")

    page = (ROOT / "docs/models.md").read_text()
    (recipe,) = re.findall("```python\n(from transformers.*?)```", page, re.DOTALL)
    folders = {word.upper(): tmp_path / word for word in ("whole", "trained", "new")}
    exec(recipe, folders)
    old, new = (published_model(name, tmp_path / word) for word in ("whole", "new"))
    ids = torch.arange(3, 20)[None]
    trained = AutoModelForCausalLM.from_pretrained(tmp_path / "trained")
    assert torch.equal(new(ids).logits, trained(ids).logits)
    for key, parameter in new.named_parameters():
        text = "language_model" in key or "lm_head" in key
        assert torch.equal(parameter, old.get_parameter(key)) != text, key
