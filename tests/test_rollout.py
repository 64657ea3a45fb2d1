"""rollout.py: what is sampled is the model's distribution, and depends on (seed, step, problem, sample) alone."""
import numpy as np
import pytest
import torch
from transformers import GenerationConfig

import toy
from policy import Policy
from data import join
import rollout as rollout_module
from benchmarks.memory import qwen3
from rollout import Interrupted, InverseCDF, cache_bytes, end_tokens, generate, rollout, token_distribution, uniforms


def ids_of(out):
    return [out.response_ids(i).tolist() for i in range(len(out.texts))]


def test_rollout_rows_do_not_depend_on_who_shares_the_batch(base):
    model, tokenizer = base
    texts = [p["problem"] for p in toy.problems(4, seed=1)] + [p["problem"] for p in toy.problems(4, seed=2, k=2)]
    prompts = tokenizer(texts).input_ids
    args = dict(max_new_tokens=48, seed=5, step=2)
    together = ids_of(rollout(model, tokenizer, prompts, list(range(8)), 3, **args))
    for rows in (5, 24):
        assert ids_of(rollout(model, tokenizer, prompts, list(range(8)), 3, rows=rows, **args)) == together
    alone = [ids_of(rollout(model, tokenizer, [prompts[i]], [i], 3, **args)) for i in reversed(range(8))]
    assert [x for group in reversed(alone) for x in group] == together
    torch.manual_seed(123)  # nor on torch's global random state
    assert ids_of(rollout(model, tokenizer, prompts[:2], [0, 1], 3, **args)) == together[:6]


@pytest.mark.parametrize("change", [dict(seed=6), dict(step=3), dict(problem_ids=[9, 1])])
def test_rollout_depends_on_seed_step_and_problem(base, change):
    model, tokenizer = base
    prompts = tokenizer([p["problem"] for p in toy.problems(2, seed=1)]).input_ids
    args = dict(problem_ids=[0, 1], group_size=2, max_new_tokens=48, seed=5, step=2)
    one, other = (ids_of(rollout(model, tokenizer, prompts, **a)) for a in (args, args | change))
    assert one[0] != other[0] and one[0] != one[1]


def test_inverse_cdf_frequencies_match_the_distribution():
    """A chi-square test of 40,000 draws from 12 tokens, one of them impossible, at temperature 0.8."""
    logits = torch.randn(12, generator=torch.Generator().manual_seed(0)) * 1.5
    logits[4] = -torch.inf
    n = 40_000
    choose = InverseCDF(torch.from_numpy(np.stack([uniforms(0, 0, 0, i, 1) for i in range(n)])), 3, 0.8, 1.0)
    drawn = choose(torch.zeros(n, 3, dtype=torch.long), logits.expand(n, -1)).argmax(1)
    p = (logits.double() / 0.8).softmax(0)
    count = torch.bincount(drawn, minlength=12).double()
    assert count[4] == 0
    alive = p > 0
    assert ((count - n * p)[alive] ** 2 / (n * p[alive])).sum() < 29.6  # 99.9 % point for 10 degrees of freedom


def test_inverse_cdf_never_draws_an_impossible_token():
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf, 1.0, -torch.inf]])
    for u in (0.0, 0.2689, 0.2690, 0.5, 1 - 2**-53):
        choose = InverseCDF(torch.tensor([[u]], dtype=torch.float64), 1, 1.0, 1.0)
        assert choose(torch.zeros(1, 1, dtype=torch.long), logits).argmax().item() == (1 if u < 0.26894 else 3)  # σ(-1)


def test_token_distribution_top_p_keeps_the_smallest_sufficient_set():
    p = torch.tensor([[0.1, 0.5, 0.25, 0.15]])
    for top_p, expected in [(0.4, [0, 1, 0, 0]), (0.5, [0, 1, 0, 0]), (0.6, [0, 2 / 3, 1 / 3, 0]),
                            (0.8, [0, 5 / 9, 2.5 / 9, 1.5 / 9]), (1.0, [0.1, 0.5, 0.25, 0.15])]:
        torch.testing.assert_close(token_distribution(p.log(), 1.0, top_p), torch.tensor([expected], dtype=torch.float64),
                                   rtol=1e-6, atol=1e-6)


def test_low_temperature_is_greedy(base):
    model, tokenizer = base
    prompts = tokenizer([p["problem"] for p in toy.problems(4, seed=3)]).input_ids
    out = rollout(model, tokenizer, prompts, [0, 1, 2, 3], 1, 48, temperature=1e-4)
    greedy = model.generate(torch.tensor(prompts), generation_config=GenerationConfig(
        do_sample=False, max_new_tokens=48, eos_token_id=toy.TOKEN_ID["<eos>"], pad_token_id=0))
    assert [tokenizer.decode(row[len(prompts[0]):], skip_special_tokens=True) for row in greedy] == out.texts


def test_rollout_ends_with_the_end_token_or_is_truncated(base):
    model, tokenizer = base
    prompts, end = tokenizer([p["problem"] for p in toy.problems(8, seed=4)]).input_ids, toy.TOKEN_ID["<eos>"]
    whole = rollout(model, tokenizer, prompts, list(range(8)), 2, 80)
    assert not whole.truncated.any() and all(ids[-1] == end and end not in ids[:-1] for ids in ids_of(whole))
    cut = rollout(model, tokenizer, prompts, list(range(8)), 2, 20)
    assert cut.truncated.all() and torch.all(cut.response_length == 20)
    assert [ids[:20] for ids in ids_of(whole)] == ids_of(cut)
    assert all("<eos>" not in text for text in whole.texts)


def test_rollout_ignores_a_generation_config_that_changes_the_law(base):
    model, tokenizer = base
    prompts = tokenizer([p["problem"] for p in toy.problems(2, seed=4)]).input_ids
    plain, own = rollout(model, tokenizer, prompts, [0, 1], 2, 48), model.generation_config
    model.generation_config = GenerationConfig(do_sample=True, temperature=0.1, top_k=1, repetition_penalty=5.0, no_repeat_ngram_size=2,
                                               min_new_tokens=60, suppress_tokens=[5], eos_token_id=toy.TOKEN_ID["<eos>"])
    try:
        assert rollout(model, tokenizer, prompts, [0, 1], 2, 48).texts == plain.texts
        assert model.generation_config.repetition_penalty == 5.0
    finally:
        model.generation_config = own


def test_rollout_samples_have_the_policys_log_probabilities(base):
    """The mean of -log p over many sampled tokens is the mean entropy, within the sampling error: sampler and policy agree."""
    model, tokenizer = base
    prompts = tokenizer([p["problem"] for p in toy.problems(64, seed=8)]).input_ids
    for temperature in (1.0, 1.5):
        out = rollout(model, tokenizer, prompts, list(range(64)), 8, 64, temperature=temperature)
        with torch.no_grad():
            rows = Policy(model, temperature)(out.ids, out.prompt_length, out.response_length)
        surprise = -rows.logprob - rows.entropy  # zero-mean, a martingale difference
        assert abs(surprise.mean()) < 4 * surprise.std() / len(surprise) ** 0.5


def test_end_tokens_unite_tokenizer_and_model(base):
    model, tokenizer = base
    own = model.generation_config
    model.generation_config = GenerationConfig(eos_token_id=[5, 6])
    try:
        assert end_tokens(model, tokenizer) == sorted({toy.TOKEN_ID["<eos>"], 5, 6})
    finally:
        model.generation_config = own


def test_rollout_reports_logits_that_are_not_finite(base):
    _, tokenizer = base
    broken = toy.build_model()
    torch.nn.init.constant_(broken.lm_head.weight, float("nan"))
    with pytest.raises(FloatingPointError):
        rollout(broken, tokenizer, [[3, 4]], [0], 2, 4)


def test_join_and_pick_keep_the_responses(base):
    model, tokenizer = base
    prompts = tokenizer([p["problem"] for p in toy.problems(2, seed=1)] + ["1+2=?"]).input_ids
    a, b = rollout(model, tokenizer, prompts[:2], [0, 1], 2, 48), rollout(model, tokenizer, prompts[2:], [2], 2, 48)
    both = join([a, b]).pick([5, 0, 3])
    assert ids_of(both) == [ids_of(b)[1], ids_of(a)[0], ids_of(a)[3]] and both.texts == [b.texts[1], a.texts[0], a.texts[3]]
    assert both.ids[0, :int(both.prompt_length[0])].tolist() == prompts[2]


def jobs_of(prompts, group, seed=0, limit=200):
    return [(prompt, lambda i=i, s=s: uniforms(seed, 0, i, s, limit)) for i, prompt in enumerate(prompts) for s in range(group)]


def test_chunked_greedy_output_is_that_of_one_plain_generate_call():
    """Random model, prompts of unequal lengths (one of a single token), responses over several chunks."""
    torch.manual_seed(0)
    model, (end, limit) = toy.build_model().eval(), (3, 150)
    prompts = [[7], [8, 9, 10, 11, 12, 13], [20, 21, 5], [6, 7, 8, 9], [14, 15]]
    greedy = [(prompt, lambda: np.full(limit, 0.5)) for prompt in prompts]
    chunked = generate(model, greedy, limit, [end], temperature=1e-5, rows=2)
    for prompt, new in zip(prompts, chunked):
        whole = model.generate(torch.tensor([prompt]), generation_config=GenerationConfig(do_sample=False, max_new_tokens=limit, eos_token_id=end,
                                                                                         pad_token_id=0))
        assert whole[0, len(prompt):].tolist() == new
    assert max(map(len, chunked)) > 2 * rollout_module.CHUNK


@pytest.mark.parametrize("chunk, rows, cache_tokens", [(8, 256, 2**40), (16, 3, 2**40), (64, 5, 2**40), (8, 256, 300), (8, 7, 120)])
def test_chunks_rows_in_flight_and_cache_limits_change_no_token(base, monkeypatch, chunk, rows, cache_tokens):
    """Rows leave and enter between chunks, and step back when the caches grow too large; the texts stay the same."""
    model, tokenizer = base
    prompts = tokenizer([p["problem"] for p in toy.problems(3, seed=1)] + [p["problem"] for p in toy.problems(3, seed=2, k=2)]).input_ids
    with torch.no_grad():
        whole = generate(model, jobs_of(prompts, 3), 45, [toy.TOKEN_ID["<eos>"]])
        widest, original = [], rollout_module.left_padded
        monkeypatch.setattr(rollout_module, "CHUNK", chunk)
        monkeypatch.setattr(rollout_module, "left_padded", lambda *a: widest.append(original(*a)[0].shape) or original(*a))
        assert generate(model, jobs_of(prompts, 3), 45, [toy.TOKEN_ID["<eos>"]], rows=rows, cache_tokens=cache_tokens) == whole
    assert all(R <= rows and (R == 1 or R * L <= cache_tokens) for R, L in widest)
    assert len({len(new) for new in whole}) > 1


def test_prompts_are_prefilled_once(base, monkeypatch):
    model, tokenizer = base
    prompts, seen = tokenizer([p["problem"] for p in toy.problems(4, seed=1)]).input_ids, []
    forward = model.base_model.forward
    monkeypatch.setattr(model.base_model, "forward", lambda *a, **k: seen.append(k["input_ids"].shape) or forward(*a, **k))
    rollout(model, tokenizer, prompts, [0, 1, 2, 3], 8, 40)
    assert seen[0] == (4, len(prompts[0]) - 1) and set(seen[1:]) == {(32, 1)}


def test_stop_abandons_the_batch(base):
    model, tokenizer = base
    own = model.generation_config
    with pytest.raises(Interrupted):
        rollout(model, tokenizer, tokenizer(["1+2=?"]).input_ids, [0], 2, 40, stop=lambda: True)
    assert model.generation_config is own


def test_cache_bytes_of_qwen3_8b():
    assert cache_bytes(qwen3("8B"), 2) == 147_456 and cache_bytes(qwen3("14B"), 2) == 163_840
