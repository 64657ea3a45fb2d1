"""infra/log.py: the output and files of a run, from given numbers."""

import json
from types import SimpleNamespace

import pytest
import torch
from toy_runs import SMALL, small_config, train_steps

import toy
import train
from infra import log as log_module
from infra.log import introduce, log, mismatch, plot_curves, report


def row(step, **changed):
    """The metrics of a step that are printed or drawn."""
    metrics = {
        "step": step,
        "reward": 0.5,
        "response_length": 40.0,
        "entropy": 0.4,
        "grad_norm": 0.2,
        "skipped_updates": 0,
        "lambda_mean": 1.0,
        "seconds": 2.0,
    }
    return metrics | changed


METRICS = [
    {"step": 0, "eval_accuracy": 0.25},
    row(1),
    row(2, reward=0.75, entropy=0.3, grad_norm=0.1, seconds=3.0, eval_accuracy=0.625),
]


def run_in(folder, rank=0, steps=220, tokenizer=None):
    """The parts of a run that the tests need."""
    cfg = SimpleNamespace(prompts=2, group_size=4, steps=steps, method="mine")
    return SimpleNamespace(
        folder=folder,
        rank=rank,
        cfg=cfg,
        seconds=[],
        without_signal=0,
        tokenizer=tokenizer,
        track=None,
    )


def test_log_appends_a_line_and_prints_the_gist(tmp_path, capsys):
    run = run_in(tmp_path)
    for metrics in METRICS[:2]:
        log(run, metrics)
    assert read_all(tmp_path / "metrics.jsonl") == METRICS[:2]
    first, second = capsys.readouterr().out.splitlines()
    assert first.split() == ["step", "0/220", "eval_accuracy", "0.25"]
    assert second.startswith("step    1/220  reward 0.5  response_length 40")
    assert "eval_accuracy" not in second


def read_all(path):
    """The lines of a .jsonl file, including times."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_mismatch_is_the_distance_of_two_distributions():
    """Four samples in the proportions of the sampler's distribution, so the estimate equals KL."""
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


def test_mismatch_needs_log_probabilities_of_the_sampler():
    assert mismatch(torch.zeros(3), torch.full((3,), torch.nan)) == {}


def test_mismatch_ignores_tokens_without_log_probabilities():
    scored = torch.tensor([-1.0, -2.0, -3.0])
    sampled = torch.tensor([-1.5, torch.nan, -3.0])
    found = mismatch(scored, sampled)
    assert found == mismatch(scored[[0, 2]], sampled[[0, 2]])
    assert found["mismatch"] == 0.25


def test_log_takes_the_time_left_from_the_last_twenty_steps(tmp_path, capsys):
    run = run_in(tmp_path, steps=130)
    run.seconds += [1000.0] * 5 + [2.0] * 19
    log(run, row(30, response_length=50.0))  # 2 x 4 x 50 / 2 s; 100 steps of 2 s
    assert capsys.readouterr().out.endswith("  tokens/s 200  left 0:03:20\n")


def test_a_hint_comes_once_after_ten_steps_without_a_signal(tmp_path, capsys):
    run = run_in(tmp_path)
    silent = row(1, grad_norm=0.0)
    skipped = row(1, grad_norm=0.0, skipped_updates=1)  # a gradient that is not finite
    for metrics in [silent] * 9 + [row(1)] + [silent] * 9 + [skipped] + [silent] * 9:
        log(run, metrics)
    assert "hint" not in capsys.readouterr().out
    log(run, silent)
    assert "hint: in ten steps no group had unequal rewards" in capsys.readouterr().out
    log(run, silent)
    assert "hint" not in capsys.readouterr().out


def test_introduce_describes_the_run(tmp_path, capsys):
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
    assert "problems   48 for training, 2 held out\n" in printed
    assert f"{five}: 2 of 5 problems dropped" in printed
    assert "1 of 3 problems dropped: their prompts exceed" in printed
    assert run.problems[0]["problem"] in printed
    assert f"folder     {cfg.output_dir}, from the beginning" in printed


@pytest.mark.parametrize("method, clip", [("grpo", "0.2"), ("dapo", "0.28")])
def test_introduce_omits_the_methods_own_clip(method, clip, tmp_path, capsys):
    """Given or not. The defaults of the two methods differ."""
    cfg = small_config(tmp_path / "run", "--method", method, "--clip-high", clip, steps=1)
    run = train.prepare(cfg)
    introduce(run, train.AblationFlags)
    assert f"method     {method}\n" in capsys.readouterr().out
    run.cfg.clip_high = 0.3
    introduce(run, train.AblationFlags)
    assert f"method     {method} --clip-high 0.3\n" in capsys.readouterr().out


def test_only_the_first_rank_reports(tmp_path, capsys, base):
    run = run_in(tmp_path, rank=1, tokenizer=base[1])
    log(run, METRICS[2])
    introduce(run, train.AblationFlags)
    report(run)
    assert not list(tmp_path.iterdir())
    assert capsys.readouterr().out == ""


def test_report_has_the_gain_and_the_paths(tmp_path, capsys):
    run = run_in(tmp_path)
    for metrics in METRICS:
        log(run, metrics)
    report(run)
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("done: 2 steps in 5 s, accuracy 0.250 before and 0.625 after")
    assert str(tmp_path) in last
    assert (tmp_path / "curves.png").exists()


def test_report_without_evaluations_has_no_accuracy(tmp_path, capsys):
    run = run_in(tmp_path)
    log(run, METRICS[1])
    report(run)
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("done: 1 steps in 2 s, model/")


@pytest.fixture
def figures(monkeypatch):
    """The drawn figures, to be inspected before rendering."""
    drawn = []

    class Watched(log_module.Figure):
        def __init__(self, **settings):
            super().__init__(**settings)
            drawn.append(self)

    monkeypatch.setattr(log_module, "Figure", Watched)
    return drawn


def test_plot_curves_draws_accuracies_and_changing_metrics(tmp_path, figures):
    """Responses of one length have no panel."""
    greedy = {"step": 0, "eval_greedy": 0.5}
    plot_curves([*METRICS, greedy], tmp_path / "curves.png")
    accuracy, *others = figures[0].axes
    lines = {line.get_label(): line.get_xydata().tolist() for line in accuracy.lines}
    assert lines == {
        "training batch": [[1, 0.5], [2, 0.75]],
        "held out, sampled": [[0, 0.25], [2, 0.625]],
        "held out, greedy": [[0, 0.5]],
    }
    assert accuracy.get_ylim() == (0, 1)
    assert {axes.get_title(): axes.lines[0].get_xydata().tolist() for axes in others} == {
        "entropy": [[1, 0.4], [2, 0.3]],
        "grad norm": [[1, 0.2], [2, 0.1]],
    }
    assert (tmp_path / "curves.png").read_bytes()[:4] == b"\x89PNG"


def test_plot_curves_shows_rewards_outside_0_to_1(tmp_path, figures):
    plot_curves([row(1, reward=-1.0), row(2, reward=3.0)], tmp_path / "curves.png")
    low, high = figures[0].axes[0].get_ylim()
    assert low < -1
    assert high > 3


def test_plot_curves_draws_changing_lengths(tmp_path, figures):
    plot_curves([row(1), row(2, response_length=50.0)], tmp_path / "curves.png")
    assert [axes.get_title() for axes in figures[0].axes] == ["accuracy", "response length"]


def test_curves_are_drawn_at_every_evaluation_not_only_at_the_end(tmp_path):
    """train_steps makes no report; SMALL evaluates in step 2."""
    flags = ["--steps", "2", "--output-dir", str(tmp_path / "run")]
    run = train_steps(train.parse_config([*SMALL, *flags]))
    assert (run.folder / "curves.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("mean, said", [(1.0, False), (1.004, False), (3.0, True), (0.5, True)])
def test_weights_whose_mean_is_not_one_are_reported_once(mean, said, tmp_path, capsys):
    run = run_in(tmp_path)
    log(run, row(1, lambda_mean=mean))
    assert ("the token weights of --method mine have mean" in capsys.readouterr().out) == said
    log(run, row(2, lambda_mean=mean))
    assert "hint" not in capsys.readouterr().out


@pytest.mark.parametrize("mismatch, said", [(0.01, False), (0.2, True)])
def test_a_large_mismatch_is_on_the_printed_line(mismatch, said, tmp_path, capsys):
    log(run_in(tmp_path), row(1, mismatch=mismatch))
    assert ("mismatch 0.2 nats" in capsys.readouterr().out) == said
