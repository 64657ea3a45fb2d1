"""bench.py and the benches of speed, at small sizes and with known outcomes.

test_plan.py runs every stage of benchmarks/gpu.py.
"""

import importlib
import json
import time
from dataclasses import fields, replace
from functools import partial
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
import torch
from transformers import Qwen3Config
from transformers.generation.continuous_batching.requests import RequestState

import bench
import toy
from benchmarks import (
    batching,
    gpu,
    graders,
    rollouts,
    roofline,
)
from benchmarks.plan import Plan, qwen3
from benchmarks.scripted import END_TOKEN, plain_generate, random_model, sampled
from benchmarks.sizes import sizes_of
from benchmarks.stages import prepared_step, stages
from benchmarks.timing import alternate, ratios, spread
from infra.policy import Policy

ARGS = SimpleNamespace(repetitions=1)

# ---- bench.py ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", bench.WHERE)
def test_every_bench_has_a_function_and_a_line_of_help(name, capsys):
    function = getattr(importlib.import_module(bench.WHERE[name]), name)
    with pytest.raises(SystemExit):
        bench.parse_arguments(["--help"])
    first_line = function.__doc__.splitlines()[0]
    assert f"\n{name:10} {first_line}\n" in capsys.readouterr().out


def test_arguments_default_to_the_csv_of_the_name():
    assert bench.parse_arguments(["seeds"]).csv == "results/seeds.csv"
    args = bench.parse_arguments(["credit", "--csv", "x.csv", "--repetitions", "7"])
    assert (args.csv, args.repetitions) == ("x.csv", 7)


@pytest.mark.parametrize("argv", [["unknown"], ["seeds", "--seeds", "1"]])
def test_invalid_arguments_are_refused(argv, capsys):
    with pytest.raises(SystemExit) as stopped:
        bench.parse_arguments(argv)
    assert stopped.value.code == 2
    assert "bench.py: error" in capsys.readouterr().err


def test_json_holds_the_measurements_and_the_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(rollouts, "rollouts", lambda args: [args.repetitions])
    path = tmp_path / "out.json"
    bench.main(["rollouts", "--json", str(path), "--repetitions", "7"])
    written = json.loads(path.read_text())
    assert (written["name"], written["measured"]) == ("rollouts", [7])
    assert written["torch"] in torch.__version__


@pytest.mark.skipif(torch.cuda.is_available(), reason="only where there is no GPU")
def test_bench_gpu_without_a_gpu_prints_one_line(capsys):
    with pytest.raises(SystemExit) as stopped:
        bench.main(["gpu"])
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("bench.py gpu: torch sees no GPU") and error.count("\n") == 1


# ---- graders -------------------------------------------------------------------------------------


def test_graders_are_measured_on_pairs_and_counted(capsys):
    pairs = [{"response": f"\\boxed{{{i}}}", "gold": "7", "truth": i == 7} for i in range(20)]
    pairs[3]["truth"] = True  # the grader misses this credit
    named = {"verify.py": graders.ours}
    verdicts, milliseconds = graders.measure(named, pairs, 2)
    assert verdicts["verify.py"] == [i == 7 for i in range(20)]
    assert len(milliseconds["verify.py"]) == 2 and min(milliseconds["verify.py"]) > 0

    graders.print_table(pairs, verdicts, milliseconds)
    graders.print_missed(pairs, verdicts["verify.py"])
    printed = capsys.readouterr().out
    assert "| verify.py | 95.0% | 0 | 1 |" in printed
    assert "missed by verify.py: \\boxed{3} for 7" in printed


def test_graders_measure_without_math_verify(monkeypatch, capsys):
    monkeypatch.setattr(graders.importlib.util, "find_spec", {"math_verify": None}.get)
    assert list(graders.installed_graders()) == ["verify.py"]
    assert "math_verify is not installed" in capsys.readouterr().out


# ---- timing --------------------------------------------------------------------------------------


def test_spread_and_ratios_by_hand():
    assert spread([3.0, 1.0, 2.5]) == "2.500 (1.000 to 3.000)"
    assert spread([10.4], 0) == "10 (10 to 10)"
    assert ratios([1.0, 6.0], [2.0, 3.0], 10) == [5.0, 20.0]


def test_alternate_calls_in_turn_after_an_untimed_call():
    calls = []
    slow_first = [0.2, 0.0, 0.0]

    def a():
        calls.append("a")
        time.sleep(slow_first.pop(0))

    seconds = alternate({"a": a, "b": partial(calls.append, "b")}, 2)
    assert calls == ["a", "b"] * 3
    assert [len(values) for values in seconds.values()] == [2, 2]
    assert max(seconds["a"]) < 0.2


# ---- scripted responses and the stages of a step -------------------------------------------------


@pytest.mark.parametrize("function", [sampled, plain_generate])
def test_scripted_lengths_are_kept(function):
    lengths = [3, 70, 1, 9, 66]  # chunks have 64 tokens, and four responses share a prompt
    responses = function(random_model(64, vocabulary=40), lengths)
    assert [len(tokens) for tokens in responses] == lengths
    for tokens in responses:
        assert [i for i, token in enumerate(tokens) if token == END_TOKEN] == [len(tokens) - 1]


def test_stages_of_a_step_run_in_order():
    step = prepared_step(Policy(toy.build_model()), 6, 16, 2, 100)
    assert list(stages(step)) == ["sampling", "old_logprobs", "coefficients", "update"]
    assert list(stages(step, trains=False)) == ["sampling", "old_logprobs", "coefficients"]

    assert [len(tokens) for tokens in step.sampling()] == [6] * 16
    assert len(step.plan) == 2
    assert (step.tokens.advantage != 0).all()  # every micro-batch has a backward pass
    assert torch.equal(step.old_logprobs().logprob, step.tokens.logprob)
    assert torch.equal(step.coefficients(), step.weights)
    assert float(step.weights.mean()) == pytest.approx(1)

    before = [p.detach().clone() for p in step.run.policy.parameters()]
    metrics = step.update()
    assert metrics["skipped_updates"] == 0 and metrics["grad_norm"] > 0
    moved = zip(before, step.run.policy.parameters(), strict=True)
    assert all(not torch.equal(a, b) for a, b in moved)


# ---- the benches ---------------------------------------------------------------------------------


def columns(header):
    """The number of columns of the table under a header, from its second line."""
    first, second = header.splitlines()
    assert first.count("|") == second.count("|")
    return second.count("|") - 1


@pytest.mark.parametrize("cache", [1.0, 0.4])
def test_continuous_batching_draws_the_same_tokens_as_generate(cache):
    """Also if the cache is too small for all requests, so that some are paused."""
    samplers = batching.on_the_toy(8, cache)
    pause = RequestState.create_equivalent_initial_request
    with patch.object(RequestState, pause.__name__, autospec=True, side_effect=pause) as paused:
        continuous = samplers["continuous"]()
    assert paused.called == (cache < 1)
    for one, other in zip(samplers["generate"](), continuous, strict=True):
        assert np.array_equal(one.tokens, other.tokens)
        np.testing.assert_allclose(other.logprob, one.logprob, atol=1e-4)


def test_batching_prints_a_line_for_each_mix(monkeypatch, capsys):
    monkeypatch.setattr(batching, "MIXES", {"heavy": [2, 2, 30, 2, 2, 2, 2, 2]})
    monkeypatch.setattr(batching, "RESPONSES", 4)
    rows = batching.batching(ARGS)
    assert [row["responses"] for row in rows] == ["toy", "heavy"]
    assert rows[1]["tokens"] == 44
    printed = capsys.readouterr().out.splitlines()[2:]
    assert len(printed) == 2
    assert all(line.count("|") - 1 == columns(batching.HEADER) for line in printed)


def test_rollouts_prints_a_line_for_each_model_and_mix(monkeypatch, capsys):
    monkeypatch.setattr(rollouts, "MODELS", ((64, 6),))
    monkeypatch.setattr(rollouts, "MIXES", {"even": [5] * 8, "heavy": [2, 2, 30, 2, 2, 2, 2, 2]})
    rows = rollouts.rollouts(ARGS)
    assert [(row["mix"], row["tokens"]) for row in rows] == [("even", 30), ("heavy", 40)]
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 4
    assert all(line.count("|") - 1 == columns(rollouts.HEADER) for line in printed)


def test_mixes_of_lengths_match_the_results_page():
    even, mild, heavy = (rollouts.MIXES[mix] for mix in ("even", "mild", "heavy"))
    assert (min(even), max(even)) == (128, 128)
    assert (min(mild), max(mild)) == (64, 192)
    assert heavy.count(640) == 26 and heavy.count(64) == 230


# ---- gpu -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [True, False])
def test_forward_flop_counts_matrix_products(tied):
    config = Qwen3Config(
        vocab_size=100,
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        intermediate_size=48,
        tie_word_embeddings=tied,
    )
    layer = 32 * (32 + 16 + 16 + 32) + 3 * 32 * 48 + 2 * 32 + 2 * 16  # attention, MLP, norms
    multiplying = 3 * layer + 32 + 32 * 100  # final norm, LM head
    tokens = 5 * 20
    attention = 3 * 32 * 5 * 20**2  # layers, q, sequences, tokens squared
    flop = roofline.forward_flop(sizes_of(config), sequences=5, width=20)
    assert flop == 2 * multiplying * tokens + 2 * attention


def test_roofline_by_hand():
    """For 8B, sampling is bound by memory bandwidth, and scoring by FLOP."""
    config, P, q = qwen3("8B"), 8_190_735_360, 32 * 128
    multiplying = P - 151_936 * 4096
    peaks = (1e15, 4e12)
    times = roofline.least_seconds(config, 64, 16, 512, mini_batches=2, peaks=peaks)
    columns = sum(range(16, 16 + 512))
    read = 512 * 2 * multiplying + 64 * columns * 147_456
    assert times["sampling"] == pytest.approx(read / 4e12)
    scoring = 64 * (2 * multiplying * 528 + 2 * 36 * q * 528**2) / 1e15
    assert times["old_logprobs"] == pytest.approx(scoring)
    assert times["update"] == pytest.approx(3 * scoring + 2 * 28 * P / 4e12)

    slow = roofline.least_seconds(config, 64, 16, 512, mini_batches=2, peaks=(1e12, 4e12))
    computed = 64 * (512 * 2 * multiplying + 4 * 36 * q * columns) / 1e12
    assert slow["sampling"] == pytest.approx(computed)


@pytest.mark.parametrize(
    "name, bandwidth", [("NVIDIA H200", 4.8e12), ("NVIDIA A100-SXM4-80GB", 2.04e12), ("?", 3.35e12)]
)
def test_the_roofline_uses_the_peaks_of_this_gpu(name, bandwidth, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: name)
    assert roofline.peaks_here()[1] == bandwidth


def test_gpu_table_row_by_hand():
    nothing = Plan(**{field.name: 0 for field in fields(Plan)})
    planned = replace(nothing, rollout=3e9, old_logprobs=2e9, update=9e9)
    tokens = gpu.RESPONSES * gpu.LENGTH
    costs = {
        "seconds": {
            "sampling": [4.0, 2.0, 3.0],
            "old_logprobs": [0.5, 0.5, 0.5],
            "coefficients": [0.5, 0.5, 0.5],
            "update": [1.0, 1.0, 1.0],
        },
        "roofline": {"sampling": 0.25, "old_logprobs": 0.1, "update": 0.3},
        "peak": {"sampling": 1.5e9, "old_logprobs": 1e9, "coefficients": 5e9, "update": 8e9},
        "mfu": [0.3, 0.5, 0.4],
    }
    speeds = f"{tokens / 3:.0f}; 3 (0.25) | {tokens / 0.5:.0f}; 0.5 (0.1) | {tokens:.0f}; 1 (0.3)"
    expected = f"| 4B | {speeds} | 40.0% | 10.00% | 1.5, 1.0, 8.0 | 3.0, 2.0, 9.0 |"
    assert gpu.table_row("4B", costs, planned) == expected

    del costs["seconds"]["update"]
    costs["mfu"] = []
    row = gpu.table_row("8B", costs, planned)
    assert "| - | - | 12.50% (no update) | 1.5, 1.0 | 3.0, 2.0 |" in row
    assert row.count("|") - 1 == columns(gpu.HEADER)
