"""Compares benchmarks/plan.py with FSDP2 and the sampler on fake tensors, and with real processes.

No process may allocate all tokens' logits at once.
"""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fake_sampler import first_layers, live_bytes
from infra.cache import SPARE
from infra.flight import cache_bytes
from toy_runs import train_small
from transformers import Qwen3Config, Qwen3ForCausalLM

import bench
import toy
import train
from benchmarks.gpu import stage_costs, table_row
from benchmarks.plan import GB, checkpoint_bytes, planned, qwen3, run_bytes

ROOT = Path(__file__).parent.parent.parent
PAPER = train.parse_config(["--model", "Qwen/Qwen3"])  # App. I


def run_python(*arguments):
    """The output from a Python process in the repository's folder."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


# ---- the plan ------------------------------------------------------------------------------------


def test_plan_matches_fsdp_on_fake_tensors():
    """In a separate process, because its process group is fake."""
    words = ["8B", "4", "4", "1", "22528"]  # size, layers, ranks, sequences, tokens
    printed = run_python("tests/benchmarks/fake_ranks.py", *words)
    p = planned(first_layers("8B", 4), replace(PAPER, micro_batch_tokens=22528), 4, 80)
    assert p.update == pytest.approx(int(printed), rel=0.1)


@pytest.mark.parametrize(
    "size, rows, prompt",
    [
        ("8B", 4, 20000),  # mostly caches, and the prefill that fills them
        ("0.6B", 128, 20),  # mostly draws
    ],
)
def test_plan_matches_the_sampler_on_fake_tensors(size, rows, prompt):
    """Counts every byte except the weights, while responses finish, arrive and grow."""
    config = first_layers(size, 4)
    new = 6
    flags = replace(
        PAPER, max_prompt_tokens=prompt, max_new_tokens=new, rollout_rows=rows, eval_data=""
    )
    p = planned(config, flags, 8, 80)
    assert p.in_flight == rows

    # With so few tokens, a layer's spare columns matter; the plan does not count them.
    spare = rows * SPARE * cache_bytes(config, 2)
    peak, left = live_bytes(config, rows, prompt, new, rows * (prompt + new + SPARE))
    assert left == 0
    expected = p.rollout - p.static - 2 * p.parameters + spare
    assert 0.95 * expected <= peak <= 1.02 * expected


def test_plan_without_flags_prints_the_results_table(capsys):
    """8B needs four GPUs of 80 GB, and 14B needs eight."""
    bench.main(["plan"])
    printed = capsys.readouterr().out.strip().splitlines()
    results = (ROOT / "docs/results/memory.md").read_text().splitlines()
    assert len(printed) == 17
    assert set(printed) <= set(results)
    assert printed[-1].endswith("| yes |")


def test_planned_cache_and_hidden_states_match_a_hand_calculation():
    """Hidden states beyond the budget, or beyond the GPU's free memory, are kept in host memory."""
    small = planned(qwen3("8B"), PAPER, 8, 80)
    assert small.static == 12 * small.parameters / 8
    per_token = 2 * 36 * 8 * 128 * 2  # keys and values, layers, heads, size, bytes
    assert small.cache == small.in_flight * per_token * 22528
    assert planned(qwen3("8B"), replace(PAPER, rollout_rows=3), 8, 80).in_flight == 3

    large = planned(qwen3("8B"), replace(PAPER, proxy_budget_gb=50), 8, 80)
    hidden = 2048 / 8 * 20480 * 4096 * 2  # a rank's responses, tokens, H, bytes
    assert small.hidden == large.hidden == hidden
    assert small.hidden_on_host
    assert not large.hidden_on_host
    assert large.old_logprobs - small.old_logprobs == pytest.approx(hidden - 30 * GB)

    one = planned(qwen3("4B"), replace(PAPER, proxy_budget_gb=1000), 1, 80)
    assert one.hidden_on_host
    assert one.old_logprobs < 80 * GB - 3 * GB


def test_updates_cost_more_without_recomputation():
    recomputed = planned(qwen3("0.6B"), PAPER, 8, 80)
    kept = planned(qwen3("0.6B"), replace(PAPER, recompute=False), 8, 80)
    assert kept.update > recomputed.update
    assert kept.rollout == recomputed.rollout


def test_plan_reads_only_the_config(tmp_path, capsys):
    """With only Qwen3-8B's config.json: no weights, no tokenizer."""
    config = qwen3("8B")
    config.architectures = ["Qwen3ForCausalLM"]
    config.save_pretrained(tmp_path)
    bench.main(["plan", "--model", str(tmp_path), "--gpus", "1"])
    text = capsys.readouterr().out
    assert "8.19 billion parameters on 1 GPUs of 80 GB" in text
    assert "98.3 per checkpoint" in text
    assert "does not fit" in text

    bench.main(["plan", "--model", "toy-code", "--seed", "3", "--gpu-gb", "24"])
    text = capsys.readouterr().out
    assert text.startswith("toy-code: ")
    assert "\nfits: 3.0 of 24 GB" in text  # 3 GB are reserved, and the toy is small


@pytest.mark.parametrize(
    "argv, said",
    [
        (["plan", "--model", "toy", "--gpus", "12"], "--gpus 12"),
        (["plan", "--model", "toy", "--prompts", "5"], "multiple"),
        (["rollouts", "--model", "toy"], "unrecognized arguments: --model"),
    ],
)
def test_impossible_flags_get_a_one_line_error(argv, said, capsys):
    with pytest.raises(SystemExit) as stopped:
        bench.main(argv)
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err


def test_bench_gpu_prints_the_plan_and_the_measurements():
    """On the CPU with a small model, with and without updates."""
    config = Qwen3Config(
        vocab_size=1000,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        intermediate_size=192,
        tie_word_embeddings=True,
        eos_token_id=1,
        pad_token_id=0,
        bos_token_id=None,
    )
    expected = planned(config, replace(PAPER, micro_batch_tokens=200), 1, 80)
    for trains in (True, False):
        costs = stage_costs(
            config, trains, length=12, responses=8, micro_batch_tokens=200, repetitions=1
        )
        stages = ["sampling", "old_logprobs", "coefficients"]
        if trains:
            stages.append("update")
        assert list(costs["seconds"]) == stages
        assert len(costs["mfu"]["old_logprobs"]) == 1
        assert len(costs["mfu"]["update"]) == trains
        row = table_row("small", costs, expected, 1.0)
        assert row.count("|") == 8
        assert ("no update" in row) == (not trains)


# ---- the memory of a process ---------------------------------------------------------------------


def save_random_qwen3(folder, hidden, layers):
    """A randomly initialised model with the real vocabulary size and the toy's tokenizer."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=151936,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=hidden // 4,
        intermediate_size=3 * hidden,
        tie_word_embeddings=True,
        eos_token_id=1,
        pad_token_id=0,
        bos_token_id=None,
        max_position_embeddings=4096,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    toy.build_tokenizer().save_pretrained(folder)


# A fresh process's peak. Linux's ru_maxrss does not work here: it survives exec, so it starts at
# pytest's memory.
MEASURE = """
import resource, sys
from pathlib import Path

def peak_bytes():
    if sys.platform == "darwin":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])

import torch
from infra.loading import load_policy
from infra.ranks import start_ranks

start_ranks()
before = peak_bytes()
policy, _ = load_policy(sys.argv[1])
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-4, fused=True)
for tokens in (512, 512, 1024):  # Adam's moments exist from the second pass on
    ids = torch.arange(tokens + 8).remainder(1000)[None]
    logprob = policy(ids, torch.tensor([8]), torch.tensor([tokens])).logprob
    logprob.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    print(peak_bytes() - before, flush=True)
"""


def test_peak_memory_hardly_grows_with_the_response_at_the_true_vocabulary(tmp_path):
    """Forward, backward and step at V = 151,936, hidden size 64, one layer.

    A full log-softmax would add 2 GB from 512 to 1,024 tokens.
    """
    save_random_qwen3(tmp_path, 64, 1)
    _, short, long = (int(line) for line in run_python("-c", MEASURE, str(tmp_path)).split())
    assert long < 1.2 * short


# ---- the disk ------------------------------------------------------------------------------------

P = 8_190_735_360  # Qwen3-8B


def flags(steps, save_every):
    return SimpleNamespace(steps=steps, save_every=save_every)


def size_of(folder):
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def test_disk_space_for_8b_includes_three_checkpoints_and_two_models():
    assert checkpoint_bytes(P) == pytest.approx(98.3 * GB, rel=1e-3)
    assert run_bytes(P, 2, flags(220, 10)) == 3 * checkpoint_bytes(P) + 2 * 2 * P
    assert run_bytes(P, 2, flags(10, 10)) == checkpoint_bytes(P) + 2 * 2 * P


def test_checkpoint_bytes_match_the_files(tmp_path):
    """The toy has only 102,528 parameters, so the rest of its checkpoint is a visible share."""
    train_small(tmp_path / "run", steps=2)
    (path,) = (tmp_path / "run").glob("checkpoint-*")
    counted = checkpoint_bytes(102_528)
    assert counted < size_of(path) < 1.25 * counted
    assert size_of(tmp_path / "run" / "model") > 4 * 102_528
