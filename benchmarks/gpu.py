"""The first benchmark to run on a new GPU: training steps and the stages of a step (`gpu`).

It first trains for a few steps at the size of Qwen3-0.6B with random weights and preset rewards.
These steps show whether rows are packed, how far the sampler's log-probabilities are from the
scored values, and how often the host waits for the GPU. Then it times the stages of a step for
Qwen3-0.6B to 8B, with random weights in the real shapes.

The stages use 64 responses of 512 tokens, two updates, micro-batches of 24,576 tokens, bfloat16
computation and recomputed activations. 8B has no update. Tokens per second are response tokens.
MFU is the share of the GPU's peak FLOP that the log-probabilities (one forward pass) and the update
(three) reach. Sampling time and peak memory are shown next to the `python bench.py plan` estimates.
"""

import gc
import statistics
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from unittest.mock import patch

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig

import toy
import train
from benchmarks.flights import BANDWIDTH, PEAK_FLOP, of_a_step, sampler_of
from benchmarks.plan import GB, Plan, planned, qwen3
from benchmarks.scripted import PROMPT_WIDTH
from benchmarks.sizes import Sizes, sizes_of
from benchmarks.stages import stages
from benchmarks.timing import alternate
from infra.errors import UserError
from infra.folder import read_lines
from infra.ranks import start_ranks, this_device
from loading import load_policy
from studies.tables import print_table, table_line

LENGTH = 512  # tokens per response
RESPONSES = 64
MINI_BATCHES = 2
MICRO_BATCH = 24576  # tokens
PROXY_BUDGET_GB = 30

MODELS = (("0.6B", True), ("1.7B", True), ("4B", True), ("8B", False))  # size, time the update?
PHASES = {"sampling": "rollout", "old_logprobs": "old_logprobs", "update": "update"}  # -> of a Plan
PASSES = {"old_logprobs": 1, "update": 3}  # cost in forward passes, without recomputation
GPUS = {  # part of the GPU's name -> dense bfloat16 FLOP/s, memory bytes/s (data sheets)
    "H200": (PEAK_FLOP, 4.8e12),
    "H100": (PEAK_FLOP, BANDWIDTH),
    "A100": (312e12, 2.04e12),
}

STEPS = 20
STEP_FLAGS = (
    "--data toy --prompts 8 --group-size 8 --mini-batch 4 --max-new-tokens 128 "
    "--max-prompt-tokens 64 --save-every 1000000"
)

HEADER = """\
| Qwen3 | sampling: tokens/s; s (planned) | log-probabilities: tokens/s; s (MFU) \
| update: tokens/s; s (MFU) | coefficients, share of the step \
| peak, GB: sampling, log-probabilities, update | planned, GB |
|---|---|---|---|---|---|---|"""


def gpu(args) -> list[dict]:
    """The first benchmark for a new GPU: training steps, then stages for Qwen3-0.6B to 8B.

    Raises UserError if there is no GPU.
    """
    if not torch.cuda.is_available():
        raise UserError(
            "torch sees no GPU: run this on a machine with a GPU (python bench.py plan needs none)"
        )
    name = torch.cuda.get_device_name()
    print(f"{name}, torch {torch.__version__}, {RESPONSES} responses of {LENGTH} tokens\n")
    start_ranks()
    steps = first_steps(qwen3(MODELS[0][0]), STEPS)
    print_table(["first steps, Qwen3-0.6B", ""], steps.items())
    print(HEADER)

    rows = [{"size": MODELS[0][0], "gpu": name, "steps": steps}]
    for size, trains in MODELS:
        costs = stage_costs(qwen3(size), trains, LENGTH, RESPONSES, MICRO_BATCH, args.repetitions)
        planned, sampling = planned_here(qwen3(size))
        print(table_row(size, costs, planned, sampling), flush=True)
        about = {"size": size, "gpu": name, "cuda": torch.version.cuda}
        rows.append({**about, **costs, "planned": asdict(planned), "planned_sampling": sampling})

        gc.collect()  # free this model before the next one is built
        torch.cuda.empty_cache()
    return rows


def stage_costs(
    config: PreTrainedConfig,
    trains: bool,
    length: int,
    responses: int,
    micro_batch_tokens: int,
    repetitions: int,
) -> dict:
    """Each stage's seconds and peak bytes on the GPU, and the MFU for the stages in PASSES.

    config: describes a model with random weights. trains: whether to measure the update.
    length: tokens per response. The peaks are 0 without a GPU.
    """
    start_ranks()
    with tempfile.TemporaryDirectory() as folder:
        save_random(config, folder)
        policy, _ = load_policy(folder)

    functions = stages(policy, length, responses, MINI_BATCHES, micro_batch_tokens, trains)
    seconds = alternate(functions, repetitions)
    peak = {name: peak_on_gpu(function) for name, function in functions.items()}

    flop = forward_flop(sizes_of(config), responses, PROMPT_WIDTH + length)
    peak_flop, _ = peaks_here()
    mfu = {}
    for stage, passes in PASSES.items():
        mfu[stage] = [passes * flop / s / peak_flop for s in seconds.get(stage, [])]
    return {"seconds": seconds, "peak": peak, "mfu": mfu}


def peaks_here() -> tuple[float, float]:
    """This GPU's FLOP and bytes per second; an H100's if the GPU is not in GPUS."""
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    return next((peaks for gpu, peaks in GPUS.items() if gpu in name), GPUS["H100"])


def forward_flop(size: Sizes, sequences: int, width: int) -> int:
    """FLOP in a forward pass over `sequences` of `width` tokens each, with causal attention.

    2 P T + 2 L q T width: P parameters in products, T tokens, L layers, q = heads x head size.
    """
    tokens = sequences * width
    return 2 * size.multiplying * tokens + 2 * size.layers * size.attention * tokens * width


def first_steps(config: PreTrainedConfig, count: int) -> dict[str, str]:
    """Train `count` steps. Returns the lines for the table of first steps."""
    with tempfile.TemporaryDirectory() as folder:
        save_random(config, f"{folder}/model")
        flags = f"--model {folder}/model --output-dir {folder}/run --steps {count + 1} {STEP_FLAGS}"
        run = train.prepare(train.parse_config([*flags.split(), "--eval-data", ""]))
        update, waited, metrics = train.update, [], []

        def watched(*arguments) -> dict:
            with waits() as found:
                metrics.append(update(*arguments))
            waited.append(len(found))
            return metrics[-1]

        with (
            patch.object(train, "update", watched),
            patch.object(train, "training_rewards", every_other_right),
        ):
            for step in range(1, count + 1):
                train.train_step(run, step)
        logged = read_lines(run.folder / "metrics.jsonl")

    return {
        "micro-batches": "packed" if run.policy.packed else "padded",
        "steps": str(len(logged)),
        "updates skipped": str(sum(row["skipped_updates"] for row in logged)),
        "gradient norm, largest": f"{max(row['grad_norm'] for row in logged):.2f}",
        "sampler against scoring, nats, mean": f"{logged[-1]['mismatch']:.2g}",
        "the same, largest": f"{max(row['mismatch_max'] for row in logged):.2g}",
        "waits for the GPU in the updates of a step, most": str(max(waited)),
        "seconds of a step, median": f"{statistics.median(row['seconds'] for row in logged):.2f}",
    }


def every_other_right(responses: list[str], *_) -> list[float]:
    """Replaces train.training_rewards, so that every group has right and wrong responses."""
    return [float(i % 2) for i in range(len(responses))]


@contextmanager
def waits() -> Iterator[list]:
    """Collects torch's warnings about operations that make the host wait for the GPU."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            torch.cuda.set_sync_debug_mode("default")


def save_random(config: PreTrainedConfig, folder: str) -> None:
    """Save a Hugging Face folder with random bfloat16 weights and the toy's tokenizer."""
    torch.manual_seed(0)
    with this_device():
        lm = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    lm.cpu().save_pretrained(folder)
    toy.build_tokenizer().save_pretrained(folder)


def peak_on_gpu(function) -> int:
    """Peak bytes that torch allocated on the GPU during one call; 0 without a GPU."""
    if not torch.cuda.is_available():
        return 0
    torch.cuda.reset_peak_memory_stats()
    function()
    return torch.cuda.max_memory_allocated()


def planned_here(config: PreTrainedConfig) -> tuple[Plan, float]:
    """The plan (benchmarks/plan.py) for the run measured here, and its sampling seconds."""
    flags = train.Config(
        micro_batch_tokens=MICRO_BATCH,
        max_prompt_tokens=PROMPT_WIDTH,
        max_new_tokens=LENGTH,
        prompts=1,
        group_size=RESPONSES,
        in_flight=RESPONSES,
        proxy_budget_gb=PROXY_BUDGET_GB,
        eval_data="",
    )
    gpu_gb = torch.cuda.get_device_properties(0).total_memory / GB
    plan = planned(config, flags, gpus=1, gpu_gb=gpu_gb)
    sampler = sampler_of(config, flags, 1, plan.cache_tokens, bandwidth=peaks_here()[1])
    (sampled,) = of_a_step(sampler, flags, 1, mean=LENGTH)
    return plan, sampled.seconds


def table_row(size: str, costs: dict, planned: Plan, sampling: float) -> str:
    """A table line from the output of `stage_costs` and `planned_here`."""
    median = {name: statistics.median(values) for name, values in costs["seconds"].items()}
    speeds, peaks, plans = [], [], []
    for stage, phase in PHASES.items():
        if stage not in median:
            speeds.append("-")
            continue
        beside = f"{sampling:.3g}"
        if stage in PASSES:
            beside = f"{statistics.median(costs['mfu'][stage]):.1%}"
        speed = f"{RESPONSES * LENGTH / median[stage]:.0f}"
        speeds.append(f"{speed}; {median[stage]:.3g} ({beside})")
        peaks.append(f"{costs['peak'][stage] / GB:.1f}")
        plans.append(f"{getattr(planned, phase) / GB:.1f}")

    share = f"{median['coefficients'] / sum(median.values()):.2%}"
    if "update" not in median:
        share += " (no update)"
    return table_line([size, *speeds, share, ", ".join(peaks), ", ".join(plans)])
