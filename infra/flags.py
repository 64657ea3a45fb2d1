"""Command-line flags as dataclass fields: name, type, default, help and limits on one line.

    steps: int = flag(220, "rollout batches", low=1)

defines the flag `--steps`, which refuses 0. train.py, methods.py, ablations.py and evaluate.py have
such fields.
"""

import math
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser, ArgumentTypeError
from dataclasses import Field, field, fields
from functools import partial

from infra.errors import UserError


def flag(default, help: str, choices: list[str] | None = None, **metadata):
    """A dataclass field that is also a command-line flag.

    metadata: low and high, the smallest and the largest allowed value; above, an exclusive lower
    limit; of, the method that uses the flag, while other methods refuse it; free, whether the flag
    may change when a run resumes.
    """
    return field(default=default, metadata={"help": help, "choices": choices, **metadata})


def spelled(name: str) -> str:
    """A field's name as the flag that a user types: `max_new_tokens` is `--max-new-tokens`."""
    return "--" + name.replace("_", "-")


def value_of(each: Field, text: str):
    """The value of a flag, from its text. Raises ArgumentTypeError if it is not allowed."""
    if each.type is str:
        return text
    try:
        words = {"true": True, "false": False}
        value = words[text.lower()] if each.type is bool else each.type(text)
    except (KeyError, ValueError):
        raise ArgumentTypeError(f"{text} is not of type {each.type.__name__}") from None
    low, high = each.metadata.get("low", -math.inf), each.metadata.get("high", math.inf)
    above = each.metadata.get("above", -math.inf)
    if not (low <= value <= high and value > above and math.isfinite(value)):
        least = f"above {above:g}" if "above" in each.metadata else f"at least {low:g}"
        raise ArgumentTypeError(f"{text} must be {least} and at most {high:g}")
    return value


class Parser(ArgumentParser):
    """argparse for a dataclass. An invalid flag raises a UserError, and prints no usage."""

    def __init__(self, config: type, prog: str, description: str, epilog: str = ""):
        lines = partial(ArgumentDefaultsHelpFormatter, max_help_position=28, width=170)
        super().__init__(
            prog, f"{prog} [flags]", description, epilog, formatter_class=lines, allow_abbrev=False
        )
        for each in fields(config):
            choices = each.metadata["choices"]
            of = f"{each.metadata['of']}: " if "of" in each.metadata else ""
            self.add_argument(
                spelled(each.name),
                type=partial(value_of, each),
                default=each.default,
                choices=choices,
                help=of + each.metadata["help"] + (f": {', '.join(choices)}" if choices else ""),
                metavar="",
                **({"nargs": "?", "const": True} if each.type is bool else {}),
            )

    def error(self, message):
        raise UserError(f"{message} (python {self.prog} --help lists the flags)")


def changed(config, name: str) -> bool:
    """Whether a flag differs from its default."""
    return getattr(config, name) != getattr(type(config), name)


def of_other_methods(config, method: str) -> list[str]:
    """The flags in a Config that only methods other than `method` use."""
    return [each.name for each in fields(config) if each.metadata.get("of", method) != method]


def listed(defaults: dict) -> str:
    """Flags and their values as `--help` shows them, such as `steps 160, prompts 16`."""
    return ", ".join(f"{name} {value}" for name, value in defaults.items())


def refuse_useless(config, table: list[tuple]) -> None:
    """Raise UserError for a flag that was changed although it does nothing.

    Other methods' flags do nothing. table: (flags, another flag, its values): with one of these
    values the flags do nothing either.
    """
    useless = [(of_other_methods(config, config.method), "method", [config.method]), *table]
    for names, other, values in useless:
        value = getattr(config, other)
        for name in names:
            if value in values and changed(config, name):
                raise UserError(f"{spelled(name)} does nothing with {spelled(other)} {value}")
