"""toy/measure.py: a base's accuracy before training; toy/presets.py: training presets."""

import math
from types import SimpleNamespace

import pytest
import torch

import toy
import toy.measure
from toy.measure import measured
from toy.presets import TOYS, listed
from toy.task import is_right
from toy.tokenizer import VOCABULARY

PROBLEMS = ["1+1=?", "1+2=?"]
TOKENIZER = toy.build_tokenizer()


class Scripted:
    """A model that answers 2 greedily. Its first sample answers 3 and ends; the others answer 2."""

    def __init__(self):
        self.samples = 0

    def generate(self, input_ids, do_sample, **_):
        digit = "2"
        if do_sample:
            digit = "3" if self.samples == 0 else "2"
            self.samples += 1
        ended = TOKENIZER(f"\\boxed{{{digit}}}<eos>").input_ids
        padded = TOKENIZER(f"\\boxed{{{digit}<eos><pad>").input_ids
        ids = torch.cat([input_ids, torch.tensor([ended, padded])], dim=1)
        if not do_sample:
            return ids

        # Every token has two equally likely values. Padding is not sampled: its logits are flat.
        logits = torch.full((4, 2, len(VOCABULARY)), -1e4)
        logits[..., :2] = 0.0
        logits[3, 1] = 0.0
        return SimpleNamespace(sequences=ids, logits=tuple(logits))


def test_measurements_match_a_hand_calculation():
    columns = measured(Scripted(), TOKENIZER, PROBLEMS, is_right)

    assert columns == {
        "tokens": 3.5,  # four, and three followed by padding
        "accuracy": 0.5,  # one of the two answers is right, whatever the digit
        "greedy": 0.5,
        "pass@16": 1.0,
        "entropy": pytest.approx(math.log(2)),
    }


def test_learning_and_sharpening_bases_measure_differently():
    problems = [p["problem"] for p in toy.problems(96, seed=1)]
    torch.manual_seed(0)

    sharpen = measured(*toy.base_model(noise=0.2, regime="sharpen"), problems, is_right)
    learn = measured(*toy.base_model(noise=0.1, regime="learn"), problems, is_right)

    # Measured on 512 problems: 0.43 and 1.00, 0.29 and 0.22.
    assert 0.3 < sharpen["accuracy"] < 0.6
    assert sharpen["greedy"] > 0.97
    assert learn["accuracy"] < 0.45
    assert learn["greedy"] < 0.45
    # For nearly every problem, some samples are right.
    assert learn["pass@16"] > 0.85


def test_measure_prints_a_line_for_a_base(capsys, monkeypatch):
    monkeypatch.setattr(toy.measure, "measured", lambda *_: {"tokens": 40.0, "accuracy": 0.25})

    toy.measure.main(["k5-noise0.2-filler1-seed0"])

    assert (
        capsys.readouterr().out.splitlines()[-1] == "| `k5-noise0.2-filler1-seed0` | 40 | 0.250 |"
    )


def test_measure_refuses_an_unknown_name(capsys):
    with pytest.raises(SystemExit):
        toy.measure.main(["k5"])

    assert "unknown base k5" in capsys.readouterr().err


def test_presets_of_programs_differ_from_those_of_chains_in_a_few_values():
    same = {name for name in TOYS["toy"] if TOYS["toy"][name] == TOYS["toy-code"][name]}

    assert TOYS["toy"].keys() == TOYS["toy-code"].keys()
    assert {"prompts", "group_size", "mini_batch", "eval_every"} <= same
    assert not same & {"data", "eval_data", "max_new_tokens"}


def test_listed_shows_flags_and_values():
    assert listed({"steps": 120, "recompute": False}) == "steps 120, recompute False"
