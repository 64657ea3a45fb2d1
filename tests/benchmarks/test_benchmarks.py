"""bench.py and the speed benchmarks, at small sizes with known results.

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
from infra.policy import Policy
from transformers import Qwen3Config

import bench
import toy
import train
from benchmarks import gpu, graders, rollouts
from benchmarks.plan import Plan, qwen3
from benchmarks.scripted import END_TOKEN, plain_generate, random_model, sampled
from benchmarks.sizes import sizes_of
from benchmarks.stages import stages
from benchmarks.timing import alternate, ratios, spread

ARGS = SimpleNamespace(repetitions=1)
GPU_OF_80_GB = {0: SimpleNamespace(total_memory=80e9)}

# ---- bench.py ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", bench.WHERE)
def test_every_bench_has_a_function_and_a_help_line(name, capsys):
    function = getattr(importlib.import_module(bench.WHERE[name]), name)
    with pytest.raises(SystemExit):
        bench.parse_arguments(["--help"])
    first_line = function.__doc__.splitlines()[0]
    assert f"\n{name:10} {first_line}\n" in capsys.readouterr().out


def test_csv_argument_defaults_to_the_study_name():
    assert bench.parse_arguments(["seeds"]).csv == "results/seeds.csv"
    args = bench.parse_arguments(["credit", "--csv", "x.csv", "--repetitions", "7"])
    assert (args.csv, args.repetitions) == ("x.csv", 7)


@pytest.mark.parametrize("argv", [["unknown"], ["seeds", "--seeds", "1"]])
def test_invalid_arguments_are_refused(argv, capsys):
    with pytest.raises(SystemExit) as stopped:
        bench.parse_arguments(argv)
    assert stopped.value.code == 2
    assert "bench.py: error" in capsys.readouterr().err


def test_json_contains_the_measurements_and_the_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(rollouts, "rollouts", lambda args: [np.array([args.repetitions, 0.5])])
    path = tmp_path / "out.json"
    bench.main(["rollouts", "--json", str(path), "--repetitions", "7"])
    written = json.loads(path.read_text())
    assert (written["name"], written["measured"]) == ("rollouts", [[7, 0.5]])
    assert written["torch"] in torch.__version__


@pytest.mark.skipif(torch.cuda.is_available(), reason="only where there is no GPU")
def test_bench_gpu_without_a_gpu_gets_a_one_line_error(capsys):
    with pytest.raises(SystemExit) as stopped:
        bench.main(["gpu"])
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("bench.py gpu: torch sees no GPU") and error.count("\n") == 1


# ---- graders -------------------------------------------------------------------------------------


def test_graders_are_timed_and_their_errors_counted(capsys):
    pairs = [{"response": f"\\boxed{{{i}}}", "gold": "7", "truth": i == 7} for i in range(20)]
    pairs[3]["truth"] = True  # a right answer that the grader misses
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


def test_spread_and_ratios_match_a_hand_calculation():
    assert spread([3.0, 1.0, 2.5]) == "2.500 (1.000 to 3.000)"
    assert spread([10.4], 0) == "10 (10 to 10)"
    assert ratios([1.0, 6.0], [2.0, 3.0]) == [0.5, 2.0]


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
    policy = Policy(toy.build_model())
    functions = stages(policy, 6, 16, 2, 100)
    assert list(functions) == ["sampling", "old_logprobs", "coefficients", "update"]
    without = stages(policy, 6, 16, 2, 100, trains=False)
    assert list(without) == ["sampling", "old_logprobs", "coefficients"]

    assert [len(tokens) for tokens in functions["sampling"]()] == [6] * 16
    before = [p.detach().clone() for p in policy.parameters()]
    logprob = functions["old_logprobs"]().logprob
    with patch.object(train, "update", wraps=train.update) as updated:
        metrics = functions["update"]()
    assert metrics["skipped_updates"] == 0 and metrics["grad_norm"] > 0
    moved = zip(before, policy.parameters(), strict=True)
    assert all(not torch.equal(a, b) for a, b in moved)

    _, _, tokens, weights, plan = updated.call_args.args
    assert len(plan) == 2
    assert (tokens.advantage != 0).all()  # every micro-batch has a backward pass
    assert torch.equal(logprob, tokens.logprob)
    assert torch.equal(functions["coefficients"](), weights)
    assert float(weights.mean()) == pytest.approx(1)


# ---- the benches ---------------------------------------------------------------------------------


def columns(header):
    """The number of columns in a table, from the second line of its header."""
    first, second = header.splitlines()
    assert first.count("|") == second.count("|")
    return second.count("|") - 1


def test_rollouts_prints_a_line_for_each_model_and_mix(monkeypatch, capsys):
    monkeypatch.setattr(rollouts, "MODELS", ((64, 6),))
    monkeypatch.setattr(rollouts, "MIXES", {"even": [5] * 8, "heavy": [2, 2, 30, 2, 2, 2, 2, 2]})
    rows = rollouts.rollouts(ARGS)
    assert [(row["mix"], row["tokens"]) for row in rows] == [("even", 30), ("heavy", 40)]
    printed = capsys.readouterr().out.strip().splitlines()
    assert len(printed) == 4
    assert all(line.count("|") - 1 == len(rollouts.HEADER) for line in printed)


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
    flop = gpu.forward_flop(sizes_of(config), sequences=5, width=20)
    assert flop == 2 * multiplying * tokens + 2 * attention


@pytest.mark.parametrize(
    "name, bandwidth", [("NVIDIA H200", 4.8e12), ("NVIDIA A100-SXM4-80GB", 2.04e12), ("?", 3.35e12)]
)
def test_mfu_and_plan_use_this_gpus_peak_rates(name, bandwidth, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: name)
    assert gpu.peaks_here()[1] == bandwidth


def test_plan_for_the_measured_run_uses_the_gpus_bandwidth(monkeypatch):
    """Twice the bandwidth halves the memory-read time."""
    seconds = []
    monkeypatch.setattr(torch.cuda, "get_device_properties", GPU_OF_80_GB.get)
    for bandwidth in (3e12, 6e12):
        monkeypatch.setattr(gpu, "peaks_here", lambda bandwidth=bandwidth: (1e15, bandwidth))
        plan, sampling = gpu.planned_here(qwen3("0.6B"))
        assert plan.in_flight == gpu.RESPONSES
        seconds.append(sampling - 0.004 * gpu.LENGTH)  # without launches
    assert seconds[0] == pytest.approx(2 * seconds[1], rel=0.01)


def test_gpu_table_row_matches_a_hand_calculation():
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
        "peak": {"sampling": 1.5e9, "old_logprobs": 1e9, "coefficients": 5e9, "update": 8e9},
        "mfu": {"old_logprobs": [0.2, 0.2, 0.2], "update": [0.3, 0.5, 0.4]},
    }
    speeds = f"{tokens / 3:.0f}; 3 (2.5) | {tokens / 0.5:.0f}; 0.5 (20.0%) | {tokens}; 1 (40.0%)"
    expected = f"| 4B | {speeds} | 10.00% | 1.5, 1.0, 8.0 | 3.0, 2.0, 9.0 |"
    assert gpu.table_row("4B", costs, planned, 2.5) == expected

    del costs["seconds"]["update"]
    row = gpu.table_row("8B", costs, planned, 2.5)
    assert "| - | 12.50% (no update) | 1.5, 1.0 | 3.0, 2.0 |" in row
    assert row.count("|") - 1 == columns(gpu.HEADER)
