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
Seed = Annotated[int, Limits(0, 10**12)]  # times SEED_STRIDE it still fits in 64 bits
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


def changed(config, name: str) -> bool:
    """Whether a flag was changed from its default."""
    return getattr(config, name) != getattr(type(config), name)


def refuse_useless(config, table) -> None:
    """Raise UserError for a flag that was changed to no effect.

    table: (flags, another flag, the values of that one under which they do nothing), each.
    """
    for names, other, values in table:
        for name in names:
            if changed(config, name) and getattr(config, other) in values:
                raise UserError(
                    f"{spelled(name)} does nothing with {spelled(other)} "
                    f"{getattr(config, other)}: drop one of them"
                )


@dataclass
class TaskFlags:
    """The model and the problems, as train.py and evaluate.py both take them."""

    _argument_group_name = "task"

    model: str = flag("", "Hugging Face folder or hub id")
    problem_column: str = flag("problem", "column of the problem, in a set not known by name")
    answer_column: str = flag("answer", "column of the answer, in a set not known by name")
    prompt_template: str = flag(
        "",
        "prompt with {problem} in it, \\n for a line break; "
        "default: the chat template with the instruction",
    )
    max_prompt_tokens: AtLeastOne = flag(2048, "longer prompts are dropped, tokens")
    code_sandbox: str = flag(
        "strict",
        "walls around programs: namespaces, or Landlock in their place",
        choices=["strict", "landlock"],
    )


@dataclass
class SamplingFlags:
    """How responses are drawn."""

    _argument_group_name = "sampling"

    temperature: Positive = flag(1.0, "of sampling, and in training of log-probabilities")
    max_new_tokens: AtLeastOne = flag(20480, "longest response, tokens")
    seed: Seed = flag(0, "of sampling and data order")
