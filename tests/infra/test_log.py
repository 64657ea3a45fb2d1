"""infra/log.py: what a run prints and writes, from numbers given here."""

import json
from types import SimpleNamespace

import pytest
import torch
from toy_runs import SMALL, read_lines, small_config, train_steps

import toy
import train
from infra import log as log_module
from infra.log import (
    hint_about_mean,
    hint_without_signal,
    introduce,
    log,
    mismatch,
    pace,
    plot_curves,
    report,
)

METRICS = [
    {"step": 0, "eval_accuracy": 0.25},
    {"step": 1, "reward": 0.5, "response_length": 40.0, "entropy": 0.4, "seconds": 2.0},
    {"step": 2, "reward": 0.75, "response_length": 30.0, "entropy": 0.3, "seconds": 3.0},
    {"step": 2, "eval_accuracy": 0.625},
]


@pytest.fixture
def on_rank_1(monkeypatch):
    monkeypatch.setattr(log_module, "rank_and_world", lambda: (1, 2))


def test_log_appends_a_line_and_prints_the_gist(tmp_path, capsys):
    for row in METRICS[:2]:
        log(tmp_path, row)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == METRICS[:2]
    first, second = capsys.readouterr().out.splitlines()
    assert first.split() == ["step", "0", "eval_accuracy", "0.25"]
    assert "step    1  reward 0.5  response_length 40" in second
    assert "eval_accuracy" not in second


def test_log_prints_the_step_of_all_and_the_pace_and_keeps_neither(tmp_path, capsys):
    log(tmp_path, METRICS[1], steps=220, pace="left 0:10:00")
    printed = capsys.readouterr().out
    assert printed.startswith("step    1/220  reward 0.5")
    assert printed.endswith("left 0:10:00\n")
    assert read_lines(tmp_path / "metrics.jsonl")[0].keys() <= METRICS[1].keys()


def test_mismatch_is_the_distance_of_two_laws():
    """Four draws in the proportions of the sampler's law: the estimate is then its KL, exactly."""
    scored = torch.tensor([0.4, 0.4, 0.2])
    sampler = torch.tensor([0.25, 0.5, 0.25])
    drawn = torch.tensor([0, 1, 1, 2])
    found = mismatch(scored.log()[drawn], sampler.log()[drawn])
    kl = (sampler * (sampler / scored).log()).sum()
    assert found["mismatch_kl"] == pytest.approx(float(kl), rel=1e-5)
    ratios = (scored / sampler).log().abs()[drawn]
    assert found["mismatch"] == pytest.approx(float(ratios.mean()), rel=1e-5)
    assert found["mismatch_max"] == pytest.approx(float(ratios.max()), rel=1e-5)
    same = mismatch(scored.log(), scored.log())
    assert set(same.values()) == {0.0}


def test_mismatch_with_a_sampler_that_does_not_tell_is_no_metric():
    assert mismatch(torch.zeros(3), torch.full((3,), torch.nan)) == {}


def test_mismatch_leaves_out_the_tokens_of_which_the_sampler_does_not_tell():
    scored = torch.tensor([-1.0, -2.0, -3.0])
    sampled = torch.tensor([-1.5, torch.nan, -3.0])
    found = mismatch(scored, sampled)
    assert found == mismatch(scored[[0, 2]], sampled[[0, 2]])
    assert found["mismatch"] == 0.25


def test_pace_takes_the_time_left_from_the_last_twenty_steps():
    run = SimpleNamespace(cfg=SimpleNamespace(prompts=2, group_size=4, steps=130), seconds=[])
    run.seconds += [1000.0] * 5 + [2.0] * 19
    metrics = {"step": 30, "seconds": 2.0, "response_length": 50.0}
    assert pace(run, metrics) == "tokens/s 200  left 0:03:20"  # 2 x 4 x 50 / 2; 100 steps of 2 s


def test_hint_without_signal_is_given_once_after_ten_steps_without_a_side(capsys):
    run = SimpleNamespace(without_signal=0)
    for advantages in [torch.zeros(4)] * 9 + [torch.tensor([1.0, -1, 0, 0])] + [torch.zeros(4)] * 9:
        hint_without_signal(run, advantages)
    assert capsys.readouterr().out == ""
    hint_without_signal(run, torch.zeros(4))
    assert capsys.readouterr().out.startswith("hint: in ten steps no group")
    hint_without_signal(run, torch.zeros(4))
    assert capsys.readouterr().out == ""


def test_introduce_says_what_the_run_is(tmp_path, capsys):
    five = tmp_path / "five.jsonl"
    two = toy.problems(2, seed=1)
    problems = [*two, *toy.problems(1, seed=1, k=9), two[0], {"problem": "1", "answer": ""}]
    five.write_text("".join(json.dumps(problem) + "\n" for problem in problems))
    flags = ["--method", "delta", "--K", "2", "--eval-data", str(five)]
    limit = ["--max-prompt-tokens", "15"]  # 13 in a problem of 5 operations, 21 in one of 9
    cfg = small_config(tmp_path / "run", *flags, *limit, steps=3)
    run = train.prepare(cfg)
    introduce(run, train.AblationFlags)
    printed = capsys.readouterr().out
    assert "method     delta --K 2\n" in printed
    assert "102,528 parameters" in printed
    assert "problems   48 for training, 2 held out, 3 dropped\n" in printed
    assert run.problems[0]["problem"] in printed
    assert f"folder     {cfg.output_dir}, from the beginning" in printed


@pytest.mark.parametrize("method, clip", [("grpo", "0.2"), ("dapo", "0.28")])
def test_introduce_names_no_clip_that_is_the_methods_own(method, clip, tmp_path, capsys):
    """Given or not; the two differ in their defaults."""
    cfg = small_config(tmp_path / "run", "--method", method, "--clip-high", clip, steps=1)
    run = train.prepare(cfg)
    introduce(run, train.AblationFlags)
    assert f"method     {method}\n" in capsys.readouterr().out
    run.cfg.clip_high = 0.3
    introduce(run, train.AblationFlags)
    assert f"method     {method} --clip-high 0.3\n" in capsys.readouterr().out


def test_log_is_the_first_ranks_job(tmp_path, capsys, on_rank_1):
    log(tmp_path, METRICS[0])
    assert not list(tmp_path.iterdir())
    assert capsys.readouterr().out == ""


def test_report_says_what_was_gained_and_where_all_is(tmp_path, capsys):
    for row in METRICS:
        log(tmp_path, row)
    report(tmp_path)
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("done: 2 steps in 5 s, accuracy 0.250 before and 0.625 after")
    assert str(tmp_path) in last
    assert (tmp_path / "curves.png").exists()


def test_report_without_evaluations_has_no_accuracy(tmp_path, capsys):
    log(tmp_path, METRICS[1])
    report(tmp_path)
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("done: 1 steps in 2 s, model/")


def test_plot_curves_draws_the_three_panels_and_the_evaluations(tmp_path, monkeypatch):
    """Read off the figure before it becomes pixels; then it is a PNG."""
    figures = []

    class Watched(log_module.Figure):
        def __init__(self, **settings):
            super().__init__(**settings)
            figures.append(self)

    monkeypatch.setattr(log_module, "Figure", Watched)
    plot_curves(METRICS, tmp_path / "curves.png")

    reward, length, entropy = figures[0].axes
    curves = {axes.get_title(): axes.lines[0].get_xydata().tolist() for axes in figures[0].axes}
    assert curves == {
        "reward": [[1, 0.5], [2, 0.75]],
        "response length": [[1, 40], [2, 30]],
        "entropy": [[1, 0.4], [2, 0.3]],
    }
    assert reward.lines[1].get_xydata().tolist() == [[0, 0.25], [2, 0.625]]
    assert len(length.lines) == len(entropy.lines) == 1
    assert (tmp_path / "curves.png").read_bytes()[:4] == b"\x89PNG"


def test_curves_are_drawn_at_every_evaluation_not_only_at_the_end(tmp_path):
    """train_steps makes no report; SMALL evaluates in step 2."""
    flags = ["--steps", "2", "--output-dir", str(tmp_path / "run")]
    run = train_steps(train.parse_config([*SMALL, *flags]))
    assert (run.folder / "curves.png").read_bytes().startswith(b"\x89PNG")


def weighing_run(*seconds, method="mine"):
    """As much of a run as hint_about_mean asks for."""
    return SimpleNamespace(seconds=list(seconds), cfg=SimpleNamespace(method=method))


@pytest.mark.parametrize("mean, said", [(1.0, False), (1.004, False), (3.0, True), (0.5, True)])
def test_weights_whose_mean_is_not_one_are_reported_once(mean, said, capsys):
    weights = torch.full((10,), mean)
    hint_about_mean(weighing_run(), weights)
    assert ("the token weights of --method mine have mean" in capsys.readouterr().out) == said
    hint_about_mean(weighing_run(2.5), weights)  # the second step
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("mismatch, said", [(0.01, False), (0.2, True)])
def test_a_large_mismatch_is_on_the_printed_line(mismatch, said, tmp_path, capsys):
    log(tmp_path, {"step": 1, "reward": 0.5, "mismatch": mismatch})
    assert ("mismatch 0.2 nats" in capsys.readouterr().out) == said
