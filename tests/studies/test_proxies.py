"""studies/proxies.py: proxies by their definitions and means, and what a constant changes."""

import math

import pytest
import torch
from references import token_rows

import toy
from ablations import has_both_sides
from delta import delta_coefficients
from studies.credit import batch, packed_tokens
from studies.credit_study import Sizes
from studies.places import SETTINGS, Setting
from studies.proxies import (
    BATCH_MEAN,
    BESIDE,
    DIRECTIONS,
    HEAD,
    PROXIES,
    centred_row,
    mean_over_words,
    of_batch,
    projected_gradient,
    projected_word,
    proxies,
    surprise_alone,
)

NO_MEAN = [name for name in PROXIES if name not in ("(1 - p) h", BATCH_MEAN)]


@pytest.fixture(scope="module")
def graded(base):
    return batch(*base, toy.problems(6, seed=5), 8, seed=3)


def rows_of(seed=0, V=9, H=4, n=5):
    """(rows, W, p [n, V]) of random states and words."""
    g = torch.Generator().manual_seed(seed)
    W, h = torch.randn(V, H, generator=g), torch.randn(n, H, generator=g)
    y = torch.randint(V, (n,), generator=g)
    logp = (h @ W.T).log_softmax(dim=1)
    entropy = -(logp.exp() * logp).sum(dim=1)
    return token_rows(h, y, logp[torch.arange(n), y], entropy), W, logp.exp()


def test_proxies_are_what_their_names_say():
    rows, W, p = rows_of()
    own = p[torch.arange(5), rows.token]
    for i in range(5):
        h = rows.hidden[i]
        expected = (p[i].square().sum() - own[i]) * h
        torch.testing.assert_close(centred_row(rows, lambda: W)[i], expected)
        s = math.log(float(own[i])) - sum(float(x) * math.log(float(x)) for x in p[i])
        assert float(surprise_alone(rows, None)[i, 0]) == pytest.approx(s, abs=1e-5)

    omega = torch.randn(9, DIRECTIONS, generator=torch.Generator().manual_seed(0))
    residual = torch.nn.functional.one_hot(rows.token, 9) - p
    word = projected_word(rows, lambda: W)
    torch.testing.assert_close(word, residual @ omega)
    found = projected_gradient(rows, lambda: W)
    torch.testing.assert_close(found, torch.einsum("nd,nh->ndh", word, rows.hidden).flatten(1))


@pytest.mark.parametrize("name", PROXIES)
def test_mean_over_the_word_is_zero_but_for_the_row_proxy(name, base, graded):
    mean = mean_over_words(base[0], graded, PROXIES[name])
    if name in NO_MEAN:
        assert mean < 0.02 if name.startswith("top-20") else mean < 1e-4
    else:
        assert 0.3 < mean <= 1


def test_a_constant_moves_the_centroids_and_no_coefficient(base, graded):
    """So the cosine of the centroids alone says nothing about what the weights will be."""
    tokens = packed_tokens(base[0], graded.rollouts, graded.advantages, PROXIES["(1 - p) h"])
    v = tokens.kept.values.double()
    for K in (0, 1, 3):
        expected = delta_coefficients(v, tokens.advantage, K)
        moved = delta_coefficients(v - 3 * v.mean(dim=0), tokens.advantage, K)
        torch.testing.assert_close(moved, expected, rtol=1e-4, atol=1e-5)


def test_a_table_has_a_line_for_each_proxy(base, graded):
    if not has_both_sides(graded.tokens.advantage):
        return
    gradient = torch.randn(sum(p.numel() for p in base[0].parameters()))
    found = of_batch(base[0], graded, gradient)
    assert list(found) == [*BESIDE, *PROXIES]
    for name, numbers in found.items():
        assert len(numbers) == len(HEAD) - 1
        known = [not math.isnan(x) for x in numbers]
        assert sum(known[4:8]) == (2 if name in BESIDE else 4)
    assert found["no centroids"][-1] == pytest.approx(1)


def test_the_bench_prints_its_places(base, monkeypatch, capsys):
    monkeypatch.setattr(toy, "load_base", lambda folder: base)
    monkeypatch.setitem(SETTINGS, "here", Setting(k=5, noise=0.2))
    threads = torch.get_num_threads()
    sizes = Sizes(batches=1, prompts=4, group=8, gradient_prompts=2, gradient_group=8)
    try:
        measured = proxies(None, sizes, ["here"])
    finally:
        torch.set_num_threads(threads)
    said = capsys.readouterr().out
    assert "here: DelTA as published" in said
    assert said.count("| (log p + H) h | 0.000 | ") == 1
    assert list(measured) == ["here"]
