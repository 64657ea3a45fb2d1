"""train.py: the promises of the loop, end to end on the toy.

No test depends on which tokens are sampled, because sampling depends on rounding, which depends on
the processor. Properties of particular responses are tested on hand-written responses.
"""

import contextlib
import copy
import dataclasses
import io
import itertools
import json
import math
import os
import shutil
import signal
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from infra.packing import padded_rollouts
from infra.policy import Policy, old_log_probabilities
from toy_runs import (
    PROBLEMS,
    SMALL,
    read_lines,
    refusal,
    same_weights,
    small_config,
    train_small,
    train_steps,
)
from transformers import AutoModelForCausalLM, AutoTokenizer

import train
from grading import grade
from grpo import group_advantages, overlong_penalty
from infra import errors
from infra import run as run_module
from infra.errors import Interrupted, UserError
from infra.progress import Progress, Stopwatch
from methods import METHODS, Method
from toy.presets import CHAINS


def graded_in_turn(monkeypatch, grades):
    """Make train.py give responses these rewards, in order."""
    numbers = iter(grades)

    def next_grades(responses, *_):
        return [next(numbers) for _ in responses]

    monkeypatch.setattr(train, "grades", next_grades)


# ---- a run's files -----------------------------------------------------------------------------


@dataclass
class Finished:
    folder: Path
    metrics: list[dict]
    printed: list[str]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A three-step run on the toy's two data sets. Read-only."""
    folder = tmp_path_factory.mktemp("runs") / "finished"
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        metrics = train_small(folder, "--data", "toy", "--eval-data", "toy-held-out", steps=3)
    return Finished(folder, metrics, printed.getvalue().splitlines())


def test_train_logs_every_step(finished):
    assert [row["step"] for row in finished.metrics] == [0, 1, 2, 3]
    for row in finished.metrics[1:]:
        promised = {
            "loss",
            "reward",
            "response_length",
            "truncated",
            "entropy",
            "grad_norm",
            "clip_fraction",
            "skipped_updates",
            "lambda_std",
            "lambda_above_one",
        }
        assert promised <= set(row)
        assert row["grad_norm"] > 0
        assert 0 <= row["reward"] <= 1


def test_train_evaluates_at_the_start_at_intervals_and_at_the_end(finished):
    assert set(finished.metrics[0]) == {"step", "eval_accuracy", "eval_greedy"}
    evaluated = [row["step"] for row in finished.metrics if "eval_accuracy" in row]
    assert evaluated == [0, 2, 3]


def test_train_writes_all_promised_files(finished):
    folder = finished.folder
    assert json.loads((folder / "config.json").read_text())["method"] == "delta"
    assert (folder / "best" / "model.safetensors").exists()
    checkpoints = sorted(path.name for path in folder.glob("checkpoint-*"))
    assert checkpoints == ["checkpoint-000002", "checkpoint-000003"]


def test_train_shows_samples(finished):
    samples = read_lines(finished.folder / "samples.jsonl")
    assert {sample["step"] for sample in samples} == {1, 2}
    for sample in samples:
        assert len(sample["tokens"]) == len(sample["lambda"]) > 0
        assert "".join(sample["tokens"]).removesuffix("<eos>") == sample["response"]
        assert sample["reward"] == grade(sample["response"], sample)


def test_train_exports_a_changed_model(finished, first_model):
    model = AutoModelForCausalLM.from_pretrained(finished.folder / "model")
    assert AutoTokenizer.from_pretrained(finished.folder / "model").eos_token == "<eos>"
    assert not same_weights(model, first_model)


def test_train_ends_with_a_line_about_the_gain(finished):
    done, see = finished.printed[-2:]
    before = finished.metrics[0]["eval_accuracy"]
    after = finished.metrics[-1]["eval_accuracy"]
    assert f"accuracy {before:.3f} before and {after:.3f} after" in done
    assert done.endswith(str(finished.folder)) and str(finished.folder) in see


def test_train_prints_its_settings_and_speed(finished):
    printed = "\n".join(finished.printed)
    assert "\nproblems   8192 for training, 512 held out\n" in printed
    assert "\nstep    1/3  reward " in printed
    assert printed.count("  tokens/s ") == 3


@pytest.fixture
def stages(monkeypatch):
    """(name, total, done) of each stage of a run, recorded when the stage closes."""
    shown = []

    def close(stage):
        if not stage.disable:  # tqdm closes a bar again when it is garbage-collected
            shown.append((stage.desc, stage.total, stage.n))
        stage.disable = True

    monkeypatch.setattr(Progress, "close", close)
    return shown


def test_a_step_shows_the_progress_of_its_stages(stages, tmp_path):
    run = train_steps(small_config(tmp_path, steps=1))
    (row,) = read_lines(tmp_path / "metrics.jsonl")
    tokens = round(row["response_length"] * 32)
    assert [name for name, _, _ in stages] == ["sampling", "scoring", "update"]
    sampling, scoring, update = stages
    assert sampling[2] == tokens
    assert scoring[1:] == (tokens, tokens)
    assert update[1] == update[2] <= tokens
    assert run.without_signal == 0


def test_a_step_logs_the_seconds_that_its_stages_take(finished):
    """The stages' seconds add up to the step's."""
    stages = ("sampling", "grading", "scoring", "weighting", "updating")
    for line in (finished.folder / "metrics.jsonl").read_text().splitlines()[1:]:
        row = json.loads(line)
        seconds = [row[f"seconds_{stage}"] for stage in stages]
        assert min(seconds) > 0
        assert sum(seconds) == pytest.approx(row["seconds"])


def test_steps_without_a_learning_signal_are_counted(tmp_path, monkeypatch, capsys):
    graded_in_turn(monkeypatch, itertools.repeat(1.0))
    run = train.prepare(small_config(tmp_path, steps=1))
    run.without_signal = 9
    train.train_step(run, 1)
    assert run.without_signal == 10
    assert "hint: for ten steps no group had unequal rewards" in capsys.readouterr().out


def test_train_repeats_its_metrics_only_with_the_same_seed(tmp_path):
    one = train_small(tmp_path / "one", steps=2)
    again = train_small(tmp_path / "again", steps=2)
    other = train_small(tmp_path / "other", "--seed", "1", steps=2)
    assert one == again
    assert one[1] != other[1]
    samples = read_lines(tmp_path / "one" / "samples.jsonl")
    assert samples == read_lines(tmp_path / "again" / "samples.jsonl")


# ---- the update --------------------------------------------------------------------------------


@pytest.fixture
def largest_log_ratios(monkeypatch):
    """max |log π_θ - log π_old| of every trained micro-batch, in order."""
    seen = []

    def watched(logprob, old_logprob, advantage, flags):
        seen.append(float((logprob - old_logprob).detach().abs().max()))
        return original.surrogate(logprob, old_logprob, advantage, flags)

    original = METHODS["delta"]
    monkeypatch.setitem(METHODS, "delta", dataclasses.replace(original, surrogate=watched))
    return seen


def test_the_ratio_is_exactly_one_on_the_first_update(largest_log_ratios, tmp_path):
    """The ratio is 1 without rounding error, for any division into micro-batches."""
    flags = ["--mini-batch", "8", "--micro-batch-tokens", "300"]
    train_steps(small_config(tmp_path, *flags, steps=1))
    assert len(largest_log_ratios) > 1
    assert set(largest_log_ratios) == {0.0}


def test_the_ratio_differs_from_one_after_an_update(largest_log_ratios, tmp_path):
    flags = ["--prompts", "16", "--mini-batch", "8", "--micro-batch-tokens", "100000"]
    train_steps(small_config(tmp_path, *flags, "--lr", "1e-3", steps=1))
    first, second = largest_log_ratios
    assert first == 0.0
    assert second > 1e-4


def test_mismatch_is_zero_on_the_cpu(tmp_path):
    """In float32, the sampler's and the policy's distributions agree up to rounding.

    They still agree in the second step, because the sampler follows the updates.
    """
    flags = ["--lr", "1e-3", "--temperature", "1.3"]
    train_steps(small_config(tmp_path, *flags, steps=2))
    for row in read_lines(tmp_path / "metrics.jsonl"):
        assert row["mismatch"] < 1e-5
        assert row["mismatch_max"] < 1e-3
        assert abs(row["mismatch_kl"]) < 1e-6


@contextlib.contextmanager
def perturbed_sampler(run):
    """Replaces run.policy.plain by a sampler whose head differs from the policy's."""
    with Policy.plain(run.policy) as lm:
        other = copy.deepcopy(lm)
        with torch.no_grad():
            other.lm_head.weight *= 1.2
        yield other


def test_a_perturbed_sampler_shows_in_the_mismatch(tmp_path):
    run = train.prepare(small_config(tmp_path, "--importance-cap", "1.1", steps=1))
    run.policy.plain = partial(perturbed_sampler, run)
    train.train_step(run, 1)
    (row,) = read_lines(tmp_path / "metrics.jsonl")
    assert row["mismatch"] > 0.01
    assert row["mismatch_max"] > 0.1
    assert 1e-4 < row["mismatch_kl"] < row["mismatch"]


def half_as_likely_to_the_sampler(*arguments):
    """Replaces old_log_probabilities: the sampler's probabilities are half of the policy's."""
    tokens = old_log_probabilities(*arguments)
    tokens.sampler_logprob = tokens.logprob - math.log(2)
    return tokens


def test_importance_weights_multiply_the_terms_of_the_update(tmp_path, monkeypatch):
    """A ratio of 2 on every token doubles the gradient; a cap of 1.5 limits the factor to 1.5."""
    norms = []
    for folder, flags in (("off", []), ("two", ["3"]), ("capped", ["1.5"])):
        if flags:
            flags = ["--importance-cap", *flags]
        monkeypatch.setattr(train, "old_log_probabilities", half_as_likely_to_the_sampler)
        train_steps(small_config(tmp_path / folder, *flags, "--mini-batch", "8", steps=1))
        monkeypatch.undo()
        (row,) = read_lines(tmp_path / folder / "metrics.jsonl")
        norms.append(row["grad_norm"])
    assert norms[1] == pytest.approx(2 * norms[0], rel=1e-4)
    assert norms[2] == pytest.approx(1.5 * norms[0], rel=1e-4)


def test_an_importance_cap_below_one_is_refused(capsys):
    assert "--importance-cap 0.5" in refusal(train.main, ["--importance-cap", "0.5"], capsys)


def test_micro_batches_do_not_change_the_update(tmp_path):
    rows = []
    for budget in ("100000", "150"):
        cfg = small_config(tmp_path / budget, "--micro-batch-tokens", budget, steps=1)
        train_steps(cfg)
        rows += read_lines(tmp_path / budget / "metrics.jsonl")
    whole, parts = rows
    for name in ("loss", "grad_norm", "entropy"):
        assert whole[name] == pytest.approx(parts[name], rel=1e-3, abs=1e-6)


def test_the_loss_is_minus_the_objective_averaged_over_mini_batches(tmp_path, monkeypatch):
    """Without optimiser steps every ratio stays 1, so a mini-batch has J = (1/N) Σ ρ A (Eq. 8)."""
    monkeypatch.setattr(train, "clip_and_step", lambda run, most: 1.0)
    graded_in_turn(monkeypatch, itertools.cycle([1.0, 0.0, 0.0]))
    seen = []

    def spy(run, rollouts, tokens, weights, plan, original=train.update):
        seen.append((tokens.advantage * weights, rollouts.response_length, plan))
        return original(run, rollouts, tokens, weights, plan)

    monkeypatch.setattr(train, "update", spy)
    train_steps(small_config(tmp_path, "--mini-batch", "2", steps=1))
    [(terms, length, plan)] = seen
    assert len(plan) > 1
    of_responses = [float(part.double().sum()) for part in terms.split(length.tolist())]
    objectives = []
    for mini_batch in plan:
        responses = [i for index in mini_batch.micro_batches for i in index.tolist()]
        tokens = sum(int(length[i]) for i in responses)
        objectives.append(sum(of_responses[i] for i in responses) / tokens)
    (row,) = read_lines(tmp_path / "metrics.jsonl")
    assert row["loss"] == pytest.approx(-sum(objectives) / len(objectives), abs=1e-6)
    assert abs(row["loss"]) > 1e-5


def test_a_step_without_any_advantage_changes_nothing(tmp_path, monkeypatch, first_model):
    """All responses are graded as correct, so there is no optimiser step and no weight decay."""
    graded_in_turn(monkeypatch, itertools.repeat(1.0))
    run = train_steps(small_config(tmp_path, steps=1))
    (row,) = read_lines(tmp_path / "metrics.jsonl")
    assert row["reward"] == 1
    assert row["grad_norm"] == row["loss"] == row["skipped_updates"] == 0
    assert same_weights(run.policy, first_model)


# ---- methods and flags -------------------------------------------------------------------------

EVERY_FLAG = [
    *(["--method", method] for method in METHODS),
    *(["--K", K] for K in ("0", "3")),
    ["--lam-min", "0.5"],
    ["--lam-max", "1.5"],
    ["--proxy", "topk", "--proxy-topk", "5"],
    ["--proxy", "exact"],
    ["--proxy", "surprise"],
    ["--delta-variant", "full"],
    ["--delta-variant", "within_side"],
    ["--delta-variant", "hard"],
    ["--delta-variant", "no_norm"],
    ["--delta-variant", "no_range_map"],
    ["--delta-variant", "fixed_gamma"],
    ["--delta-variant", "random"],
    ["--delta-variant", "no_centroids"],
    *(["--select", share, "--select-share", "0.3"] for share in ("top", "random", "bottom")),
    ["--overlong-buffer", "30"],
    ["--dynamic-sampling"],
    ["--recompute"],
    ["--clip-low", "0", "--clip-high", "0"],
    ["--temperature", "0.7"],
    ["--rollout-rows", "3"],
]


@pytest.mark.parametrize("flags", EVERY_FLAG, ids=" ".join)
def test_every_flag_value_trains_two_steps(flags, tmp_path, first_model):
    run = train_steps(small_config(tmp_path, *flags, steps=2))
    rows = read_lines(tmp_path / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2]
    for row in rows:
        assert row["grad_norm"] > 0
        assert math.isfinite(row["loss"])
        assert row["skipped_updates"] == 0
    assert not same_weights(run.policy, first_model)


@pytest.mark.parametrize("method", ["dapo", "reinforce", "fipo"])
def test_lambda_std_is_zero_for_equal_weights(method, tmp_path):
    """FIPO's weights are 1 until an update moves the policy."""
    train_steps(small_config(tmp_path, "--method", method, steps=1))
    (row,) = read_lines(tmp_path / "metrics.jsonl")
    assert row["lambda_std"] == row["lambda_above_one"] == 0


@pytest.mark.parametrize("method", ["delta", "forking_tokens"])
def test_lambda_std_is_positive_for_unequal_weights(method, tmp_path):
    train_steps(small_config(tmp_path, "--method", method, steps=1))
    (row,) = read_lines(tmp_path / "metrics.jsonl")
    assert row["lambda_std"] > 0.01
    assert 0 < row["lambda_above_one"] < 1


def test_fipo_equals_dapo_on_the_first_mini_batch_and_not_after(tmp_path):
    def row_of(method, *flags):
        folder = tmp_path / f"{method}{len(flags)}"
        train_steps(small_config(folder, "--method", method, *flags, steps=1))
        return read_lines(folder / "metrics.jsonl")[0]

    one_update = ["--mini-batch", "8"]
    assert row_of("fipo", *one_update) == row_of("dapo", *one_update)

    two_updates = ["--prompts", "16", "--mini-batch", "8", "--lr", "1e-3"]
    assert row_of("fipo", *two_updates)["grad_norm"] != row_of("dapo", *two_updates)["grad_norm"]


def test_fipo_works_with_ranks_that_have_more_micro_batches(tmp_path, monkeypatch):
    """A rank's last micro-batches may be empty. Empty micro-batches change nothing."""
    plan_mini_batches = train.plan_mini_batches

    def with_an_empty_micro_batch(*arguments):
        plan = plan_mini_batches(*arguments)
        for mini_batch in plan:
            mini_batch.trained.append(mini_batch.trained[0][:0])
        return plan

    flags = ["--method", "fipo", "--mini-batch", "4"]
    train_steps(small_config(tmp_path / "as ever", *flags, steps=1))
    monkeypatch.setattr(train, "plan_mini_batches", with_an_empty_micro_batch)
    train_steps(small_config(tmp_path / "empty", *flags, steps=1))
    as_ever, empty = (
        read_lines(tmp_path / name / "metrics.jsonl") for name in ("as ever", "empty")
    )
    assert as_ever == empty


def surprise(tokens, flags):
    """ρ = -log p: unlikely tokens count more."""
    weights = -tokens.logprob
    return weights / weights.mean()


def test_a_new_method_is_a_function_of_a_few_lines(tmp_path, monkeypatch):
    """An example of a few lines, as in the README."""
    monkeypatch.setitem(METHODS, "surprise", Method(weights=surprise))
    cfg = dataclasses.replace(small_config(tmp_path, steps=2), method="surprise")
    train.train(cfg)
    for row in read_lines(tmp_path / "metrics.jsonl"):
        assert row["lambda_std"] > 0.1
        assert row["grad_norm"] > 0


def test_any_model_folder_and_problem_file_can_be_used(finished, tmp_path):
    """None of the flags relies on the toy's preset."""
    lines = []
    for a, b in itertools.product(range(5), range(5)):
        problem = {"problem": f"{a}+{b}=?", "answer": (a + b) % 10}
        lines.append(json.dumps(problem) + "\n")
    problems = tmp_path / "problems.jsonl"
    problems.write_text("".join(lines))

    flags = [
        *("--model", str(finished.folder / "model")),
        *("--data", str(problems)),
        *("--eval-data", str(problems)),
        *("--max-new-tokens", "20"),
        *("--max-prompt-tokens", "8"),
    ]
    metrics = train_small(tmp_path / "run", *flags, steps=2)
    assert [row["step"] for row in metrics] == [0, 1, 2]
    assert "eval_accuracy" in metrics[2]


# ---- overlong responses ------------------------------------------------------------------------


@pytest.mark.parametrize("max_length, buffer", [(64, 40), (64, 64), (64, 1), (20480, 4096)])
def test_overlong_penalty_follows_the_formula(max_length, buffer):
    lengths = [1, max_length // 2, max_length - buffer, max_length - buffer // 3, max_length]
    expected = [min(0, -(L - (max_length - buffer)) / buffer) for L in lengths]
    penalty = overlong_penalty(torch.tensor(lengths), max_length, buffer)
    assert penalty.tolist() == pytest.approx(expected)
    assert penalty[-1] == -1
    assert penalty[2] == 0


def test_overlong_penalty_without_a_buffer_is_zero():
    penalty = overlong_penalty(torch.tensor([1, 40, 64]), 64, 0)
    assert penalty.tolist() == [0, 0, 0]
    assert penalty.is_floating_point()


WRITTEN_LENGTHS = [10, 64, 30, 50]
WRITTEN_REWARDS = [1.0, 1.0, 0.0, 0.0]  # two groups of two, equal within each group


def written_sample(run, step, watch):
    """Replaces train.sample: responses of fixed lengths, with WRITTEN_REWARDS."""
    responses = [[7] * (length - 1) + [run.tokenizer.eos_token_id] for length in WRITTEN_LENGTHS]
    device = run.policy.lm.device
    rollouts = padded_rollouts(
        [[5, 6]] * 4, responses, [""] * 4, [run.tokenizer.eos_token_id], device
    )
    return rollouts, run.problems[:4], torch.tensor(WRITTEN_REWARDS, device=device), 2


@pytest.mark.parametrize("buffer", [0, 40])
def test_overlong_shaping_affects_advantages_but_not_the_reported_reward(
    buffer, tmp_path, monkeypatch
):
    """Rewards are equal within each group. The penalties, 0, -1, -0.15 and -0.65, differ."""
    seen = {}

    def weights(tokens, flags):
        seen["advantage"] = tokens.advantage.cpu()
        return torch.ones_like(tokens.advantage)

    monkeypatch.setitem(METHODS, "watched", Method(weights=weights))
    monkeypatch.setattr(train, "sample", written_sample)
    flags = ["--prompts", "2", "--mini-batch", "2", "--group-size", "2"]
    cfg = small_config(tmp_path, *flags, "--overlong-buffer", str(buffer), steps=1)
    train_steps(dataclasses.replace(cfg, method="watched"))

    (row,) = read_lines(tmp_path / "metrics.jsonl")
    assert row["reward"] == 0.5
    assert (row["grad_norm"] > 0) == (buffer > 0)
    shaped = torch.tensor(WRITTEN_REWARDS)
    if buffer:
        shaped = shaped + torch.tensor([0, -1, -6 / 40, -26 / 40])
    expected = group_advantages(shaped, 2).repeat_interleave(torch.tensor(WRITTEN_LENGTHS))
    torch.testing.assert_close(seen["advantage"], expected)


# ---- sampling ----------------------------------------------------------------------------------


def two_by_two(folder, *flags):
    """A prepared run with two groups of two responses per step."""
    flags = ["--prompts", "2", "--mini-batch", "2", "--group-size", "2", *flags]
    return train.prepare(small_config(folder, *flags, steps=1))


def test_sample_grades_each_response_against_its_problem(tmp_path):
    run = two_by_two(tmp_path)
    rollouts, problems, rewards, position = train.sample(run, 1, Stopwatch())
    pairs = zip(rollouts.texts, problems, strict=True)
    assert rewards.tolist() == [grade(text, problem) for text, problem in pairs]
    assert problems[0] is problems[1]
    assert problems[2] is problems[3]
    assert problems[1] is not problems[2]
    assert position == 2

    prompts = [run.prompts[run.problems.index(problem)] for problem in problems]
    for i, prompt in enumerate(prompts):
        assert rollouts.ids[i, : len(prompt)].tolist() == prompt


def test_sample_continues_the_stream_of_prompts(tmp_path):
    run = two_by_two(tmp_path)
    _, first, _, run.state.position = train.sample(run, 1, Stopwatch())
    _, second, _, position = train.sample(run, 2, Stopwatch())
    assert position == 4
    for problem in second:
        assert problem not in first


@pytest.mark.parametrize("flags", [[], ["--dynamic-sampling"]])
def test_a_set_smaller_than_a_step_gives_new_responses_each_time(flags, tmp_path):
    """Each step has eight prompts from a set of two problems."""
    few = tmp_path / "few.jsonl"
    few.write_text("".join(Path(PROBLEMS).read_text().splitlines(keepends=True)[:2]))
    run = train.prepare(small_config(tmp_path / "run", "--data", str(few), *flags, steps=1))
    rollouts, problems, _, _ = train.sample(run, 1, Stopwatch())
    for problem in run.problems:
        texts = [text for text, p in zip(rollouts.texts, problems, strict=True) if p is problem]
        groups = [tuple(texts[i : i + 4]) for i in range(0, len(texts), 4)]
        assert len(groups) > 1
        assert len(set(groups)) == len(groups)


@pytest.mark.parametrize("equal", [(0.0, 0.0), (0.1 + 0.2, 0.3)])
def test_dynamic_sampling_replaces_groups_of_equal_rewards(equal, tmp_path, monkeypatch):
    """Only the second and fourth of four groups have unequal rewards; they form the batch.

    Rewards that differ only by rounding count as equal.
    """
    graded_in_turn(monkeypatch, [*equal, 1, 0, 1, 1, 0, 1])
    run = two_by_two(tmp_path, "--dynamic-sampling")
    rollouts, problems, rewards, position = train.sample(run, 1, Stopwatch())
    assert rewards.tolist() == [1, 0, 0, 1]
    assert len(rollouts) == len(problems) == 4
    assert position == 4


def test_dynamic_sampling_gives_up_after_ten_rounds(tmp_path, monkeypatch):
    """One of twenty groups has unequal rewards. A group of equal rewards completes the batch."""
    graded_in_turn(monkeypatch, [0] * 30 + [1] + [0] * 9)
    run = two_by_two(tmp_path, "--dynamic-sampling")
    _, _, rewards, position = train.sample(run, 1, Stopwatch())
    assert rewards.tolist() == [1, 0, 0, 0]
    assert position == 20


def test_dynamic_sampling_keeps_responses_with_their_problems(tmp_path):
    """Uses sampled responses, in groups large enough to often have unequal rewards."""
    flags = ["--dynamic-sampling", "--prompts", "6", "--mini-batch", "6", "--group-size", "4"]
    run = train.prepare(small_config(tmp_path, *flags, steps=1))
    rollouts, problems, rewards, position = train.sample(run, 1, Stopwatch())
    pairs = zip(rollouts.texts, problems, strict=True)
    assert rewards.tolist() == [grade(text, problem) for text, problem in pairs]
    for group in rewards.view(6, 4).tolist():
        assert len(set(group)) == 2
    assert position % 6 == 0


# ---- signals -----------------------------------------------------------------------------------


def test_sampling_is_abandoned_when_the_run_is_told_to_stop(tmp_path):
    run = two_by_two(tmp_path)
    run.stop(signal.SIGTERM, None)
    with pytest.raises(Interrupted):
        train.sample(run, 1, Stopwatch())


def interrupted(monkeypatch, function, call, number, main):
    """Run main() and raise the signal in the given call of train.py's `function`."""
    original = getattr(train, function)
    calls = []

    def interrupting(*arguments, **named):
        calls.append(function)
        if len(calls) == call:
            signal.raise_signal(number)
        return original(*arguments, **named)

    with monkeypatch.context() as patched:
        patched.setattr(train, function, interrupting)
        with pytest.raises(SystemExit) as stopped:
            main()
    assert stopped.value.code == 128 + number


@pytest.fixture(scope="module")
def three_steps(tmp_path_factory):
    """The folder of an uninterrupted run of three steps, evaluated at steps 0, 2 and 3."""
    folder = tmp_path_factory.mktemp("runs") / "three"
    train_small(folder, "--save-every", "9", steps=3)
    return folder


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(
    "function, call, step",
    [
        ("sample_grades", 1, 0),  # the evaluation before the first step
        ("rollout", 3, 2),
        ("old_log_probabilities", 2, 1),  # step 2 makes no update
        ("update", 2, 2),
        ("sample_grades", 3, 2),  # after the update: evaluated and logged after resuming
        ("sample_grades", 6, 3),  # the last evaluation, greedy
    ],
)
def test_a_signal_saves_and_the_same_command_continues(
    number, function, call, step, three_steps, tmp_path, monkeypatch, capsys
):
    folder = tmp_path / "cut"

    def main():
        train_small(folder, "--save-every", "9", steps=3)

    interrupted(monkeypatch, function, call, number, main)
    error = capsys.readouterr().err
    assert f"train.py: stopped by {signal.Signals(number).name} after step {step}" in error
    assert "stopping at the next safe point, with a checkpoint" not in error  # on file descriptor 2
    assert error.count("\n") == 1
    saved = [f"checkpoint-{step:06d}"] if step else []  # none before the first update
    assert [path.name for path in folder.glob("checkpoint-*")] == saved
    assert ("with a checkpoint" if step else "without a checkpoint") in error

    main()
    assert (f"after step {step}" if step else "from the beginning") in capsys.readouterr().out
    for name in ("metrics.jsonl", "samples.jsonl"):
        assert read_lines(folder / name) == read_lines(three_steps / name)


def test_an_evaluation_may_be_interrupted_twice_and_its_checkpoint_used_twice(
    three_steps, tmp_path, monkeypatch
):
    """No line is written twice or lost."""
    folder = tmp_path / "cut"

    def main():
        train_small(folder, "--save-every", "9", steps=3)

    interrupted(monkeypatch, "sample_grades", 3, signal.SIGINT, main)
    interrupted(monkeypatch, "sample_grades", 1, signal.SIGINT, main)
    main()
    expected = read_lines(three_steps / "metrics.jsonl")
    assert read_lines(folder / "metrics.jsonl") == expected

    shutil.rmtree(folder / "checkpoint-000003")  # as if killed before this checkpoint
    main()
    assert read_lines(folder / "metrics.jsonl") == expected


def test_a_second_ctrl_c_stops_at_once():
    child = os.fork()
    if child == 0:
        run = SimpleNamespace(told_to_stop=None)
        train.Run.stop(run, signal.SIGINT, None)
        train.Run.stop(run, signal.SIGTERM, None)
        if run.told_to_stop == signal.SIGTERM:
            train.Run.stop(run, signal.SIGINT, None)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGINT


def test_ctrl_c_before_the_first_step_prints_one_line(tmp_path, monkeypatch, capsys):
    def pressed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(run_module, "load_policy", pressed)
    with pytest.raises(SystemExit) as stopped:
        train_small(tmp_path / "run", steps=1)
    assert stopped.value.code == 130
    assert capsys.readouterr().err == "train.py: stopped by Ctrl-C: rerun the command to resume\n"


def one_too_few(tokens, flags):
    return torch.ones_like(tokens.logprob)[1:]


def a_column(tokens, flags):
    return torch.ones_like(tokens.logprob)[:, None]


def not_a_number(tokens, flags):
    return torch.full_like(tokens.logprob, float("nan"))


def below_zero(tokens, flags):
    return tokens.logprob


@pytest.mark.parametrize("follows_policy", [False, True])
@pytest.mark.parametrize(
    "weights, message",
    [
        (one_too_few, "gave weights of shape ("),
        (a_column, "gave weights of shape ("),
        (not_a_number, "gave a weight that is NaN or infinite"),
        (below_zero, "gave a negative weight"),
    ],
)
def test_a_method_with_invalid_weights_is_named_in_the_error(
    weights, message, follows_policy, tmp_path, monkeypatch, base
):
    """The check runs on the first call, and in every update if the method follows the policy."""

    def later(tokens, flags):
        calls.append(tokens)
        return weights(tokens, flags) if len(calls) > 1 else torch.ones_like(tokens.logprob)

    calls = []
    method = Method(weights=later if follows_policy else weights, follows_policy=follows_policy)
    monkeypatch.setitem(METHODS, "mine", method)
    cfg = dataclasses.replace(small_config(tmp_path, steps=2), method="mine")
    with pytest.raises(UserError) as refused:
        train.train(cfg)
    assert str(refused.value).startswith("--method mine ")
    assert message in str(refused.value)
    assert read_lines(tmp_path / "metrics.jsonl") == []


@pytest.mark.parametrize(
    "culprit, stage, knob",
    [
        ("train.rollout", "sample", "--rollout-rows"),
        ("train.sample_grades", "evaluate", "--rollout-rows"),
        ("infra.policy.packed_rows", "old_log_probabilities", "--micro-batch-tokens"),
        ("delta.side_centroids", "delta_coefficients", "--proxy-budget-gb"),
        ("train.packed_rows", "update", "--micro-batch-tokens"),
    ],
)
def test_out_of_memory_names_the_flag_to_set(culprit, stage, knob, tmp_path, monkeypatch, capsys):
    """Memory runs out in a function that the stage calls."""

    def no_memory(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    monkeypatch.setattr(culprit, no_memory)
    eval_data = [] if stage == "evaluate" else ["--eval-data", ""]
    with pytest.raises(SystemExit) as stopped:
        train_small(tmp_path, *eval_data, steps=1)
    assert stopped.value.code == 1
    said = capsys.readouterr().err
    assert f"out of GPU memory in {stage}: lower {knob}," in said
    assert "Tried to allocate 2 GiB" in said


# ---- the command line --------------------------------------------------------------------------


def test_parse_config_defaults_match_the_paper():
    cfg = train.parse_config(["--model", "x/y"])
    expected = {
        "data": "deepmath",
        "eval_data": "aime25",
        "steps": 220,
        "prompts": 128,
        "group_size": 16,
        "mini_batch": 32,
        "max_new_tokens": 20480,
        "lr": 1e-6,
        "clip_low": 0.2,
        "clip_high": 0.28,
        "K": 1,
        "lam_min": 0.8,
        "lam_max": 1.2,
        "overlong_buffer": 0,
        "dynamic_sampling": False,
        "output_dir": "runs/y-delta-0",
    }
    assert {name: getattr(cfg, name) for name in expected} == expected


def test_given_flags_override_the_toys_preset():
    cfg = train.parse_config([])
    assert {name: getattr(cfg, name) for name in CHAINS} == CHAINS
    assert cfg.output_dir == "runs/toy-delta-0"
    assert train.parse_config(["--prompts", "32"]).prompts == 32


def test_given_flags_override_the_methods_clip():
    assert train.parse_config(["--method", "grpo"]).clip_high == 0.2
    assert train.parse_config(["--method", "dapo"]).clip_high == 0.28
    assert train.parse_config(["--method", "grpo", "--clip-high", "0.3"]).clip_high == 0.3


USER_ERRORS = [
    # outside the limits
    (["--group-size", "1"], "at least 2"),
    (["--steps", "0"], "at least 1"),
    (["--K", "-1"], "--K is -1"),
    (["--temperature", "0"], "--temperature"),
    (["--select-share", "0"], "share"),
    (["--lr", "nan"], "--lr"),
    # unknown
    (["--step", "3"], "--step"),
    (["--lr", "fast"], "--lr"),
    (["--method", "ppo"], "--method"),
    (["--delta-variant", "x"], "--delta-variant"),
    # contradictory
    (["--lam-min", "1.3"], "--lam-min 1.3"),
    (["--prompts", "5"], "multiple"),
    (["--proxy", "topk", "--method", "grpo"], "--proxy does nothing with --method grpo"),
    (["--K", "2", "--method", "dapo"], "--K does nothing with --method dapo"),
    (["--select", "top", "--method", "fipo"], "--select does nothing with --method fipo"),
    (
        ["--delta-variant", "random", "--proxy", "topk"],
        "--proxy does nothing with --delta-variant random",
    ),
    # missing, unreadable or unwritable
    (["--model", "/no/such/folder", "--data", "toy", "--eval-data", ""], "/no/such/folder"),
    (["--data", ""], "--data is empty"),
    (["--data", "/no/such.jsonl"], "/no/such.jsonl"),
    (["--eval-data", "/no/such.csv"], "/no/such.csv"),
    (["--output-dir", "/dev/null/run"], "/dev/null/run"),
    (["--prompt-template", "x"], "{problem}"),
    (["--max-prompt-tokens", "3"], "--max-prompt-tokens"),
]


@pytest.mark.parametrize("flags, message", USER_ERRORS)
def test_user_errors_are_one_line_and_exit_code_2(flags, message, tmp_path, monkeypatch, capsys):
    """Nothing is written."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        train.main(flags)
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("train.py: ")
    assert message in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("rank, waited", [(0, []), (1, [errors.GRACE])])
def test_the_first_rank_prints_user_errors_at_once(rank, waited, monkeypatch, capsys):
    """Other ranks wait for torchrun to stop them, and print only if torchrun does not."""
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", "2")
    slept = []
    monkeypatch.setattr(errors.time, "sleep", slept.append)
    handler = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit) as stopped:
            train.main(["--prompts", "5"])
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert stopped.value.code == 2
    assert slept == waited
    assert capsys.readouterr().err.count("is not a multiple") == 1


def test_proxy_exact_is_refused_for_a_large_model(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("ablations.MOST_NUMBERS", 100)
    with pytest.raises(SystemExit) as stopped:
        train.main([*SMALL, "--output-dir", str(tmp_path / "run"), "--proxy", "exact"])
    assert stopped.value.code == 2
    assert "only models as small as the toy" in capsys.readouterr().err
