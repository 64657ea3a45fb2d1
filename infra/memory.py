"""What a run needs of every GPU, counted from the model's config alone: `train.py --dry-run`.

In bytes, with P parameters on W shards (the ranks of a node), L layers, T tokens of a micro-batch,
H hidden size, q = heads x head size, I width of the MLP, V vocabulary, and c bytes of a number in
the computation (2 on GPUs: bfloat16). Parameters outside the layers (embedding, norm, LM head) are
FSDP's root unit, and stay gathered during forward and backward.

    always      weights and Adam's two moments in float32, 12 P / W
                in an update also gradients, 4 P / W
    rollout     + all weights gathered, c P
                + the KV cache, in 85 % of what is then free, less what follows
                + the larger of these two:
                  - in a pass that fills caches, of t tokens: c t (4.3 H + 3 I)
                  - in a draw: for each response in flight and word two float32 logits, p and its
                    sum in float64, and the float32 answer, 28 bytes; 80 under top-p
                  (and never less than one layer's keys, which are there twice as they move)
    old         + root and two layers gathered
    log-probs   + one layer's working memory without gradients
                + four blocks of logits
                + the hidden states kept for DelTA, where they are no more than --proxy-budget-gb
                  and 70 % of what is free
    update      + root and two layers gathered
                + the largest of these three:
                  - in a layer's backward pass: the inputs of all layers, c L T H, from which it
                    is recomputed; its tensors and their gradients, c T (10 H + 9 q + 6 I); and
                    the LM head's gradient, c V H
                  - in the LM head's: those inputs, four blocks of logits, and twice the LM
                    head's gradient in float32
                  - at the end: the root's gradients, in c bytes and in float32

The factors 10, 9 and 6 were fitted to FSDP2 runs of the five Qwen3 sizes on fake tensors, 4.3 and
3 to runs of the sampler on such, and tests/infra/test_memory.py holds the plan to both; all else is
counted. The CUDA context, NCCL and fragmentation are not in it: RESERVE is set aside for them, and
while responses are sampled the other 15 % of what is free.

Of the disk a run takes up to three checkpoints, 12 P each: see infra/disk.py.
"""

import math
from dataclasses import dataclass

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig, Qwen3Config

import toy
from infra.architecture import count_parameters, decoder_layers
from infra.cache import cache_bytes, cache_room, mlp_width, working_bytes
from infra.disk import checkpoint_bytes, run_bytes
from infra.loading import locate
from infra.policy import LOGIT_BLOCK_GPU, SHARE_FOR_KEPT

GB = 1e9
RESERVE = 3 * GB  # for the CUDA context, NCCL and fragmentation
BLOCKS = 4  # of logits at once: logits, log p, p and a product of these
NODE = 8  # GPUs of a node at most; shards lie inside a node

# Hidden size, MLP, layers, heads, tied embeddings, from the models' config.json. All have 8
# key-value heads, heads of 128, and 151,936 words.
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
class Sizes:
    """How large the parts of a model are, in numbers (not bytes)."""

    parameters: int  # P
    layer: int  # parameters of one decoder layer
    layers: int  # L
    hidden: int  # H
    attention: int  # q, heads x head size
    mlp: int  # I
    vocabulary: int  # V

    @property
    def root(self) -> int:
        """Parameters outside the layers."""
        return self.parameters - self.layers * self.layer


def sizes_of(config: PreTrainedConfig) -> Sizes:
    """The sizes of a decoder-only model, whose weights are not made."""
    with torch.device("meta"):
        lm = AutoModelForCausalLM.from_config(config)
    layers = decoder_layers(lm)
    heads = config.num_attention_heads
    head_size = getattr(config, "head_dim", None) or config.hidden_size // heads
    return Sizes(
        parameters=count_parameters(lm),
        layer=count_parameters(layers[0]),
        layers=len(layers),
        hidden=config.hidden_size,
        attention=heads * head_size,
        mlp=mlp_width(config),
        vocabulary=config.vocab_size,
    )


@dataclass(frozen=True)
class Plan:
    """What each GPU must hold, in bytes unless said otherwise; a phase includes what is static."""

    parameters: int  # of the model, a number
    static: float  # this GPU's shards of the weights and of Adam's moments, float32
    gradients: float  # its shards of the gradients, float32; in an update

    rollout: float  # peak while responses are sampled
    cache: float  # of it: keys and values of the responses in flight, each of the longest
    cache_per_token: int  # keys and values of one token
    in_flight: int  # responses of the longest that are sampled at a time, a number

    old_logprobs: float  # peak while the old log-probabilities are computed
    hidden: float  # its share of the batch's hidden states, if all responses are of the longest
    hidden_on_host: bool  # whether these are kept in host memory, and so not in `old_logprobs`
    pinned: float  # host memory that they then take: pinned, it comes in powers of two

    update: float  # peak of an update
    activations: float  # of it: activations, gathered parameters and their gradients

    @property
    def peak(self) -> float:
        """The largest of the phases, and what is set aside."""
        return max(self.rollout, self.old_logprobs, self.update) + RESERVE

    def fits(self, gpu_gb: float) -> bool:
        """Whether a GPU of so many GB holds the peak, and has room to sample a response."""
        return self.peak <= gpu_gb * GB and self.in_flight > 0


def gathered_bytes(size: Sizes, c: int) -> int:
    """The parameters that a rank holds gathered: the root and two layers, one of them arriving."""
    return c * (size.root + 2 * size.layer)


def layer_bytes(size: Sizes, T: int, c: int) -> int:
    """One layer's tensors and their gradients in the backward pass; without gradients half."""
    return c * T * (10 * size.hidden + 9 * size.attention + 6 * size.mlp)


def block_bytes(size: Sizes, T: int) -> int:
    """A block of logits in float32."""
    return 4 * min(LOGIT_BLOCK_GPU, T * size.vocabulary)


def update_bytes(size: Sizes, T: int, recompute: bool, c: int) -> float:
    """What an update takes on top of weights, moments and gradients in float32."""
    head = size.vocabulary * size.hidden
    kept = size.layers * layer_bytes(size, T, c) / 2  # by all layers, for the backward pass
    if recompute:
        kept = c * size.layers * T * size.hidden  # only their inputs

    in_a_layer = kept + layer_bytes(size, T, c) + c * head
    in_the_head = kept + BLOCKS * block_bytes(size, T) + 8 * head
    at_the_end = (c + 4) * size.root
    return gathered_bytes(size, c) + max(in_a_layer, in_the_head, at_the_end)


def plan(
    config: PreTrainedConfig,
    world: int,
    gpu_gb: float,
    micro_batch_tokens: int,
    max_prompt_tokens: int,
    max_new_tokens: int,
    responses: int,
    rollout_rows: int,
    proxy_budget_gb: float,
    recompute: bool = True,
    top_p: float = 1.0,
    c: int = 2,
) -> Plan:
    """The plan of a run on `world` GPUs of `gpu_gb` GB; from the config, nothing is loaded.

    responses: of a step, on all ranks together; top_p: the least of training and evaluation; c:
    bytes of a number in the computation; the other arguments are train.py's flags of that name.
    """
    size = sizes_of(config)
    P = size.parameters
    shards = min(world, NODE)
    longest = max_prompt_tokens + max_new_tokens
    T = max(micro_batch_tokens, longest)

    static = 12 * P / shards
    gradients = 4 * P / shards

    gathered = static + c * P
    rows = min(rollout_rows, math.ceil(responses / world))
    working = working_bytes(config, c, rows, longest, top_p)
    cache_per_token = cache_bytes(config, c)
    room = cache_room(config, c, gpu_gb * GB - RESERVE - gathered, working)
    in_flight = min(rows, room // longest)
    cache = in_flight * longest * cache_per_token
    moving = cache / (2 * size.layers)

    hidden = responses / world * max_new_tokens * size.hidden * c
    free = gpu_gb * GB - RESERVE - static - gathered_bytes(size, c)
    budget = min(proxy_budget_gb * GB, SHARE_FOR_KEPT * free)
    scratch = gathered_bytes(size, c) + layer_bytes(size, T, c) / 2 + BLOCKS * block_bytes(size, T)

    activations = update_bytes(size, T, recompute, c)

    return Plan(
        parameters=P,
        static=static,
        gradients=gradients,
        rollout=gathered + cache + max(working, moving),
        cache=cache,
        cache_per_token=cache_per_token,
        in_flight=in_flight,
        old_logprobs=static + scratch + min(hidden, budget),
        hidden=hidden,
        hidden_on_host=hidden > budget,
        pinned=2 ** math.ceil(math.log2(hidden)),
        update=static + gradients + activations,
        activations=activations,
    )


def in_gb(count: float) -> str:
    """Bytes as text: `52.3 GB`."""
    return f"{count / GB:.1f} GB"


def dry_run(config) -> None:
    """Print the plan of train.py's flags, and whether it fits. Raises UserError without a model."""
    name = config.model
    if name == "toy":
        task = (config.toy_k, config.toy_noise, config.toy_filler)
        name = toy.base_folder(*task, regime=config.toy_regime, zipf=config.toy_zipf)
    if name == "toy-code":
        name = toy.code_base_folder()
    _, model_config, _ = locate(name)
    p = plan(
        model_config,
        config.world_size,
        config.gpu_gb,
        config.micro_batch_tokens,
        config.max_prompt_tokens,
        config.max_new_tokens,
        config.prompts * config.group_size,
        config.rollout_rows,
        config.proxy_budget_gb,
        config.recompute,
        config.eval_top_p if config.eval_data else 1.0,
    )

    where = "on the GPU"
    if p.hidden_on_host:
        where = f"in host memory, of which they pin {in_gb(p.pinned)}"
    disk = run_bytes(p.parameters, 2, config)
    print(
        f"{config.model}: {p.parameters / 1e9:.2f} billion parameters "
        f"on {config.world_size} GPUs of {config.gpu_gb:g} GB; on each:\n"
        f"  weights and Adam moments, float32     {in_gb(p.static)}, "
        f"gradients {in_gb(p.gradients)}\n"
        f"  rollout   {in_gb(p.rollout)}, of it {in_gb(p.cache)} KV cache "
        f"({p.cache_per_token:,} bytes a token): "
        f"{p.in_flight} responses in flight even if all are of the longest\n"
        f"  log-probs {in_gb(p.old_logprobs)}; "
        f"hidden states of the longest responses {in_gb(p.hidden)}, kept {where}\n"
        f"  update    {in_gb(p.update)}, of it {in_gb(p.activations)} "
        "activations and gathered layers at the longest micro-batch\n"
        f"  reserved  {in_gb(RESERVE)} for the CUDA context, NCCL and fragmentation\n"
        f"on disk, of all GPUs together: {in_gb(disk)} at most, "
        f"{in_gb(checkpoint_bytes(p.parameters))} a checkpoint"
    )

    if p.fits(config.gpu_gb):
        print(f"fits: {in_gb(p.peak)} of {config.gpu_gb:g} GB")
    else:
        print(
            f"does not fit: {in_gb(p.peak)} of {config.gpu_gb:g} GB "
            f"and {p.in_flight} responses in flight; "
            "more GPUs, or lower --micro-batch-tokens, --max-new-tokens or --proxy-budget-gb"
        )
