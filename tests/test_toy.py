"""toy.py: the task, its tokenizer, its decisive tokens, and a base model of the same bytes for the same seed."""
import re

import numpy as np
import pytest
import torch

import toy
from verify import reward


def test_chain_works_left_to_right_mod_10():
    assert toy.chain("7*6+1-4=?") == [2, 3, 9]
    for p in toy.problems(50, seed=3, k=4):
        value = int(p["problem"][0])
        for operation, digit in re.findall(r"([-+*])(\d)", p["problem"]):
            value = {"+": value + int(digit), "-": value - int(digit), "*": value * int(digit)}[operation] % 10
        assert p["answer"] == str(value)


def test_problems_are_reproducible_and_of_k_operations():
    assert toy.problems(20, seed=1) == toy.problems(20, seed=1) != toy.problems(20, seed=2)
    assert all(len(p["problem"]) == 2 * 7 + 3 for p in toy.problems(5, k=7))


@pytest.mark.parametrize("filler", [0, 1, 4])
def test_tokenizer_round_trip(filler):
    tokenizer, rng = toy.build_tokenizer(), np.random.default_rng(0)
    for p in toy.problems(20):
        text = p["problem"] + toy.demonstration(p["problem"], rng, 0.5, filler)
        ids = tokenizer(text).input_ids
        assert tokenizer.decode(ids) == text and toy.TOKEN_ID["<unk>"] not in ids
        assert len(ids) == len(p["problem"]) + 5 * (filler + 6) + 1 + 3


def test_demonstrations_without_noise_are_right_and_noise_errs_as_often_as_it_says():
    rng = np.random.default_rng(0)
    problems = toy.problems(600, seed=2)
    assert all(reward(toy.demonstration(p["problem"], rng), p["answer"]) == 1.0 for p in problems)
    wrong = 0
    for p in problems:
        lines = toy.demonstration(p["problem"], rng, noise=0.3).splitlines()[:-1]
        wrong += sum(toy.chain(line.split()[-1].replace("=", "=?")[:5])[0] != int(line[-1]) for line in lines)
    assert abs(wrong / 3000 - 0.3 * 0.9) < 0.03  # a uniform digit is right by chance one time in ten


def marked(problem, response):
    tokens = toy.build_tokenizer()(response).input_ids
    return [(i, toy.VOCABULARY[tokens[i]]) for i in toy.decisive(problem, torch.tensor(tokens)).nonzero().flatten().tolist()]


def test_decisive_marks_every_result_of_a_right_response():
    assert marked("7*6+1-4=?", "So 7*6=2\nSo 2+1=3\nSo 3-4=9\nanswer \\boxed{9}<eos>") == [(5, "2"), (12, "3"), (19, "9")]


def test_decisive_marks_only_the_first_wrong_result():
    assert marked("7*6+1-4=?", "So 7*6=2\nSo 2+1=5\nSo 5-4=1\nanswer \\boxed{1}<eos>") == [(12, "5")]


def test_decisive_marks_the_box_where_only_it_is_wrong():
    assert marked("7*6+1-4=?", "7*6=2\n2+1=3\n3-4=9\nanswer \\boxed{8}<eos>") == [(20, "8")]


def test_decisive_is_empty_where_nothing_wrong_was_said():
    assert marked("7*6+1-4=?", "So 7*6=2\nSo 2+") == []


def test_base_model_is_the_same_bytes_for_the_same_seed(tmp_path, monkeypatch):
    few = toy.train_base
    monkeypatch.setattr(toy, "train_base", lambda *a: few(*a, steps=3, batch=8))
    state = torch.get_rng_state()
    for folder, seed in [("a", 0), ("b", 0), ("c", 1)]:
        toy.base_model(k=2, seed=seed, cache=tmp_path / folder)
    assert torch.equal(torch.get_rng_state(), state)  # building it or finding it built leaves a run's randomness alone
    a, b, c = (next((tmp_path / name).glob("toy-k2-*/model.safetensors")).read_bytes() for name in "abc")
    assert a == b != c
    monkeypatch.setattr(toy, "train_base", None)  # the second time it comes from the cache
    model, tokenizer = toy.base_model(k=2, cache=tmp_path / "a")
    assert tokenizer.decode(tokenizer("Now 1+2=3").input_ids) == "Now 1+2=3" and model.dtype == torch.float32


def test_base_model_size_and_vocabulary(base):
    model, tokenizer = base
    assert 1e5 <= sum(p.numel() for p in model.parameters()) <= 4e5 and len(tokenizer) == len(toy.VOCABULARY)


def test_base_model_knows_the_format_and_errs(base):
    from rollout import rollout
    model, tokenizer = base
    problems = toy.problems(256, seed=11)
    out = rollout(model, tokenizer, tokenizer([p["problem"] for p in problems]).input_ids, list(range(256)), 1, 64)
    right = np.mean([reward(text, p["answer"]) for text, p in zip(out.texts, problems)])
    assert 0.35 <= right <= 0.60 and np.mean(["\\boxed{" in text for text in out.texts]) > 0.97
