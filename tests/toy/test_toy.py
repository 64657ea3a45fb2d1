"""Tests toy/: the task, its tokenizer, the decisive tokens, and the base models."""

import re

import pytest
import torch

import toy


def test_chain_works_left_to_right_mod_10():
    assert toy.chain("7*6+1-4=?") == [2, 3, 9]
    for p in toy.problems(50, seed=3, k=4):
        first, *rest = re.findall(r"[-+*]?\d", p["problem"])
        # Reducing mod 10 at the end, not after each step, gives the same digit.
        assert p["answer"] == str(eval("(" * 4 + first + ")".join(rest) + ")") % 10)


def test_problems_are_the_same_on_every_machine():
    first, second, _ = toy.problems(3)
    assert first == {"problem": "6*3-8-5-3*4=?", "answer": "8"}
    assert second == {"problem": "3+3+3*1*7-6=?", "answer": "7"}


DECISIVE = [  # (problem, response, the response's decisive tokens)
    # Every result of a right response.
    ("7*6+1=?", "7*6=2\n2+1=3\nanswer \\boxed{3}<eos>", [(4, "2"), (10, "3")]),
    # The first result is wrong, but `*0` undoes the error; then 0+9 is wrong.
    ("7+6*0+9=?", "7+6=4\n4*0=0\n0+9=8\nanswer \\boxed{8}<eos>", [(16, "8")]),
    # The same response, cut off before it errs again: no earlier error matters.
    ("7+6*0+9=?", "7+6=4\n4*0=0\n0+", []),
    # The product is wrong, and no later step undoes the error.
    ("7+6*0+9=?", "7+6=4\n4*0=3\n3+9=2\nanswer \\boxed{2}<eos>", [(10, "3")]),
    # Only the box is wrong.
    ("7*6+1-4=?", "7*6=2\n2+1=3\n3-4=9\nanswer \\boxed{8}<eos>", [(20, "8")]),
]


@pytest.mark.parametrize("problem, response, expected", DECISIVE)
def test_decisive_marks_right_results_or_the_error_that_was_not_undone(problem, response, expected):
    ids = toy.build_tokenizer()(response).input_ids
    mark = toy.decisive(problem, torch.tensor(ids))
    assert [(i, toy.VOCABULARY[ids[i]]) for i in mark.nonzero().flatten().tolist()] == expected


@pytest.mark.parametrize("regime", ["learn", "sharpen"])
def test_committed_base_loads_in_float32(regime):
    model, tokenizer = toy.base_model(regime)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert not model.training
    assert len(tokenizer) == len(toy.VOCABULARY) == model.config.vocab_size
    assert tokenizer.decode(tokenizer("Now 1+2=3\n").input_ids) == "Now 1+2=3\n"
    assert tokenizer.eos_token_id == model.generation_config.eos_token_id == toy.TOKEN_ID["<eos>"]
