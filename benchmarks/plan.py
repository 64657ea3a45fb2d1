"""Estimates a run's GPU memory from the model's config: `python bench.py plan`.

In bytes, with P parameters on W shards (one node's ranks), L layers, T tokens in a micro-batch,
hidden size H, q = heads x head size, MLP width I, vocabulary size V, and c bytes per number in
the computation (2 on GPUs: bfloat16). Parameters outside the layers (embedding, norm, LM head) are
FSDP's root unit and stay gathered during forward and backward.

    always      weights and Adam's two moments in float32, 12 P / W
    rollout     + all weights gathered, c P
                + 85 % of the memory that is then free: the KV cache and the working memory of
                sampling (infra/flight.py; at least one layer's keys, which exist twice while they
                are copied)
    old         + root and two layers gathered; half of a layer's T (10 H + 9 q + 6 I) c, without
    log-probs   gradients; four blocks of logits; and the hidden states kept for DelTA, if they fit
                in --proxy-budget-gb and 70 % of the free memory
    update      + gradients in float32, 4 P / W; root and two layers gathered; and the largest of
                - in a layer's backward pass: c L T H, the inputs of all layers, kept for
                  recomputation; T (10 H + 9 q + 6 I) c; and the LM head's gradient, c V H
                - in the LM head's: those inputs, four blocks of logits, and twice the LM head's
                  gradient in float32
                - at the end: the root's gradients, in c bytes and in float32

The factors 10, 9 and 6 were fitted to FSDP2 runs with the five Qwen3 sizes on fake tensors, and
tests/benchmarks/test_plan.py checks the plan against such runs. The other terms are tensor
sizes. RESERVE is kept free for the CUDA context, NCCL and fragmentation.
"""

import math
from argparse import ArgumentParser
from dataclasses import dataclass

from infra.flight import cache_bytes, cache_room, working_bytes
from infra.head import LOGIT_BLOCK_GPU
from infra.model_files import read_config
from infra.policy import SHARE_FOR_KEPT
from transformers import PreTrainedConfig, Qwen3Config

import train
from benchmarks.flights import BANDWIDTH, of_a_step, print_sampling, sampler_of
from benchmarks.sizes import HALF, sizes_of
from infra.errors import UserError
from studies.tables import print_table
from toy.by_name import model_folder

GB = 1e9
RESERVE = 3 * GB  # for the CUDA context, NCCL and fragmentation
BLOCKS = 4  # of logits at once: logits, log p, p and a product of these
NODE = 8  # maximum GPUs per node; shards stay inside a node

# Hidden size, MLP, layers, heads, tied embeddings, from the models' config.json. All have 8
# key-value heads, a head size of 128, and 151,936 tokens in the vocabulary.
QWEN3 = {
    "0.6B": (1024, 3072, 28, 16, True),
    "1.7B": (2048, 6144, 28, 16, True),
    "4B": (2560, 9728, 36, 32, True),
    "8B": (4096, 12288, 36, 32, False),
    "14B": (5120, 17408, 40, 40, False),
}


def qwen3(size: str) -> Qwen3Config:
    """The architecture of Qwen/Qwen3-<size>-Base."""
    hidden, mlp, layers, heads, tied = QWEN3[size]
    return Qwen3Config(
        vocab_size=151936,
        hidden_size=hidden,
        intermediate_size=mlp,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=8,
        head_dim=128,
        tie_word_embeddings=tied,
        max_position_embeddings=32768,
    )


@dataclass(frozen=True)
class Plan:
    """The memory on each GPU, in bytes unless noted. Each phase includes the static memory."""

    parameters: int  # in the model
    static: float  # this GPU's shards of the weights and of Adam's moments, float32
    rollout: float  # peak while responses are sampled
    cache: float  # part of `rollout`: keys and values for the responses in flight, at full length
    cache_tokens: int  # capacity of the caches in tokens
    in_flight: int  # number of full-length responses sampled at a time
    old_logprobs: float  # peak while the old log-probabilities are computed
    hidden: float  # this GPU's share of the batch's hidden states, at full length
    hidden_on_host: bool  # whether `hidden` is in host memory, and so not in `old_logprobs`
    update: float  # peak during an update

    @property
    def peak(self) -> float:
        """The largest phase's peak plus RESERVE."""
        return max(self.rollout, self.old_logprobs, self.update) + RESERVE

    def fits(self, gpu_gb: float) -> bool:
        """Whether a GPU with `gpu_gb` GB can hold the peak and sample one response."""
        return self.peak <= gpu_gb * GB and self.in_flight > 0


def planned(
    config: PreTrainedConfig, flags: train.Config, gpus: int, gpu_gb: float, c: int = HALF
) -> Plan:
    """The plan for the run described by `flags` on `gpus` GPUs with `gpu_gb` GB each.

    c: bytes per number in the computation.
    """
    size = sizes_of(config)
    P = size.parameters
    shards = min(gpus, NODE)
    responses = flags.prompts * flags.group_size / gpus
    longest = flags.max_prompt_tokens + flags.max_new_tokens
    static = size.always(shards)

    rows = min(flags.in_flight, math.ceil(responses))
    top_p = flags.eval_top_p if flags.eval_data else 1.0
    working = working_bytes(config, c, rows, longest, top_p)
    room = cache_room(config, c, gpu_gb * GB - RESERVE - static - c * P, working)
    in_flight = min(rows, room // longest)
    cache = in_flight * longest * cache_bytes(config, c)
    moving = cache / (2 * size.layers)

    T = max(flags.micro_batch_tokens, longest)
    root = P - size.layers * size.layer
    gathered = c * (root + 2 * size.layer)  # the current layer and the next one
    in_a_layer = c * T * (10 * size.hidden + 9 * size.attention + 6 * size.mlp)
    blocks = BLOCKS * 4 * min(LOGIT_BLOCK_GPU, T * size.vocabulary)

    hidden = responses * flags.max_new_tokens * size.hidden * c
    free = gpu_gb * GB - RESERVE - static - gathered
    budget = min(flags.proxy_budget_gb * GB, SHARE_FOR_KEPT * free)
    old_logprobs = static + gathered + in_a_layer / 2 + blocks + min(hidden, budget)

    head = size.vocabulary * size.hidden
    kept = size.layers * in_a_layer / 2  # by all layers, for the backward pass
    if flags.recompute:
        kept = c * size.layers * T * size.hidden  # only their inputs
    backward = max(
        kept + in_a_layer + c * head,
        kept + blocks + 8 * head,
        (c + 4) * root,
    )

    return Plan(
        parameters=P,
        static=static,
        rollout=static + c * P + cache + max(working, moving),
        cache=cache,
        cache_tokens=room,
        in_flight=in_flight,
        old_logprobs=old_logprobs,
        hidden=hidden,
        hidden_on_host=hidden > budget,
        update=static + 4 * P / shards + gathered + backward,
    )


# ---- bench.py plan -------------------------------------------------------------------------------


def plan(args) -> None:
    """A run's memory per GPU: plan <flags for train.py> --gpus 8 --gpu-gb 80; or a table.

    Also prints the sampling time for responses of --mean-tokens on average (default: a quarter of
    --max-new-tokens) and a memory bandwidth of --gpu-tb-s TB/s (default: 3.35, an H100).
    Without flags, prints the table of docs/results/memory.md. Raises UserError for invalid flags.
    """
    if not args.flags:
        print_sizes()
        return
    parser = ArgumentParser(allow_abbrev=False, add_help=False)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--gpu-gb", type=float, default=80.0)
    parser.add_argument("--gpu-tb-s", type=float, default=BANDWIDTH / 1e12)
    parser.add_argument("--mean-tokens", type=int)
    own, flags = parser.parse_known_args(args.flags)
    gpus, gpu_gb = own.gpus, own.gpu_gb
    if gpus < 1 or gpus > NODE and gpus % NODE:
        raise UserError(f"--gpus {gpus} must be 1 to {NODE} or a multiple of {NODE}")
    if own.gpu_tb_s <= 0:
        raise UserError(f"--gpu-tb-s {own.gpu_tb_s:g} must be above 0")
    config = train.parse_config(flags)
    mean = own.mean_tokens if own.mean_tokens is not None else max(1, config.max_new_tokens // 4)
    if not 1 <= mean <= config.max_new_tokens:
        raise UserError(f"--mean-tokens {mean} is not between 1 and --max-new-tokens")

    model = read_config(config.model, model_folder(config))
    p = planned(model, config, gpus, gpu_gb)
    print_plan(p, config, gpus, gpu_gb)
    if p.in_flight > 0:
        sampler = sampler_of(model, config, gpus, p.cache_tokens, own.gpu_tb_s * 1e12)
        print_sampling(of_a_step(sampler, config, gpus, mean), config, mean)


def checkpoint_bytes(parameters: int) -> int:
    """Bytes of float32 weights and Adam's two moments: 98 GB for 8.19 billion parameters."""
    return 12 * parameters


def run_bytes(parameters: int, c: int, cfg) -> int:
    """An upper bound in bytes on the disk space for the run described by cfg (train.Config).

    Two checkpoints are kept, and a third is written before the oldest is deleted. There are also
    two exports with c bytes per number: model/ and best/, or one of them twice.
    """
    checkpoints = min(3, math.ceil(cfg.steps / cfg.save_every))
    return checkpoints * checkpoint_bytes(parameters) + 2 * c * parameters


def print_plan(p: Plan, config: train.Config, gpus: int, gpu_gb: float) -> None:
    """Print the plan in GB per GPU. Pinned host memory is allocated in powers of two."""
    where = "on the GPU"
    if p.hidden_on_host:
        where = f"in pinned host memory of {2 ** math.ceil(math.log2(p.hidden)) / GB:.1f}"
    disk = run_bytes(p.parameters, 2, config)
    print(
        f"{config.model}: {p.parameters / 1e9:.2f} billion parameters on {gpus} GPUs of "
        f"{gpu_gb:g} GB; GB per GPU:\n"
        f"  weights and Adam moments, float32  {p.static / GB:.1f}\n"
        f"  rollout    {p.rollout / GB:.1f}, including {p.cache / GB:.1f} of KV cache: "
        f"{p.in_flight} responses in flight at full length\n"
        f"  log-probs  {p.old_logprobs / GB:.1f}; hidden states at full length: "
        f"{p.hidden / GB:.1f}, kept {where}\n"
        f"  update     {p.update / GB:.1f}\n"
        f"  reserved   {RESERVE / GB:.1f} for the CUDA context, NCCL and fragmentation\n"
        f"GB on disk, all GPUs together: at most {disk / GB:.1f}, "
        f"{checkpoint_bytes(p.parameters) / GB:.1f} per checkpoint"
    )
    if p.fits(gpu_gb):
        print(f"fits: {p.peak / GB:.1f} of {gpu_gb:g} GB")
        return
    print(
        f"does not fit: {p.peak / GB:.1f} of {gpu_gb:g} GB and {p.in_flight} responses in flight; "
        "use more GPUs, or lower --micro-batch-tokens, --max-new-tokens or --proxy-budget-gb"
    )


def print_sizes() -> None:
    """Print the five Qwen3 sizes with the paper's settings on 1, 4 and 8 GPUs with 80 GB."""
    flags = train.parse_config(["--model", "Qwen/Qwen3"])
    lines = []
    for size in QWEN3:
        for gpus in (1, 4, 8):
            p = planned(qwen3(size), flags, gpus, 80)
            cells = [size, f"{p.parameters / 1e9:.2f} billion", gpus]
            cells += [f"{p.rollout / GB:.0f} ({p.in_flight})", f"{p.old_logprobs / GB:.0f}"]
            lines.append([*cells, f"{p.update / GB:.0f}", "yes" if p.fits(80) else "no"])
    header = ["Qwen3", "parameters", "GPUs", "rollout, GB (concurrent full-length responses)"]
    print_table([*header, "log-probs, GB", "update, GB", "fits 80 GB"], lines)
