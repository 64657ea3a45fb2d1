"""infra/log.py: a run's output and files, for given metrics."""

import json
import math
from types import SimpleNamespace

import pytest
import torch
from infra.files import read_lines
from infra.packing import packed_rows
from references import token_batch
from toy_runs import small_config

import toy
import train
from infra.log import introduce, log, mismatch, report, save_samples


def row(step, **changed):
    """A step's metrics that are printed or plotted."""
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


def test_log_appends_a_line_and_prints_a_summary(tmp_path, capsys):
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


def test_mismatch_is_the_distance_between_two_distributions():
    """Four samples with exactly the sampler's frequencies, so the estimate equals the KL."""
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


def test_mismatch_needs_the_samplers_log_probabilities():
    assert mismatch(torch.zeros(3), torch.full((3,), torch.nan)) == {}


def test_mismatch_ignores_tokens_without_log_probabilities():
    scored = torch.tensor([-1.0, -2.0, -3.0])
    sampled = torch.tensor([-1.5, torch.nan, -3.0])
    found = mismatch(scored, sampled)
    assert found == mismatch(scored[[0, 2]], sampled[[0, 2]])
    assert found["mismatch"] == 0.25


def test_log_estimates_the_time_left_from_the_last_twenty_steps(tmp_path, capsys):
    run = run_in(tmp_path, steps=130)
    run.seconds += [1000.0] * 5 + [2.0] * 19
    log(run, row(30, response_length=50.0))  # 2 x 4 x 50 / 2 s; 100 steps of 2 s
    assert capsys.readouterr().out.endswith("  tokens/s 200  left 0:03:20\n")


def test_a_hint_is_printed_once_after_ten_steps_without_a_signal(tmp_path, capsys):
    run = run_in(tmp_path)
    silent = row(1, grad_norm=0.0)
    skipped = row(1, grad_norm=0.0, skipped_updates=1)  # a non-finite gradient
    for metrics in [silent] * 9 + [row(1)] + [silent] * 9 + [skipped] + [silent] * 9:
        log(run, metrics)
    assert "hint" not in capsys.readouterr().out
    log(run, silent)
    assert "hint: for ten steps no group had unequal rewards" in capsys.readouterr().out
    log(run, silent)
    assert "hint" not in capsys.readouterr().out


def test_introduce_describes_the_run(tmp_path, capsys):
    five = tmp_path / "five.jsonl"
    two = toy.problems(2, seed=1)
    problems = [*two, *toy.problems(1, seed=1, k=9), two[0], {"problem": "1", "answer": ""}]
    five.write_text("".join(json.dumps(problem) + "\n" for problem in problems))
    flags = ["--method", "delta", "--K", "2", "--eval-data", str(five)]
    limit = ["--max-prompt-tokens", "15"]  # 13 tokens with 5 operations, 21 with 9
    cfg = small_config(tmp_path / "run", *flags, *limit, steps=3)
    run = train.prepare(cfg)
    introduce(run)
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
    """Clip flags equal to the method's default are omitted, whether given or not."""
    cfg = small_config(tmp_path / "run", "--method", method, "--clip-high", clip, steps=1)
    run = train.prepare(cfg)
    introduce(run)
    assert f"method     {method}\n" in capsys.readouterr().out
    run.cfg.clip_high = 0.3
    introduce(run)
    assert f"method     {method} --clip-high 0.3\n" in capsys.readouterr().out


def test_only_the_first_rank_reports(tmp_path, capsys, base):
    run = run_in(tmp_path, rank=1, tokenizer=base[1])
    log(run, METRICS[2])
    introduce(run)
    report(run)
    assert not list(tmp_path.iterdir())
    assert capsys.readouterr().out == ""


def test_report_has_the_gain_and_the_paths(tmp_path, capsys):
    run = run_in(tmp_path)
    for metrics in METRICS:
        log(run, metrics)
    report(run)
    done, see = capsys.readouterr().out.splitlines()[-2:]
    assert done.startswith("done: 2 steps in 5 s, accuracy 0.250 before and 0.625 after")
    assert done.endswith(str(tmp_path)) and see.endswith(f"python -m infra.samples {tmp_path}")


def test_report_without_evaluations_has_no_accuracy(tmp_path, capsys):
    run = run_in(tmp_path)
    log(run, METRICS[1])
    report(run)
    done, _ = capsys.readouterr().out.splitlines()[-2:]
    assert done.startswith("done: 1 steps in 2 s, model/")


@pytest.mark.parametrize("mean, said", [(1.0, False), (1.004, False), (3.0, True), (0.5, True)])
def test_weights_whose_mean_is_not_one_are_reported_once(mean, said, tmp_path, capsys):
    run = run_in(tmp_path)
    log(run, row(1, lambda_mean=mean))
    assert ("the token weights of --method mine have mean" in capsys.readouterr().out) == said
    log(run, row(2, lambda_mean=mean))
    assert "hint" not in capsys.readouterr().out


@pytest.mark.parametrize("mismatch, said", [(0.01, False), (0.2, True)])
def test_a_large_mismatch_appears_on_the_printed_line(mismatch, said, tmp_path, capsys):
    log(run_in(tmp_path), row(1, mismatch=mismatch))
    assert ("mismatch 0.2 nats" in capsys.readouterr().out) == said


# ---- samples.jsonl -------------------------------------------------------------------------------


@pytest.fixture
def scored(batch):
    """The rollouts as scored tokens; each response has a different advantage."""
    length = batch.response_length
    tokens = token_batch(length.tolist())
    tokens.advantage = torch.arange(24.0).repeat_interleave(length)
    return tokens


def saved(folder, base, batch, scored, rewards, rank=0):
    """The lines of samples.jsonl after one step of 6 groups of 4."""
    cfg = SimpleNamespace(group_size=4)
    run = SimpleNamespace(folder=folder, tokenizer=base[1], cfg=cfg, rank=rank)
    problems = [{"problem": f"problem {i // 4}", "answer": "7", "tests": ["x"]} for i in range(24)]
    weights = torch.arange(len(scored.logprob)) / 1000
    save_samples(run, 7, problems, batch, torch.tensor(rewards), scored, weights)
    return read_lines(folder / "samples.jsonl")


def test_save_samples_shows_each_token_with_its_numbers(tmp_path, base, batch, scored):
    found = saved(tmp_path, base, batch, scored, [0.0, 0.0, 1.0, 1.0] * 6)
    assert len(found) == 8
    for sample, i in zip(found, (0, 2, 4, 6, 8, 10, 12, 14), strict=True):
        assert (sample["step"], sample["group"]) == (7, i // 4)
        assert sample["problem"] == f"problem {i // 4}"
        assert sample["answer"] == "7"
        assert "tests" not in sample
        assert sample["reward"] == [0.0, 0.0, 1.0, 1.0][i % 4]
        assert sample["group_rewards"] == [0.0, 0.0, 1.0, 1.0]
        assert sample["advantage"] == i
        assert sample["response"] == batch.texts[i]
        assert "".join(sample["tokens"]).removesuffix("<eos>") == sample["response"]
        rows = packed_rows(torch.tensor([i]), batch.response_length)
        assert len(sample["tokens"]) == len(rows) > 0
        assert sample["lambda"] == pytest.approx((rows / 1000).tolist(), abs=1e-4)
        assert sample["logprob"] == pytest.approx(scored.logprob[rows].tolist(), abs=1e-3)
        assert sample["entropy"] == pytest.approx(scored.entropy[rows].tolist(), abs=1e-3)


def test_save_samples_saves_the_first_two_of_equally_rewarded_responses(
    tmp_path, base, batch, scored
):
    found = saved(tmp_path, base, batch, scored, [1.0] * 24)
    assert [sample["response"] for sample in found[:2]] == batch.texts[:2]


def test_only_the_first_rank_saves_samples(tmp_path, base, batch, scored):
    assert saved(tmp_path, base, batch, scored, [1.0] * 24, rank=1) == []


def test_non_finite_numbers_are_written_as_null(tmp_path, base, batch, scored):
    """JSON has no NaN, and browsers reject it."""
    scored.entropy[0] = math.nan
    found = saved(tmp_path, base, batch, scored, [1.0] * 24)
    assert found[0]["entropy"][0] is None
    assert "NaN" not in (tmp_path / "samples.jsonl").read_text()
