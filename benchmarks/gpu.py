"""The stages of a step of Qwen3-0.6B, 1.7B, 4B and, without update, 8B on one GPU, from random weights of the real shapes (`gpu`).

64 responses of 512 tokens, two updates, micro-batches of 24,576 tokens; bf16 compute, recomputed activations. Tokens per second are response
tokens. MFU of the update: 6 FLOP for each parameter that multiplies and token, and 6 q for each layer, token and token before it (forward and
backward, half the square; recomputation not counted), over PEAK. Peak memory beside what benchmarks/memory.py plans for the same run.
"""
import gc, statistics, sys, tempfile

import torch
from transformers import AutoModelForCausalLM

import toy
from benchmarks.memory import GB, plan, qwen3
from benchmarks.speed import alternate, stages
from policy import load_policy, start_ranks, this_device

PEAK = 989e12  # dense bf16 FLOP per second of an H100 or H200
LENGTH, RESPONSES, MICRO_BATCH, WIDTH = 512, 64, 24576, 16  # WIDTH: tokens of a prompt
PHASES = {"sampling": "rollout", "scoring": "scoring", "update": "update"}  # stage -> its phase in benchmarks/memory.plan


def save_random(config, folder: str) -> None:
    """A Hugging Face folder of this architecture: random bfloat16 weights and the toy's tokenizer."""
    torch.manual_seed(0)
    with this_device(): AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    toy.build_tokenizer().save_pretrained(folder)


def stage_costs(config, trains: bool, length: int, responses: int, micro_batch_tokens: int, repetitions: int) -> dict:
    """Seconds of every stage, peak bytes of the GPU in it (0 on a CPU), and MFU of the update, of a randomly initialised model."""
    start_ranks()
    with tempfile.TemporaryDirectory() as folder:
        save_random(config, folder)
        policy, _ = load_policy(folder)
    functions, peak = stages(policy, length, responses, 2, micro_batch_tokens, trains), {}
    seconds = alternate(functions, repetitions)
    for name, function in functions.items():
        if torch.cuda.is_available(): torch.cuda.reset_peak_memory_stats()
        function()
        peak[name] = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
    multiplying = sum(p.numel() for p in policy.parameters()) - (0 if config.tie_word_embeddings else config.vocab_size * config.hidden_size)
    tokens, q = responses * (WIDTH + length), config.num_attention_heads * config.head_dim
    flop = 6 * multiplying * tokens + 6 * config.num_hidden_layers * q * tokens * (WIDTH + length)
    return {"seconds": seconds, "peak": peak, "mfu": [flop / s / PEAK for s in seconds.get("update", [])]}


def table_row(size: str, costs: dict, planned: dict) -> str:
    """A line of the table from what `stage_costs` measured and benchmarks/memory.plan planned."""
    median = {name: statistics.median(seconds) for name, seconds in costs["seconds"].items()}
    speeds = [f"{RESPONSES * LENGTH / median[stage]:.0f}" if stage in median else "-" for stage in ("sampling", "scoring", "update")]
    mfu = f"{statistics.median(costs['mfu']):.1%}" if costs["mfu"] else "-"
    share = f"{median['coefficients'] / sum(median.values()):.2%}" + (" (no update)" if "update" not in median else "")
    peaks = [(costs["peak"][stage], planned[phase]) for stage, phase in PHASES.items() if stage in median]
    gb = [", ".join(f"{x / GB:.1f}" for x in column) for column in zip(*peaks)]
    return "| " + " | ".join([size, *speeds, mfu, share, *gb]) + " |"


def gpu(args) -> list[dict]:
    """The table of RESULTS.md; exits with a message where there is no GPU."""
    if not torch.cuda.is_available():
        print("bench.py gpu: torch sees no GPU here: run it where there is one (python bench.py memory plans without)", file=sys.stderr)
        sys.exit(2)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {RESPONSES} responses of {LENGTH} tokens\n\n"
          "| Qwen3 | sampling, tokens/s | scoring, tokens/s | update, tokens/s | MFU of the update | coefficients, share of the step | "
          "peak, GB: sampling, scoring, update | planned, GB |\n|---|---|---|---|---|---|---|---|")
    rows = []
    for size, trains in (("0.6B", True), ("1.7B", True), ("4B", True), ("8B", False)):
        costs = stage_costs(qwen3(size), trains, LENGTH, RESPONSES, MICRO_BATCH, args.repetitions)
        planned = plan(qwen3(size), 1, torch.cuda.get_device_properties(0).total_memory / GB, MICRO_BATCH, WIDTH, LENGTH, RESPONSES, RESPONSES, 8)
        print(table_row(size, costs, planned), flush=True)
        rows.append({"size": size, "gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda, **costs, "planned": planned})
        gc.collect()
        torch.cuda.empty_cache()
    return rows
