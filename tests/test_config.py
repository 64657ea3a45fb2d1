"""config.py: flags without effect."""

import pytest

import train
from config import METHODS, joined
from extensions import OTHER_METHODS
from infra.errors import UserError
from methods import PAPER_METHODS, Method


@pytest.mark.parametrize(
    "flags, message",
    [
        ("--proxy-topk 5", "--proxy-topk does nothing with --proxy lm_head"),
        ("--select-share 0.3", "--select-share does nothing with --select none"),
        ("--method sapo --clip-high 0.9", "--clip-high does nothing"),
        ("--method sapo --clip-low 0.1", "--clip-low does nothing"),
        ("--method dapo --proxy topk", "--proxy does nothing with --method dapo"),
        ("--model some/where --toy-k 3", "--toy-k does nothing with --model some/where"),
        ("--eval-data= --eval-samples 2", "--eval-samples does nothing with --eval-data ''"),
        ("--select random --K 2", "--K does nothing with --select random"),
        ("--select random --proxy scalar", "--proxy does nothing with --select random"),
        ("--select top --delta-variant hard", "--delta-variant does nothing with --select top"),
        ("--select bottom --lam-min 0", "--lam-min does nothing with --select bottom"),
        ("--delta-variant random --K 1", "--K does nothing with --delta-variant random"),
        ("--delta-variant no_range_map --lam-max 2", "--lam-max does nothing with --delta-variant"),
        ("--data gsm8k --eval-data= --answer-column x", "--answer-column does nothing with --data"),
    ],
)
def test_flags_without_effect_are_refused(flags, message):
    with pytest.raises(UserError, match=message):
        train.parse_config(flags.split())


@pytest.mark.parametrize("flags", ["--steps 1" + 18 * "0", "--group-size 1000000000"])
def test_numbers_too_large_for_memory_are_refused(flags):
    with pytest.raises(UserError, match="must be finite, at least . and at most 1"):
        train.parse_config(flags.split())


def test_an_extension_cannot_replace_a_method_of_the_paper():
    assert set(METHODS) == {*PAPER_METHODS, *OTHER_METHODS}
    with pytest.raises(ValueError, match="dapo"):
        joined(PAPER_METHODS, {"dapo": Method()})


def test_flags_of_the_toy_apply_to_its_problems_and_its_defaults_are_not_refused():
    of_data = ["--model", "some/where", "--data", "toy", "--toy-k", "3"]
    assert train.parse_config(of_data).toy_k == 3
    assert train.parse_config(["--eval-data", ""]).eval_samples == 1
    of_own = ["--eval-data", "mine.jsonl", "--answer-column", "x"]
    assert train.parse_config(of_own).answer_column == "x"
