"""Tests rollout.py: samples follow the model, whatever is sampled beside them.

test_architectures.py compares the log p of samples with plain forward passes. test_minimal.py shows
that seed, step, problem and sample select the random numbers.
"""

import itertools
from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from models import byte_tokenizer
from sampling import sampled
from transformers import GenerationConfig

import toy
from infra import sampler
from infra.sampler import ChunkDraws, Running
from rollout import Sampling, draw, generate_all, problems_of_step, token_distribution

END = toy.TOKEN_ID["<eos>"]


def prompts_of(tokenizer, *sets):
    """The token ids of toy problems, from sets given as (count, seed, k)."""
    problems = [problem for each in sets for problem in toy.problems(*each)]
    return tokenizer([problem["problem"] for problem in problems]).input_ids


def ids_of(rollouts):
    return [each.tokens.tolist() for each in rollouts]


def test_token_distribution_top_p_keeps_the_smallest_sufficient_set():
    logits = torch.tensor([[0.1, 0.5, 0.25, 0.15]]).log()
    cases = {0.4: [0, 1, 0, 0], 0.5: [0, 1, 0, 0], 0.6: [0, 2 / 3, 1 / 3, 0]}
    cases |= {0.8: [0, 5 / 9, 2.5 / 9, 1.5 / 9], 1.0: [0.1, 0.5, 0.25, 0.15]}
    for top_p, expected in cases.items():
        p = token_distribution(logits, 1.0, top_p)
        expected = torch.tensor([expected], dtype=torch.float64)
        torch.testing.assert_close(p, expected, rtol=1e-6, atol=1e-6)


def test_inverse_cdf_never_draws_an_impossible_token():
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf, 1.0, -torch.inf]])
    for u in (0.0, 0.2689, 0.2690, 0.5, 1 - 2**-53):
        token, _ = draw(Sampling(1), logits, torch.tensor([[u]], dtype=torch.float64))
        assert token.item() == (1 if u < 0.26894 else 3)  # σ(-1) = 0.26894


@pytest.mark.parametrize("top_p", [1.0, 0.7])
def test_tokens_are_drawn_in_blocks_of_rows_as_all_at_once(monkeypatch, top_p):
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(7, 5_000, generator=generator)
    uniforms = torch.rand(7, 1, generator=generator, dtype=torch.float64)
    found = []
    for block in (35_000, 15_000):  # all rows; blocks of 3, 2 and 2
        monkeypatch.setattr(sampler, "DRAW_BLOCK", block)
        one_block = Mock(wraps=partial(draw, Sampling(1, top_p=top_p)))
        draws = ChunkDraws(one_block, uniforms)
        chosen = draws(torch.zeros(7, 1, dtype=torch.long), logits.clone())
        assert [len(call.args[0]) for call in one_block.call_args_list] == (
            [7] if block > 3e4 else [3, 2, 2]
        )
        found.append((chosen, draws.logprob))
    (at_once, logprob), (in_blocks, of_blocks) = found
    assert torch.equal(at_once, in_blocks) and torch.equal(logprob, of_blocks)
    assert len(set(at_once.argmax(dim=1).tolist())) == 7  # tokens that a wrong row would change


def test_temperature_0_is_greedy_whatever_the_random_numbers(base):
    model, tokenizer = base
    prompts = prompts_of(tokenizer, (4, 3, 5))
    limits = {"max_new_tokens": 48, "temperature": 0, "top_p": 0.7, "in_flight": 3}
    out = sampled(model, tokenizer, prompts, [0, 1, 2, 3], 1, seed=5, **limits)
    assert all((each.sampler_logprob == 0).all() for each in out)  # probability 1

    config = GenerationConfig(do_sample=False, max_new_tokens=48, eos_token_id=END, pad_token_id=0)
    greedy = model.generate(torch.tensor(prompts), generation_config=config)
    new = greedy[:, len(prompts[0]) :]
    assert tokenizer.batch_decode(new, skip_special_tokens=True) == [each.text for each in out]


def test_a_repeated_problem_gets_new_responses(base):
    """The first occurrence gets the same responses as on its own."""
    model, tokenizer = base
    (prompt,) = prompts_of(tokenizer, (1, 1, 5))
    options = {"G": 3, "max_new_tokens": 48, "in_flight": 5, "step": 2, "seed": 5}
    alone = ids_of(sampled(model, tokenizer, [prompt], [4], **options))
    twice = ids_of(sampled(model, tokenizer, [prompt] * 2, [4, 4], **options))
    assert twice[:3] == alone
    assert len({tuple(response) for response in twice}) > 3
    assert twice[3:] != alone


def test_rollout_ends_with_the_end_token_or_is_truncated(base):
    """Problems with 2 operations have shorter responses than problems with 5."""
    model, tokenizer = base
    prompts = prompts_of(tokenizer, (4, 4, 5), (4, 4, 2))
    whole = sampled(model, tokenizer, prompts, list(range(8)), 2, max_new_tokens=80)
    lengths = [len(each.tokens) for each in whole]
    limit = (min(lengths) + max(lengths)) // 2
    cut = sampled(model, tokenizer, prompts, list(range(8)), 2, max_new_tokens=limit)
    assert ids_of(cut) == [ids[:limit] for ids in ids_of(whole)]
    for each in (*whole, *cut):
        ids = each.tokens.tolist()
        assert each.truncated == (END not in ids)
        assert END not in ids[:-1]
        assert "<eos>" not in each.text
    assert {each.truncated for each in cut} == {True, False}


def test_the_turn_end_of_the_chat_template_ends_a_response_with_thoughts(base, monkeypatch):
    tokenizer = byte_tokenizer(extra_special_tokens=["<|im_end|>", "<think>", "</think>"])
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}"
    monkeypatch.setattr(base[0].config, "vocab_size", len(tokenizer))
    whole = torch.tensor(tokenizer("<think>5</think>7<|im_end|>").input_ids)

    def drawn(lm, responses, ends, *_):
        for response, count in zip(responses, (len(whole), 2), strict=True):
            response.append(whole[:count], whole[:count] * -0.1, ends, 9)

    monkeypatch.setattr("rollout.generate_all", drawn)
    out = sampled(base[0], tokenizer, [[5]], [0], 2, max_new_tokens=9)
    assert [each.text for each in out] == ["<think>5</think>7", "<think>5"]
    assert [each.truncated for each in out] == [False, True]


@pytest.mark.parametrize("temperature", [0, 1])
def test_rollout_reports_non_finite_logits(base, temperature):
    model, tokenizer = base
    broken = type(model)(model.config)
    torch.nn.init.constant_(broken.lm_head.weight, float("nan"))
    with pytest.raises(FloatingPointError):
        sampled(broken, tokenizer, [[3, 4]], [0], 2, max_new_tokens=4, temperature=temperature)


def test_a_rank_without_a_response_returns_none(base):
    """Two ranks share a single held-out problem, so one of them has none."""
    assert sampled(*base, [], [], 1, max_new_tokens=4) == []


LAST = len(toy.VOCABULARY) - 1  # ends a response
PROMPTS = [[7], [8, 9, 10, 11, 12, 13], [20, 21, 5], [6, 7, 8, 9], [14, 15]]


def given(numbers: np.ndarray) -> SimpleNamespace:
    """A generator that returns these numbers instead of random ones, then zeros."""
    rest = itertools.chain(numbers, itertools.repeat(0.0))
    return SimpleNamespace(random=lambda n: np.fromiter(itertools.islice(rest, n), dtype=float))


def scripted_responses(lengths: list[int]) -> list[Running]:
    """One response per length, which ends with LAST after so many tokens on every CPU.

    A random model gives each of the 30 tokens a probability of about 1/30. So a uniform draw below
    0.5 never selects the last token, and a draw just below 1 does.
    """
    responses = []
    for i, length in enumerate(lengths):
        u = np.random.default_rng(i).random(100) * 0.5
        u[length - 1] = 1 - 2**-53
        responses.append(Running(PROMPTS[i % len(PROMPTS)], given(u)))
    return responses


@pytest.mark.parametrize("chunk, in_flight, capacity", [(16, 3, 2**40), (8, 7, 120)])
def test_chunks_and_limits_change_no_token(base, monkeypatch, chunk, in_flight, capacity):
    """Responses leave and arrive between chunks, and are paused if the caches grow too large."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = type(base[0])(base[0].config).eval()
    limit = 45
    lengths = [3, 45, 8, 9, 99, 16, 17, 40, 1, 33, 24, 99]

    def tokens(sampling):
        responses = scripted_responses(lengths)
        generate_all(model, responses, [LAST], sampling)
        assert all(response.finished for response in responses)
        return [response.result()[0].tolist() for response in responses]

    whole = tokens(Sampling(limit))
    assert [len(ids) for ids in whole] == [min(length, limit) for length in lengths]
    monkeypatch.setattr(sampler, "CHUNK", chunk)
    monkeypatch.setattr("rollout.cache_capacity", lambda *_: capacity)
    assert tokens(Sampling(limit, in_flight=in_flight)) == whole


def test_steps_go_through_all_problems_before_any_repeats():
    """The steps' problems, one after another, are one stream; every epoch has its own order."""
    stream = problems_of_step(7, 1, 21, seed=3)
    epochs = [stream[:7], stream[7:14], stream[14:]]
    assert all(sorted(epoch) == list(range(7)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    pieces = [problems_of_step(7, step, 5, seed=3) for step in range(1, 5)]
    assert sum(pieces, []) == stream[:20]
    assert problems_of_step(7, 1, 21, seed=4) != stream
    assert problems_of_step(2, 1, 9, seed=0)[:2] in ([0, 1], [1, 0])
