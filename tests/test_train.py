"""Tests train.py: the promises of the training loop, end to end on the toy.

No test depends on which tokens are sampled, because sampling depends on rounding, which depends on
the processor. Properties of particular responses are tested on hand-written responses.
"""

import itertools
import json
import math
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from models import byte_tokenizer, save_random_model
from torch.distributed.fsdp import fully_shard
from toy_runs import (
    EVALUATED,
    HELD_OUT,
    PROBLEMS,
    in_turn,
    next_step,
    read_lines,
    refusal,
    same_weights,
    small_config,
    train_small,
    train_steps,
)
from transformers import AutoModelForCausalLM, AutoTokenizer

import evaluate
import train
from ablations import random_coefficients
from config import METHODS, parse_config, selected_method
from extensions import OTHER_METHODS
from grpo import group_advantages
from infra.errors import UserError
from infra.folder import write_lines
from infra.ranks import full_tensor, start_ranks, this_device
from methods import PAPER_METHODS, Method, dapo_surrogate, ones
from toy.presets import CHAINS

ROOT = Path(train.__file__).parent
ONE_UPDATE = ("--prompts", "2", "--mini-batch", "2")  # two groups of four responses in a step


def unequal() -> Callable:
    """Rewards that are unequal in every group of four."""
    return in_turn(itertools.cycle([1.0, 0.0, 0.0]))


def only_row(folder: Path) -> dict:
    (row,) = read_lines(folder / "metrics.jsonl")
    return row


# ---- what a run loads ----------------------------------------------------------------------------


def test_a_set_of_answers_loads_no_room_for_programs_letters_trackers_or_comparisons(tmp_path):
    """A reader of such a run need not open them. A set with tests does load the programs."""
    (tmp_path / "answers.jsonl").write_text('{"problem": "7*6?", "answer": "42"}\n')
    record = {"problem": "Print 42.", "tests": [{"input": "", "output": "42"}]}
    (tmp_path / "tests.jsonl").write_text(json.dumps(record))
    program = """import sys, train; from infra.problems import load_problems
load_problems(sys.argv[1]); print(*sys.modules)"""
    rooms = {"programs", "toy.code_task", "infra.choices", "answers.letters"}
    rooms |= {"infra.trackers", "infra.significance"}

    def loaded(name: str) -> set[str]:
        command = [sys.executable, "-c", program, str(tmp_path / name)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        return rooms & set(done.stdout.split())

    assert not loaded("answers.jsonl")
    assert loaded("tests.jsonl") == {"programs"}


# ---- a run's files -------------------------------------------------------------------------------


def test_train_logs_every_step_and_evaluates_at_the_start_at_intervals_and_at_the_end(finished):
    metrics = read_lines(finished / "metrics.jsonl")
    assert [row["step"] for row in metrics] == [0, 1, 2, 3]
    assert set(metrics[0]) == {"step", "eval_accuracy"}
    assert [row["step"] for row in metrics if "eval_accuracy" in row] == [0, 2, 3]
    promised = {"loss", "grad_norm", "clip_fraction", "skipped_updates", "reward", "entropy"}
    for row in metrics[1:]:
        assert promised <= set(row)
        assert row["grad_norm"] > 0


def test_train_writes_all_promised_files(finished, first_model):
    config = json.loads((finished / "config.json").read_text())
    assert config["method"] == "delta"
    assert config["dtype"] != "auto"
    assert config["first_prompt"] == read_lines(Path(PROBLEMS))[0]["problem"]
    assert config["end_tokens"] == ["<eos>"]
    checkpoints = sorted(path.name for path in finished.glob("checkpoint-*"))
    assert checkpoints == ["checkpoint-000002", "checkpoint-000003"]
    models = [AutoModelForCausalLM.from_pretrained(finished / name) for name in ("best", "model")]
    assert AutoTokenizer.from_pretrained(finished / "model").eos_token == "<eos>"
    assert not same_weights(models[1], first_model)
    assert {sample["step"] for sample in read_lines(finished / "samples.jsonl")} == {1, 2, 3}


def test_an_evaluation_has_its_own_top_p(tmp_path):
    """A small top-p leaves only the likeliest token."""
    flags = ["--eval-data", HELD_OUT, "--eval-top-p", "1e-6", "--max-new-tokens", "64"]
    metrics = train.evaluate_held_out(train.prepare(small_config(tmp_path, *flags, steps=1)))
    assert metrics["eval_accuracy"] == metrics["eval_greedy"]


def test_the_best_model_is_that_of_the_best_evaluation(tmp_path, monkeypatch):
    """In a tie, the earlier model stays the best one."""
    scores = iter([0.1, 0.2, 0.4, 0.4, 0.3])
    monkeypatch.setattr(train, "evaluate_held_out", lambda run: {"eval_accuracy": next(scores)})
    flags = ["--eval-data", HELD_OUT, "--eval-every", "1"]
    run = train.prepare(small_config(tmp_path, *flags, steps=5))
    exported = {}
    for step in range(1, 6):
        run.state.step = step
        with patch("infra.run.export") as export:
            train.evaluate_and_save(run, {})
        exported[step] = [call.args[0].name for call in export.call_args_list]
    assert exported == {1: ["best"], 2: ["best"], 3: ["best"], 4: [], 5: []}


# ---- two steps at a large rate -------------------------------------------------------------------


@pytest.fixture(scope="module")
def observed(tmp_path_factory):
    """(tokens, ratios and cfg of each of two steps, the metrics). All token weights are 1.

    The ratios are max |log π_θ - log π_old| of every trained micro-batch, in order.
    """
    steps = []

    def weights(tokens, v, cfg):
        steps.append((tokens, [], cfg))
        return torch.ones_like(tokens.advantage)

    def surrogate(logprob, tokens, cfg):
        steps[-1][1].append(float((logprob - tokens.old_logprob).detach().abs().max()))
        return dapo_surrogate(logprob, tokens, cfg)

    folder = tmp_path_factory.mktemp("observed")
    flags = ["--micro-batch-tokens", "150", "--lr", "1e-2", "--temperature", "1.3"]
    cfg = small_config(folder, *flags, steps=2)
    train_steps(cfg, Method(weights=weights, surrogate=surrogate), unequal())
    return steps, read_lines(folder / "metrics.jsonl")


def test_the_ratio_is_exactly_one_until_an_update(observed):
    (_, ratios, _), _ = observed[0]
    before = ratios.count(0.0)
    assert before > 1
    assert min(ratios[before:]) > 1e-4


def test_mismatch_is_zero_on_the_cpu(observed):
    """The sampler follows the updates: in the second step, too, it draws from the policy."""
    assert max(row["mismatch"] for row in observed[1]) < 1e-5


def test_tokens_beyond_the_clip_range_are_counted(observed):
    assert observed[1][0]["clip_fraction"] > 0


def test_random_weights_differ_between_steps(observed):
    drawn = [random_coefficients(tokens, None, cfg)[:4] for tokens, _, cfg in observed[0]]
    assert not torch.equal(*drawn)


# ---- the update ----------------------------------------------------------------------------------


def test_a_step_without_any_advantage_changes_nothing(tmp_path, first_model):
    """All responses count as right, so there is no optimiser step and no weight decay."""
    cfg = small_config(tmp_path, "--weight-decay", "0.5", steps=1)
    run = train_steps(cfg, rewards=in_turn(itertools.repeat(1.0)))
    assert run.optimizer.defaults["weight_decay"] == 0.5
    row = only_row(tmp_path)
    assert row["reward"] == 1
    assert row["grad_norm"] == row["loss"] == row["skipped_updates"] == 0
    assert same_weights(run.policy, first_model)


# ---- the optimiser step, and gradients that are not finite ---------------------------------------


@pytest.mark.parametrize("gradient, moved", [([3.0, 4.0], [0.3, 0.4]), ([0.03, 0.04],) * 2])
def test_clip_and_step_returns_the_norm_and_clips_to_the_limit(gradient, moved):
    """The optimiser is plain gradient descent with learning rate 1."""
    start_ranks()
    policy = fully_shard(torch.nn.Linear(2, 1, bias=False, device=this_device()))
    optimizer = torch.optim.SGD(policy.parameters(), lr=1.0)
    before = full_tensor(policy.weight).detach().clone()
    policy(torch.tensor([gradient], device=this_device())).sum().backward()
    assert train.clip_and_step(policy, optimizer, 0.5) == pytest.approx(math.hypot(*gradient))
    expected = before - torch.tensor([moved], device=this_device())
    torch.testing.assert_close(full_tensor(policy.weight).detach(), expected)
    assert policy.weight.grad is None


def test_three_skipped_updates_in_a_row_stop_the_run(tmp_path):
    """The skipped step 1 does not count. Step 4 writes no checkpoint, although one is due."""
    factors = [math.inf, 1.0, 1.0, math.inf, math.inf, math.inf]
    calls = iter(factor for factor in factors for _ in range(2))  # for the loss, for clip_fraction

    def explodes(logprob, tokens, cfg):
        return logprob * next(calls)

    cfg = small_config(tmp_path, *ONE_UPDATE, steps=9)
    with pytest.raises(FloatingPointError, match="not finite in 3 updates in a row"):
        train_steps(cfg, Method(surrogate=explodes, clip_range=None), unequal())
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-000002"]
    rows = read_lines(tmp_path / "metrics.jsonl")
    assert [row["skipped_updates"] for row in rows] == [1, 0, 0, 1, 1]


# ---- methods -------------------------------------------------------------------------------------

WEIGHTS = [  # each method, and flags that change what a step keeps or stores
    *(["--method", method] for method in PAPER_METHODS | OTHER_METHODS),
    ["--K", "3"],
    ["--proxy", "topk", "--proxy-topk", "5"],
    ["--proxy", "exact_gradient"],
    ["--delta-variant", "fixed_gamma"],
    ["--select", "bottom", "--select-share", "0.3"],
]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A run that each test trains by one more step, with its own flags."""
    return train.prepare(small_config(tmp_path_factory.mktemp("prepared"), steps=99))


@pytest.mark.parametrize("flags", WEIGHTS, ids=" ".join)
def test_every_method_trains(flags, prepared):
    """Methods whose surrogate has no clip count nothing as clipped."""
    run, before = prepared, [p.to_local().clone() for p in prepared.policy.parameters()]
    run.cfg = small_config(run.folder, *flags, "--prompts", "2", "--mini-batch", "1", steps=99)
    run.method = selected_method(run.cfg)
    row, *_ = next_step(run, unequal())
    assert row["grad_norm"] > 0
    assert math.isfinite(row["loss"])
    assert row["skipped_updates"] == 0
    pairs = zip(before, run.policy.parameters(), strict=True)
    assert not all(torch.equal(old, p.to_local()) for old, p in pairs)
    assert METHODS[run.cfg.method].clip_range or row["clip_fraction"] == 0


def test_overlong_shaping_affects_advantages_but_not_the_reported_reward(tmp_path):
    """All responses are right. At this temperature their lengths, and so the penalties, differ."""
    batches = []

    def weights(tokens, v, cfg):
        batches.append(tokens)
        return ones(tokens, v, cfg)

    cfg = small_config(tmp_path, "--overlong-buffer", "15", "--temperature", "3", steps=1)
    train_steps(cfg, Method(weights=weights), in_turn(itertools.repeat(1.0)))
    (tokens,) = batches
    shaped = 1 - (tokens.length - 1) / 15
    expected = group_advantages(shaped, 4).repeat_interleave(tokens.length)
    torch.testing.assert_close(tokens.advantage, expected)
    assert expected.any()
    assert only_row(tmp_path)["reward"] == 1


# ---- signals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "number, function, call, step",
    [
        (signal.SIGTERM, "evaluate_held_out", 1, 0),  # the evaluation before the first step
        (signal.SIGINT, "problems_of_step", 1, 1),  # step 1 is finished
        (signal.SIGINT, "evaluate_held_out", 2, 2),  # and so is the evaluation of step 2
    ],
)
def test_a_signal_saves_and_the_same_command_continues(
    number, function, call, step, finished, tmp_path, monkeypatch, capsys
):
    folder = tmp_path / "cut"
    original = getattr(train, function)
    calls = []

    def interrupting(*arguments, **named):
        calls.append(function)
        if len(calls) == call:
            signal.raise_signal(number)
        return original(*arguments, **named)

    monkeypatch.setattr(train, function, interrupting)
    flags = [*EVALUATED, "--save-every", "9"]
    with pytest.raises(SystemExit) as stopped:
        train_small(folder, *flags, steps=3)
    assert stopped.value.code == 128 + number
    error = capsys.readouterr().err
    assert f"train.py: stopped by {number.name} after step {step}" in error
    assert error.count("\n") == 1
    saved = [f"checkpoint-{step:06d}"] if step else []  # none before the first update
    assert [path.name for path in folder.glob("checkpoint-*")] == saved

    train_small(folder, *flags, steps=3)  # no further call is interrupted
    for name in ("metrics.jsonl", "samples.jsonl"):
        assert read_lines(folder / name) == read_lines(finished / name)


# ---- the command line ----------------------------------------------------------------------------


def test_parse_config_defaults_match_the_paper():
    cfg = parse_config(["--model", "x/y"])
    expected = {"steps": 220, "prompts": 128, "group_size": 16, "mini_batch": 32, "lr": 1e-6}
    expected |= {"max_new_tokens": 20480, "temperature": 1.0, "clip_low": 0.2, "clip_high": 0.28}
    expected |= {"K": 1, "lam_min": 0.8, "lam_max": 1.2}
    assert {name: getattr(cfg, name) for name in expected} == expected


def test_given_flags_override_the_toys_and_the_methods_defaults():
    assert parse_config([]).prompts == CHAINS["prompts"] == 16
    assert parse_config(["--prompts", "32"]).prompts == 32
    assert parse_config(["--method", "grpo"]).clip_high == 0.2
    assert parse_config(["--method", "grpo", "--clip-high", "0.3"]).clip_high == 0.3


@pytest.mark.parametrize(
    "flags, message",
    [
        ("--proxy-topk 5", "--proxy-topk does nothing with --proxy row"),
        ("--select-share 0.3", "--select-share does nothing with --select none"),
        ("--method sapo --clip-high 0.9", "--clip-high does nothing"),
        ("--method dapo --proxy topk", "--proxy does nothing with --method dapo"),
        (
            "--model some/where --toy-regime sharpen",
            "--toy-regime does nothing with --model some/wh",
        ),
        ("--select random --K 2", "--K does nothing with --select random"),
        ("--model x/y --data gsm8k --eval-data= --answer-column x", "--answer-column does nothing"),
        ("--delta-variant random --K 1", "--K does nothing with --delta-variant random"),
        ("--delta-variant no_range_map --lam-max 2", "--lam-max does nothing with --delta-variant"),
        ("--steps 1" + 18 * "0", "--steps: 1.* must be at most 1e.07"),
        ("--prompts 5", "--prompts 5 is not a multiple of --mini-batch 4"),
        ("--overlong-buffer 64 --max-new-tokens 64", "--overlong-buffer 64 would shape all 64 tok"),
        ("--lam-min 1.3", "--lam-min 1.3 is above --lam-max 1.2"),
    ],
)
def test_flags_that_are_useless_too_large_or_contradictory_are_refused(flags, message):
    with pytest.raises(UserError, match=message):
        parse_config(flags.split())


@pytest.mark.parametrize(
    "flags, message",
    [
        ("--model /no/such/folder --data toy --eval-data=", "/no/such/folder: no model folder"),
        (f"--data {HELD_OUT}", f"--data {HELD_OUT} needs --model: without it the toy would be"),
        (
            f"--model toy --data {HELD_OUT} --max-prompt-tokens 3 --eval-data=",
            "every prompt exceeds --max-p",
        ),
        (
            "--model toy --data sum.jsonl",
            "--data sum.jsonl: 1 of 1 gold answers can never be matched",
        ),
        ("--eval-data sum.jsonl", "--eval-data sum.jsonl: 1 of 1 gold answers can never be"),
    ],
)
def test_user_errors_are_one_line_and_exit_code_2(flags, message, tmp_path, monkeypatch, capsys):
    """Nothing is written."""
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "sum.jsonl", [{"problem": "1+2?", "answer": r"\sum_{k=1}^{2} k"}])
    assert message in refusal(train.main, flags.split(), capsys)
    assert [path.name for path in tmp_path.iterdir()] == ["sum.jsonl"]


def test_a_file_like_gsm8k_trains_and_evaluates_a_model_of_text_and_images(tmp_path, capsys):
    golds = ["48/2 = <<48/2=24>>24 clips in May.\n#### 72", "One and two.\n#### 3", "#### 1,200"]
    lines = [json.dumps({"question": f"{gold[:3]}?", "answer": gold}) for gold in golds]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    save_random_model("qwen3_5", tmp_path / "m", vocab_size=257, eos_token_id=256)
    byte_tokenizer().save_pretrained(tmp_path / "m")  # 257 tokens

    data = ["--data", str(tmp_path / "a.jsonl"), "--problem-column", "question"]
    flags = ["--model", str(tmp_path / "m"), "--eval-data", data[1], "--eval-limit", "2"]
    flags += ["--max-new-tokens", "16", "--mini-batch", "3", "--prompts", "3"]
    metrics = train_small(tmp_path / "run", *flags, *data, steps=2)
    assert [line["step"] for line in metrics] == [0, 1, 2]
    assert capsys.readouterr().out.count("only the Qwen3_5ForCausalLM inside is used, not ") == 1
    evaluate.main(
        f"--model {tmp_path}/run/model --benchmarks {data[1]} --problem-column question "
        "--samples 1 --max-new-tokens 8".split()
    )
    averages = json.loads((tmp_path / "run/model-evaluation/averages.json").read_text())
    assert [each["problems"] for each in averages["benchmarks"].values()] == [3]
