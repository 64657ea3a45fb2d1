"""studies/centring.py: which tokens the margins of four proxies rank first."""

import torch
from references import two_sides

from delta import delta_coefficients, normalise, range_map, scores
from studies import centring


def test_last_margins_give_the_coefficients():
    v, advantage = two_sides()
    margins, gammas = centring.last_margins(v, advantage)
    lam = range_map(scores(margins, advantage, *gammas), advantage, 0.8, 1.2)
    torch.testing.assert_close(normalise(lam), delta_coefficients(v, advantage))


def test_centring_and_not_the_factor_ranks_the_decisive_tokens_first(monkeypatch, capsys):
    monkeypatch.setattr(centring, "BATCHES", 1)
    place = "sharpen, 5 operations"
    monkeypatch.setattr(centring, "BASES", {place: centring.BASES[place]})
    found = centring.centring(None)[place]
    for proxy, (pos, neg, *spreads) in found.items():
        centred = proxy in ("(Σ p² - p) h", "(log p + entropy) h")
        assert neg > 0.9
        assert pos > 0.9 if centred else pos < 0.1
        assert max(spreads) < 4 if centred else min(spreads) > 5
    assert "| (log p) h | 0.0" in capsys.readouterr().out
