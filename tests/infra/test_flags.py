"""Tests infra/flags.py: the flags on a command line, and their limits."""

import subprocess
import sys
from dataclasses import dataclass

import pytest
from conftest import ROOT

from benchmarks.__main__ import main as benchmarks
from config import GROUPS, METHODS, Config, parse_config
from infra.errors import UserError
from infra.flags import Parser, flag
from methods import DAPO_CLIP


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
        ("--whole 0", "--whole: 0 must be at least 1 ("),
        ("--part 0", "--part: 0 must be above 0 ("),
        ("--above nan", "--above: nan must be finite ("),
        ("--above 1e-38", "--above: 1e-38 is too small or too large for float32 ("),
        ("--above 1e308", "--above: 1e308 is too small or too large for float32 ("),
        ("--share 2", "--share: 2 must be at most 1 ("),
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


@pytest.mark.parametrize(
    "typed, meant",
    [
        ("--learning-rate", ": did you mean --lr?"),
        ("--micro-batch", ": did you mean --micro-batch-tokens?"),
        ("--micro-batch=4", ": did you mean --micro-batch-tokens?"),
        ("--max_new_tokens", ": did you mean --max-new-tokens?"),
        ("--outptu-dir", ": did you mean --output-dir?"),
        ("--zzz", ""),
    ],
)
def test_a_flag_that_is_not_known_is_answered_by_one_that_is(typed, meant):
    with pytest.raises(UserError) as error:
        parse_config([typed, "4"])
    assert f"{typed} 4{meant} (python train.py --help" in str(error.value)


def test_the_help_shows_the_toys_defaults_beside_the_papers_in_groups(capsys):
    with pytest.raises(SystemExit):
        parse_config(["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "Example: python train.py --model FOLDER --data gsm8k" in shown
    assert "(released): those of its code" in shown and "(ours): neither" in shown
    assert "learning rate, constant (default: 1e-06; toy: 0.0001)" in shown
    assert "(default: 220; toy: 160)" in shown and "backward pass (ours) (toy: False)" in shown
    headings = [shown.index(f"{heading}: --") for heading in GROUPS.values()]
    assert headings == sorted(headings)
    assert f"ratio clip (gspo: 3e-4) (default: {DAPO_CLIP[0]})" in shown


def test_the_clip_range_stands_in_one_place():
    assert (Config.clip_low, Config.clip_high) == METHODS["delta"].clip_range == DAPO_CLIP
    code = (
        "import methods; methods.DAPO_CLIP = (0.1, 0.4)\nimport config; config.parse_config(['-h'])"
    )
    shown = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert "(default: 0.1)" in shown.stdout and "(default: 0.4)" in shown.stdout


@pytest.mark.parametrize(
    "name, flags",
    [("plan", "--gpu-gb"), ("speed", "--peers"), ("gain", "--batches"), ("compare", "--rates")],
)
def test_each_benchmark_lists_its_flags(name, flags, capsys):
    with pytest.raises(SystemExit) as ended:
        benchmarks([name, "--help"])
    assert ended.value.code == 0 and flags in capsys.readouterr().out
