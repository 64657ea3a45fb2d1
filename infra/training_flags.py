"""Flags for train.py, except its methods' flags. The defaults are the paper's (App. I).

"ours" in a help text marks a default that the paper does not state.
"""

from dataclasses import dataclass, fields
from pathlib import Path

from infra.errors import UserError
from infra.flags import (
    Parser,
    SamplingFlags,
    TaskFlags,
    check_limits,
    flag,
    refuse_useless,
)
from infra.hub import SOURCES
from toy.presets import CHAINS, OF_PROGRAMS, TOYS, listed


@dataclass
class RunFlags:
    heading = "run"

    output_dir: str = flag("", "default: runs/<model>-<method>-<seed>")
    steps: int = flag(220, "rollout batches (the paper's 8B: 220, 14B: 300)", low=1)
    save_every: int = flag(10, "steps between checkpoints (ours)", low=1)
    track: str = flag(
        "none",
        "live metrics; install the package first",
        choices=["none", "trackio", "wandb", "tensorboard"],
    )


@dataclass
class TrainingTaskFlags(TaskFlags):
    heading = "task"

    model: str = flag("toy", "`toy`, `toy-code`, a local Hugging Face folder or a hub id")
    data: str = flag(
        "deepmath",
        "training problems: toy, toy-code, a known name, a hub id, a .jsonl, .csv or .parquet file",
    )
    overlong_buffer: int = flag(
        0,
        "last tokens before the limit, where the reward falls by up to 1 (released code: 4096)",
        low=0,
    )


@dataclass
class TrainingSamplingFlags(SamplingFlags):
    heading = "sampling"

    prompts: int = flag(128, "prompts per step", low=1)
    group_size: int = flag(16, "responses per prompt, G", low=2)
    dynamic_sampling: bool = flag(False, "replace groups that have equal rewards with new prompts")
    engine: str = flag(
        "generate",
        "the sampler; vllm is tested only with a stand-in, never with vLLM itself (ours)",
        choices=["generate", "vllm"],
    )


@dataclass
class OptimisationFlags:
    heading = "optimisation"

    mini_batch: int = flag(32, "prompts per update; prompts / mini-batch updates per step", low=1)
    lr: float = flag(1e-6, "AdamW learning rate, constant", above=0)
    weight_decay: float = flag(0.1, "AdamW weight decay (released code)", low=0)
    max_grad_norm: float = flag(1.0, "gradient clipping by global norm (released code)", above=0)
    importance_cap: float = flag(
        0.0, "C > 0: weight tokens by min(π_old / π_sampler, C) (ours; 0: off)", low=0
    )


@dataclass
class MemoryFlags:
    """These flags change the results only through rounding.

    In bfloat16 rounding is enough to change sampled responses: see rollout.py.
    """

    heading = "memory"

    micro_batch_tokens: int = flag(
        24576, "max tokens, including padding, in a rank's forward pass (ours)", low=1
    )
    recompute: bool = flag(
        True, "recompute activations in the backward pass (ours; a third slower)"
    )
    packing: bool = flag(
        True,
        "on GPUs pack the responses of a micro-batch end to end instead of padding (ours)",
    )
    rollout_rows: int = flag(256, "max responses that a rank samples at once (ours)", low=1)
    proxy_budget_gb: float = flag(
        30.0,
        "delta: max GB of hidden states on the GPU; a larger tensor goes to host memory (ours)",
        low=0,
    )


@dataclass
class EvaluationFlags:
    heading = "evaluation"

    eval_data: str = flag(
        "aime25", "evaluation problems, like --data; they select the best model; empty: none"
    )
    eval_every: int = flag(10, "steps between evaluations (ours); also at start and end", low=1)
    eval_samples: int = flag(8, "responses per evaluation problem, the n of avg@n", low=1)
    eval_top_p: float = flag(0.7, "top-p in evaluation", above=0, high=1)
    eval_greedy: bool = flag(False, "also evaluate one greedy response per problem (ours)")


@dataclass
class ToyFlags:
    heading = "toy"

    toy_regime: str = flag(
        "learn",
        "the base model's likeliest product (learn), difference (learn-minus) or neither is wrong",
        choices=["learn", "learn-minus", "sharpen"],
    )
    toy_k: int = flag(5, "operations in a problem", low=1)
    toy_noise: float = flag(0.1, "share of errors in the base's demonstrations", low=0, high=1)
    toy_filler: int = flag(1, "number of connectives that open a step", low=0)
    toy_zipf: bool = flag(False, "248 Zipf-distributed connectives, not eight equally likely")


TRAINING_GROUPS = (
    RunFlags,
    TrainingTaskFlags,
    TrainingSamplingFlags,
    OptimisationFlags,
    MemoryFlags,
    EvaluationFlags,
    ToyFlags,
)


# (flags, another flag, its values): with one of these values the flags do nothing.
NO_EFFECT = (
    (("proxy_topk",), "proxy", ("lm_head", "exact", "centred", "surprise")),
    (("select_share",), "select", ("none",)),
    (("lam_min", "lam_max"), "delta_variant", ("no_range_map",)),
    (("proxy",), "delta_variant", ("random",)),
    (("K",), "delta_variant", ("random", "no_centroids")),
    (("gamma", "normalise", "centroids"), "delta_variant", ("random", "no_centroids")),
    (("gamma",), "delta_variant", ("hard", "fixed_gamma")),  # these do not recompute γ
    (("gamma",), "K", (0,)),  # no γ lags
    (("normalise",), "delta_variant", ("no_norm",)),
    (tuple(each.name for each in fields(ToyFlags)), "model", ("toy-code",)),
)


def training_config(config_class: type, methods: dict, argv: list[str] | None):
    """A config_class (train.Config): flags not in argv get the toy's or the method's defaults.

    methods: methods.METHODS. Raises UserError for flags that are unknown, out of range or
    contradictory.
    """
    parser = Parser(
        list(config_class.__bases__),
        prog="train.py",
        description="RLVR with DelTA and other token weights.",
        epilog=f"Known names for --data: {', '.join(SOURCES)}. "
        f"With --model toy the defaults are: {listed(CHAINS)}. "
        f"With --model toy-code they are the same, except: {listed(OF_PROGRAMS)}",
    )
    given, _ = parser.parse_known_args(argv)
    if given.model in TOYS:
        parser.set_defaults(**TOYS[given.model])
    if methods[given.method].clips:
        clip_low, clip_high = methods[given.method].default_clip
        parser.set_defaults(clip_low=clip_low, clip_high=clip_high)

    cfg = config_class(**vars(parser.parse_args(argv)))
    cfg.model = str(Path(cfg.model))  # without a trailing slash
    if not cfg.output_dir:
        cfg.output_dir = f"runs/{Path(cfg.model).name}-{cfg.method}-{cfg.seed}"
    check_config(cfg, methods)
    return cfg


def check_config(cfg, methods: dict) -> None:
    """Raise UserError for flags that are out of range, without effect or contradictory."""
    check_limits(cfg)
    without_clip = [name for name, method in methods.items() if not method.clips]
    refuse_useless(cfg, [*NO_EFFECT, (("clip_low", "clip_high"), "method", without_clip)])

    if cfg.lam_min > cfg.lam_max:
        raise UserError(f"--lam-min {cfg.lam_min} is above --lam-max {cfg.lam_max}")
    if cfg.delta_variant == "no_centroids" and cfg.proxy in ("topk", "exact"):
        raise UserError(
            f"--delta-variant no_centroids needs one number per token, and --proxy {cfg.proxy} "
            "has many: use --proxy centred or surprise"
        )
    if cfg.centroids == "held_out" and cfg.prompts < 2:
        raise UserError("--centroids held_out needs two prompts per step: raise --prompts")
    if 0 < cfg.importance_cap < 1:
        raise UserError(
            f"--importance-cap {cfg.importance_cap} would lower the weight of every token: "
            "use at least 1, or 0 for none"
        )
    if cfg.prompts % cfg.mini_batch:
        raise UserError(
            f"--prompts {cfg.prompts} is not a multiple of --mini-batch {cfg.mini_batch}"
        )
