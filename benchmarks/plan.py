"""Estimates which settings of train.py fit on which GPUs, from a model's config.json alone.

    python -m benchmarks plan --model FOLDER --gpus 4 --gpu-gb 80 <other flags of train.py>

FSDP gathers the parameters unit by unit. One unit is a layer, and the *root* is the unit of all
parameters outside the layers: embedding, norm and LM head. The root stays gathered during a pass.
In all three phases of a step each GPU holds its shard of the float32 weights and of Adam's moments.

- In the rollout the whole model is gathered. The responses in flight have their caches, and memory
  to draw tokens in, from the share of the free memory that infra/sampler.py allows.
- In the pass for the old log p the root and two layers are gathered: the one at work and the next.
  Beside them are a layer's activations, half of what its backward pass would need, the LM head in
  float32, and three tensors of the size of a block of logits. DelTA's rows stay on the GPU as long
  as a quarter of it is free (infra/rows.py).
- In the update each GPU also holds its shard of the float32 gradients, the root and two layers, and
  the largest of three peaks: the backward pass of a layer, that of the LM head, and the root's
  gradients when the pass ends.

Computation is in bfloat16, or in float32 with --dtype float32. The factors of `in_a_layer` were
fitted to FSDP2 runs on fake tensors, and the update's estimate is within 10 % of these runs (commit
d9add26, tests/benchmarks/test_plan.py). Recurrent layers count as attention.
"""

import copy
import math
import shlex
from dataclasses import dataclass, replace
from types import SimpleNamespace

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig

from config import Config, parse_config
from infra.errors import UserError, one_line
from infra.flags import Parser, flag, spelled
from infra.head import BLOCK_SHARE
from infra.loading import decoder_layers, decoder_of
from infra.model_files import read_configs
from infra.problems import refuse_length
from infra.rows import SPARED
from infra.sampler import (
    CHUNK,
    DRAW_BYTES,
    SHARE_OF_FREE_MEMORY,
    TOP_P_DRAW_BYTES,
    cache_size,
    empty_cache,
    takes_cache,
)
from toy.by_name import model_folder

GB = 1e9
RESERVE = 3 * GB  # for the CUDA context, NCCL and fragmentation
AT_ONCE = 8  # responses that `largest` samples at a time: with fewer a step takes too long
SHORTEST = 256  # tokens in the shortest responses that `largest` tries
BLOCKS = 4  # blocks of logits' size in the backward pass: logits, log p, p and a product of these


@dataclass
class Cards:
    """The flags beside those of train.py."""

    gpus: int = flag(8, "number of GPUs", low=1)
    gpu_gb: float = flag(80.0, "memory of each, GB", above=0)


@dataclass(frozen=True)
class Plan:
    """The memory on each GPU, in bytes. Each phase includes the static memory."""

    static: float  # this GPU's shards of the weights and of Adam's moments, float32
    rollout: float  # peak while responses are sampled
    in_flight: int  # number of full-length responses sampled at a time
    old_logprobs: float  # peak while the old log-probabilities are computed
    on_host: float  # this GPU's rows for DelTA that move to host memory, at full length
    update: float  # peak during an update
    gpu: float  # all memory of the GPU

    @property
    def peak(self) -> float:
        return max(self.rollout, self.old_logprobs, self.update) + RESERVE

    def fits(self, responses: int = 1) -> bool:
        """Whether the GPU can hold the peak, and sample `responses` of full length at a time."""
        return self.peak <= self.gpu and self.in_flight >= responses


def sizes_of(config: PreTrainedConfig) -> SimpleNamespace:
    """The sizes of a decoder-only model: counts, not bytes. Allocates no weights.

    Raises UserError for a model that the sampler cannot run in chunks.
    """
    config = copy.deepcopy(config)
    config.pad_token_id = None  # some models compare it with the ids, which are meta tensors here
    with torch.device("meta"):
        lm = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, trust_remote_code=False)
        ids = torch.zeros(1, 2, dtype=torch.long)
    if not takes_cache(lm):
        raise UserError(f"plan cannot count the cache of this {config.model_type}: try a short run")
    cache = empty_cache(config)
    with torch.no_grad():
        decoder_of(lm)(input_ids=ids, past_key_values=cache, use_cache=True)
    column, states = cache_size(cache, torch.Tensor.numel)
    layers = [sum(p.numel() for p in layer.parameters()) for layer in decoder_layers(lm)]
    attention, mlp = [], []  # of each layer: in Gemma 4 they differ
    for each in config.per_layer_config:
        heads = each.num_attention_heads
        attention.append(heads * (getattr(each, "head_dim", None) or each.hidden_size // heads))
        mlp.append(getattr(each, "intermediate_size", None) or 4 * each.hidden_size)
    return SimpleNamespace(
        parameters=lm.num_parameters(),  # P
        layer=max(layers),  # parameters of the largest decoder layer
        root=lm.num_parameters() - sum(layers),  # parameters outside the layers
        layers=len(layers),  # L
        hidden=config.hidden_size,  # H
        attention=max(attention),  # q
        cached=column,  # of one token
        states=states,
        mlp=max(mlp),  # I
        vocabulary=config.vocab_size,  # V
    )


def planned(size: SimpleNamespace, flags: Config, gpus: int, gpu_gb: float) -> Plan:
    """The plan for a model of these sizes on GPUs of gpu_gb GB each."""
    P, gpu = size.parameters, gpu_gb * GB
    c = 4 if flags.dtype == "float32" else 2  # bytes per number in the computation
    responses = flags.prompts * flags.group_size / gpus
    longest = flags.max_prompt_tokens + flags.max_new_tokens
    static = 12 * P / gpus

    rows = min(flags.in_flight, math.ceil(responses))
    top_p = flags.eval_top_p if flags.eval_data else 1.0
    draws = (DRAW_BYTES if top_p == 1 else TOP_P_DRAW_BYTES) * rows * size.vocabulary
    draws += 4 * rows * size.states  # recurrent states are in float32
    free = gpu - RESERVE - static - c * P
    column = c * size.cached
    capacity = max(0.0, SHARE_OF_FREE_MEMORY * free - draws) / column
    in_flight = min(rows, int(capacity // (longest + CHUNK)))
    cache = in_flight * (longest + CHUNK) * column

    T = max(flags.micro_batch_tokens, longest)
    head = size.vocabulary * size.hidden
    gathered = c * (size.root + 2 * size.layer)  # the current layer and the next one
    in_a_layer = c * T * (10 * size.hidden + 9 * size.attention + 6 * size.mlp)
    block = min(BLOCK_SHARE * gpu, 4 * T * size.vocabulary)

    hidden = responses * flags.max_new_tokens * size.hidden * c
    on_gpu = min(hidden, max(0.0, (1 - SPARED) * gpu - static - c * size.root))
    old_logprobs = static + gathered + in_a_layer / 2 + 4 * head + 3 * block + on_gpu

    saved = size.layers * in_a_layer / 2  # by all layers, for the backward pass
    if flags.recompute:
        saved = c * size.layers * T * size.hidden  # only their inputs
    backward = max(
        saved + in_a_layer + c * head,  # of a layer, with the head's gradient
        saved + BLOCKS * block + 3 * 4 * head,  # of the head: itself, its gradient, a block's part
        (c + 4) * size.root,  # the root's gradients, before and after their conversion
    )
    return Plan(
        static=static,
        rollout=static + c * P + cache + draws,
        in_flight=in_flight,
        old_logprobs=old_logprobs,
        on_host=hidden - on_gpu,
        update=static + 4 * P / gpus + gathered + backward,
        gpu=gpu,
    )


def largest(
    size: SimpleNamespace, flags: Config, gpus: int, gpu_gb: float
) -> tuple[Config, Plan] | None:
    """(flags, their plan) with the longest responses of which AT_ONCE fit at a time, then with the
    largest micro-batches, then with the most responses in flight. None if nothing fits.

    It tries the flags' own values, and repeated halves of them.
    """
    for new in halves(flags.max_new_tokens, SHORTEST):
        for tokens in halves(flags.micro_batch_tokens, flags.max_prompt_tokens + new):
            fitting = []
            for rows in halves(flags.in_flight, AT_ONCE):
                sizes = {"max_new_tokens": new, "micro_batch_tokens": tokens, "in_flight": rows}
                tried = replace(flags, **sizes)
                p = planned(size, tried, gpus, gpu_gb)
                if p.fits(AT_ONCE):
                    fitting.append((tried, p))
            if fitting:
                return max(fitting, key=lambda pair: pair[1].in_flight)
    return None


def halves(largest: int, smallest: int) -> list[int]:
    """The numbers from `largest` down to `smallest`, each half of the one before. Never empty."""
    found = [largest]
    while found[-1] // 2 >= smallest:
        found.append(found[-1] // 2)
    return found


# ---- the command ---------------------------------------------------------------------------------


def plan(args) -> None:
    """Print a run's memory per GPU, its disk space, and the largest settings that fit.

    Raises UserError for invalid flags and lengths.
    """
    given, words = Parser(
        Cards, "-m benchmarks plan", "All other flags are train.py's."
    ).parse_known_args(args.flags)
    cards = Cards(**vars(given))
    if not any(word.partition("=")[0] == "--model" for word in words):
        raise UserError("plan needs --model: without it the toy would be planned")
    flags = parse_config(words)
    _, model = read_configs(flags.model, model_folder(flags.model, flags.toy_regime))
    refuse_length(model, [[0] * flags.max_prompt_tokens], flags.max_new_tokens)
    with one_line(flags.model, f"plan cannot count this {model.model_type}"):
        size = sizes_of(model)
    print_plan(size, flags, cards.gpus, cards.gpu_gb)
    found = largest(size, flags, cards.gpus, cards.gpu_gb)
    if found is None:
        print(
            f"nothing fits, with {AT_ONCE} responses of {SHORTEST} tokens at a time: use a smaller "
            "model, LoRA (docs/trl.md), or more or larger GPUs"
        )
        return
    fitting, p = found
    start = "python" if cards.gpus == 1 else f"torchrun --nproc_per_node {cards.gpus}"
    settings = []  # a later flag replaces an earlier one
    for name in ("max_new_tokens", "micro_batch_tokens", "in_flight"):
        if getattr(fitting, name) != getattr(flags, name):
            settings.append(f"{spelled(name)} {getattr(fitting, name)}")
    print(
        f"the largest settings that fit ({p.peak / GB:.1f} GB, {p.in_flight} full-length responses "
        f"at a time):\n  {start} train.py {' '.join([shlex.join(words), *settings])}"
    )


def print_plan(size: SimpleNamespace, flags: Config, gpus: int, gpu_gb: float) -> None:
    """Print the plan in GB per GPU, and an upper bound on the disk space.

    Two checkpoints of 12 bytes per parameter are kept, and a third is written before the oldest is
    deleted. There are also two exports in bfloat16.
    """
    p = planned(size, flags, gpus, gpu_gb)
    checkpoint = 12 * size.parameters
    disk = min(3, math.ceil(flags.steps / flags.save_every)) * checkpoint + 4 * size.parameters
    print(
        f"{flags.model}: {size.parameters / 1e9:.2f} billion parameters on {gpus} GPUs of "
        f"{gpu_gb:g} GB; GB per GPU:\n"
        f"  weights and Adam moments, float32  {p.static / GB:.1f}\n"
        f"  rollout    {p.rollout / GB:.1f}: {p.in_flight} responses in flight at full length\n"
        f"  log-probs  {p.old_logprobs / GB:.1f}, and {p.on_host / GB:.1f} in pinned host memory\n"
        f"  update     {p.update / GB:.1f}\n"
        f"  reserved   {RESERVE / GB:.1f} for the CUDA context, NCCL and fragmentation\n"
        f"GB on disk, all GPUs together: at most {disk / GB:.1f}, "
        f"{checkpoint / GB:.1f} per checkpoint\n"
        f"{'fits' if p.fits() else 'does not fit'}: {p.peak / GB:.1f} of {gpu_gb:g} GB"
    )
