"""Memory: the plan of infra/memory.py against FSDP2 on fake tensors and on real ranks.

And what must not grow: nothing here may hold a number for every token and word.
"""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

import toy
import train
from benchmarks.gpu import stage_costs, table_row
from infra.cache import SPARE
from infra.memory import GB, plan, qwen3

ROOT = Path(__file__).parent.parent.parent

PAPER = {  # App. I
    "gpu_gb": 80,
    "micro_batch_tokens": 24576,
    "max_prompt_tokens": 2048,
    "max_new_tokens": 20480,
    "responses": 2048,
    "rollout_rows": 256,
    "proxy_budget_gb": train.Config.proxy_budget_gb,
}


def run_python(*arguments):
    """What a Python process in the repository's folder prints."""
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


@pytest.mark.parametrize(
    "size, world, sequences, tokens", [("0.6B", 8, 6, 4096), ("8B", 4, 1, 22528)]
)
def test_plan_is_what_fsdp_takes_on_fake_tensors(size, world, sequences, tokens):
    printed = run_python("-m", "tests.fake_ranks", size, str(world), str(sequences), str(tokens))
    settings = PAPER | {"micro_batch_tokens": sequences * tokens}
    assert plan(qwen3(size), world, **settings).update == pytest.approx(int(printed), rel=0.1)


@pytest.mark.parametrize(
    "size, rows, prompt, new",
    [
        ("8B", 4, 20000, 6),  # caches, and the pass that fills one
        ("1.7B", 10, 3000, 6),  # passes over five prompts side by side
        ("0.6B", 128, 20, 6),  # draws
    ],
)
def test_plan_is_what_the_sampler_takes_on_fake_tensors(size, rows, prompt, new):
    """To the byte while responses leave, arrive and grow, beside the weights."""
    settings = {"max_prompt_tokens": prompt, "max_new_tokens": new, "rollout_rows": rows}
    p = plan(qwen3(size), 8, **(PAPER | settings))
    assert p.in_flight == rows

    # Of so few tokens the columns that a layer has to spare are many; the plan has no such.
    spare = rows * SPARE * p.cache_per_token
    cache_tokens = rows * (prompt + new + SPARE)
    arguments = (size, rows, prompt, new, cache_tokens)
    seen = json.loads(run_python("-m", "tests.fake_sampler", *map(str, arguments)))
    assert seen["left"] == 0

    planned = p.rollout - p.static - 2 * p.parameters + spare
    assert 0.95 * planned <= seen["peak"] <= 1.02 * planned


def test_8b_needs_four_gpus_of_80_gb():
    one = plan(qwen3("8B"), 1, **PAPER)
    four = plan(qwen3("8B"), 4, **PAPER)
    eight = plan(qwen3("8B"), 8, **PAPER)
    assert one.peak > 80 * GB > four.peak > eight.peak
    assert not one.fits(80)
    assert four.fits(80)
    assert one.parameters == pytest.approx(8.19e9, rel=1e-3)
    # weights, gradients and two moments, 4 bytes each
    assert one.static + one.gradients == pytest.approx(16 * one.parameters)


def test_14b_needs_eight_gpus_of_80_gb():
    assert not plan(qwen3("14B"), 4, **PAPER).fits(80)
    assert plan(qwen3("14B"), 8, **PAPER).fits(80)


def test_cache_of_the_plan_is_that_of_the_longest_responses():
    p = plan(qwen3("8B"), 8, **PAPER)
    assert p.cache_per_token == 2 * 36 * 8 * 128 * 2  # keys and values, layers, heads, size, bytes
    assert p.cache == p.in_flight * p.cache_per_token * 22528
    few = plan(qwen3("8B"), 8, **(PAPER | {"rollout_rows": 3}))
    assert few.in_flight == 3


def test_hidden_states_beyond_the_budget_lie_in_host_memory():
    hidden = 2048 / 8 * 20480 * 4096 * 2  # a rank's responses, tokens, H, bytes
    small = plan(qwen3("8B"), 8, **PAPER)
    large = plan(qwen3("8B"), 8, **(PAPER | {"proxy_budget_gb": 50}))
    assert small.hidden == large.hidden == hidden
    assert small.hidden_on_host
    assert not large.hidden_on_host
    assert large.old_logprobs - small.old_logprobs == pytest.approx(hidden - 30 * GB)
    assert small.pinned == 2**36  # 43 GB, which come in a power of two


def test_hidden_states_stay_on_a_gpu_only_if_it_can_spare_the_room():
    budget = PAPER | {"proxy_budget_gb": 1000}
    one = plan(qwen3("4B"), 1, **budget)
    assert one.hidden_on_host
    assert one.old_logprobs < 80 * GB - 3 * GB
    assert not plan(qwen3("0.6B"), 8, **budget).hidden_on_host


def test_updates_cost_more_without_recomputation():
    recomputed = plan(qwen3("0.6B"), 8, **PAPER)
    kept = plan(qwen3("0.6B"), 8, **PAPER, recompute=False)
    assert kept.update > recomputed.update
    assert kept.rollout == recomputed.rollout


def test_the_bench_for_gpus_prints_the_plan_beside_what_it_measured():
    """On the CPU and a small model, with and without updates: what a table row needs is there."""
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
    planned = plan(config, 1, **(PAPER | {"micro_batch_tokens": 200}))
    for trains in (True, False):
        costs = stage_costs(
            config, trains, length=12, responses=8, micro_batch_tokens=200, repetitions=1
        )
        stages = ["sampling", "old_logprobs", "coefficients"]
        if trains:
            stages.append("update")
        assert list(costs["seconds"]) == stages
        assert len(costs["mfu"]) == trains
        row = table_row("small", costs, planned)
        assert row.count("|") == 9
        assert ("no update" in row) == (not trains)


# ---- train.py --dry-run --------------------------------------------------------------------------

# The peak of a fresh process. Linux's ru_maxrss will not do: it outlives exec, so that it begins at
# what pytest held when it started the process.
PEAK = """
import resource, sys
from pathlib import Path

def peak_bytes():
    if sys.platform == "darwin":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])

"""

DRY_RUN = (
    PEAK
    + """
import train

train.main(sys.argv[1:])
print(peak_bytes())
"""
)


def test_dry_run_reads_the_config_alone(tmp_path):
    """Qwen3-8B's config and no weights: an answer in seconds, in less than 1 GB."""
    config = qwen3("8B")
    config.architectures = ["Qwen3ForCausalLM"]
    config.save_pretrained(tmp_path)
    toy.build_tokenizer().save_pretrained(tmp_path)

    flags = ["--model", str(tmp_path), "--dry-run", "--world-size", "1"]
    *printed, peak = run_python("-c", DRY_RUN, *flags).splitlines()
    text = "\n".join(printed)
    assert "8.19 billion parameters on 1 GPUs of 80 GB" in text
    assert "\n  log-probs " in text
    assert "98.3 GB a checkpoint" in text
    assert "does not fit" in text
    assert int(peak) < 1 * GB


def test_dry_run_of_the_toy_fits(capsys):
    train.main(["--dry-run", "--world-size", "1"])
    assert "\nfits: 3." in capsys.readouterr().out  # 3 GB are set aside, the toy is small


# ---- what processes take -------------------------------------------------------------------------


def save_random_qwen3(folder, hidden, layers):
    """A randomly initialised model of the true vocabulary with the toy's tokenizer."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=151936,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        intermediate_size=3 * hidden,
        tie_word_embeddings=True,
        eos_token_id=1,
        pad_token_id=0,
        bos_token_id=None,
        max_position_embeddings=4096,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    toy.build_tokenizer().save_pretrained(folder)


MEASURE = (
    PEAK
    + """
import torch
from infra.loading import load_policy
from infra.ranks import start_ranks

torch.set_num_threads(1)
start_ranks()
before = peak_bytes()
policy, _ = load_policy(sys.argv[1])
tokens, steps = int(sys.argv[2]), int(sys.argv[3])
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-4, fused=True)
ids = torch.arange(tokens + 8).remainder(1000)[None]
for _ in range(steps):
    logprob = policy(ids, torch.tensor([8]), torch.tensor([tokens])).logprob
    logprob.sum().backward()
    optimizer.step()
print(peak_bytes() - before, flush=True)
"""
)


def peak(folder, tokens, steps=1, ranks=1):
    """Resident bytes that updates on one response of `tokens` add, the most of any rank."""
    script = folder / "measure.py"
    script.write_text(MEASURE)
    launch = []
    if ranks > 1:
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)]
    printed = run_python(*launch, str(script), str(folder), str(tokens), str(steps))
    return max(int(line) for line in printed.split())


def test_peak_memory_hardly_grows_with_the_response_at_the_true_vocabulary(tmp_path):
    """Forward, backward and step at V = 151,936, hidden size 256, two layers.

    A full log-softmax would add 2 GB from 512 to 1,024 tokens.
    """
    save_random_qwen3(tmp_path, 256, 2)
    assert peak(tmp_path, 1024) < 1.2 * peak(tmp_path, 512)


def test_plan_is_what_two_real_ranks_take(tmp_path):
    """Resident memory of two ranks in float32, where weights, gradients and moments dominate."""
    save_random_qwen3(tmp_path, 512, 4)
    config = Qwen3Config.from_pretrained(tmp_path)
    settings = PAPER | {"micro_batch_tokens": 64, "max_prompt_tokens": 8, "max_new_tokens": 56}
    planned = plan(config, 2, **settings, c=4)
    assert planned.update == pytest.approx(peak(tmp_path, 56, steps=2, ranks=2), rel=0.35)


def test_two_steps_at_the_true_vocabulary(tmp_path, monkeypatch):
    """A random Qwen3 and responses of 192 tokens, end to end; every other one is called right."""
    turns = itertools.cycle([1.0, 0.0])

    def every_other_is_right(responses, problems):
        return [next(turns) for _ in responses]

    monkeypatch.setattr(train, "grades", every_other_is_right)
    save_random_qwen3(tmp_path / "model", 256, 2)
    problems = [{"problem": "1+2=?", "answer": "3"}, {"problem": "4+5=?", "answer": "9"}]
    lines = [json.dumps(problem) + "\n" for problem in problems]
    (tmp_path / "data.jsonl").write_text("".join(lines))

    flags = {
        "--model": tmp_path / "model",
        "--data": tmp_path / "data.jsonl",
        "--eval-data": "",
        "--steps": 2,
        "--prompts": 1,
        "--mini-batch": 1,
        "--group-size": 2,
        "--max-new-tokens": 192,
        "--output-dir": tmp_path / "run",
    }
    train.main([str(word) for pair in flags.items() for word in pair])

    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    metrics = [json.loads(line) for line in lines]
    assert len(metrics) == 2
    for row in metrics:
        assert row["grad_norm"] > 0
        assert row["response_length"] > 96  # though one may end by chance
