"""Tests benchmarks/races.py: a race of the toy, and a table that can be computed by hand."""

from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from hashed_rewards import rewarded
from toy_runs import HELD_OUT, PROBLEMS, ROOT

from benchmarks import races
from toy import base_model

TOY = (
    f"--data {PROBLEMS} --eval-data {HELD_OUT} --prompts 4 --group-size 4 --mini-batch 4 "
    "--max-new-tokens 16"
)


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """The folder of races of the toy, which last one step and have an empty template."""
    monkeypatch.setattr(races, "COMMON", TOY)
    monkeypatch.setattr(races, "STEPS", 1)
    monkeypatch.setattr(races, "SUMS", tmp_path)
    header = (ROOT / races.FILE).read_text().splitlines(keepends=True)[0]
    (tmp_path / "own.csv").write_text(header)
    monkeypatch.setattr(races, "FILE", tmp_path / "own.csv")
    (tmp_path / "short.txt").write_text("{problem}")
    monkeypatch.setattr(races, "print_races", lambda lines: None)
    return tmp_path


def test_a_race_is_run_once_and_its_line_names_its_command(toy):
    args = SimpleNamespace(flags=["--model", "toy", "--seeds", "1"])
    with rewarded():
        races.races(args)
    written = (toy / "own.csv").read_text()
    lines = pd.read_csv(toy / "own.csv")
    assert list(lines["row"]) == list(races.ROWS) and set(lines["seed"]) == {1}
    assert lines["command"].str.contains("--method delta --lr 5e-7").sum() == 1
    assert (lines["kl"] >= 0).all() and (lines["entropy"] > 0).all()
    races.races(args)  # nothing is left to run
    assert (toy / "own.csv").read_text() == written


@torch.no_grad()
def test_entropy_and_kl_beside_a_loop_over_tokens():
    """The responses have several lengths, and some of them share a prompt."""
    lm, _ = base_model("learn")
    base, _ = base_model("learn")
    generator = torch.Generator().manual_seed(0)
    for x in lm.parameters():
        x += 0.02 * torch.randn(x.shape, generator=generator)
    prompts = [20 * [1, 2], 20 * [1, 2], [3, 4, 5]]
    responses = [
        SimpleNamespace(prompt=prompt, tokens=torch.arange(2, 2 + n).int().numpy())
        for prompt, n in zip(prompts, (7, 4, 9), strict=True)
    ]
    entropies, kls = [], []
    for response in responses:
        ids = torch.tensor([[*response.prompt, *response.tokens]])
        logp, logq = (model(ids).logits[0].double().log_softmax(-1) for model in (lm, base))
        for t in range(len(response.prompt) - 1, ids.shape[1] - 1):
            p = logp[t].exp()
            entropies.append(float(-(p * logp[t]).sum()))
            kls.append(float((p * (logp[t] - logq[t])).sum()))
    entropy, kl = races.entropy_and_kl(lm, base, responses, 64)
    assert entropy == pytest.approx(sum(entropies) / 20, rel=1e-4)
    assert kl == pytest.approx(sum(kls) / 20, rel=1e-3) and kl > 0.001
    assert races.entropy_and_kl(base, base, responses, 64)[1] == 0


def lines_of(delta: list[float], greedy: float = 0.5) -> pd.DataFrame:
    """Lines of seeds 1, 2, ...: dapo's rewards are 0.20 and 0.22, and delta's are 0.20 + these."""
    lines = []
    for seed, above in enumerate(delta, 1):
        for row, reward, entropy, of_row in (
            ("dapo 5e-7", 0.20, 0.6, 0.5),
            ("dapo 6e-7", 0.22, 0.5, 0.5),
            ("delta 5e-7", 0.20 + above, 0.45, greedy),
        ):
            lines.append((row, seed, reward, of_row, entropy, 0.1))
    return pd.DataFrame(lines, columns=["row", "seed", *races.OUTCOMES])


@pytest.mark.parametrize(
    ("delta", "greedy", "words"),
    [
        ([0.05, 0.06, 0.07, 0.06], 0.5, "more than a rate"),
        ([0.05, 0.06, 0.07, 0.06], 0.4, "not decided"),  # greedy accuracy is lower
        ([0.015, 0.02, 0.025, 0.02], 0.5, "a rate"),
        ([-0.1, 0.15, 0.0, 0.1], 0.5, "not decided"),
    ],
)
def test_words(delta, greedy, words, capsys):
    races.print_races(lines_of(delta, greedy))
    assert f"*{words}*" in capsys.readouterr().out


def test_a_table_by_hand(capsys):
    """delta is 0.05, 0.06 and 0.07 above dapo: mean 0.06, deviation 0.01, t(2) 4.3027."""
    lines = lines_of([0.05, 0.06, 0.07, 0.9])
    races.print_races(lines[~((lines["seed"] == 4) & (lines["row"] == "dapo 5e-7"))])
    said = capsys.readouterr().out
    assert "complete seeds: [1, 2, 3] of [1, 2, 3, 4]" in said
    assert "| delta 5e-7 | 0.260 | 0.500 | 0.450 | 0.100 |" in said
    assert "| delta 5e-7 - dapo 5e-7 | 0.060 ± 0.025 |" in said
    assert "| delta 5e-7 - dapo 6e-7 | 0.040 ± 0.025 |" in said
    # dapo gains 0.02 for 0.1 nats, so delta's 0.15 nats are worth 0.03 of its 0.06.
    assert "at equal entropy: 0.030 ± 0.025" in said
    races.print_races(lines[lines["seed"] < 2])
    assert "an interval needs two complete seeds" in capsys.readouterr().out
