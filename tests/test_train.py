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
import signal
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
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
from batch import Rollout, TokenBatch, micro_batch
from grading import grade
from grpo import group_advantages
from infra import errors
from infra.errors import Interrupted, UserError
from infra.progress import Stopwatch
from infra.run import RunState
from methods import METHODS, Method
from policy import Policy, old_log_probabilities
from toy.presets import CHAINS


def graded_in_turn(monkeypatch, rewards):
    """Make train.py give responses these rewards, in order."""
    numbers = iter(rewards)

    def next_grades(responses, *_):
        return [next(numbers) for _ in responses]

    monkeypatch.setattr(train, "grades", next_grades)


def only_row(folder: Path) -> dict:
    (row,) = read_lines(folder / "metrics.jsonl")
    return row


# ---- a run's files -------------------------------------------------------------------------------


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


def test_train_logs_every_step_and_evaluates_at_the_start_at_intervals_and_at_the_end(finished):
    assert [row["step"] for row in finished.metrics] == [0, 1, 2, 3]
    assert set(finished.metrics[0]) == {"step", "eval_accuracy", "eval_greedy"}
    assert [row["step"] for row in finished.metrics if "eval_accuracy" in row] == [0, 2, 3]
    promised = ["loss", "reward", "response_length", "truncated", "entropy", "grad_norm"]
    promised += ["clip_fraction", "skipped_updates", "lambda_std", "lambda_above_one"]
    for row in finished.metrics[1:]:
        assert set(promised) <= set(row)
        assert row["grad_norm"] > 0


def test_train_writes_all_promised_files(finished, first_model):
    folder = finished.folder
    assert json.loads((folder / "config.json").read_text())["method"] == "delta"
    assert (folder / "best" / "model.safetensors").exists()
    checkpoints = sorted(path.name for path in folder.glob("checkpoint-*"))
    assert checkpoints == ["checkpoint-000002", "checkpoint-000003"]
    model = AutoModelForCausalLM.from_pretrained(folder / "model")
    assert AutoTokenizer.from_pretrained(folder / "model").eos_token == "<eos>"
    assert not same_weights(model, first_model)


def test_train_shows_samples(finished):
    samples = read_lines(finished.folder / "samples.jsonl")
    assert {sample["step"] for sample in samples} == {1, 2}
    for sample in samples:
        assert len(sample["tokens"]) == len(sample["lambda"]) > 0
        assert "".join(sample["tokens"]).removesuffix("<eos>") == sample["response"]
        assert sample["reward"] == grade(sample["response"], sample)


def test_train_ends_with_a_line_about_the_gain(finished):
    before, after = finished.metrics[0]["eval_accuracy"], finished.metrics[-1]["eval_accuracy"]
    assert f"accuracy {before:.3f} before and {after:.3f} after" in "\n".join(finished.printed)


def test_train_repeats_its_metrics_only_with_the_same_seed(tmp_path):
    one = train_small(tmp_path / "one", steps=2)
    again = train_small(tmp_path / "again", steps=2)
    other = train_small(tmp_path / "other", "--seed", "1", steps=2)
    assert one == again
    assert one[1] != other[1]


# ---- the update ----------------------------------------------------------------------------------


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
    """The sampler follows the updates: its distribution is the policy's also in the second step."""
    train_steps(small_config(tmp_path, "--lr", "1e-3", "--temperature", "1.3", steps=2))
    for row in read_lines(tmp_path / "metrics.jsonl"):
        assert row["mismatch"] < 1e-5
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
    run = train.prepare(small_config(tmp_path, steps=1))
    run.policy.plain = partial(perturbed_sampler, run)
    train.train_step(run, 1)
    assert run.state.unlogged["mismatch"] > 0.01


def test_importance_weights_multiply_the_terms_of_the_update(tmp_path, monkeypatch):
    """A ratio of 2 on every token doubles the gradient; a cap of 1.5 limits the factor to 1.5."""

    def half_as_likely_to_the_sampler(policy, plan, tokens, keep):
        old_log_probabilities(policy, plan, tokens, keep)
        tokens.sampler_logprob = tokens.logprob - math.log(2)

    monkeypatch.setattr(train, "old_log_probabilities", half_as_likely_to_the_sampler)
    norms = []
    for cap in ("0", "3", "1.5"):
        flags = ["--importance-cap", cap, "--mini-batch", "8"]
        train_steps(small_config(tmp_path / cap, *flags, steps=1))
        norms.append(only_row(tmp_path / cap)["grad_norm"])
    assert norms[1] == pytest.approx(2 * norms[0], rel=1e-4)
    assert norms[2] == pytest.approx(1.5 * norms[0], rel=1e-4)


def test_micro_batches_do_not_change_the_update(tmp_path):
    rows = []
    for budget in ("100000", "150"):
        cfg = small_config(tmp_path / budget, "--micro-batch-tokens", budget, steps=1)
        train_steps(cfg)
        rows.append(only_row(tmp_path / budget))
    whole, parts = rows
    for name in ("loss", "grad_norm", "entropy"):
        assert whole[name] == pytest.approx(parts[name], rel=1e-3, abs=1e-6)


def test_the_loss_is_minus_the_objective_averaged_over_mini_batches(tmp_path, monkeypatch):
    """Without optimiser steps every ratio stays 1, so a mini-batch has J = (1/N) Σ ρ A (Eq. 8)."""
    monkeypatch.setattr(train, "clip_and_step", lambda run, most: 1.0)
    graded_in_turn(monkeypatch, itertools.cycle([1.0, 0.0, 0.0]))
    seen = []

    def spy(run, plan, tokens, original=train.update):
        seen.append((tokens, plan))
        return original(run, plan, tokens)

    monkeypatch.setattr(train, "update", spy)
    train_steps(small_config(tmp_path, "--mini-batch", "2", steps=1))
    [(tokens, plan)] = seen
    assert len(plan) == 4
    terms = (tokens.advantage * tokens.weight).double().split(tokens.length.tolist())
    objectives = []
    for k in range(4):
        mine = torch.cat(terms[8 * k : 8 * k + 8])  # two prompts, four responses each
        objectives.append(float(mine.mean()))
    loss = only_row(tmp_path)["loss"]
    assert loss == pytest.approx(-sum(objectives) / 4, abs=1e-6)
    assert abs(loss) > 1e-5


def test_a_step_without_any_advantage_changes_nothing(tmp_path, monkeypatch, first_model):
    """All responses are graded as correct, so there is no optimiser step and no weight decay."""
    graded_in_turn(monkeypatch, itertools.repeat(1.0))
    run = train_steps(small_config(tmp_path, steps=1))
    row = only_row(tmp_path)
    assert row["reward"] == 1
    assert row["grad_norm"] == row["loss"] == row["skipped_updates"] == 0
    assert same_weights(run.policy, first_model)


# ---- the optimiser step, and gradients that are not finite ---------------------------------------


@pytest.fixture
def vector_update():
    """Plain gradient descent on a vector of two numbers, with learning rate 1."""
    vector = torch.nn.Parameter(torch.tensor([5.0, 7.0]))
    policy = torch.nn.ParameterList([vector])
    optimizer = torch.optim.SGD([vector], lr=1.0)
    run = SimpleNamespace(policy=policy, optimizer=optimizer, state=RunState())

    def step(gradient, max_grad_norm=1.0):
        vector.grad = torch.tensor(gradient)
        return train.clip_and_step(run, max_grad_norm)

    return SimpleNamespace(step=step, vector=vector, state=run.state)


def test_clip_and_step_returns_the_norm_and_clips_to_the_limit(vector_update):
    assert vector_update.step([3.0, 4.0], max_grad_norm=0.5) == pytest.approx(5)
    moved = torch.tensor([5.0, 7.0]) - vector_update.vector.detach()
    torch.testing.assert_close(moved, torch.tensor([0.3, 0.4]))
    assert vector_update.vector.grad is None
    assert vector_update.step([0.03, 0.04]) == pytest.approx(0.05)  # short: not clipped
    torch.testing.assert_close(vector_update.vector.detach(), torch.tensor([4.67, 6.56]))


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_clip_and_step_skips_a_gradient_that_is_not_finite(vector_update, bad):
    assert not math.isfinite(vector_update.step([0.1, bad]))
    assert vector_update.vector.tolist() == [5, 7]
    assert vector_update.vector.grad is None
    vector_update.step([bad, 0.0])
    assert vector_update.state.streak == 2
    vector_update.step([0.1, 0.0])
    assert vector_update.state.streak == 0
    vector_update.state.streak = 2
    with pytest.raises(FloatingPointError, match="not finite in 3 updates in a row"):
        vector_update.step([bad, 0.0])


@pytest.fixture
def exploding(monkeypatch):
    """A method whose objective is infinite in the steps of the returned set."""
    bad = set()
    done = []

    def weights(tokens, flags):
        done.append("a step")
        return torch.ones_like(tokens.advantage)

    def surrogate(logprob, old_logprob, advantage, flags):
        return logprob * (math.inf if len(done) in bad else 1.0)

    monkeypatch.setitem(METHODS, "exploding", Method(weights=weights, surrogate=surrogate))
    return bad


def test_a_skipped_update_is_counted_and_changes_nothing(exploding, tmp_path, first_model):
    exploding.add(1)
    cfg = small_config(tmp_path, "--mini-batch", "8", steps=1)
    run = train_steps(dataclasses.replace(cfg, method="exploding"))
    row = only_row(tmp_path)
    assert row["skipped_updates"] == 1
    assert row["grad_norm"] == 0
    assert same_weights(run.policy, first_model)


def test_three_skipped_updates_in_a_row_stop_the_run(exploding, tmp_path, monkeypatch, capsys):
    """The step after the last good step writes no checkpoint, although one is due."""
    exploding |= {4, 5, 6}
    cfg = small_config(tmp_path, "--mini-batch", "8", steps=9)
    cfg.method = "exploding"
    monkeypatch.setattr(train, "parse_config", lambda argv: cfg)
    with pytest.raises(SystemExit) as stopped:
        train.main([])
    assert stopped.value.code == 1
    said = capsys.readouterr().err
    assert "not finite in 3 updates in a row" in said
    assert "lower --lr" in said
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-000002"]
    assert [row["step"] for row in read_lines(tmp_path / "metrics.jsonl")] == [1, 2, 3, 4, 5]


# ---- methods -------------------------------------------------------------------------------------

EVERY_VALUE = [
    *(["--method", method] for method in METHODS),
    ["--K", "0"],
    ["--K", "3", "--gamma", "fresh"],
    ["--lam-min", "0.5", "--lam-max", "1.5"],
    ["--proxy", "topk", "--proxy-topk", "5"],
    ["--proxy", "exact"],
    ["--proxy", "surprise"],
    ["--delta-variant", "within_side"],
    ["--delta-variant", "hard"],
    ["--delta-variant", "no_norm"],
    ["--delta-variant", "no_range_map"],
    ["--delta-variant", "fixed_gamma"],
    ["--delta-variant", "random"],
    ["--delta-variant", "no_centroids"],
    *(["--select", share, "--select-share", "0.3"] for share in ("top", "random", "bottom")),
    ["--recompute", "--in-flight", "3", "--temperature", "0.7"],
]


@pytest.mark.parametrize("flags", EVERY_VALUE, ids=" ".join)
def test_every_method_and_flag_value_trains(flags, tmp_path, first_model):
    run = train_steps(small_config(tmp_path, *flags, steps=1))
    row = only_row(tmp_path)
    assert row["grad_norm"] > 0
    assert math.isfinite(row["loss"])
    assert row["skipped_updates"] == 0
    assert not same_weights(run.policy, first_model)


def test_fipo_equals_dapo_on_the_first_mini_batch_and_not_after(tmp_path):
    def row_of(method, *flags):
        folder = tmp_path / f"{method}{len(flags)}"
        train_steps(small_config(folder, "--method", method, *flags, steps=1))
        return only_row(folder)

    one_update = ["--mini-batch", "8"]
    assert row_of("fipo", *one_update) == row_of("dapo", *one_update)

    two_updates = ["--prompts", "16", "--mini-batch", "8", "--lr", "1e-3"]
    assert row_of("fipo", *two_updates)["grad_norm"] != row_of("dapo", *two_updates)["grad_norm"]


def test_empty_micro_batches_change_nothing(tmp_path, monkeypatch):
    """A rank's last micro-batches may be empty. FIPO's weights then have no tokens."""
    flags = ["--method", "fipo"]
    train_steps(small_config(tmp_path / "as ever", *flags, steps=1))

    def with_an_empty_micro_batch(rollouts, *arguments, original=train.plan_mini_batches):
        plan = original(rollouts, *arguments)
        for mini_batch in plan:
            mini_batch.trained.append(micro_batch(rollouts, []))
        return plan

    monkeypatch.setattr(train, "plan_mini_batches", with_an_empty_micro_batch)
    train_steps(small_config(tmp_path / "empty", *flags, steps=1))
    assert only_row(tmp_path / "as ever") == only_row(tmp_path / "empty")


def one_too_few(tokens, flags):
    return torch.ones_like(tokens.logprob)[1:]


def not_a_number(tokens, flags):
    return torch.full_like(tokens.logprob, float("nan"))


def below_zero(tokens, flags):
    return tokens.logprob


@pytest.mark.parametrize("follows_policy", [False, True])
@pytest.mark.parametrize(
    "weights, message",
    [
        (one_too_few, "gave weights of shape ("),
        (not_a_number, "gave a weight that is NaN or infinite"),
        (below_zero, "gave a negative weight"),
    ],
)
def test_a_method_with_invalid_weights_is_named_in_the_error(
    weights, message, follows_policy, tmp_path, monkeypatch
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


# ---- rewards -------------------------------------------------------------------------------------


WRITTEN_LENGTHS = [10, 64, 30, 50]
WRITTEN_REWARDS = [1.0, 1.0, 0.0, 0.0]  # two groups of two, equal within each group


def written_sample(run, step, watch):
    """Replaces train.sample: responses of fixed lengths, with WRITTEN_REWARDS."""
    rollouts = []
    for length, reward in zip(WRITTEN_LENGTHS, WRITTEN_REWARDS, strict=True):
        tokens = np.array([7] * (length - 1) + [run.tokenizer.eos_token_id], dtype=np.int32)
        logprob = np.zeros(length, dtype=np.float32)
        rollouts.append(Rollout([5, 6], tokens, logprob, "", False, run.problems[0], reward))
    return rollouts, 2


@pytest.mark.parametrize("buffer", [0, 40])
def test_overlong_shaping_affects_advantages_but_not_the_reported_reward(
    buffer, tmp_path, monkeypatch
):
    """Rewards are equal within each group. The penalties, 0, -1, -0.15 and -0.65, differ."""
    seen = {}

    def weights(tokens: TokenBatch, flags):
        seen["advantage"] = tokens.advantage.cpu()
        return torch.ones_like(tokens.advantage)

    monkeypatch.setitem(METHODS, "watched", Method(weights=weights))
    monkeypatch.setattr(train, "sample", written_sample)
    flags = ["--prompts", "2", "--mini-batch", "2", "--group-size", "2"]
    cfg = small_config(tmp_path, *flags, "--overlong-buffer", str(buffer), steps=1)
    train_steps(dataclasses.replace(cfg, method="watched"))

    row = only_row(tmp_path)
    assert row["reward"] == 0.5
    assert (row["grad_norm"] > 0) == (buffer > 0)
    shaped = torch.tensor(WRITTEN_REWARDS)
    if buffer:
        shaped = shaped + torch.tensor([0, -1, -6 / 40, -26 / 40])
    expected = group_advantages(shaped, 2).repeat_interleave(torch.tensor(WRITTEN_LENGTHS))
    torch.testing.assert_close(seen["advantage"], expected)


# ---- sampling ------------------------------------------------------------------------------------


def two_by_two(folder, *flags):
    """A prepared run with two groups of two responses per step."""
    flags = ["--prompts", "2", "--mini-batch", "2", "--group-size", "2", *flags]
    return train.prepare(small_config(folder, *flags, steps=1))


def assert_graded(run, rollouts):
    """Each response has its own problem, prompt and grade."""
    for each in rollouts:
        assert each.reward == grade(each.text, each.problem)
        assert each.prompt == run.prompts[run.problems.index(each.problem)]


def test_sample_grades_each_response_and_continues_the_stream_of_prompts(tmp_path):
    run = two_by_two(tmp_path)
    first, run.state.position = train.sample(run, 1, Stopwatch())
    assert_graded(run, first)
    assert run.state.position == 2
    texts = [each.problem["problem"] for each in first]
    assert texts[0] == texts[1] != texts[2] == texts[3]
    second, position = train.sample(run, 2, Stopwatch())
    assert position == 4
    assert not {each.problem["problem"] for each in second} & set(texts)


@pytest.mark.parametrize("flags", [[], ["--dynamic-sampling"]])
def test_a_set_smaller_than_a_step_gives_new_responses_each_time(flags, tmp_path):
    """Each step has eight prompts from a set of two problems."""
    few = tmp_path / "few.jsonl"
    few.write_text("".join(Path(PROBLEMS).read_text().splitlines(keepends=True)[:2]))
    run = train.prepare(small_config(tmp_path / "run", "--data", str(few), *flags, steps=1))
    rollouts, _ = train.sample(run, 1, Stopwatch())
    for problem in run.problems:
        texts = [each.text for each in rollouts if each.problem is problem]
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
    rollouts, position = train.sample(run, 1, Stopwatch())
    assert [each.reward for each in rollouts] == [1, 0, 0, 1]
    assert position == 4


def test_dynamic_sampling_gives_up_after_ten_rounds(tmp_path, monkeypatch):
    """One of twenty groups has unequal rewards. A group of equal rewards completes the batch."""
    graded_in_turn(monkeypatch, [0] * 30 + [1] + [0] * 9)
    run = two_by_two(tmp_path, "--dynamic-sampling")
    rollouts, position = train.sample(run, 1, Stopwatch())
    assert [each.reward for each in rollouts] == [1, 0, 0, 0]
    assert position == 20


def test_dynamic_sampling_keeps_responses_with_their_problems(tmp_path):
    """Uses sampled responses, in groups large enough to often have unequal rewards."""
    flags = ["--dynamic-sampling", "--prompts", "6", "--mini-batch", "6", "--group-size", "4"]
    run = train.prepare(small_config(tmp_path, *flags, steps=1))
    rollouts, position = train.sample(run, 1, Stopwatch())
    assert_graded(run, rollouts)
    for first in range(0, 24, 4):
        assert len({each.reward for each in rollouts[first : first + 4]}) == 2
    assert position % 6 == 0


# ---- signals -------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    "number, function, call, step",
    [
        (signal.SIGTERM, "accuracy", 1, 0),  # the evaluation before the first step
        (signal.SIGINT, "old_log_probabilities", 2, 1),  # step 2 makes no update
        (signal.SIGTERM, "update", 2, 2),
        (signal.SIGINT, "accuracy", 3, 2),  # step 2 is evaluated and logged after resuming
        (signal.SIGTERM, "accuracy", 6, 3),  # the last evaluation, greedy
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
    assert f"train.py: stopped by {number.name} after step {step}" in error
    assert error.count("\n") == 1
    saved = [f"checkpoint-{step:06d}"] if step else []  # none before the first update
    assert [path.name for path in folder.glob("checkpoint-*")] == saved

    main()
    for name in ("metrics.jsonl", "samples.jsonl"):
        assert read_lines(folder / name) == read_lines(three_steps / name)


# ---- the command line ----------------------------------------------------------------------------


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
        "max_prompt_tokens": 2048,
        "temperature": 1.0,
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


def test_given_flags_override_the_toys_and_the_methods_defaults():
    cfg = train.parse_config([])
    assert {name: getattr(cfg, name) for name in CHAINS} == CHAINS
    assert train.parse_config(["--prompts", "32"]).prompts == 32
    assert train.parse_config(["--method", "grpo"]).clip_high == 0.2
    assert train.parse_config(["--method", "grpo", "--clip-high", "0.3"]).clip_high == 0.3


USER_ERRORS = [
    # outside the limits
    (["--group-size", "1"], "at least 2"),
    (["--temperature", "0"], "--temperature"),
    (["--lr", "nan"], "--lr"),
    # unknown
    (["--step", "3"], "--step"),
    (["--lr", "fast"], "--lr"),
    (["--method", "ppo"], "--method"),
    # contradictory or without effect
    (["--lam-min", "1.3"], "--lam-min 1.3"),
    (["--prompts", "5"], "multiple"),
    (["--importance-cap", "0.5"], "--importance-cap 0.5"),
    (["--proxy", "topk", "--method", "grpo"], "--proxy does nothing with --method grpo"),
    (["--clip-low", "0.1", "--method", "sapo"], "--clip-low does nothing with --method sapo"),
    (["--delta-variant", "random", "--K", "2"], "--K does nothing with --delta-variant random"),
    (["--select-share", "0.2"], "--select-share does nothing with --select none"),
    (["--gamma", "fresh", "--K", "0"], "--gamma does nothing with --K 0"),
    (["--toy-k", "3", "--model", "toy-code"], "--toy-k does nothing with --model toy-code"),
    # missing, unreadable or unwritable
    (["--model", "/no/such/folder", "--data", "toy", "--eval-data", ""], "/no/such/folder"),
    (["--data", "/no/such.jsonl"], "/no/such.jsonl"),
    (["--output-dir", "/dev/null/run"], "/dev/null/run"),
    (["--prompt-template", "x"], "{problem}"),
    (["--max-prompt-tokens", "3"], "--max-prompt-tokens"),
]


@pytest.mark.parametrize("flags, message", USER_ERRORS)
def test_user_errors_are_one_line_and_exit_code_2(flags, message, tmp_path, monkeypatch, capsys):
    """Nothing is written."""
    monkeypatch.chdir(tmp_path)
    assert message in refusal(train.main, flags, capsys)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("rank, waited", [(0, []), (1, [errors.GRACE])])
def test_the_first_rank_prints_user_errors_at_once(rank, waited, monkeypatch, capsys):
    """Other ranks wait for torchrun to stop them, and print only if torchrun does not."""
    monkeypatch.setenv("RANK", str(rank))
    slept = []
    monkeypatch.setattr(errors.time, "sleep", slept.append)
    assert "multiple" in refusal(train.main, ["--prompts", "5"], capsys)
    assert slept == waited


def test_out_of_memory_is_one_line(tmp_path, monkeypatch, capsys):
    def no_memory(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    monkeypatch.setattr(train, "rollout", no_memory)
    with pytest.raises(SystemExit) as stopped:
        train_small(tmp_path, "--eval-data", "", steps=1)
    assert stopped.value.code == 1
    said = capsys.readouterr().err
    assert "Tried to allocate 2 GiB: lower --micro-batch-tokens" in said
    assert said.count("\n") == 1


def test_proxy_exact_is_refused_for_a_large_model(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("ablations.MOST_NUMBERS", 100)
    flags = [*SMALL, "--output-dir", str(tmp_path / "run"), "--proxy", "exact"]
    assert "only models as small as the toy" in refusal(train.main, flags, capsys)
