"""Compares benchmarks/plan.py with the sampler and with the page of results."""

from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import pytest
import torch
from conftest import ROOT
from models import EXPERTS, LATENT, ROUTED, random_lm
from models import SMALL as SIZES
from toy_runs import refusal
from transformers import CONFIG_MAPPING, PreTrainedConfig, Qwen3_5TextConfig, Qwen3Config

from benchmarks.__main__ import main
from benchmarks.plan import GB, RESERVE, largest, planned, sizes_of
from config import parse_config
from infra import head, sampler

PAPER = parse_config(["--model", "Qwen/Qwen3"])  # App. I
SMALL = replace(  # the page's small run
    PAPER,
    eval_top_p=1.0,
    prompts=32,
    group_size=8,
    mini_batch=16,
    max_prompt_tokens=512,
    max_new_tokens=4096,
)
SHAPE = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
SHAPE += ("num_key_value_heads", "vocab_size", "tie_word_embeddings", "linear_num_value_heads")
MODELS = {  # SHAPE's values in their config.json; only Qwen3.5 has the last one
    "Qwen3-0.6B": (Qwen3Config, 1024, 3072, 28, 16, 8, 151936, True),
    "Qwen3-1.7B": (Qwen3Config, 2048, 6144, 28, 16, 8, 151936, True),
    "Qwen3-4B": (Qwen3Config, 2560, 9728, 36, 32, 8, 151936, True),
    "Qwen3-8B": (Qwen3Config, 4096, 12288, 36, 32, 8, 151936, False),
    "Qwen3-14B": (Qwen3Config, 5120, 17408, 40, 40, 8, 151936, False),
    "Qwen3.5-0.8B": (Qwen3_5TextConfig, 1024, 3584, 24, 8, 2, 248320, True, 16),
    "Qwen3.5-9B": (Qwen3_5TextConfig, 4096, 12288, 32, 16, 4, 248320, False, 32),
}


def config_of(name: str, layers: int | None = None) -> PreTrainedConfig:
    """The config of one of MODELS, or of its first layers."""
    kind, *numbers = MODELS[name]
    shape = dict(zip(SHAPE, numbers, strict=False))
    shape["num_hidden_layers"] = layers or shape["num_hidden_layers"]
    return kind(**shape)


@cache
def sizes(name: str) -> SimpleNamespace:
    """sizes_of a model, scaled up from its first four layers: they have all kinds in proportion."""
    size = sizes_of(config_of(name, layers=4))
    layers = config_of(name).num_hidden_layers
    size.parameters = size.root + (size.parameters - size.root) * layers // 4
    size.cached = size.cached * layers // 4
    size.states = size.states * layers // 4
    size.layers = layers
    return size


def test_as_many_responses_are_planned_as_the_sampler_admits(monkeypatch):
    """The sampler gets the memory that is free on one of 8 GPUs of 80 GB with an 8B model."""
    size, flags = sizes("Qwen3-8B"), replace(PAPER, max_prompt_tokens=512, max_new_tokens=512)
    p = planned(size, flags, 8, 80)
    free = 80 * GB - RESERVE - p.static - 2 * size.parameters
    keys = torch.zeros(36, 8, 1, 128, dtype=torch.bfloat16)  # of all layers, one column
    layer = SimpleNamespace(keys=keys, values=keys)
    cache = SimpleNamespace(layers=[layer])
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free, 80 * GB))
    monkeypatch.setattr(sampler, "Batch", lambda *_: SimpleNamespace(cache=cache))
    lm = SimpleNamespace(
        device=torch.device("cuda"),
        config=SimpleNamespace(vocab_size=151936),
        forward=lambda past_key_values: None,
    )
    columns = sampler.cache_capacity(lm, 256, PAPER.eval_top_p)
    assert p.in_flight == columns // (1024 + sampler.CHUNK) < 256
    assert p.rollout + RESERVE < 80 * GB


def test_every_row_of_the_page_is_planned():
    """A row has the model and the GPUs; in the second table the largest settings follow."""
    page = (ROOT / "docs/cost.md").read_text().splitlines()
    rows = [line.strip("| ").split(" | ") for line in page if line.startswith("| ")]
    rows = [row for row in rows if row[0] in MODELS]
    found = []
    for name, *cells in rows:
        size = sizes(name)
        if len(cells) == 6:
            p = planned(size, PAPER, int(cells[1]), 80)
            row = [name, f"{size.parameters / 1e9:.2f} billion", cells[1]]
            row += [f"{p.rollout / GB:.0f} ({p.in_flight})", f"{p.old_logprobs / GB:.0f}"]
            row += [f"{p.update / GB:.0f}", "yes" if p.fits() else "no"]
        else:
            flags, p = largest(size, SMALL, *map(int, cells[:2]))
            numbers = flags.max_new_tokens, flags.micro_batch_tokens, flags.in_flight, p.in_flight
            row = [name, *cells[:2], *map(str, numbers), f"{p.peak / GB:.1f}"]
        found.append(row)
    assert len(rows) > 12 and found == rows


def test_plan_reads_only_the_config_and_refuses_what_cannot_run(tmp_path, capsys):
    """The folder has only Qwen3-8B's config.json, no weights and no tokenizer."""
    config_of("Qwen3-8B").save_pretrained(tmp_path)
    main(["plan", "--model", str(tmp_path), "--gpus", "1"])
    text = capsys.readouterr().out
    assert "8.19 billion parameters on 1 GPUs of 80 GB" in text
    assert "98.3 per checkpoint" in text and "\ndoes not fit" in text
    assert "\nnothing fits" in text
    flags = ["--model", tmp_path, "--max-new-tokens", "40000"]
    assert "exceeds the 32768 tokens" in refusal(main, ["plan", *flags], capsys)
    assert "plan needs --model" in refusal(main, ["plan", "--gpus", "8"], capsys)
    for flags in (["--gpus", "0"], ["--gpu-gb", "0"]):
        assert "must be " in refusal(main, ["plan", "--model", tmp_path, *flags], capsys)


@pytest.mark.parametrize("name", ["deepseek_v3", "gpt2", "lfm2", "falcon_h1", "qwen3_5_moe_text"])
def test_what_the_sampler_keeps_is_planned(name):
    lm = random_lm(name)
    cache = sampler.Batch(lm, [torch.tensor([3, 4, 5])]).cache
    size = sizes_of(lm.config)
    assert (size.cached, size.states) == sampler.cache_size(cache, torch.Tensor.numel)


ROUTED_BY_VALUES = {
    "jetmoe": EXPERTS,
    "minimax": EXPERTS,
    "longcat_flash": LATENT
    | ROUTED
    | {"num_layers": 2, "ffn_hidden_size": 48, "expert_ffn_hidden_size": 16, "moe_topk": 2},
}


@pytest.mark.parametrize("name", ROUTED_BY_VALUES)
def test_a_model_that_plan_cannot_count_is_one_line(name, tmp_path, capsys):
    """Their experts read values, which meta tensors lack; MiniMax has a cache of its own."""
    CONFIG_MAPPING[name](**SIZES | ROUTED_BY_VALUES[name]).save_pretrained(tmp_path)
    flags = ["--model", tmp_path, "--max-prompt-tokens", "16", "--max-new-tokens", "64"]
    assert f"plan cannot count this {name} (" in refusal(main, ["plan", *flags], capsys)


def test_layers_of_gemma_4_have_heads_of_two_sizes():
    size = sizes_of(random_lm("gemma4_text").config)
    assert size.attention == 4 * 512 and size.mlp == 48  # the wider layers have 4 heads of 512


def test_the_largest_settings_that_fit_are_a_command_whose_plan_fits(tmp_path, capsys):
    config_of("Qwen3-1.7B", layers=4).save_pretrained(tmp_path)
    card = ["--gpus", "1", "--gpu-gb", "24"]
    main(["plan", "--model", str(tmp_path), *card])
    command = capsys.readouterr().out.strip().splitlines()[-1]
    assert command.startswith(f"  python train.py --model {tmp_path} --max-new-tokens ")
    main(["plan", *command.split()[2:], *card])
    text = capsys.readouterr().out
    assert "of 24 GB\n" in text and "\nfits: " in text
    assert command.split()[2:] == text.strip().splitlines()[-1].split()[2:]  # nothing to change


def test_blocks_of_logits_follow_the_memory_of_the_gpu(monkeypatch):
    card = SimpleNamespace(total_memory=80e9)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: card)
    assert head.block_size(torch.device("cuda", 0), 1) == pytest.approx(2**28, rel=0.01)
    assert head.block_size(torch.device("cpu"), 1) == head.LOGIT_BLOCK
