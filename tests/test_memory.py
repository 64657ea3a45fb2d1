"""Memory: the plan of benchmarks/memory.py against FSDP2 on fake tensors and against real ranks, and what must not grow."""
import itertools
import json
import os
import subprocess
import sys

import pytest
import torch
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

import evaluate
import toy
import train
from benchmarks.gpu import stage_costs, table_row
from benchmarks.memory import RESERVE, plan, qwen3
from conftest import ROOT

PAPER = dict(gpu_gb=80, micro_batch_tokens=24576, max_prompt_tokens=2048, max_new_tokens=20480, responses=2048, rollout_rows=256, proxy_budget_gb=8)


@pytest.mark.parametrize("size, world, rows, width", [("0.6B", 8, 6, 4096), ("8B", 4, 1, 22528)])
def test_plan_is_what_fsdp_takes_on_fake_tensors(size, world, rows, width):
    done = subprocess.run([sys.executable, "tests/fake_ranks.py", size, str(world), str(rows), str(width)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    peak = int(done.stdout.split()[-1])
    assert plan(qwen3(size), world, **(PAPER | dict(micro_batch_tokens=rows * width)))["update"] == pytest.approx(peak, rel=0.1)


def test_8b_needs_four_gpus_of_80_gb():
    peak = {world: max(p[phase] for phase in ("rollout", "scoring", "update")) + RESERVE
            for world in (1, 4, 8) for p in [plan(qwen3("8B"), world, **PAPER)]}
    assert peak[1] > 80e9 > peak[4] > peak[8]
    one = plan(qwen3("8B"), 1, **PAPER)
    assert one["parameters"] == pytest.approx(8.19e9, rel=1e-3)
    assert one["static"] + one["gradients"] == pytest.approx(16 * one["parameters"])


@pytest.mark.parametrize("trains", [True, False])
def test_the_bench_for_gpus_runs_every_stage(trains):
    """On the CPU and a small model: what a table row needs is there."""
    config = Qwen3Config(vocab_size=1000, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
                         intermediate_size=192, tie_word_embeddings=True, eos_token_id=1, pad_token_id=0, bos_token_id=None)
    costs = stage_costs(config, trains, length=12, responses=8, micro_batch_tokens=200, repetitions=1)
    assert list(costs["seconds"]) == ["sampling", "scoring", "coefficients"] + ["update"] * trains and len(costs["mfu"]) == trains
    row = table_row("small", costs, plan(config, 1, **(PAPER | dict(micro_batch_tokens=200))))
    assert row.count("|") == 9 and ("no update" in row) == (not trains)


def test_dry_run_reads_the_config_alone(tmp_path):
    """Qwen3-8B's config and no weights: an answer in seconds, under 1 GB."""
    qwen3("8B").save_pretrained(tmp_path)
    toy.build_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text((tmp_path / "config.json").read_text().replace('"architectures": null', '"architectures": ["Qwen3ForCausalLM"]'))
    code = ("import resource, sys, train; train.main(sys.argv[1:]); "
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == 'darwin' else 1024))")
    done = subprocess.run([sys.executable, "-c", code, "--model", str(tmp_path), "--dry-run", "--world-size", "1"], cwd=ROOT, capture_output=True, text=True)
    assert "8.19 billion parameters on 1 GPUs" in done.stdout and "does not fit" in done.stdout, done.stderr
    assert int(done.stdout.split()[-1]) < 1e9


def save_random_qwen3(folder, hidden, layers):
    torch.manual_seed(0)
    Qwen3ForCausalLM(Qwen3Config(vocab_size=151936, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=4, num_key_value_heads=2,
                                 head_dim=64, intermediate_size=3 * hidden, tie_word_embeddings=True, eos_token_id=1, pad_token_id=0,
                                 bos_token_id=None, max_position_embeddings=4096)).save_pretrained(folder)
    toy.build_tokenizer().save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


MEASURE = """
import json, resource, sys
import torch, torch.distributed as dist
torch.set_num_threads(1)
from policy import load_policy, start_ranks
rank, world = start_ranks()
unit = 1 if sys.platform == "darwin" else 1024
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
policy, _ = load_policy(sys.argv[1])
tokens, steps = int(sys.argv[2]), int(sys.argv[3])
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-4, fused=True)
ids = torch.arange(tokens + 8).remainder(1000)[None]
for _ in range(steps):
    logprob = policy(ids, torch.tensor([8]), torch.tensor([tokens])).logprob
    logprob.sum().backward()
    optimizer.step()
print(json.dumps((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * unit), flush=True)
"""


def peak(folder, tokens, steps=1, ranks=1):
    (script := folder / "measure.py").write_text(MEASURE)
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)] if ranks > 1 else []
    done = subprocess.run([sys.executable, *launch, str(script), str(folder), str(tokens), str(steps)], cwd=ROOT, capture_output=True, text=True,
                          env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr[-2000:]
    return max(float(line) for line in done.stdout.split())


def test_peak_memory_hardly_grows_with_the_response_at_the_true_vocabulary(tmp_path):
    """V = 151,936, hidden 256, two layers, forward, backward and step: a full log-softmax would add 2 GB from 512 to 1,024 tokens."""
    save_random_qwen3(tmp_path, 256, 2)
    assert peak(tmp_path, 1024) < 1.2 * peak(tmp_path, 512)


def test_plan_is_what_two_real_ranks_take(tmp_path):
    """Resident memory of two gloo ranks in float32 (c = 4), where weights, gradients and moments dominate."""
    save_random_qwen3(tmp_path, 512, 4)
    config = Qwen3Config.from_pretrained(tmp_path)
    p = plan(config, 2, **(PAPER | dict(micro_batch_tokens=64, max_prompt_tokens=8, max_new_tokens=56)), c=4)
    assert p["update"] == pytest.approx(peak(tmp_path, 56, steps=2, ranks=2), rel=0.35)


def test_three_steps_at_the_true_vocabulary(tmp_path, monkeypatch):
    """A random Qwen3 with 151,936 words and responses of 512 tokens, end to end; every other response is called right."""
    monkeypatch.setattr(evaluate, "grade", lambda text, problem, turn=itertools.cycle([1.0, 0.0]): next(turn))
    save_random_qwen3(tmp_path / "model", 256, 2)
    (tmp_path / "data.jsonl").write_text('{"problem": "1+2=?", "answer": "3"}\n{"problem": "4+5=?", "answer": "9"}\n')
    train.main(["--model", str(tmp_path / "model"), "--data", str(tmp_path / "data.jsonl"), "--eval-data", "", "--steps", "3", "--prompts", "1",
                "--mini-batch", "1", "--group-size", "2", "--max-new-tokens", "512", "--output-dir", str(tmp_path / "run")])
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == 3 and all(row["grad_norm"] > 0 and row["response_length"] == 512 for row in rows)
