"""Command-line flags as dataclass fields: name, type with its limits, default and help on one line.

    steps: AtLeastOne = flag(220, "rollout batches")

is the flag `--steps`, and `check_limits` refuses `--steps 0`. A dataclass is a group of `--help`
(`_argument_group_name`); a program's Config inherits the groups it wants.
"""

import math
from argparse import ArgumentDefaultsHelpFormatter
from dataclasses import dataclass, field, fields
from typing import Annotated, get_args, get_type_hints

from transformers import HfArgumentParser

from infra.errors import UserError


@dataclass(frozen=True)
class Limits:
    """Lowest and highest value of a flag, both allowed."""

    low: float
    high: float = math.inf


TINY = 1e-12  # stands for "above 0"
AtLeastOne = Annotated[int, Limits(1)]
AtLeastTwo = Annotated[int, Limits(2)]
WholeNumber = Annotated[int, Limits(0)]
NonNegative = Annotated[float, Limits(0)]
Positive = Annotated[float, Limits(TINY)]
Share = Annotated[float, Limits(0, 1)]
PositiveShare = Annotated[float, Limits(TINY, 1)]


def flag(default, help: str, choices: list[str] | None = None):
    """A dataclass field that is also a command-line flag; `--help` lists its choices."""
    metadata = {"help": help}
    if choices:
        metadata["choices"] = choices
    return field(default=default, metadata=metadata)


def spelled(name: str) -> str:
    """A field's name as the flag that a user types: `max_new_tokens` is `--max-new-tokens`."""
    return "--" + name.replace("_", "-")


class OneLineEach(ArgumentDefaultsHelpFormatter):
    """`--help` with each flag once, as `--max-new-tokens`, and its help and default beside it."""

    def __init__(self, prog):
        super().__init__(prog, max_help_position=28, width=150)

    def _format_action_invocation(self, action):
        return action.option_strings[-1]

    def _get_help_string(self, action):
        if action.option_strings[-1].startswith("--no-"):
            return f"turns {action.option_strings[-1].replace('--no-', '--')} off"
        if action.choices:
            return f"{action.help}: {', '.join(action.choices)} (default: %(default)s)"
        if action.default == "" or isinstance(action.default, bool):
            return action.help  # says it, or is a switch
        return super()._get_help_string(action)


class Parser(HfArgumentParser):
    """argparse over dataclasses, with one line instead of the whole usage when a flag is wrong."""

    def __init__(self, groups: list[type], prog: str, description: str, epilog: str = ""):
        super().__init__(
            groups,
            prog=prog,
            usage=f"{prog} [flags]",
            description=description,
            epilog=epilog,
            allow_abbrev=False,
            formatter_class=OneLineEach,
        )

    def error(self, message):
        raise UserError(f"{message} (python {self.prog} --help lists the flags)")


def check_limits(config) -> None:
    """Raise UserError for a flag outside the limits of its type, or one that is not finite."""
    hints = get_type_hints(type(config), include_extras=True)
    for each in fields(config):
        value = getattr(config, each.name)
        limits = next((x for x in get_args(hints[each.name]) if isinstance(x, Limits)), None)
        if limits is None:
            continue
        if limits.low <= value <= limits.high and math.isfinite(value):
            continue
        wanted = "above 0" if limits.low == TINY else f"at least {limits.low:g}"
        if limits.high < math.inf:
            wanted += f" and at most {limits.high:g}"
        raise UserError(f"{spelled(each.name)} is {value}: it must be {wanted}")


def refuse_foreign(config, names: tuple[str, ...], owner: str) -> None:
    """Raise UserError for the first flag of method `owner` that was changed from its default."""
    for name in names:
        if getattr(config, name) != getattr(type(config), name):
            raise UserError(
                f"{spelled(name)} is {owner}'s and does nothing with --method {config.method}: "
                f"drop it, or take --method {owner}"
            )


def refuse_changed(config, names: tuple[str, ...], reason: str) -> None:
    """Raise UserError for the first of these flags that was changed, to no effect."""
    for name in names:
        if getattr(config, name) != getattr(type(config), name):
            raise UserError(f"{spelled(name)} does nothing, for {reason}: drop it")


@dataclass
class TaskFlags:
    """The model and the problems, as train.py and evaluate.py both take them."""

    _argument_group_name = "task"

    model: str = flag("", "Hugging Face folder or hub id")
    problem_column: str = flag("problem", "column of the problem, in a set not known by name")
    answer_column: str = flag("answer", "column of the answer, in a set not known by name")
    prompt_template: str = flag(
        "", "prompt with {problem} in it; default: the chat template with the instruction"
    )
    max_prompt_tokens: AtLeastOne = flag(2048, "longer prompts are dropped, tokens")
    code_sandbox: str = flag(
        "strict",
        "programs run behind all walls, or with those named alone, which lack some protection",
        choices=["strict", "namespaces", "landlock", "filter"],
    )


@dataclass
class SamplingFlags:
    """How responses are drawn."""

    _argument_group_name = "sampling"

    temperature: Positive = flag(1.0, "of sampling, and in training of log-probabilities")
    max_new_tokens: AtLeastOne = flag(20480, "longest response, tokens")
    seed: WholeNumber = flag(0, "of sampling and data order")


# ---- train.py: each default is the paper's (App. I) unless its help says otherwise ---------------


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
    dry_run: bool = flag(False, "print what the run would need of every GPU, and stop")
    world_size: AtLeastOne = flag(8, "dry run: GPUs, in nodes of up to 8")
    gpu_gb: Positive = flag(80.0, "dry run: memory of a GPU, GB")


@dataclass
class EvaluationFlags:
    _argument_group_name = "evaluation"

    eval_data: str = flag(
        "aime25", "evaluation problems, as --data; the best checkpoint is kept by them; empty: none"
    )
    eval_every: AtLeastOne = flag(10, "steps between evaluations (ours); also one at each end")
    eval_samples: AtLeastOne = flag(8, "responses per evaluation problem, the n of avg@n")
    eval_top_p: PositiveShare = flag(0.7, "top-p of evaluation")


@dataclass
class ToyFlags:
    _argument_group_name = "toy"

    toy_k: AtLeastOne = flag(5, "operations in a problem")
    toy_noise: Share = flag(0.2, "share of wrong results in the base model's demonstrations")
    toy_filler: WholeNumber = flag(1, "connectives that open a step")
