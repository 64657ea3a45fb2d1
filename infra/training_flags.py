"""The flags of train.py, but for those of its methods; each default is the paper's (App. I).

A help that says "ours" marks what the paper does not state.
"""

from dataclasses import dataclass, fields
from pathlib import Path

from infra.errors import UserError
from infra.flags import (
    AtLeastOne,
    AtLeastTwo,
    NonNegative,
    Parser,
    Positive,
    PositiveShare,
    SamplingFlags,
    Share,
    TaskFlags,
    WholeNumber,
    check_limits,
    flag,
    refuse_useless,
)
from infra.problems import SOURCES
from toy.presets import CHAINS, OF_PROGRAMS, TOYS, listed


@dataclass
class RunFlags:
    _argument_group_name = "run"

    output_dir: str = flag("", "default: runs/<model>-<method>-<seed>")
    steps: AtLeastOne = flag(220, "rollout batches (the paper's 8B: 220, 14B: 300)")
    save_every: AtLeastOne = flag(10, "steps between checkpoints (ours)")
    resume: str = flag(
        "auto",
        "whether to continue a run that --output-dir holds, or refuse to",
        choices=["auto", "never"],
    )


@dataclass
class TrainingTaskFlags(TaskFlags):
    _argument_group_name = "task"

    model: str = flag("toy", "`toy`, `toy-code`, a local Hugging Face folder or a hub id")
    data: str = flag(
        "deepmath",
        "training problems: toy, toy-code, a .jsonl, .parquet or .csv file, a known name, a hub id",
    )
    overlong_buffer: WholeNumber = flag(
        0, "tokens before the limit in which the reward falls by up to 1 (released code: 4096)"
    )


@dataclass
class TrainingSamplingFlags(SamplingFlags):
    _argument_group_name = "sampling"

    prompts: AtLeastOne = flag(128, "prompts per step")
    group_size: AtLeastTwo = flag(16, "responses per prompt, G")
    dynamic_sampling: bool = flag(False, "replace groups of equal rewards by further prompts")


@dataclass
class OptimisationFlags:
    _argument_group_name = "optimisation"

    mini_batch: AtLeastOne = flag(32, "prompts per update; prompts / mini-batch updates per step")
    lr: Positive = flag(1e-6, "AdamW learning rate, constant")
    weight_decay: NonNegative = flag(0.1, "AdamW weight decay (released code)")
    max_grad_norm: Positive = flag(1.0, "gradient clipping by global norm (released code)")
    importance_cap: NonNegative = flag(
        0.0, "C > 0: weigh tokens by min(π_old / π_sampler, C) (ours; 0: not at all)"
    )


@dataclass
class MemoryFlags:
    """None of these changes what is computed, but for rounding.

    In bfloat16 that is enough to draw other responses: see rollout.py.
    """

    _argument_group_name = "memory"

    micro_batch_tokens: AtLeastOne = flag(
        24576, "tokens, padding included, in one forward pass of a rank (ours)"
    )
    recompute: bool = flag(
        True, "recompute activations in the backward pass (ours; a third slower)"
    )
    packing: bool = flag(
        True,
        "on GPUs pack the responses of a micro-batch end to end, instead of padding them (ours)",
    )
    compile: bool = flag(False, "torch.compile the layers in training (ours)")
    rollout_rows: AtLeastOne = flag(256, "responses a rank samples at a time at most (ours)")
    proxy_budget_gb: NonNegative = flag(
        30.0,
        "delta: kept hidden states up to this size stay on the GPU, else in host memory (ours)",
    )


@dataclass
class EvaluationFlags:
    _argument_group_name = "evaluation"

    eval_data: str = flag(
        "aime25", "evaluation problems, as --data; the best checkpoint is kept by them; empty: none"
    )
    eval_every: AtLeastOne = flag(10, "steps between evaluations (ours); also one at each end")
    eval_samples: AtLeastOne = flag(8, "responses per evaluation problem, the n of avg@n")
    eval_top_p: PositiveShare = flag(0.7, "top-p of evaluation")
    eval_greedy: bool = flag(False, "also evaluate one greedy response a problem (ours)")


@dataclass
class ToyFlags:
    _argument_group_name = "toy"

    toy_regime: str = flag(
        "learn",
        "base model whose most likely product (or difference) is wrong, or one that only slips",
        choices=["learn", "learn-minus", "sharpen"],
    )
    toy_k: AtLeastOne = flag(5, "operations in a problem")
    toy_noise: Share = flag(0.1, "share of slips in the base model's demonstrations")
    toy_filler: WholeNumber = flag(1, "connectives that open a step")
    toy_zipf: bool = flag(False, "248 connectives by Zipf's distribution instead of eight alike")


TRAINING_GROUPS = (
    RunFlags,
    TrainingTaskFlags,
    TrainingSamplingFlags,
    OptimisationFlags,
    MemoryFlags,
    EvaluationFlags,
    ToyFlags,
)


def training_config(config_class: type, methods: dict, no_effect: tuple, argv: list[str] | None):
    """A config_class (train.Config) of the command line over the toy's and the method's defaults.

    methods: train.py's METHODS; no_effect: a table for refuse_useless. Raises UserError for flags
    that are unknown, out of their limits or contradict each other.
    """
    parser = Parser(
        list(config_class.__bases__),
        prog="train.py",
        description="RLVR with DelTA and other token weights.",
        epilog=f"Known names for --data: {', '.join(SOURCES)}. "
        f"With --model toy the defaults are: {listed(CHAINS)}. "
        f"With --model toy-code they are those, but: {listed(OF_PROGRAMS)}",
    )
    given, _ = parser.parse_known_args(argv)
    if given.model in TOYS:
        parser.set_defaults(**TOYS[given.model])
    if methods[given.method].clips:
        clip_low, clip_high = methods[given.method].default_clip
        parser.set_defaults(clip_low=clip_low, clip_high=clip_high)

    cfg = config_class(**vars(parser.parse_args(argv)))
    cfg.model = str(Path(cfg.model))  # without a slash at its end
    if not cfg.output_dir:
        cfg.output_dir = f"runs/{Path(cfg.model).name}-{cfg.method}-{cfg.seed}"
    check_config(cfg, methods, no_effect)
    return cfg


def check_config(cfg, methods: dict, no_effect: tuple) -> None:
    """Raise UserError for flags out of their limits, without effect, or that contradict others."""
    check_limits(cfg)
    refuse_useless(cfg, flags_of_others(methods))
    without_clip = [name for name, method in methods.items() if not method.clips]
    refuse_useless(cfg, [(("clip_low", "clip_high"), "method", without_clip)])
    of_chains = tuple(each.name for each in fields(ToyFlags))
    refuse_useless(cfg, [(of_chains, "model", ["toy-code"])])
    refuse_useless(cfg, no_effect)

    if cfg.lam_min > cfg.lam_max:
        raise UserError(f"--lam-min {cfg.lam_min} is above --lam-max {cfg.lam_max}")
    if cfg.centroids == "held_out" and cfg.prompts < 2:
        raise UserError("--centroids held_out needs two prompts a step: raise --prompts")
    if 0 < cfg.importance_cap < 1:
        raise UserError(
            f"--importance-cap {cfg.importance_cap} would weigh every token down: "
            "take 1 or more, or 0 for none"
        )
    if cfg.prompts % cfg.mini_batch:
        raise UserError(
            f"--prompts {cfg.prompts} is not a multiple of --mini-batch {cfg.mini_batch}"
        )


def check_owners(method_flags: type, methods: dict) -> None:
    """Raise UserError for a flag of methods.MethodFlags that no record names: it would be silent.

    A method's weights read its flags, so with another method the flag would do nothing, unseen.
    """
    owned = {name for method in methods.values() for name in method.flags}
    for each in fields(method_flags):
        if each.name not in {"method", "clip_low", "clip_high", *owned}:
            raise UserError(
                f"methods.py: no record names the flag {each.name}: write "
                f'flags=("{each.name}",) in the record of the method that reads it'
            )


def flags_of_others(methods: dict) -> list[tuple]:
    """A table for refuse_useless: each method's own flags do nothing with the methods without."""
    names = {name for method in methods.values() for name in method.flags}
    table = []
    for name in sorted(names):
        others = [each for each, method in methods.items() if name not in method.flags]
        table.append(((name,), "method", others))
    return table
