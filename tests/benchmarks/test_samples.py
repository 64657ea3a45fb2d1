"""benchmarks/samples.py: the page that shows samples.jsonl."""

import json
import re
from html.parser import HTMLParser

import pytest
import torch
from toy_runs import SMALL, train_steps

import toy
import train
from benchmarks.samples import page
from infra.errors import UserError

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


def data_of(html: str) -> dict:
    """The data embedded in a page."""
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', html)
    return json.loads(text)


def tags(html: str) -> list[tuple]:
    """A page's opening tags with their attributes, as a browser parses them."""
    found = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attributes: found.append((tag, dict(attributes)))
    parser.feed(html)
    return found


def test_a_page_shows_the_samples_of_two_runs(tmp_path):
    command = [*SMALL, "--steps", "2", "--output-dir", str(tmp_path / "run")]
    run = train_steps(train.parse_config(command))
    other = run_of(tmp_path / "other", [sample_of(["no", "toy"])], method="dapo")
    shown, second = data_of(page([run.folder, other]))["runs"]
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
    assert tags(attack) == tags(plain)
    (sample,) = data_of(attack)["runs"][0]["samples"]
    assert [sample["problem"], *sample["tokens"]] == [ATTACK, ATTACK]


def test_a_page_needs_no_network(tmp_path):
    html = page([run_of(tmp_path / "run", [sample_of(["1"])])])
    assert not [tag for tag, attributes in tags(html) if {"src", "href"} & attributes.keys()]
    assert "url(" not in html and "@import" not in html
    assert "default-src 'none'" in html


@pytest.mark.parametrize(
    "weights, expected",
    [
        ([1.0] * 10, (0.5, 1.5)),
        ([0.8, 0.8, None, 1.2, 1.2], (0.8, 1.2)),
        ([0.5, *([0.9, 1.1] * 100), 9.0], (0.9, 1.1)),  # two outliers do not stretch the scale
    ],
)
def test_shades_span_the_range_of_weights(weights, expected, tmp_path):
    run = run_of(tmp_path / "run", [sample_of(["1"] * len(weights), weights)])
    data = data_of(page([run]))
    assert (data["low"], data["high"]) == pytest.approx(expected, abs=1e-6)


def test_a_folder_without_samples_is_refused(tmp_path):
    with pytest.raises(UserError, match="has no samples yet: wait for its first step"):
        page([run_of(tmp_path / "run", [])])
    with pytest.raises(UserError, match="config.json cannot be read"):
        page([tmp_path])
