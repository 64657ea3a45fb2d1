"""Tests --stop: a response ends with the token that completes a text."""

import json

import numpy as np
import pytest
import torch
from models import byte_tokenizer, random_lm
from toy_runs import read_lines, refusal, train_small

import evaluate
import toy
import train
from infra import sampler
from infra.sampler import Running
from infra.tokens import stop_finder, stop_texts, text_decoder
from rollout import Response, Sampling, generate_all, rollout


@pytest.mark.parametrize(
    "flag, texts",
    [
        ("", ()),
        (r"\n\n", ("\n\n",)),
        ("Q:", ("Q:",)),
        (r'["\n\n", "Q:"]', ("\n\n", "Q:")),
    ],
)
def test_stop_is_a_text_or_a_list(flag, texts):
    assert stop_texts(flag) == texts


@pytest.mark.parametrize("flag", ["[/INST]", '["Q:"', '["Q:", ""]', "[7]", "[]"])
@pytest.mark.parametrize("program", [train, evaluate])
def test_what_begins_like_a_list_must_be_one(flag, program, capsys):
    said = refusal(program.main, ["--model", "toy", "--stop", flag], capsys)
    assert f"--stop {flag} is not a JSON list of texts, such as" in said


def test_a_stop_text_ends_where_its_last_token_does():
    """This holds even if the first tokens of the stop text came with an earlier chunk."""
    tokenizer = byte_tokenizer()

    def ids(text):
        return torch.tensor(tokenizer(text).input_ids)

    at_stop = stop_finder(tokenizer, ("\n\n", "Q:"))
    assert at_stop(ids("one\n"), ids("\ntwo")) == 1
    assert at_stop(ids("one"), ids("two Q: \n\n")) == 6
    assert at_stop(ids("é" * 40 + "\n"), ids("é\n\n")) == 4
    assert at_stop(ids("one\n"), ids("two\nthree Q")) == 0
    text = text_decoder(tokenizer, ("\n\n", "Q:"))
    assert text([], ids("one Q: two\n\n")) == "one "
    assert text([], ids("one\n")) == "one\n"


STOP = ("*", "=8")  # the first is one token, the second two


@pytest.fixture(scope="module")
def sampled() -> tuple[list[Response], list[Response]]:
    """Responses to the same draws, without and with STOP."""
    lm, tokenizer = toy.base_model()
    prompts = tokenizer([each["problem"] for each in toy.problems(12)]).input_ids
    keys = [(0, 1, i, 0) for i in range(len(prompts))]
    return tuple(
        rollout(lm, tokenizer, prompts, keys, max_new_tokens=40, stop=flag)
        for flag in ("", json.dumps(STOP))
    )


def test_the_tokens_up_to_the_stop_are_those_of_the_run_without(sampled):
    ended = 0
    for free, stopped in zip(*sampled, strict=True):
        count = len(stopped.tokens)
        assert np.array_equal(stopped.tokens, free.tokens[:count])
        np.testing.assert_allclose(stopped.sampler_logprob, free.sampler_logprob[:count], atol=1e-5)
        places = [free.text.index(each) for each in STOP if each in free.text]
        if places:
            ended += 1
            assert stopped.text == free.text[: min(places)]
            assert not stopped.truncated
            assert len(stopped.tokens) < len(free.tokens)
        else:
            assert stopped.text == free.text and stopped.truncated == free.truncated
    assert ended > 0


def test_chunks_do_not_change_where_a_response_stops(sampled, monkeypatch):
    monkeypatch.setattr(sampler, "CHUNK", 3)
    lm, tokenizer = toy.base_model()
    prompts = [each.prompt for each in sampled[1]]
    keys = [(0, 1, i, 0) for i in range(len(prompts))]
    again = rollout(lm, tokenizer, prompts, keys, max_new_tokens=40, stop=json.dumps(STOP))
    assert [each.text for each in again] == [each.text for each in sampled[1]]


def test_weights_and_lengths_count_the_token_that_completes_the_stop(tmp_path):
    metrics = train_small(tmp_path, "--stop", '["*", "+"]', "--samples", "32", steps=1)
    found = read_lines(tmp_path / "samples.jsonl")
    assert len(found) == 32  # the file has all responses
    stopped = [each for each in found if each["tokens"][-1] in "*+"]
    assert stopped
    for each in stopped:
        assert len(each["lambda"]) == len(each["logprob"]) == len(each["tokens"])
        assert each["response"] == "".join(each["tokens"][:-1])
        assert not {"*", "+"} & {*each["tokens"][:-1]} and not each["truncated"]
    lengths = [len(each["tokens"]) for each in found]
    assert metrics[0]["response_length"] == pytest.approx(sum(lengths) / 32)


@pytest.mark.parametrize("kind", ["gpt2", "opt"])
def test_a_response_at_its_limit_leaves_before_its_positions_end(kind):
    """Learned positions are limited. The second response goes on, as one that came later would."""
    lm = random_lm(kind, max_position_embeddings=24, n_positions=24)
    first, second = (
        Running(list(range(3, 3 + length)), np.random.default_rng(length)) for length in (16, 1)
    )
    first.append(torch.arange(3, 9), torch.zeros(6), [], 8)
    generate_all(lm, [first, second], [], Sampling(8))
    assert [each.count_new for each in (first, second)] == [8, 8]
