"""The stages of a step of Qwen3-0.6B to 8B on one GPU, random weights of the real shapes (`gpu`).

64 responses of 512 tokens, two updates, micro-batches of 24,576 tokens; bfloat16 computation,
recomputed activations; 8B without update. Tokens per second are response tokens.

MFU of the update: 6 FLOP for each parameter that multiplies and each token, and 6 q (q = heads x
head size) for each layer, token and token before it, forward and backward together, half the
square; recomputation is not counted; over PEAK_FLOP. Peak memory stands beside what
benchmarks/plan.py counts for the same run.
"""

import gc
import statistics
import tempfile
from dataclasses import asdict

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig

import toy
import train
from benchmarks.plan import GB, Plan, planned, qwen3
from benchmarks.scripted import PROMPT_WIDTH
from benchmarks.stages import prepared_step, stages
from benchmarks.timing import alternate
from infra.errors import UserError
from infra.loading import load_policy
from infra.ranks import start_ranks, this_device
from studies.tables import table_line

PEAK_FLOP = 989e12  # dense bfloat16 FLOP per second of an H100 or H200
LENGTH = 512  # of a response, tokens
RESPONSES = 64
MINI_BATCHES = 2
MICRO_BATCH = 24576  # tokens
PROXY_BUDGET_GB = 30

MODELS = (("0.6B", True), ("1.7B", True), ("4B", True), ("8B", False))  # size, whether it trains
PHASES = {"sampling": "rollout", "old_logprobs": "old_logprobs", "update": "update"}  # -> of a Plan

HEADER = """\
| Qwen3 | sampling, tokens/s | log-probabilities, tokens/s | update, tokens/s \
| MFU of the update | coefficients, share of the step \
| peak, GB: sampling, log-probabilities, update | planned, GB |
|---|---|---|---|---|---|---|---|"""


def gpu(args) -> list[dict]:
    """The stages of a step of Qwen3-0.6B to 8B, random weights, on the GPU there is.

    Raises UserError where there is none.
    """
    if not torch.cuda.is_available():
        raise UserError(
            "torch sees no GPU here: run it where there is one "
            "(python bench.py plan counts without)"
        )
    name = torch.cuda.get_device_name()
    print(f"{name}, torch {torch.__version__}, {RESPONSES} responses of {LENGTH} tokens\n")
    print(HEADER)

    rows = []
    for size, trains in MODELS:
        costs = stage_costs(qwen3(size), trains, LENGTH, RESPONSES, MICRO_BATCH, args.repetitions)
        planned = planned_here(qwen3(size))
        print(table_row(size, costs, planned), flush=True)
        about = {"size": size, "gpu": name, "cuda": torch.version.cuda}
        rows.append({**about, **costs, "planned": asdict(planned)})

        gc.collect()  # this model goes before the next one comes
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
    """Seconds of every stage, its peak bytes on the GPU, and the MFU of the update.

    config: of a model that is given random weights; trains: whether there is an update.
    length: of a response, tokens. The peaks are 0 where there is no GPU.
    """
    start_ranks()
    with tempfile.TemporaryDirectory() as folder:
        save_random(config, folder)
        policy, _ = load_policy(folder)

    step = prepared_step(policy, length, responses, MINI_BATCHES, micro_batch_tokens)
    functions = stages(step, trains)
    seconds = alternate(functions, repetitions)
    peak = {name: peak_on_gpu(function) for name, function in functions.items()}

    flop = update_flop(config, policy, responses, PROMPT_WIDTH + length)
    mfu = [flop / s / PEAK_FLOP for s in seconds.get("update", [])]
    return {"seconds": seconds, "peak": peak, "mfu": mfu}


def save_random(config: PreTrainedConfig, folder: str) -> None:
    """A Hugging Face folder of this architecture: random bfloat16 weights, the toy's tokenizer."""
    torch.manual_seed(0)
    with this_device():
        lm = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    lm.save_pretrained(folder)
    toy.build_tokenizer().save_pretrained(folder)


def peak_on_gpu(function) -> int:
    """The most bytes that torch held on the GPU during one call; 0 without a GPU."""
    if not torch.cuda.is_available():
        return 0
    torch.cuda.reset_peak_memory_stats()
    function()
    return torch.cuda.max_memory_allocated()


def update_flop(config: PreTrainedConfig, policy, sequences: int, width: int) -> int:
    """FLOP of an update, forward and backward, over `sequences` of `width` tokens each."""
    multiplying = sum(p.numel() for p in policy.parameters())
    if not config.tie_word_embeddings:
        multiplying -= config.vocab_size * config.hidden_size  # the embedding is looked up
    tokens = sequences * width
    q = config.num_attention_heads * config.head_dim
    return 6 * multiplying * tokens + 6 * config.num_hidden_layers * q * tokens * width


def planned_here(config: PreTrainedConfig) -> Plan:
    """What benchmarks/plan.py counts for the run measured here, on this GPU."""
    flags = train.Config(
        micro_batch_tokens=MICRO_BATCH,
        max_prompt_tokens=PROMPT_WIDTH,
        max_new_tokens=LENGTH,
        prompts=1,
        group_size=RESPONSES,
        rollout_rows=RESPONSES,
        proxy_budget_gb=PROXY_BUDGET_GB,
        eval_data="",
    )
    gpu_gb = torch.cuda.get_device_properties(0).total_memory / GB
    return planned(config, flags, gpus=1, gpu_gb=gpu_gb)


def table_row(size: str, costs: dict, planned: Plan) -> str:
    """A line of the table from what `stage_costs` measured and benchmarks/plan.py counted."""
    median = {name: statistics.median(values) for name, values in costs["seconds"].items()}
    speeds = []
    for stage in PHASES:
        speeds.append(f"{RESPONSES * LENGTH / median[stage]:.0f}" if stage in median else "-")

    mfu = "-"
    share = f"{median['coefficients'] / sum(median.values()):.2%}"
    if "update" in median:
        mfu = f"{statistics.median(costs['mfu']):.1%}"
    else:
        share += " (no update)"

    peaks, plans = [], []
    for stage, phase in PHASES.items():
        if stage in median:
            peaks.append(f"{costs['peak'][stage] / GB:.1f}")
            plans.append(f"{getattr(planned, phase) / GB:.1f}")

    cells = [size, *speeds, mfu, share, ", ".join(peaks), ", ".join(plans)]
    return table_line(cells)
