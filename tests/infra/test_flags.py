"""infra/flags.py: limits, one line per flag in --help, and other methods' flags."""

import math
import re
from dataclasses import dataclass, fields

import pytest

import evaluate
import train
from infra.errors import UserError
from infra.flags import Parser, check_limits, flag, refuse_useless, spelled


@dataclass
class Example:
    heading = "example"

    method: str = flag("dapo", "a choice", choices=["dapo", "delta"])
    two_or_more: int = flag(2, "two or more", low=2)
    one_or_more: int = flag(1, "one or more", low=1)
    whole: int = flag(0, "a whole number", low=0)
    number: float = flag(0.0, "not negative", low=0)
    above: float = flag(1.0, "above 0", above=0)
    share: float = flag(0.5, "from 0 to 1", low=0, high=1)
    part: float = flag(0.5, "above 0, up to 1", above=0, high=1)
    switch: bool = flag(False, "a switch")
    lam: float = flag(0.8, "a number", low=0, of="delta")


def parse(*argv):
    parser = Parser([Example], prog="example.py", description="An example.")
    return Example(**vars(parser.parse_args(argv)))


# ---- limits ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, allowed, refused, message",
    [
        ("two_or_more", 2, 1, "at least 2"),
        ("one_or_more", 1, 0, "at least 1"),
        ("whole", 0, -1, "at least 0"),
        ("number", 0.0, -0.1, "at least 0"),
        ("above", 1e-6, 0.0, "above 0"),
        ("share", 0.0, -0.1, "at least 0 and at most 1"),
        ("share", 1.0, 1.1, "at least 0 and at most 1"),
        ("part", 1.0, 1.1, "above 0 and at most 1"),
        ("part", 0.01, 0.0, "above 0 and at most 1"),
    ],
)
def test_check_limits_names_the_allowed_range(name, allowed, refused, message):
    check_limits(Example(**{name: allowed}))
    with pytest.raises(UserError) as error:
        check_limits(Example(**{name: refused}))
    assert str(error.value) == f"{spelled(name)} is {refused}: it must be {message}"


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["number", "above", "share", "part"])
def test_check_limits_refuses_numbers_that_are_not_finite(name, bad):
    with pytest.raises(UserError, match=f"--{name} is {bad}"):
        check_limits(Example(**{name: bad}))


def test_check_limits_ignores_strings_and_switches():
    check_limits(Example(method="", switch=True))


# ---- the command line --------------------------------------------------------------------------


def test_parser_reads_every_flag_exactly_as_spelled():
    parsed = parse("--two-or-more", "5", "--share", "0.25", "--switch", "--method", "delta")
    assert parsed == Example(two_or_more=5, share=0.25, switch=True, method="delta")
    assert parse() == Example()


@pytest.mark.parametrize(
    "argv, message",
    [
        (["--unknown", "1"], "--unknown"),
        (["--one", "1"], "--one"),  # not an abbreviation of --one-or-more
        (["--share", "half"], "--share"),
        (["--whole", "1.5"], "--whole"),
        (["--method", "ppo"], "--method"),
        (["--share"], "--share"),
    ],
)
def test_parser_refuses_an_invalid_flag_with_a_one_line_error(argv, message):
    with pytest.raises(UserError) as error:
        parse(*argv)
    assert message in str(error.value)
    assert "python example.py --help lists the flags" in str(error.value)
    assert "\n" not in str(error.value)


def test_refuse_useless_refuses_flags_without_effect():
    table = [(("whole", "share"), "method", ["dapo"])]
    refuse_useless(Example(number=3.0), table)
    refuse_useless(Example(share=0.7, method="delta"), table)
    with pytest.raises(UserError) as error:
        refuse_useless(Example(share=0.7), table)
    assert str(error.value) == "--share does nothing with --method dapo: drop one of them"


def test_refuse_useless_refuses_another_methods_flag():
    refuse_useless(Example(lam=0.7, method="delta"))
    refuse_useless(Example(method="dapo"))
    with pytest.raises(UserError) as error:
        refuse_useless(Example(lam=0.7))
    assert str(error.value) == "--lam does nothing with --method dapo: drop one of them"


# ---- --help ------------------------------------------------------------------------------------


def help_groups(main, capsys):
    """{group: its lines} of `--help`, without the text below the groups."""
    with pytest.raises(SystemExit) as stopped:
        main(["--help"])
    assert stopped.value.code == 0
    groups = {}
    for block in capsys.readouterr().out.split("\n\n"):
        heading, *lines = block.splitlines()
        if lines and heading.endswith(":") and not heading.startswith(" "):
            groups[heading.removesuffix(":")] = lines
    return groups


def test_help_of_train_has_the_groups_in_reading_order(capsys):
    assert list(help_groups(train.main, capsys)) == [
        "options",
        "method",
        "run",
        "task",
        "sampling",
        "optimisation",
        "memory",
        "evaluation",
        "toy",
    ]


@pytest.mark.parametrize("program", [train, evaluate], ids=["train", "evaluate"])
def test_help_lists_each_flag_once_on_one_line(program, capsys):
    groups = help_groups(program.main, capsys)
    lines = [line for group in groups.values() for line in group]
    shown = []
    for line in lines:
        found = re.fullmatch(r"  (--[\w-]+) +\S.*", line)
        assert found, f"not one flag with its help on one line: {line!r}"
        shown.append(found[1])

    expected = ["--help", *(spelled(each.name) for each in fields(program.Config))]
    assert sorted(shown) == sorted(expected)


@pytest.mark.parametrize("program", [train, evaluate], ids=["train", "evaluate"])
def test_help_gives_the_default_for_each_number(program, capsys):
    groups = help_groups(program.main, capsys)
    text = "\n".join(line for group in groups.values() for line in group)
    for each in fields(program.Config):
        if type(each.default) in (int, float):
            line = rf"^  {spelled(each.name)} .*\(default: {re.escape(str(each.default))}\)$"
            assert re.search(line, text, re.MULTILINE), each.name


@pytest.mark.parametrize("seed, allowed", [(0, True), (10**12, True), (10**13, False)])
def test_a_seed_too_large_for_the_random_streams_is_refused(seed, allowed):
    if allowed:
        assert train.parse_config(["--seed", str(seed)]).seed == seed
        return
    with pytest.raises(UserError, match="--seed is"):
        train.parse_config(["--seed", str(seed)])
