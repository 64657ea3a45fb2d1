"""benchmarks/plan.py, compared with FSDP2 and with the sampler."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from conftest import ROOT
from forked import finished, start
from models import random_lm
from toy_runs import refusal
from transformers import Qwen2Config

import policy
import train
from benchmarks.__main__ import main
from benchmarks.plan import GB, RESERVE, largest, planned, planned_for, qwen3, qwen35, sizes_of
from infra import sampler

PAPER = train.parse_config(["--model", "Qwen/Qwen3"])  # App. I


def test_the_update_matches_fsdp_on_fake_tensors():
    """In a separate process, because its process group is fake."""
    words = ["8B", "4", "4", "1", "22528"]  # size, layers, ranks, sequences, tokens
    done = finished(start("tests/benchmarks/fake_ranks.py", *words))
    config = qwen3("8B")
    config.num_hidden_layers, config.layer_types = 4, config.layer_types[:4]
    p = planned(config, replace(PAPER, micro_batch_tokens=22528), 4, 80)
    assert p.update == pytest.approx(int(done.stdout), rel=0.1)


def test_as_many_responses_are_planned_as_the_sampler_admits(monkeypatch):
    """The sampler sees what an 80 GB GPU has free beside the weights of 8B on 8 GPUs."""
    p = planned(qwen3("8B"), PAPER, 8, 80)
    free = 80 * GB - RESERVE - p.static - 2 * p.parameters
    keys = torch.zeros(36, 8, 1, 128, dtype=torch.bfloat16)  # of all layers
    column = [[sampler.Kept([keys, keys], {})]]
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free, 80 * GB))
    monkeypatch.setattr(sampler, "prefill", lambda *_: column)
    lm = SimpleNamespace(
        device=torch.device("cuda"),
        config=SimpleNamespace(vocab_size=151936),
        forward=lambda past_key_values: None,
    )
    assert sampler.cache_capacity(lm, 256, PAPER.eval_top_p) == pytest.approx(p.capacity)
    assert p.in_flight == p.capacity // (22528 + sampler.CHUNK) == 10
    assert p.rollout + RESERVE < 80 * GB


def test_plan_without_flags_prints_the_results_table(capsys):
    """8B needs four GPUs of 80 GB, and 14B needs eight."""
    main(["plan"])
    printed = capsys.readouterr().out.strip().splitlines()
    assert len(printed) == 53
    page = (ROOT / "docs/results/memory.md").read_text().splitlines()
    rows = {line for line in page if line.startswith("|")}  # a selection
    assert len(rows) > 15 and rows <= set(printed)


def test_plan_reads_only_the_config_and_refuses_what_cannot_run(tmp_path, capsys):
    """With only Qwen3-8B's config.json: no weights, no tokenizer."""
    config = qwen3("8B")
    config.architectures = ["Qwen3ForCausalLM"]
    config.save_pretrained(tmp_path)
    main(["plan", "--model", str(tmp_path), "--gpus", "1"])
    text = capsys.readouterr().out
    assert "8.19 billion parameters on 1 GPUs of 80 GB" in text
    assert "98.3 per checkpoint" in text and "does not fit" in text
    flags = ["--model", tmp_path, "--max-new-tokens", "40000"]
    assert "exceeds the 32768 tokens" in refusal(main, ["plan", *flags], capsys)


def test_without_a_length_the_model_s_positions_limit_the_plan(tmp_path, capsys):
    config = qwen3("0.6B")
    config.max_position_embeddings = 4096
    config.save_pretrained(tmp_path)
    main(["plan", "--model", str(tmp_path), "--gpus", "1"])
    assert " --max-new-tokens 2048 " in capsys.readouterr().out  # after a prompt of 2,048
    flags = train.parse_config(["--model", str(tmp_path)])
    assert largest(sizes_of(config), flags, 1, 80)[0].max_new_tokens == 2048


def test_states_of_recurrent_layers_are_counted():
    """Qwen3.5-0.8B: 6 layers of attention and 18 recurrent ones; the states are kept in float32."""
    size = sizes_of(qwen35("0.8B"))
    assert size.parameters == pytest.approx(0.75e9, rel=0.01)
    assert size.cached == 6 * 2 * 2 * 256
    assert size.states == 18 * (16 * 128 * 128 + 3 * 16 * 128 * 4)
    flags = replace(PAPER, max_new_tokens=1024, max_prompt_tokens=512, in_flight=64)
    one, two = (planned_for(size, replace(flags, in_flight=n), 1, 80, 2) for n in (64, 128))
    tokens = 64 * (1536 + sampler.CHUNK) * 2 * size.cached
    draws = 64 * sampler.TOP_P_DRAW_BYTES * 248320
    assert two.rollout - one.rollout == pytest.approx(tokens + draws + 64 * 4 * size.states)


@pytest.mark.parametrize("name", ["deepseek_v3", "gpt2", "lfm2", "falcon_h1", "qwen3_5_moe_text"])
def test_what_the_sampler_keeps_is_planned(name):
    lm = random_lm(name)
    (cache,) = sampler.prefill(lm, [torch.tensor([3, 4])])
    size = sizes_of(lm.config)
    assert size.cached == sum(x.numel() for layer in cache for x in layer.columns)
    assert size.states == sum(x.numel() for layer in cache for x in layer.states.values())


QWEN25 = Qwen2Config(  # Qwen2.5-0.5B
    hidden_size=896,
    intermediate_size=4864,
    num_hidden_layers=24,
    num_attention_heads=14,
    num_key_value_heads=2,
    vocab_size=151936,
    tie_word_embeddings=True,
    max_position_embeddings=32768,
)
SMALL = {"0.5B": QWEN25, "0.6B": qwen3("0.6B"), "1.7B": qwen3("1.7B")}


@pytest.mark.parametrize("name, gpu_gb", [("0.5B", "16"), ("0.6B", "16"), ("1.7B", "40")])
def test_the_largest_settings_that_fit_are_a_command_whose_plan_fits(
    name, gpu_gb, tmp_path, capsys
):
    SMALL[name].save_pretrained(tmp_path)
    card = ["--gpus", "1", "--gpu-gb", gpu_gb]
    main(["plan", "--model", str(tmp_path), *card])
    command = capsys.readouterr().out.strip().splitlines()[-1]
    assert command.startswith(f"  python train.py --model {tmp_path} --max-new-tokens ")
    main(["plan", *command.split()[2:], *card])
    text = capsys.readouterr().out
    assert f"of {gpu_gb} GB\n" in text and "\nfits: " in text
    assert command.split()[2:] == text.strip().splitlines()[-1].split()[2:]  # nothing to change


def test_a_plan_that_cannot_fit_names_what_would(tmp_path, capsys):
    SMALL["1.7B"].save_pretrained(tmp_path)
    main(["plan", "--model", str(tmp_path), "--gpus", "1", "--gpu-gb", "24"])
    said = capsys.readouterr().out.strip().splitlines()[-1]
    assert said.startswith("nothing fits") and "LoRA (docs/trl.md) or 2 such GPUs" in said


def test_blocks_of_logits_follow_the_memory_of_the_gpu(monkeypatch):
    card = SimpleNamespace(total_memory=80e9)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: card)
    assert policy.logit_block(torch.device("cuda", 0)) == pytest.approx(2**28, rel=0.01)
    assert policy.logit_block(torch.device("cpu")) == policy.LOGIT_BLOCK
