"""benchmarks/samples.py and picture.py: the page and the picture of samples.jsonl."""

import json
import re

import numpy as np
import pytest
import torch
from conftest import ROOT
from matplotlib.figure import Figure
from PIL import Image
from toy_runs import refusal

import toy
from benchmarks import picture
from benchmarks.samples import page
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
    assert {sample["step"] for sample in shown["samples"]} == {1, 2}
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


def rated(problem, reward, step=1, tokens=("So ", "1", "\n", "2")):
    sample = sample_of(list(tokens), [0.8 + 0.1 * i for i in range(len(tokens))], problem)
    return sample | {"step": step, "reward": reward, "advantage": 2 * reward - 1}


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
    placed = picture.place(tokens, 6)
    shown = [""] * (placed[-1][2] + 1)
    for index, column, line, text in placed:
        assert column == len(shown[line]), "a token overlaps the one before, or leaves a gap"
        assert text[0] in picture.visible(tokens[index])
        shown[line] += text
    assert shown == lines


def test_the_first_right_and_wrong_response_to_one_problem_are_chosen(tmp_path, capsys):
    samples = [rated("1+1=?", 1.0), rated("1+2=?", 0.0), rated("1+2=?", 1.0), rated("1+1=?", 0, 2)]
    assert picture.pair_of(samples) == (samples[2], samples[1])
    folder = run_of(tmp_path / "run", samples[:2])
    assert "train for more steps" in refusal(picture.main, [folder], capsys)


def test_a_line_without_weights_is_refused(tmp_path, capsys):
    samples = [rated("1+2=?", 0.0), rated("1+2=?", 1.0)]
    del samples[1]["lambda"]
    folder = run_of(tmp_path / "run", samples)
    assert "samples.jsonl, line 2, has no weights" in refusal(picture.main, [folder], capsys)


def test_text_is_drawn_as_it_is(tmp_path):
    """`$` begins no formula, a part of a character is a mark, and a problem may have many lines."""
    text = [" clip", "$", "\\frac", "{", "\ufffd", "^", "$", ".\n\n"]
    folder = run_of(tmp_path / "run", [rated("a $x_\n" * 99, x, tokens=text) for x in (0.0, 1.0)])
    picture.main([str(folder)])
    assert Image.open(folder / "tokens.png").width == 1400
    assert picture.place(text * 50, picture.COLUMNS, picture.LINES)[-1][2] == 5  # six lines


@pytest.mark.parametrize("truncated", [False, True])
def test_a_response_that_was_cut_off_is_marked(truncated):
    axes = Figure().subplots()
    sample = rated("1+1=?", 0.0) | {"truncated": truncated}
    picture.draw_response(axes, sample, picture.colours_of(0.5))
    assert axes.get_title(loc="left").startswith("wrong, cut off:") == truncated


def test_each_token_stands_at_its_probability_and_weight_on_its_side():
    axes = Figure().subplots()
    other = rated("1+1=?", 1.0) | {"lambda": [1.1, 1.2], "logprob": [-0.1, -0.2]}
    picture.draw_weights(axes, [rated("1+1=?", 0.0), other])
    right, wrong = (points.get_offsets().tolist() for points in axes.collections)
    assert np.allclose(right, [[np.exp(-0.1), 1.1], [np.exp(-0.2), 1.2]])
    assert [weight for _, weight in wrong] == pytest.approx([0.8, 0.9, 1.0, 1.1])


def test_the_picture_of_readme_has_the_weights_of_the_course_s_file():
    data = np.load(ROOT / "notebooks/data/real_text.npz")
    A, logprob, hidden = (
        torch.from_numpy(data[name]).float() for name in ("advantage", "logprob", "hidden")
    )
    expected = delta_coefficients(token_gradient_proxy(hidden, logprob), A)
    samples = picture.read_samples(ROOT / "results/text")["samples"]
    shown = torch.tensor([weight for sample in samples for weight in sample["lambda"]])
    torch.testing.assert_close(shown, expected, rtol=0, atol=1e-3)
