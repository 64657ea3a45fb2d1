"""Without this file each flag would stand in four places, and not in one line of a dataclass.

For example, this line has a name, type, default, help and limit. It defines `--steps`, which
refuses 0:

    steps: int = flag(220, "rollout batches", low=1)

config.py and evaluate.py have such fields.
"""

import importlib
import importlib.util
import math
import re
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError, HelpFormatter
from collections.abc import Callable, Collection
from dataclasses import Field, field, fields
from difflib import get_close_matches
from functools import cache, partial
from pathlib import Path

from infra.errors import UserError, first_line


def flag(
    default,
    help: str,
    choices: Collection[str] | None = None,
    *,
    low: float = -math.inf,
    above: float = -math.inf,
    high: float = math.inf,
    method: str | None = None,
    free: bool = False,
):
    """A dataclass field that is also a command-line flag.

    low, high: the smallest and the largest allowed value. above: an exclusive lower limit.
    method: the method that uses the flag, while other methods refuse it; None: all use it.
    free: whether the flag may change when a run resumes.
    """
    limits = {"low": low, "above": above, "high": high}
    more = {"help": help, "choices": choices, "method": method, "free": free}
    return field(default=default, metadata=limits | more)


def spelled(name: str) -> str:
    """A field's name as the flag that a user types: `max_new_tokens` is `--max-new-tokens`."""
    return "--" + name.replace("_", "-")


def value_of(option: Field, text: str):
    """The value of a flag, from its text. Raises ArgumentTypeError if it is not allowed."""
    if option.type is str:
        return text
    try:
        words = {"true": True, "false": False}
        value = words[text.lower()] if option.type is bool else option.type(text)
    except (KeyError, ValueError):
        raise ArgumentTypeError(f"{text} is not of type {option.type.__name__}") from None

    low, above, high = (option.metadata[limit] for limit in ("low", "above", "high"))
    limit = f"above {above:g}" if above > -math.inf else f"at least {low:g}"
    if not math.isfinite(value):
        limit = "finite"
    elif value > high:
        limit = f"at most {high:g}"
    elif low <= value and above < value:
        limit = ""
    if limit:
        raise ArgumentTypeError(f"{text} must be {limit}")
    if option.type is float and value and not 1e-30 <= abs(value) <= 1e30:
        raise ArgumentTypeError(f"{text} is too small or too large for float32")
    return value


class Parser(ArgumentParser):
    """argparse for a dataclass, which returns the given flags only. Raises UserError.

    names: the fields that are flags; None: all. groups: the first field below a heading -> the
    heading. toy: the defaults with --model toy, which the help shows beside the others.
    """

    def __init__(self, config: type, prog: str, description: str, names=None, groups=(), toy=()):
        lines = partial(HelpFormatter, max_help_position=30, width=180)  # one line for each flag
        super().__init__(
            prog, f"{prog} [flags]", description, formatter_class=lines, allow_abbrev=False
        )
        place = self
        for option in fields(config):
            if option.name in groups:
                place = self.add_argument_group(groups[option.name])
            if names and option.name not in names:
                continue
            help, choices = option.metadata["help"], option.metadata["choices"]
            if option.metadata["method"]:
                help = f"{option.metadata['method']}: {help}"
            if choices:
                help += f": {', '.join(choices)}"
            value = {"metavar": ""}
            if option.type is bool:  # a switch is --name, --name True or --name False
                value = {"nargs": "?", "const": True, "metavar": not option.default}
            default = "" if option.type is bool else option.default
            shown = [f"default: {default}"] if default != "" else []
            if option.name in toy:
                shown.append(f"toy: {toy[option.name]}")
            if shown:
                help += f" ({'; '.join(shown)})"
            place.add_argument(
                spelled(option.name),
                type=partial(value_of, option),
                default=SUPPRESS,
                choices=choices,
                help=help.replace("%", "%%"),  # argparse formats it with %
                **value,
            )

    def error(self, message):
        unknown = re.search("unrecognized arguments: (--[^ =]+)", message)
        if unknown:
            message += self.alike(unknown[1])
        raise UserError(f"{message} (python {self.prog} --help lists the flags)")

    def alike(self, typed: str) -> str:
        """A question that names --lr for --learning-rate, which are words of its help; or ""."""
        words = re.compile(rf"\b{re.escape(typed.strip('-'))}\b".replace("\\-", "[- ]"))
        known = {each.option_strings[-1]: each.help for each in self._actions}
        found = [
            name for name, help in known.items() if name.startswith(typed) or words.search(help)
        ]
        found = found or get_close_matches(typed, known, n=1)
        return f": did you mean {' or '.join(found[:2])}?" if found else ""


def flags_of_methods(config) -> dict[str, str]:
    """Flag -> the only method that uses it."""
    return {x.name: x.metadata["method"] for x in fields(config) if x.metadata["method"]}


def of_other_methods(config, method: str) -> list[str]:
    """The flags in a Config that only methods other than `method` use."""
    return [name for name, user in flags_of_methods(config).items() if user != method]


def defining_flags(config) -> dict:
    """The flags in a Config that a run's results depend on, with their values."""
    defining = [option.name for option in fields(config) if not option.metadata["free"]]
    left_out = of_other_methods(config, config.method)
    return {name: getattr(config, name) for name in defining if name not in left_out}


@cache
def module_of(name: str, text: str):
    """The module that the flag `name` names: a FILE.py, or a module's name. Raises UserError."""
    try:
        if not text.endswith(".py"):
            return importlib.import_module(text)
        spec = importlib.util.spec_from_file_location(Path(text).stem, text)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    except Exception as error:
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise UserError(f"{spelled(name)} {text} cannot be imported ({reason})") from error


def function_of(name: str, text: str) -> Callable:
    """The function FILE.py:FUNCTION that the flag `name` names. Raises UserError."""
    place, _, function = text.rpartition(":")
    found = getattr(module_of(name, place), function, None) if place else None
    if not callable(found):
        raise UserError(
            f"{spelled(name)} {text}: there is no such function: write FILE.py:FUNCTION"
        )
    return found
