"""The first benchmark to run on a new GPU: whole training steps, beside the plan (`gpu`).

Steps of train.py run with random weights in the shapes of Qwen3-0.6B to 4B: 64 responses of 512
tokens, two updates, micro-batches of 24,576 tokens, bfloat16 computation and recomputed
activations. Every other response counts as right. Each stage is timed, and the peak memory of a
step stands beside that of `python -m benchmarks plan`. A size whose plan does not fit is left out.
"""

import gc
import statistics
import tempfile
from unittest.mock import patch

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig

import toy
import train
from benchmarks.plan import GB, planned, qwen3
from benchmarks.tables import print_table
from infra.errors import UserError
from infra.folder import read_lines
from infra.ranks import this_device

MODELS = ("0.6B", "1.7B", "4B")
LENGTH = 512  # tokens per response
RESPONSES = 64
PROMPT = 64  # tokens, at most
FLAGS = (
    f"--data toy --prompts 8 --group-size 8 --mini-batch 4 --max-new-tokens {LENGTH} "
    f"--max-prompt-tokens {PROMPT} --in-flight {RESPONSES} --save-every 1000000"
)
STAGES = ("sampling", "old_logprob", "weighting", "updating")


def gpu(args) -> list[dict]:
    """Training steps of Qwen3-0.6B to 4B, beside the plan. Raises UserError without a GPU."""
    if not torch.cuda.is_available():
        raise UserError("torch sees no GPU here (python -m benchmarks plan needs none)")
    name = torch.cuda.get_device_name()
    gpu_gb = torch.cuda.get_device_properties(0).total_memory / GB
    print(f"{name}, torch {torch.__version__}, {RESPONSES} responses of {LENGTH} tokens\n")
    found = []
    for size in MODELS:
        config = qwen3(size)
        flags = train.parse_config([*FLAGS.split(), "--eval-data", ""])
        plan = planned(config, flags, 1, gpu_gb)
        if not plan.fits(gpu_gb):
            print(f"{size} does not fit: {plan.peak / GB:.0f} GB planned\n")
            continue
        steps = trained(config, FLAGS, args.repetitions + 1)
        steps["planned bytes"] = plan.peak
        print_table([f"Qwen3-{size}", ""], table_of(steps))
        found.append({"size": size, "gpu": name, "cuda": torch.version.cuda, **steps})
        gc.collect()  # free this model before the next one is built
        torch.cuda.empty_cache()
    print(
        "The weights here are random. Which DelTA a real model runs, one step of it tells: "
        'docs/running.md, "Which DelTA is your model running?"'
    )
    return found


def trained(config: PreTrainedConfig, flags: str, count: int) -> dict:
    """Train `count` steps on random weights. Returns what was measured, without the first step.

    The peak is 0 without a GPU.
    """
    with tempfile.TemporaryDirectory() as folder:
        save_random(config, f"{folder}/model")
        words = f"--model {folder}/model --output-dir {folder}/run --steps {count} {flags}".split()
        run = train.prepare(train.parse_config([*words, "--eval-data", ""]))
        method = train.selected_method(run.cfg, run.state.memory)
        with patch.object(train, "training_rewards", every_other_right):
            for step in range(1, count + 1):
                if torch.cuda.is_available() and step == 2:
                    torch.cuda.reset_peak_memory_stats()
                train.train_step(run, method, step)
                train.finish_step(run)
        logged = read_lines(run.folder / "metrics.jsonl")[1:]
    peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
    return {"metrics": logged, "peak bytes": peak}


def table_of(steps: dict) -> list[list[str]]:
    """The lines of a model's table, from the output of `trained` and the plan's bytes."""
    metrics = steps["metrics"]

    def median(name: str) -> float:
        return statistics.median(row[name] for row in metrics)

    tokens = RESPONSES * median("response_length")
    lines = []
    for stage in STAGES:
        seconds = median(f"seconds_{stage}")
        lines.append([stage, f"{seconds:.3g} s, {tokens / seconds:.0f} tokens/s"])
    peak, planned_peak = steps["peak bytes"] / GB, steps["planned bytes"] / GB
    skipped = sum(row["skipped_updates"] for row in metrics)
    norm = max(row["grad_norm"] for row in metrics)
    return [
        *lines,
        ["peak memory, GB (planned, with 3 in reserve)", f"{peak:.1f} ({planned_peak:.1f})"],
        ["updates skipped; largest gradient norm", f"{skipped}; {norm:.2f}"],
        ["sampler against scoring, nats", f"{metrics[-1]['mismatch']:.2g}"],
    ]


def every_other_right(responses: list[str], *_) -> list[float]:
    """Replaces train.training_rewards, so that every group has right and wrong responses."""
    return [float(i % 2) for i in range(len(responses))]


def save_random(config: PreTrainedConfig, folder: str) -> None:
    """Save a Hugging Face folder with random bfloat16 weights and the toy's tokenizer.

    The end token is one of many, so nearly all responses run to their limit.
    """
    torch.manual_seed(0)
    with this_device():
        lm = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    lm.cpu().save_pretrained(folder)
    toy.build_tokenizer().save_pretrained(folder)
