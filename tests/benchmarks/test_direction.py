"""benchmarks/direction.py and direction_tables.py: rows, the model's direction, the tables."""

import re
import shutil

import torch
from conftest import ROOT
from references import token_batch
from transformers import AutoModelForCausalLM

import toy
from benchmarks import direction
from benchmarks.__main__ import main


def test_the_reparametrised_model_has_the_base_s_logits_and_its_states_share_a_direction():
    plain, _ = toy.load_base(direction.base_folder("learn", False))
    shared = AutoModelForCausalLM.from_pretrained(
        direction.base_folder("learn", True), dtype=torch.float32
    )
    ids = torch.randint(3, 20, (4, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(shared(ids).logits, plain(ids).logits)
        h, states = (lm.model(ids).last_hidden_state.flatten(0, 1) for lm in (plain, shared))
    torch.testing.assert_close(states, torch.cat([h, h.norm(dim=1, keepdim=True)], dim=1))


def test_rule_raises_sure_tokens_of_right_responses_and_surprising_ones_of_wrong_responses():
    tokens = token_batch([5, 8, 3, 6])
    p, A = tokens.logprob.exp().tolist(), tokens.advantage.tolist()
    own = [1 - x for x, a in zip(p, A, strict=True) if a]
    mean = sum(own) / len(own)
    expected = []
    for x, a in zip(p, A, strict=True):
        raised = (a > 0 and 1 - x < mean) or (a < 0 and 1 - x >= mean)
        expected.append(1.2 if raised else 0.8)
    expected = torch.tensor(expected)
    torch.testing.assert_close(direction.rule(tokens, None), expected / expected.mean())


# ---- tables --------------------------------------------------------------------------------------

INTERVAL = r"-?\d\.\d+ ± \d\.\d+"
ABOVE = "['learn, filler 4', 'k12', 'learn minus', 'k5', 'Zipf']"
PRINTED = (
    "not flat: learn, learn, filler 4, k5, k12, learn minus, Zipf",
    f"verdict: confirmed: above in {ABOVE}, below in none",
    "| rule minus S = 1 | learn | -0.006 ± 0.005 | no |",
    "| rule minus S = 1 | k5 | -0.003 ± 0.007 | yes |",
    "S = 1: rank correlation 0.77 over 14 rows, p 0.002",
)


def test_the_published_results_are_those_of_the_committed_runs(tmp_path, monkeypatch, capsys):
    """The CSV has all planned runs, so none is trained."""
    path = tmp_path / "direction.csv"
    shutil.copy(ROOT / "results/direction.csv", path)
    monkeypatch.setattr(direction, "trained", None)
    assert len(direction.complete(path)) == len(direction.planned())
    main(["direction", "--csv", str(path)])
    printed = capsys.readouterr().out
    assert set(PRINTED) <= set(printed.splitlines())

    page = (ROOT / "docs/results/direction.md").read_text()
    published = set(re.findall(INTERVAL, page.split("python -m benchmarks direction ")[1]))
    assert len(published) > 100
    assert published <= set(re.findall(INTERVAL, printed))
