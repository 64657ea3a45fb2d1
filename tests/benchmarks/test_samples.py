"""Tests benchmarks/samples.py and words.py: the page of samples.jsonl, and tokens in colours."""

import json
import re

import numpy as np
import pytest
import torch
from conftest import ROOT

import toy
from benchmarks.samples import page, read_samples
from benchmarks.words import kind_of, place, visible
from delta import delta_coefficients, token_gradient_proxy

ATTACK = "</script><script>document.title='executed'</script><img src=x onerror=alert(1)>\u202e"


def sample_of(tokens, weights=None, problem="1+2=?"):
    numbers = {"lambda": weights or [1.0] * len(tokens), "logprob": [-0.5] * len(tokens)}
    return {"step": 1, "problem": problem, "response": "".join(tokens), "tokens": tokens} | numbers


def run_of(folder, samples, method="delta"):
    """A folder with the run files that the page reads."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"method": method, "seed": 0}))
    lines = [json.dumps(sample) + "\n" for sample in samples]
    (folder / "samples.jsonl").write_text("".join(lines))
    return folder


DATA = re.compile(r'<script type="application/json" id="data">(.*?)</script>', re.DOTALL)


def data_of(html: str) -> dict:
    """The data embedded in a page."""
    return json.loads(DATA.search(html)[1])


def test_a_page_shows_the_samples_of_two_runs(finished, tmp_path):
    other = run_of(tmp_path / "other", [sample_of(["no", "toy"])], method="dapo")
    shown, second = data_of(page([finished, other]))["runs"]
    assert [shown["label"], second["label"]] == ["delta, seed 0", "dapo, seed 0"]
    assert {sample["step"] for sample in shown["samples"]} == {1, 2, 3}
    for sample in shown["samples"]:
        ids = torch.tensor([toy.TOKEN_ID[token] for token in sample["tokens"]])
        expected = toy.decisive(sample["problem"], ids).nonzero().flatten().tolist()
        assert sample["decisive"] == expected
    assert "decisive" not in second["samples"][0]


def test_a_response_adds_no_markup_to_a_page(tmp_path):
    plain = page([run_of(tmp_path / "plain", [sample_of(["1"])])])
    attack = page([run_of(tmp_path / "attack", [sample_of([ATTACK], problem=ATTACK)])])
    assert DATA.sub("", attack, count=1) == DATA.sub("", plain, count=1)
    (sample,) = data_of(attack)["runs"][0]["samples"]
    assert [sample["problem"], *sample["tokens"]] == [ATTACK, ATTACK]


@pytest.mark.parametrize(
    "tokens, lines",
    [
        (["So ", "12", " = 3"], ["So 12", " = 3"]),
        (["a", "\n b", "c"], ["a↵", " bc"]),
        (["\tx", "\r", "\ufffd", "\ufffd"], ["→x\ufffd\ufffd\ufffd"]),
        (["abcdefgh", "\n", "\n"], ["abcdef", "gh↵", "↵"]),
        (["abcdef\n\n", "g"], ["abcdef", "↵↵", "g"]),
    ],
)
def test_tokens_are_wrapped_at_six_letters(tokens, lines):
    placed = place(tokens, 6)
    shown = [""] * (placed[-1][2] + 1)
    for index, column, line, text in placed:
        assert column == len(shown[line]), "a token overlaps the one before, or leaves a gap"
        assert text[0] in visible(tokens[index])
        shown[line] += text
    assert shown == lines


@pytest.mark.parametrize(
    "text, kind",
    [(" 12", "digits"), ("\n", "space"), ("<|im_end|>", "end"), ("=", "operator"),
     ("\\frac", "LaTeX"), ("So", "word"), ("...", "punctuation"), ("3.5,", "digits")],
)  # fmt: skip
def test_kinds_of_tokens(text, kind):
    assert kind_of(text) == kind


def test_the_picture_of_readme_has_the_weights_of_the_course_s_file():
    data = np.load(ROOT / "notebooks/data/real_text.npz")
    A, logprob, hidden = (
        torch.from_numpy(data[name]).float() for name in ("advantage", "logprob", "hidden")
    )
    expected = delta_coefficients(token_gradient_proxy(hidden, logprob), A)
    samples = read_samples(ROOT / "results/text")["samples"]
    shown = torch.tensor([weight for sample in samples for weight in sample["lambda"]])
    torch.testing.assert_close(shown, expected, rtol=0, atol=1e-3)
