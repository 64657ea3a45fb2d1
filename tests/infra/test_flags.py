"""Tests infra/flags.py: the flags on a command line, and their limits."""

from dataclasses import dataclass

import pytest

from infra.errors import UserError
from infra.flags import Parser, flag


@dataclass
class Example:
    method: str = flag("dapo", "a choice", choices=["dapo", "delta"])
    whole: int = flag(1, "a whole number", low=1)
    above: float = flag(1.0, "above 0 %", above=0)
    share: float = flag(0.5, "from 0 to 1", low=0, high=1)
    part: float = flag(0.5, "above 0, up to 1", above=0, high=1)
    text: str = flag("", "any text")
    off: bool = flag(False, "a switch")
    on: bool = flag(True, "another switch")


def parse(*argv):
    parser = Parser(Example, "example.py", "An example.")
    return Example(**vars(parser.parse_args(argv)))


def test_parser_reads_every_flag_exactly_as_spelled():
    words = "--whole 5 --share 0 --part 1 --above 1e-6 --text=-x --off --on False --method delta"
    expected = Example("delta", 5, 1e-6, 0.0, 1.0, "-x", off=True, on=False)
    assert parse(*words.split()) == expected
    assert parse("--off", "False", "--on", "true") == parse() == Example()


@pytest.mark.parametrize(
    "argv, message",
    [
        ("--whole 0", "--whole: 0 must be finite, at least 1 ("),
        ("--part 0", "--part: 0 must be finite, above 0 and at most 1 ("),
        ("--above nan", "--above: nan must be finite, above 0 ("),
        ("--above 1e-38", "--above: 1e-38 is too small or too large for float32 ("),
        ("--above 1e308", "--above: 1e308 is too small or too large for float32 ("),
        ("--on 1", "--on: 1 is not of type bool"),
        ("--method ppo", "--method: invalid choice: 'ppo'"),
        ("--who 1", "unrecognized arguments: --who 1"),  # not an abbreviation of --whole
    ],
)
def test_parser_refuses_an_invalid_flag_in_one_line(argv, message):
    with pytest.raises(UserError) as error:
        parse(*argv.split())
    assert message in str(error.value)
    assert str(error.value).endswith(" (python example.py --help lists the flags)")
    assert "\n" not in str(error.value)
