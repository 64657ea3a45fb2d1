"""Estimates a run's memory from the model's config: `python -m benchmarks plan`.

In bytes per GPU, with P parameters on W ranks, L layers, T tokens in a micro-batch, hidden size H,
q = heads x head size, MLP width I, vocabulary size V, and c bytes per number in the computation (2
on GPUs: bfloat16). Of a model of text and images, the language model is planned. Parameters outside
the layers (embedding, norm, LM head) are FSDP's root unit and stay gathered during forward and
backward.

    always      weights and Adam's two moments in float32, 12 P / W
    rollout     + all weights gathered, c P; and the caches and draws of the responses in flight, at
                most 80 % of the memory that is then free (infra/sampler.py): keys and values of
                attention for each token, and states of recurrent layers for each response, in
                float32
    old         + root and two layers gathered, half of a layer's T (10 H + 9 q + 6 I) c, without
    log-probs   gradients; the LM head in float32, 4 V H; three blocks of logits (policy.py); and
                the rows kept for DelTA while a quarter of the GPU is free (infra/rows.py)
    update      + gradients in float32, 4 P / W; root and two layers gathered; and the largest of
                - in a layer's backward pass: c L T H, the inputs of all layers, kept for
                  recomputation; T (10 H + 9 q + 6 I) c; and the LM head's gradient, c V H
                - in the LM head's: those inputs, four blocks of logits, and three float32 matrices
                  as large as the LM head: itself, its gradient and a block's part of it
                - at the end: the root's gradients, in c bytes and in float32

The factors 10, 9 and 6 were fitted to FSDP2 runs on fake tensors; tests/benchmarks/test_plan.py
checks the update against one. They count recurrent layers as attention. RESERVE is for the CUDA
context, NCCL and fragmentation.
"""

import copy
import math
import shlex
from argparse import ArgumentParser
from dataclasses import dataclass, replace
from types import SimpleNamespace

import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    PreTrainedConfig,
    Qwen3_5TextConfig,
    Qwen3Config,
)

import train
from benchmarks.tables import print_table
from infra.errors import UserError
from infra.model_files import read_configs
from infra.problems import refuse_length
from infra.rows import SPARED
from infra.sampler import (
    CHUNK,
    DRAW_BYTES,
    SHARE_OF_FREE_MEMORY,
    TOP_P_DRAW_BYTES,
    empty_cache,
    kept,
    takes_cache,
)
from loading import decoder_layers
from policy import BLOCK_SHARE, decoder_of
from toy.by_name import model_folder

GB = 1e9
RESERVE = 3 * GB
HALF = 2  # bytes per number in the computation on GPUs: bfloat16
AT_ONCE = 8  # responses that `largest` samples at a time: with fewer a step takes too long
SHORTEST = 256  # tokens of a response, for `largest`
BLOCKS = 4  # of logits in the backward pass: logits, log p, p and a product of these

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
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    *numbers, tied = QWEN3[size]
    return Qwen3Config(
        **dict(zip(names, numbers, strict=True)),
        vocab_size=151936,
        num_key_value_heads=8,
        head_dim=128,
        tie_word_embeddings=tied,
        max_position_embeddings=32768,
    )


# Hidden size, MLP, layers, heads, key-value heads, value heads of the recurrent layers, and tied
# embeddings. All have heads of 256, recurrent heads of 128, and 248,320 tokens.
QWEN35 = {
    "0.8B": (1024, 3584, 24, 8, 2, 16, True),
    "2B": (2048, 6144, 24, 8, 2, 16, True),
    "4B": (2560, 9216, 32, 16, 4, 32, True),
    "9B": (4096, 12288, 32, 16, 4, 32, False),
}


def qwen35(size: str) -> Qwen3_5TextConfig:
    """The language model inside Qwen/Qwen3.5-<size>-Base."""
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    names += ("num_key_value_heads", "linear_num_value_heads", "tie_word_embeddings")
    sizes = dict(zip(names, QWEN35[size], strict=True))
    return Qwen3_5TextConfig(**sizes, vocab_size=248320, max_position_embeddings=262144)


def llama_1b() -> LlamaConfig:
    """The architecture of meta-llama/Llama-3.2-1B."""
    return LlamaConfig(
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=128256,
        tie_word_embeddings=True,
        max_position_embeddings=131072,
    )


def sizes_of(config: PreTrainedConfig) -> SimpleNamespace:
    """The sizes of a decoder-only model: counts, not bytes. Allocates no weights.

    Raises UserError for a model that the sampler cannot run in chunks.
    """
    config = copy.deepcopy(config)
    config.pad_token_id = None  # some models compare it with the ids, which have no values here
    with torch.device("meta"):
        lm = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, trust_remote_code=False)
        ids = torch.zeros(1, 2, dtype=torch.long)
    if not takes_cache(lm):
        raise UserError(f"plan cannot count what this {config.model_type} keeps of a response")
    cache = empty_cache(config)
    with torch.no_grad():
        decoder_of(lm)(input_ids=ids, past_key_values=cache, use_cache=True)
    of_layers = [kept(layer, 0, 1) for layer in cache.layers]  # for one response, one column
    layers = [sum(p.numel() for p in layer.parameters()) for layer in decoder_layers(lm)]
    P = lm.num_parameters()
    heads = config.num_attention_heads
    head_size = getattr(config, "head_dim", None) or config.hidden_size // heads
    return SimpleNamespace(
        parameters=P,
        layer=max(layers),  # parameters of the largest decoder layer
        root=P - sum(layers),  # parameters outside the layers
        layers=len(layers),  # L
        hidden=config.hidden_size,  # H
        attention=heads * head_size,  # q
        cached=sum(x.numel() for layer in of_layers for x in layer.columns),  # of one token
        states=sum(x.numel() for layer in of_layers for x in layer.states.values()),
        positions=getattr(config, "max_position_embeddings", None) or math.inf,
        mlp=getattr(config, "intermediate_size", None) or 4 * config.hidden_size,  # I
        vocabulary=config.vocab_size,  # V
    )


@dataclass(frozen=True)
class Plan:
    """The memory on each GPU, in bytes unless noted. Each phase includes the static memory."""

    parameters: int  # in the model
    static: float  # this GPU's shards of the weights and of Adam's moments, float32
    rollout: float  # peak while responses are sampled
    capacity: float  # columns that the caches hold at once
    in_flight: int  # number of full-length responses sampled at a time
    old_logprobs: float  # peak while the old log-probabilities are computed
    hidden: float  # this GPU's rows for DelTA, at full length
    on_host: float  # the part of `hidden` that moves to host memory
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
    return planned_for(sizes_of(config), flags, gpus, gpu_gb, c)


def planned_for(
    size: SimpleNamespace, flags: train.Config, gpus: int, gpu_gb: float, c: int
) -> Plan:
    """The plan for a model of these sizes."""
    P, gpu = size.parameters, gpu_gb * GB
    responses = flags.prompts * flags.group_size / gpus
    longest = flags.max_prompt_tokens + flags.max_new_tokens
    static = 12 * P / gpus

    rows = min(flags.in_flight, math.ceil(responses))
    top_p = flags.eval_top_p if flags.eval_data else 1.0
    draws = (DRAW_BYTES if top_p == 1 else TOP_P_DRAW_BYTES) * rows * size.vocabulary
    draws += 4 * rows * size.states
    free = gpu - RESERVE - static - c * P
    capacity = max(0.0, SHARE_OF_FREE_MEMORY * free - draws) / (c * size.cached)
    in_flight = min(rows, int(capacity // (longest + CHUNK)))
    cache = in_flight * (longest + CHUNK) * c * size.cached

    T = max(flags.micro_batch_tokens, longest)
    head = size.vocabulary * size.hidden
    gathered = c * (size.root + 2 * size.layer)  # the current layer and the next one
    in_a_layer = c * T * (10 * size.hidden + 9 * size.attention + 6 * size.mlp)
    block = min(BLOCK_SHARE * gpu, 4 * T * size.vocabulary)

    hidden = responses * flags.max_new_tokens * size.hidden * c
    on_gpu = min(hidden, max(0.0, (1 - SPARED) * gpu - static - c * size.root))
    old_logprobs = static + gathered + in_a_layer / 2 + 4 * head + 3 * block + on_gpu

    kept = size.layers * in_a_layer / 2  # by all layers, for the backward pass
    if flags.recompute:
        kept = c * size.layers * T * size.hidden  # only their inputs
    backward = max(
        kept + in_a_layer + c * head,
        kept + BLOCKS * block + 3 * 4 * head,
        (c + 4) * size.root,
    )
    return Plan(
        parameters=P,
        static=static,
        rollout=static + c * P + cache + draws,
        capacity=capacity,
        in_flight=in_flight,
        old_logprobs=old_logprobs,
        hidden=hidden,
        on_host=hidden - on_gpu,
        update=static + 4 * P / gpus + gathered + backward,
    )


def largest(
    size: SimpleNamespace, flags: train.Config, gpus: int, gpu_gb: float, c: int = HALF
) -> tuple[train.Config, Plan] | None:
    """(flags, their plan): the longest responses of which AT_ONCE fit at a time, then the largest
    micro-batches, then the most responses in flight. None if nothing fits.

    Tries the flags' own values, and halves of them, within the model's positions.
    """
    longest = min(flags.max_new_tokens, size.positions - flags.max_prompt_tokens)
    for new in halves(longest, SHORTEST):
        for tokens in halves(flags.micro_batch_tokens, flags.max_prompt_tokens + new):
            fitting = []
            for rows in halves(flags.in_flight, AT_ONCE):
                sizes = {"max_new_tokens": new, "micro_batch_tokens": tokens, "in_flight": rows}
                tried = replace(flags, **sizes)
                p = planned_for(size, tried, gpus, gpu_gb, c)
                if p.fits(gpu_gb) and p.in_flight >= AT_ONCE:
                    fitting.append((tried, p))
            if fitting:
                return max(fitting, key=lambda pair: pair[1].in_flight)
    return None


def halves(largest: int, smallest: int) -> list[int]:
    """The numbers from `largest` down to `smallest`, each half of the one before; one at least."""
    found = [largest]
    while found[-1] // 2 >= smallest:
        found.append(found[-1] // 2)
    return found


# ---- the command ---------------------------------------------------------------------------------


def plan(args) -> None:
    """A run's memory per GPU; without flags, the tables of memory.md.

    --bytes 4: for a GPU without bfloat16. Raises UserError for invalid flags and lengths.
    """
    if not args.flags:
        print_sizes()
        return
    parser = ArgumentParser(allow_abbrev=False, add_help=False)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--gpu-gb", type=float, default=80.0)
    parser.add_argument("--bytes", type=int, choices=(HALF, 4), default=HALF)
    own, flags = parser.parse_known_args(args.flags)
    given = train.parse_config(flags)
    _, model = read_configs(given.model, model_folder(given))
    config = given
    if "--max-new-tokens" not in flags:  # the paper's, or as many as the model has positions for
        positions = getattr(model, "max_position_embeddings", None) or math.inf
        rest = max(1, positions - given.max_prompt_tokens)
        config = replace(given, max_new_tokens=min(given.max_new_tokens, rest))
    refuse_length(model, [[0] * config.max_prompt_tokens], config.max_new_tokens)
    size = sizes_of(model)
    p = planned_for(size, config, own.gpus, own.gpu_gb, own.bytes)
    print_plan(p, config, own.gpus, own.gpu_gb)
    print_largest(size, given, flags, own)


def print_plan(p: Plan, config: train.Config, gpus: int, gpu_gb: float) -> None:
    """Print the plan in GB per GPU, and an upper bound on the disk space.

    Two checkpoints of 12 bytes per parameter are kept, and a third is written before the oldest is
    deleted. There are also two exports in bfloat16.
    """
    checkpoint = 12 * p.parameters
    disk = min(3, math.ceil(config.steps / config.save_every)) * checkpoint + 4 * p.parameters
    print(
        f"{config.model}: {p.parameters / 1e9:.2f} billion parameters on {gpus} GPUs of "
        f"{gpu_gb:g} GB; GB per GPU:\n"
        f"  weights and Adam moments, float32  {p.static / GB:.1f}\n"
        f"  rollout    {p.rollout / GB:.1f}: {p.in_flight} responses in flight at full length\n"
        f"  log-probs  {p.old_logprobs / GB:.1f}; rows of hidden states at full length: "
        f"{p.hidden / GB:.1f}, of these {p.on_host / GB:.1f} in pinned host memory\n"
        f"  update     {p.update / GB:.1f}\n"
        f"  reserved   {RESERVE / GB:.1f} for the CUDA context, NCCL and fragmentation\n"
        f"GB on disk, all GPUs together: at most {disk / GB:.1f}, "
        f"{checkpoint / GB:.1f} per checkpoint"
    )
    if p.fits(gpu_gb):
        print(f"fits: {p.peak / GB:.1f} of {gpu_gb:g} GB")
        return
    print(
        f"does not fit: {p.peak / GB:.1f} of {gpu_gb:g} GB and {p.in_flight} responses in flight; "
        "use more GPUs, or lower --micro-batch-tokens, --max-new-tokens or --in-flight"
    )


def print_largest(size: SimpleNamespace, config: train.Config, words: list[str], own) -> None:
    """Print the command with the largest settings that fit, or what would fit.

    words: the flags of train.py as typed; a later flag replaces an earlier one.
    """
    found = largest(size, config, own.gpus, own.gpu_gb, own.bytes)
    if found is None:
        more = [n for n in (2, 4, 8, 16) if largest(size, config, n, own.gpu_gb, own.bytes)]
        enough = f"{more[0]} such GPUs" if more else "larger GPUs"
        print(
            f"nothing fits, with {AT_ONCE} responses of {SHORTEST} tokens at a time: use a smaller "
            f"model, LoRA (docs/trl.md) or {enough}"
        )
        return
    flags, p = found
    start = "python" if own.gpus == 1 else f"torchrun --nproc_per_node {own.gpus}"
    sizes = ("max_new_tokens", "micro_batch_tokens", "in_flight")
    changed = [each for each in sizes if getattr(flags, each) != getattr(config, each)]
    settings = [f"--{each.replace('_', '-')} {getattr(flags, each)}" for each in changed]
    print(
        f"the largest settings that fit ({p.peak / GB:.1f} GB, {p.in_flight} full-length responses "
        f"at a time):\n  {start} train.py {' '.join([shlex.join(words), *settings])}"
    )


SMALL_RUN = (  # docs/running.md, with longer responses
    "--data gsm8k --eval-data gsm8k-test --eval-top-p 1 --prompts 32 --group-size 8 "
    "--mini-batch 16 --max-prompt-tokens 512 --max-new-tokens 4096"
)


def print_sizes() -> None:
    """Print the five Qwen3 sizes with the paper's settings on 1, 4 and 8 GPUs with 80 GB, and the
    largest settings of a small run on one GPU with 16 to 80 GB, for 9B on eight too."""
    flags = train.parse_config(["--model", "Qwen/Qwen3"])
    lines = []
    for name in QWEN3:
        size = sizes_of(qwen3(name))
        for gpus in (1, 4, 8):
            p = planned_for(size, flags, gpus, 80, HALF)
            cells = [name, f"{p.parameters / 1e9:.2f} billion", gpus]
            cells += [f"{p.rollout / GB:.0f} ({p.in_flight})", f"{p.old_logprobs / GB:.0f}"]
            lines.append([*cells, f"{p.update / GB:.0f}", "yes" if p.fits(80) else "no"])
    header = ["Qwen3", "parameters", "GPUs", "rollout, GB (concurrent full-length responses)"]
    print_table([*header, "log-probs, GB", "update, GB", "fits 80 GB"], lines)

    flags = train.parse_config(["--model", "Qwen/Qwen3", *SMALL_RUN.split()])
    small = {f"Qwen3-{size}": qwen3(size) for size in ("0.6B", "1.7B", "4B")}
    small |= {f"Qwen3.5-{size}": qwen35(size) for size in QWEN35} | {"Llama-3.2-1B": llama_1b()}
    lines = []
    for name, model in small.items():
        size = sizes_of(model)
        for gpus, gpu_gb in [(1, 16), (1, 24), (1, 40), (1, 80), (8, 80)]:
            if gpus > 1 and name != "Qwen3.5-9B":
                continue
            found = largest(size, flags, gpus, gpu_gb)
            cells = ["-"] * 5
            if found:
                own, p = found
                cells = [own.max_new_tokens, own.micro_batch_tokens, own.in_flight, p.in_flight]
                cells.append(f"{p.peak / GB:.1f}")
            lines.append([name, gpus, gpu_gb, *cells, "not measured yet"])
    header = ["model", "GPUs", "GB each", "response, tokens", "micro-batch, tokens", "in flight"]
    print_table([*header, "at full length at once", "planned, GB", "measured, GB"], lines)
