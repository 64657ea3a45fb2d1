"""Command-line flags as dataclass fields: name, type, default, help and limits on one line.

    steps: int = flag(220, "rollout batches", low=1)

defines the flag `--steps`, and `check_limits` refuses `--steps 0`. Each dataclass is a group in
`--help`, titled by its `heading`. A program's Config inherits from its groups.
"""

import math
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser, ArgumentTypeError
from dataclasses import dataclass, field, fields

from infra.errors import UserError


def flag(
    default,
    help: str,
    choices: list[str] | None = None,
    low: float | None = None,
    high: float = math.inf,
    above: float | None = None,
    of: str = "",
):
    """A dataclass field that is also a command-line flag; `--help` lists its choices.

    low, high: the smallest and the largest allowed value. above: an exclusive lower limit.
    of: the method that uses the flag; other methods refuse it.
    """
    if of:
        help = f"{of}: {help}"
    metadata = {
        "help": help,
        "choices": choices,
        "low": low,
        "high": high,
        "above": above,
        "of": of,
    }
    return field(default=default, metadata=metadata)


def spelled(name: str) -> str:
    """A field's name as the flag that a user types: `max_new_tokens` is `--max-new-tokens`."""
    return "--" + name.replace("_", "-")


class OneLineEach(ArgumentDefaultsHelpFormatter):
    """`--help` with one line per flag: its help text and its default."""

    def __init__(self, prog):
        super().__init__(prog, max_help_position=28, width=170)

    def _format_action_invocation(self, action):
        return action.option_strings[-1]

    def _get_help_string(self, action):
        if action.choices:
            return f"{action.help}: {', '.join(action.choices)} (default: %(default)s)"
        if action.default == "" or action.default is False:
            return action.help  # the help names the default, or the flag is a switch that is off
        return super()._get_help_string(action)


class Parser(ArgumentParser):
    """argparse for dataclasses. An invalid flag prints one line instead of the usage."""

    def __init__(self, groups: list[type], prog: str, description: str, epilog: str = ""):
        super().__init__(
            prog=prog,
            usage=f"{prog} [flags]",
            description=description,
            epilog=epilog,
            allow_abbrev=False,
            formatter_class=OneLineEach,
        )
        for group in groups:
            section = self.add_argument_group(group.heading)
            for each in fields(group):
                switch = each.type is bool  # --name, --name True or --name False
                section.add_argument(
                    spelled(each.name),
                    type=truth if switch else each.type,
                    nargs="?" if switch else None,
                    const=True if switch else None,
                    default=each.default,
                    choices=each.metadata["choices"],
                    help=each.metadata["help"],
                )

    def error(self, message):
        raise UserError(f"{message} (python {self.prog} --help lists the flags)")


def truth(word: str) -> bool:
    """The value of a switch, from the text True or False."""
    values = {"true": True, "false": False}
    if word.lower() not in values:
        raise ArgumentTypeError(f"{word!r} is not True or False")
    return values[word.lower()]


def check_limits(config) -> None:
    """Raise UserError for a flag outside its limits, or a number that is not finite."""
    for each in fields(config):
        value = getattr(config, each.name)
        if isinstance(value, bool | str):
            continue
        low, high, above = (each.metadata[name] for name in ("low", "high", "above"))
        high_enough = value > above if low is None else value >= low
        if high_enough and value <= high and math.isfinite(value):
            continue
        wanted = f"above {above:g}" if low is None else f"at least {low:g}"
        if high < math.inf:
            wanted += f" and at most {high:g}"
        raise UserError(f"{spelled(each.name)} is {value}: it must be {wanted}")


def changed(config, name: str) -> bool:
    """Whether a flag differs from its default."""
    return getattr(config, name) != getattr(type(config), name)


def of_other_methods(config, method: str) -> list[str]:
    """The flags in a Config that only methods other than `method` use."""
    return [each.name for each in fields(config) if each.metadata["of"] not in ("", method)]


def refuse_useless(config, table=()) -> None:
    """Raise UserError for a flag that was set but has no effect, such as another method's flag.

    table: rows of (flags, another flag, values of that flag for which the flags do nothing).
    """
    useless = [(name, "method") for name in of_other_methods(config, config.method)]
    for names, other, values in table:
        if getattr(config, other) in values:
            useless += [(name, other) for name in names]

    for name, other in useless:
        if changed(config, name):
            raise UserError(
                f"{spelled(name)} does nothing with {spelled(other)} "
                f"{getattr(config, other)}: drop one of them"
            )


@dataclass
class TaskFlags:
    """The model and the problems, for train.py and evaluate.py."""

    heading = "task"

    model: str = flag("", "Hugging Face folder or hub id")
    problem_column: str = flag("problem", "problem column, for a set without a known name")
    answer_column: str = flag("answer", "answer column, for a set without a known name")
    prompt_template: str = flag(
        "",
        "a prompt that contains {problem}; \\n is a line break; "
        "default: the chat template with the instruction",
    )
    max_prompt_tokens: int = flag(2048, "longest prompt, tokens; train.py drops longer ones", low=1)
    code_sandbox: str = flag(
        "strict",
        "how programs are isolated: with namespaces or with Landlock",
        choices=["strict", "landlock"],
    )


@dataclass
class SamplingFlags:
    """How responses are sampled."""

    heading = "sampling"

    temperature: float = flag(1.0, "for sampling and, in training, for log-probabilities", above=0)
    max_new_tokens: int = flag(20480, "longest response, tokens", low=1)
    seed: int = flag(
        0, "seed for sampling and data order", low=0, high=10**12
    )  # its product with SEED_STRIDE fits in 64 bits
