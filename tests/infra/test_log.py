"""Tests infra/log.py and infra/progress.py: what a run prints and writes, for given metrics."""

import dataclasses
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import ROOT

from infra.errors import UserError
from infra.folder import read_lines
from infra.log import log, print_summary, save_samples
from infra.metrics import rollout_metrics
from infra.trackers import tracker_of
from methods import packed
from train import Rollout


def row(step, **changed):
    """The metrics of a step that are printed or plotted."""
    metrics = {"step": step, "reward": 0.5, "response_length": 40.0, "entropy": 0.4}
    return metrics | {"grad_norm": 0.2, "seconds": 2.0} | changed


METRICS = [{"step": 0, "eval_accuracy": 0.25}, row(1), row(2, seconds=3.0, eval_accuracy=0.625)]


def run_in(folder, rank=0, steps=220, tokenizer=None):
    """The parts of a run that the tests need."""
    cfg = SimpleNamespace(prompts=2, group_size=4, steps=steps, samples=8)
    parts = {"folder": folder, "rank": rank, "cfg": cfg, "tokenizer": tokenizer}
    return SimpleNamespace(**parts, tracker=None)


def test_a_line_is_logged_and_printed_for_each_step_and_the_gain_at_the_end(tmp_path, capsys):
    run = run_in(tmp_path, steps=130)
    for metrics in METRICS:
        log(run, metrics)
        log(run_in(tmp_path, rank=1), metrics)  # only the first rank prints
    assert read_lines(tmp_path / "metrics.jsonl") == METRICS
    print_summary(run)
    first, second, third, last, *_ = capsys.readouterr().out.splitlines()
    assert first.split() == ["step", "0/130", "eval_accuracy", "0.25"]
    assert second.startswith("step    1/130  reward 0.5  response_length 40  entropy 0.4")
    assert third.endswith("eval_accuracy 0.625  tokens/s 107  left 0:06:24")  # 128 x 3 s
    assert "eval_accuracy 0.250 before and 0.625 after" in last


def test_a_large_mismatch_is_named(tmp_path, capsys):
    log(run_in(tmp_path), row(1, mismatch=0.2))
    assert "mismatch 0.2 nats: sampler and policy disagree" in capsys.readouterr().out


@pytest.fixture
def graded(batch):
    """(rollouts, tokens, ρ): 6 groups of 4; each response has a different advantage."""
    rollouts = []
    for i, each in enumerate(batch):
        problem = {"problem": f"problem {i // 4}", "answer": "7", "tests": []}
        reward = [0.0, 0.0, 1.0, 1.0][i % 4]
        response = each._replace(truncated=i % 3 == 0)
        rollouts.append(Rollout(response, problem, reward))
    logprob = torch.from_numpy(np.concatenate([each.sampler_logprob for each in batch]))
    N = len(logprob)
    length = torch.tensor([len(each.tokens) for each in batch])
    tokens = packed(
        batch,
        rewards=torch.zeros(24),
        advantage=(torch.arange(24.0) - 5).repeat_interleave(length),
        old_logprob=logprob,
        entropy=torch.arange(N) / 100,
    )
    return rollouts, tokens, torch.arange(N) / 1000


def test_rollout_metrics_are_means_over_responses_and_tokens(graded):
    rollouts, tokens, _ = graded
    texts = 6 * ["so \\boxed{7}"] + 18 * ["so it is 7"]
    rollouts = [
        each._replace(response=each.response._replace(text=text))
        for each, text in zip(rollouts, texts, strict=True)
    ]
    sampled = tokens.old_logprob + torch.tensor([0.5, -0.1]).repeat(len(tokens))[: len(tokens)]
    tokens = dataclasses.replace(tokens, sampler_logprob=sampled)
    metrics = rollout_metrics(rollouts, tokens)
    expected = {
        "reward": 0.5,
        "answered": 6 / 24,
        "entropy": float(tokens.entropy.mean()),
        "response_length": sum(len(each.response.tokens) for each in rollouts) / 24,
        "truncated": sum(each.response.truncated for each in rollouts) / 24,
        "without_advantage": len(rollouts[5].response.tokens) / len(tokens),  # its A is 0
        "mismatch": float((tokens.old_logprob - sampled).abs().mean()),
    }
    assert metrics == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("shares, said", [([1, 1, 1], 1), ([1, 0.5, 1], 0)])
def test_a_run_with_equal_rewards_is_told_where_to_look(shares, said, tmp_path, capsys):
    run = run_in(tmp_path)
    log(run, METRICS[0])
    for step, share in enumerate(shares, start=1):
        log(run, row(step, without_advantage=share, truncated=0.25, answered=0.5))
    out = capsys.readouterr().out
    assert out.count("When nothing is learnt (in this step truncated is 0.25 and answered") == said


def test_save_samples_shows_each_token_with_its_numbers(tmp_path, base, graded):
    rollouts, tokens, weight = graded
    save_samples(run_in(tmp_path, tokenizer=base[1]), 7, rollouts, tokens, weight)
    found = read_lines(tmp_path / "samples.jsonl")
    length = [len(each.response.tokens) for each in rollouts]
    for sample, i in zip(found, (0, 2, 4, 6, 8, 10, 12, 14), strict=True):
        facts = ("step", "group", "problem", "answer", "reward", "advantage", "response")
        reward = [0.0, 0.0, 1.0, 1.0][i % 4]
        expected = [7, i // 4, f"problem {i // 4}", "7", reward, i - 5, rollouts[i].response.text]
        assert sample["truncated"] == rollouts[i].response.truncated
        assert [sample[name] for name in facts] == expected
        assert "tests" not in sample
        assert sample["group_rewards"] == [0.0, 0.0, 1.0, 1.0]
        assert "".join(sample["tokens"]).removesuffix("<eos>") == sample["response"]
        own = slice(sum(length[:i]), sum(length[: i + 1]))
        for name, numbers in (("lambda", weight), ("entropy", tokens.entropy)):
            assert sample[name] == pytest.approx(numbers[own].tolist(), abs=1e-3)
        assert sample["logprob"] == pytest.approx(tokens.old_logprob[own].tolist(), abs=1e-3)


TRACKER = (ROOT / "docs/metrics.md").read_text().split("```python\nfrom torch.utils.tensorboard")


def test_a_tracker_is_any_module_with_three_functions(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("def init(**_): pass\ndef log(*_, **__): pass\ndef finish(): return 7\n")
    assert tracker_of(str(path)).finish() == 7
    for text, said in (
        ("math", "--track math has no function init: a tracker has init, log and finish"),
        ("not_installed", "--track not_installed cannot be imported .*No module named"),
        (str(tmp_path / "none.py"), "none.py cannot be imported .*No such file"),
    ):
        with pytest.raises(UserError, match=said):
            tracker_of(text)


def test_the_pages_tracker_writes_to_tensorboard(tmp_path, monkeypatch):
    written = []

    class SummaryWriter:
        def __init__(self, folder):
            written.append(folder)

        def add_scalar(self, *point):
            written.append(point)

        def close(self):
            written.append("closed")

    board = SimpleNamespace(SummaryWriter=SummaryWriter)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", board)
    path = tmp_path / "board.py"
    path.write_text("from torch.utils.tensorboard" + TRACKER[1].split("```")[0])
    tracker = tracker_of(str(path))
    tracker.init(project="p", name="n", config={"output_dir": "runs/a"}, resume="allow")
    tracker.log({"reward": 0.5}, step=3)
    tracker.finish()
    assert written == ["runs/a/tensorboard", ("reward", 0.5, 3), "closed"]
