"""infra/samples.py: the page that shows samples.jsonl.

The script of the page is tested in a headless Chromium if one is installed.
"""

import json
import re
import shutil
import subprocess
from html import unescape
from html.parser import HTMLParser

import pytest
import torch
from infra.samples import page
from toy_runs import SMALL, refusal, train_steps

import toy
import train
from infra import samples
from infra.errors import UserError

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
in_a_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")

ATTACK = "</script><script>document.title='executed'</script><img src=x onerror=alert(1)>\u202e"


# ---- page contents -------------------------------------------------------------------------------


def sample_of(tokens, problem="1+2=?", step=1, group=0, reward=1.0, advantage=0.75, **others):
    length = len(tokens)
    numbers = {"lambda": [1.0] * length, "logprob": [-0.5] * length, "entropy": [0.25] * length}
    found = {"step": step, "problem": problem, "answer": "3", "response": "".join(tokens)}
    found |= {"group": group, "group_rewards": [1.0, 0.0], "reward": reward}
    return found | {"advantage": advantage, "tokens": tokens} | numbers | others


def run_of(folder, rows, method="delta", seed=0):
    """A folder with the run files that the page reads."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"method": method, "seed": seed}))
    (folder / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def data_of(html: str) -> dict:
    """The data embedded in a page."""
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', html)
    return json.loads(text)


class Tags(HTMLParser):
    """A page's opening tags with their attributes, as a browser parses them."""

    def __init__(self, html):
        super().__init__()
        self.found = []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))


def test_the_page_shows_a_runs_samples(tmp_path):
    """SMALL evaluates in step 2."""
    flags = ["--steps", "2", "--output-dir", str(tmp_path / "run")]
    run = train_steps(train.parse_config([*SMALL, *flags]))
    shown = data_of(page([run.folder]))["runs"][0]
    assert shown["label"] == "delta, seed 0"
    assert {sample["step"] for sample in shown["samples"]} == {1, 2}
    for sample in shown["samples"]:
        ids = torch.tensor([toy.TOKEN_ID[token] for token in sample["tokens"]])
        expected = toy.decisive(sample["problem"], ids).nonzero().flatten().tolist()
        assert sample["decisive"] == expected


def test_a_response_adds_no_markup_to_the_page(tmp_path):
    plain = page([run_of(tmp_path / "plain", [sample_of(["1"])])])
    attack = page([run_of(tmp_path / "attack", [sample_of([ATTACK], problem=ATTACK)])])
    assert Tags(attack).found == Tags(plain).found
    (sample,) = data_of(attack)["runs"][0]["samples"]
    assert sample["tokens"] == [ATTACK]
    assert sample["problem"] == ATTACK


def test_a_page_needs_no_network(tmp_path):
    html = page([run_of(tmp_path / "run", [sample_of(["1"])])])
    tags = Tags(html).found
    assert not [tag for tag, attributes in tags if {"src", "href"} & attributes.keys()]
    assert "url(" not in html and "@import" not in html
    (policy,) = [x["content"] for _, x in tags if x.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy


def test_a_chat_is_shown_turn_by_turn(tmp_path):
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+2?"}]
    html = page([run_of(tmp_path / "run", [sample_of(["3"], problem=chat)])])
    assert data_of(html)["runs"][0]["samples"][0]["problem"] == "system: Be brief.\nuser: 1+2?"


@pytest.mark.parametrize(
    "weights, expected",
    [
        ([1.0] * 10, (0.5, 1.5)),
        ([0.8, 1.0, 1.2], (0.8, 1.2)),
        ([0.5, *([0.9, 1.1] * 100), 9.0], (0.9, 1.1)),  # two outliers do not stretch the scale
    ],
)
def test_shades_span_the_range_of_weights(weights, expected):
    rows = [sample_of(["1"] * len(weights)) | {"lambda": weights}]
    assert samples.shading([{"samples": rows}]) == pytest.approx(expected)


def test_a_folder_without_samples_gets_a_one_line_error(tmp_path, capsys):
    error = refusal(samples.main, [tmp_path], capsys)
    assert error == f"infra.samples: {tmp_path} holds no run of train.py: it has no config.json\n"
    empty = run_of(tmp_path / "empty", [])
    with pytest.raises(UserError, match="has no samples yet"):
        page([empty])


def test_the_command_writes_into_the_run_or_a_given_file(tmp_path, capsys):
    one = run_of(tmp_path / "one", [sample_of(["1"])])
    two = run_of(tmp_path / "two", [sample_of(["1"])], method="dapo")
    samples.main([str(one)])
    assert len(data_of((one / "samples.html").read_text())["runs"]) == 1
    samples.main([str(one), str(two)])
    runs = data_of((one / "compared.html").read_text())["runs"]
    assert [run["label"] for run in runs] == ["delta, seed 0", "dapo, seed 0"]
    samples.main([str(one), "--output", str(tmp_path / "page.html")])
    assert (tmp_path / "page.html").read_text() == (one / "samples.html").read_text()
    assert f"{one / 'compared.html'}: open it in a browser" in capsys.readouterr().out


# ---- the page in a browser -----------------------------------------------------------------------


def shown(html: str, folder, chosen: str = "", also: str = "") -> str:
    """The DOM of a page after its script has run.

    chosen: the selection, such as `step=2&show=right`.
    also: a script that runs afterwards, with the page's Content-Security-Policy removed.
    """
    if also:
        html = re.sub(r"<meta http-equiv=[^>]*>", "", html)
        html = html.replace("</body>", f"<script>{also}</script></body>")
    path = folder / "shown.html"
    path.write_text(html)
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={folder / 'chromium'}",
    ]
    command = [CHROMIUM, *flags, "--dump-dom", f"{path.as_uri()}#{chosen}"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return result.stdout.split("</noscript>")[0]


RESPONSE = ["So ", "1", "+", "2", "=", "3", "\n", "answer ", "\\boxed{", "3", "}", "<eos>"]


@in_a_browser
def test_the_page_shows_each_tokens_shade_side_and_true_role(tmp_path):
    weights = [0.8] * 6 + [1.2] * 6
    right = sample_of(RESPONSE) | {"lambda": weights}
    wrong = sample_of(["4"], reward=0.0, advantage=-0.75) | {"lambda": [1.2]}
    dom = shown(page([run_of(tmp_path / "run", [right, wrong])]), tmp_path)

    first, second = re.findall(r"<article.*?</article>", dom, re.DOTALL)
    assert '<article class="for"><h2>▲ right, A = 0.750 · delta, seed 0</h2>' in first
    assert '<article class="against"><h2>▼ wrong, A = −0.750' in second
    tokens = re.findall(
        r'<span class="(token[^"]*)" style="([^"]*)">(.*?)</span>', first, re.DOTALL
    )
    assert [unescape(text) for _, _, text in tokens] == [
        text.replace("\n", "↵\n") for text in RESPONSE
    ]
    assert [i for i, (name, _, _) in enumerate(tokens) if "decisive" in name] == [5]
    assert "mean λ̄: 0.800 over the outlined tokens" in first

    def brightness(style):
        return sum(int(part) for part in re.findall(r"\d+", style))

    assert brightness(tokens[0][1]) > brightness(tokens[-1][1]) + 100
    assert {"λ̄ ≤ 0.80", "≥ 1.20"} <= set(re.findall(r"<span>([^<]*)</span>", dom))


@in_a_browser
def test_the_page_shows_the_selected_responses(tmp_path):
    rows = []
    for step in (1, 2):
        rows.append(sample_of(["5"], step=step, reward=1.0))
        rows.append(sample_of(["6"], step=step, reward=0.0, advantage=-1.0))
    rows[2] |= {"group_rewards": [1.0, 1.0], "tokens": ["7"]}
    rows[3] |= {"group": 1, "tokens": ["8"]}
    html = page([run_of(tmp_path / "run", rows)])

    def texts(chosen):
        dom = shown(html, tmp_path, chosen).partition("<main")[2]
        return re.findall(r'<span class="token[^>]*>([^<]*)</span>', dom)

    assert texts("") == ["8"]  # a group from the last step with unequal rewards
    assert texts("show=all") == ["7"]
    assert texts("step=1&show=all") == ["5", "6"]
    assert texts("step=1&show=right") == ["5"]
    assert texts("step=1&show=wrong") == ["6"]
    assert texts("step=2&show=wrong") == ["8"]


@in_a_browser
def test_hovering_over_a_token_shows_its_values(tmp_path):
    sample = sample_of(RESPONSE, advantage=2.0) | {"lambda": [1.25] * 12}
    point = """document.querySelector("main .decisive").dispatchEvent(
        new MouseEvent("EVENT", {bubbles: true}));"""
    html = page([run_of(tmp_path / "run", [sample])])
    for event in ("mouseover", "click"):
        dom = shown(html, tmp_path, also=point.replace("EVENT", event))
        detail = dom.partition('id="detail"')[2]
        assert "<b>6: 3</b>" in detail
        found = dict(re.findall(r"<tr><td>([^<]*)</td><td>([^<]*)</td></tr>", detail))
        assert found == {
            "λ̄, its weight": "1.250",
            "log p, nats": "−0.500",
            "p": "0.607",
            "entropy, nats": "0.250",
            "A, advantage": "2.000",
            "λ̄ A": "2.500",
            "decided the reward": "yes",
        }


@in_a_browser
@pytest.mark.parametrize(
    "other, said",
    [
        (sample_of(["1", "2"]), "Both runs sampled this response"),
        (sample_of(["1", "3"]), "The responses differ after 1 tokens: the two policies differ."),
        (sample_of(["1"], problem="2+2=?"), "stored no response to this problem at this step"),
    ],
)
def test_two_runs_are_shown_side_by_side(other, said, tmp_path):
    first = run_of(tmp_path / "one", [sample_of(["1", "2"])])
    second = run_of(tmp_path / "two", [other], method="dapo")
    dom = shown(page([first, second]), tmp_path)
    assert said in dom
    pair = dom.partition('class="pair"')[2]
    assert "delta, seed 0" in pair
    assert ("dapo, seed 0" in pair) == ("stored no" not in said)


@in_a_browser
def test_nothing_in_a_response_is_executed(tmp_path):
    html = page([run_of(tmp_path / "run", [sample_of([ATTACK], problem=ATTACK)])])
    dom = shown(html, tmp_path)
    assert "<title>Each token's credit</title>" in dom
    assert "<img" not in dom
    visible = ATTACK.replace("\u202e", "U+202E").replace("<", "&lt;").replace(">", "&gt;")
    assert dom.count(visible) == 2  # problem and response; the menu shows only the beginning
