"""bench.py and the benches of speed: small sizes, and what can be known of them beforehand.

studies/credit.py is tested in test_credit.py, the studies in test_studies.py, statistics.py in
test_statistics.py, and a run of every stage of benchmarks/gpu.py in test_memory.py.
"""

import importlib
import json
import os
import time
from dataclasses import fields, replace
from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

import bench
import toy
import train
from benchmarks import (
    balance,
    gpu,
    graders,
    logprobs,
    overhead,
    programs,
    rollouts,
    roofline,
    scaling,
    soups,
    trl_delta,
    trl_step,
)
from benchmarks.scripted import END_TOKEN, plain_generate, random_model, sampled
from benchmarks.stages import prepared_step, stages
from benchmarks.timing import alternate, peak_memory, ratios, spread
from infra.balance import Layout
from infra.memory import Plan, Sizes, sizes_of
from infra.policy import Policy
from studies.tables import table_line, write_csv

ARGS = SimpleNamespace(repetitions=1)

# ---- bench.py ------------------------------------------------------------------------------------


def test_every_bench_is_a_function_and_in_the_help():
    for name, module in bench.WHERE.items():
        assert callable(getattr(importlib.import_module(module), name))
        assert f"\n{name} " in bench.__doc__


def test_arguments_default_to_the_csv_of_the_name():
    assert bench.parse_arguments(["seeds"]).csv == "results/seeds.csv"
    args = bench.parse_arguments(["credit", "--csv", "x.csv", "--repetitions", "7"])
    assert (args.csv, args.repetitions) == ("x.csv", 7)


@pytest.mark.parametrize("argv", [["unknown"], ["seeds", "--seeds", "1"]])
def test_arguments_that_cannot_be_are_refused(argv, capsys):
    with pytest.raises(SystemExit) as stopped:
        bench.parse_arguments(argv)
    assert stopped.value.code == 2
    assert "bench.py: error" in capsys.readouterr().err


def test_json_says_what_was_measured_on_what(tmp_path):
    path = tmp_path / "out.json"
    bench.main(["memory", "--json", str(path)])
    written = path.read_text()
    assert '"name": "memory"' in written
    assert f'"torch": "{torch.__version__}' in written


@pytest.mark.skipif(torch.cuda.is_available(), reason="only where there is no GPU")
def test_gpu_without_a_gpu_is_one_line(capsys):
    with pytest.raises(SystemExit) as stopped:
        bench.main(["gpu"])
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("bench.py gpu: torch sees no GPU") and error.count("\n") == 1


# ---- graders and programs ------------------------------------------------------------------------


def test_soups_are_graded_and_the_slowest_shown(capsys):
    measured = soups.soups(SimpleNamespace(soups=20))
    assert measured["soups"] == 20
    assert 0 < measured["median_s"] <= measured["slowest_s"]
    printed = capsys.readouterr().out
    assert printed.startswith("20 soups, no exception") and printed.count(" for ") == soups.KEPT
    assert soups.soup(3) == soups.soup(3) != soups.soup(4)


def test_graders_are_measured_on_pairs_and_counted(capsys):
    pairs = [{"response": f"\\boxed{{{i}}}", "gold": "7", "truth": i == 7} for i in range(20)]
    pairs[3]["truth"] = True  # one that the grader will miss
    named = {"verify.py": graders.ours}
    verdicts, milliseconds = graders.measure(named, pairs, 2)
    assert verdicts["verify.py"] == [i == 7 for i in range(20)]
    assert len(milliseconds["verify.py"]) == 2 and min(milliseconds["verify.py"]) > 0

    graders.print_table(pairs, verdicts, milliseconds)
    graders.print_missed(pairs, verdicts["verify.py"])
    printed = capsys.readouterr().out
    assert "| verify.py | 95.0% | 0 | 1 |" in printed
    assert "missed by verify.py: \\boxed{3} for 7" in printed


def test_graders_count_false_and_missed_credits_of_a_class():
    cases = [("\\boxed{7}", "7", True), ("\\boxed{7}", "7", False), ("\\boxed{8}", "7", True)]
    assert graders.false_and_missed(graders.ours, cases) == "1 of 1, 1 of 2"


def test_graders_measure_without_math_verify(monkeypatch, capsys):
    monkeypatch.setattr(graders.importlib.util, "find_spec", {"math_verify": None}.get)
    assert list(graders.installed_graders()) == ["verify.py"]
    assert "math_verify is not installed" in capsys.readouterr().out


def test_programs_are_timed_with_each_number_of_workers(monkeypatch, capsys):
    monkeypatch.setattr(programs, "COUNT", 2)
    monkeypatch.setattr(programs, "print_hostile", Mock())
    rows = programs.programs(ARGS)
    asked = [(row["programs"], row["workers"]) for row in rows]
    assert asked == [(name, workers) for name in programs.CASES for workers in programs.WORKERS]
    assert all(len(row["per_second"]) == len(row["worst_ms"]) == 1 for row in rows)
    assert all(row["per_second"][0] > 0 and row["worst_ms"][0] > 0 for row in rows)
    assert capsys.readouterr().out.count("\n| ") == len(rows)
    assert programs.print_hostile.called


# ---- timing and tables ---------------------------------------------------------------------------


def test_spread_and_ratios_by_hand():
    assert spread([3.0, 1.0, 2.5]) == "2.500 (1.000 to 3.000)"
    assert spread([10.4], 0) == "10 (10 to 10)"
    assert ratios([1.0, 6.0], [2.0, 3.0], 10) == [5.0, 20.0]


def test_alternate_calls_in_turn_and_does_not_count_the_first():
    calls = []
    slow_first = [0.2, 0.0, 0.0]

    def a():
        calls.append("a")
        time.sleep(slow_first.pop(0))

    seconds = alternate({"a": a, "b": partial(calls.append, "b")}, 2)
    assert calls == ["a", "b"] * 3
    assert [len(values) for values in seconds.values()] == [2, 2]
    assert max(seconds["a"]) < 0.2


def fill(megabytes):
    """A block of memory that is really taken."""
    return np.ones(megabytes * 2**17).sum()


def prepare_filling(before, megabytes):
    fill(before)
    return partial(fill, megabytes)


def test_peak_memory_is_that_of_the_run_and_not_of_its_preparation():
    assert peak_memory(prepare_filling, 1, 300) == pytest.approx(0.31, abs=0.03)
    assert peak_memory(prepare_filling, 300, 100) < 0.03


def test_peak_memory_does_not_wait_for_a_process_that_died():
    with pytest.raises(EOFError):
        peak_memory(os._exit, 1)


def test_tables(tmp_path):
    assert table_line(["a", 1, "0.5"]) == "| a | 1 | 0.5 |"
    write_csv(tmp_path / "new" / "x.csv", [{"a": 1, "b": ""}, {"a": "x, y", "b": 2.5}])
    assert (tmp_path / "new" / "x.csv").read_bytes() == b'a,b\n1,\n"x, y",2.5\n'


# ---- scripted responses and the stages of a step -------------------------------------------------


@pytest.mark.parametrize("function", [sampled, plain_generate])
def test_scripted_lengths_are_kept(function):
    lengths = [3, 70, 1, 9, 66]  # chunks have 64 tokens, and four responses share a prompt
    responses = function(random_model(64, vocabulary=40), lengths)
    assert [len(tokens) for tokens in responses] == lengths
    for tokens in responses:
        assert [i for i, token in enumerate(tokens) if token == END_TOKEN] == [len(tokens) - 1]


def test_stages_of_a_step_leave_what_the_next_needs():
    step = prepared_step(Policy(toy.build_model()), 6, 16, 2, 100)
    assert list(stages(step)) == ["sampling", "old_logprobs", "coefficients", "update"]
    assert list(stages(step, trains=False)) == ["sampling", "old_logprobs", "coefficients"]

    assert [len(tokens) for tokens in step.sampling()] == [6] * 16
    assert len(step.plan) == 2
    assert (step.tokens.advantage != 0).all()  # no micro-batch is spared the backward pass
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
    """How many columns the table under a header has, from its second line."""
    first, second = header.splitlines()
    assert first.count("|") == second.count("|")
    return second.count("|") - 1


def test_overhead_shares_are_of_the_whole_step():
    row = overhead.measured(overhead.Case("small", 64, 4, 8, 1, 200), repetitions=2)
    assert row["tokens"] == 32
    names = ("sampling", "old_logprobs", "coefficients", "update")
    for i in range(2):
        whole = sum(row[name][i] for name in names)
        assert row["share_percent"][i] == pytest.approx(100 * row["coefficients"][i] / whole)
        passes = 3 * row["old_logprobs"][i] / row["coefficients"][i]
        assert row["released_over_ours"][i] == pytest.approx(passes)
    assert overhead.table_row(row).count("|") - 1 == columns(overhead.HEADER)


def test_overhead_against_a_sum(monkeypatch, capsys):
    monkeypatch.setattr(overhead, "N", 500)
    monkeypatch.setattr(overhead, "H", 8)
    result = overhead.against_a_sum(2)
    assert result["floor"] == ratios(result["sum"], result["coefficients"], 5)
    assert "at N = 500, H = 8" in capsys.readouterr().out


def test_rollouts_prints_a_line_for_each_model_and_mix(monkeypatch, capsys):
    monkeypatch.setattr(rollouts, "MODELS", ((64, 6),))
    monkeypatch.setattr(rollouts, "MIXES", {"even": [5] * 8, "heavy": [2, 2, 30, 2, 2, 2, 2, 2]})
    rows = rollouts.rollouts(ARGS)
    assert [(row["mix"], row["tokens"]) for row in rows] == [("even", 30), ("heavy", 40)]
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 4
    assert all(line.count("|") - 1 == columns(rollouts.HEADER) for line in printed)


def test_mixes_of_lengths_are_what_results_md_says():
    even, mild, heavy = (rollouts.MIXES[mix] for mix in ("even", "mild", "heavy"))
    assert (min(even), max(even)) == (128, 128)
    assert (min(mild), max(mild)) == (64, 192)
    assert heavy.count(640) == 26 and heavy.count(64) == 230


def test_logprobs_compares_the_same_numbers():
    full = logprobs.forward_and_backward(logprobs.in_one_piece, 9, 8, 50)()
    blocks = logprobs.forward_and_backward(logprobs.in_blocks, 9, 8, 50)()
    assert [tuple(x.shape) for x in full] == [(9,), (9, 8), (50, 8)]
    for a, b in zip(full, blocks, strict=True):
        assert torch.allclose(a, b, atol=1e-6)


def test_logprobs_table(monkeypatch, capsys):
    monkeypatch.setattr(logprobs, "SIZES", (2, 3))
    monkeypatch.setattr(logprobs, "forward_and_backward", small_forward_and_backward)
    rows = logprobs.logprobs(ARGS)
    assert [row["tokens"] for row in rows] == [2, 3]
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.count("|") - 1 == columns(logprobs.HEADER)


def small_forward_and_backward(function, tokens, original=logprobs.forward_and_backward):
    return original(function, tokens, 8, 50)


def test_exponent_of_a_power_law():
    sizes = (2.0, 4.0, 16.0)
    assert scaling.exponent(sizes, [7 * size**0.7 for size in sizes]) == pytest.approx(0.7)


def test_scaling_of_the_stages(monkeypatch, capsys):
    monkeypatch.setattr(scaling, "TOKENS", (64, 128))
    row = scaling.growth_of_a_step("responses", (16, 32), scaling.step_of_responses, 1)
    assert len(row["exponents"]) == 4 and len(row["memory_gb"]) == 2
    assert capsys.readouterr().out.count("|") - 1 == columns(scaling.HEADER)
    assert len(scaling.growth_of_coefficients(1)["seconds"]) == 2


def test_scaling_by_group_size_keeps_responses_and_updates(monkeypatch, capsys):
    seen = []

    def seconds_a_step(flags, ranks=1):
        seen.append(train.parse_config(flags))
        return 0.5

    monkeypatch.setattr(scaling, "seconds_a_step", seconds_a_step)
    scaling.steps_by_group_size()
    for cfg in seen:
        assert cfg.prompts * cfg.group_size == 128
        assert cfg.prompts // cfg.mini_batch == 4
    assert "--group-size 4: 0.50, --group-size 8: 0.50" in capsys.readouterr().out


# ---- gpu -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [True, False])
def test_update_flop_counts_what_multiplies(tied):
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

    with torch.device("meta"):
        lm = Qwen3ForCausalLM(config)
    flop = gpu.update_flop(config, Policy(lm), sequences=5, width=20)
    assert flop == 6 * multiplying * tokens + 6 * attention


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
        "peak": {"sampling": 1.5e9, "old_logprobs": 1e9, "coefficients": 5e9, "update": 8e9},
        "mfu": [0.3, 0.5, 0.4],
    }
    speeds = f"{tokens / 3:.0f} | {tokens / 0.5:.0f} | {tokens:.0f}"
    expected = f"| 4B | {speeds} | 40.0% | 10.00% | 1.5, 1.0, 8.0 | 3.0, 2.0, 9.0 |"
    assert gpu.table_row("4B", costs, planned) == expected

    del costs["seconds"]["update"]
    costs["mfu"] = []
    row = gpu.table_row("8B", costs, planned)
    assert "| - | - | 12.50% (no update) | 1.5, 1.0 | 3.0, 2.0 |" in row
    assert row.count("|") - 1 == columns(gpu.HEADER)


# ---- trl -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mix", trl_step.LONGEST)
def test_trl_ours_has_the_steps_of_the_comparison(mix, tmp_path):
    seconds, rewards = trl_step.ours(mix, str(tmp_path), 1)
    assert len(seconds) == len(rewards) == 1
    assert 0 < rewards[0] < 1
    (metrics,) = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert metrics["grad_norm"] > 0
    if mix == "tail":  # one or two of the 16 to each of 16 problems are eight times as long
        assert 56 * (1 + 7 * 1 / 16) <= metrics["response_length"] <= 56 * (1 + 7 * 2 / 16)


def test_trl_sampler_ends_its_responses_where_ours_does():
    """By Hugging Face's `generate`, as GRPOTrainer calls it, with short and long ones."""
    lm = toy.build_model()
    trl_step.script_theirs(lm)
    prompts = torch.full((11, 4), 7)
    config = GenerationConfig(
        do_sample=True, max_new_tokens=448, eos_token_id=END_TOKEN, pad_token_id=0
    )
    out = lm.generate(input_ids=prompts, attention_mask=prompts.sign(), generation_config=config)
    ends = (out[:, 4:] == END_TOKEN).int()
    assert (ends.argmax(dim=1) + 1).tolist() == [448, *[56] * 9, 448]
    assert ends.sum(dim=1).tolist() == [1] * 11


def test_trl_takes_turns_and_drops_the_first_step(monkeypatch, capsys):
    turns = []

    def side(name, seconds):
        def run(mix, folder, steps):
            turns.append((mix, name))
            return seconds, [0.25, 0.5, 0.75]

        return run

    sides = {"ours": side("ours", [9.0, 1.0, 2.0]), "TRL": side("TRL", [9.0, 3.0, 3.0])}
    monkeypatch.setattr(trl_step, "SIDES", sides)
    result = trl_step.trl(SimpleNamespace(repetitions=2))
    assert turns == [
        *[("even", "ours"), ("even", "TRL")] * 2,
        *[("tail", "ours"), ("tail", "TRL")] * 2,
    ]
    assert result["even"]["ratio"] == result["tail"]["ratio"] == [0.5, 0.5]
    printed = capsys.readouterr().out
    assert "| tail | TRL | 3.000 (3.000 to 3.000) | 0.250, 0.750 | 1 |" in printed
    assert (
        "| even | ours | 1.500 (1.500 to 1.500) | 0.250, 0.750 | 0.50 (0.50 to 0.50) |" in printed
    )


def test_trl_delta_needs_trl_and_says_so(monkeypatch, capsys):
    monkeypatch.setattr(trl_delta.importlib.util, "find_spec", {"trl": None}.get)
    with pytest.raises(SystemExit) as stopped:
        bench.main(["trl_delta"])
    assert stopped.value.code == 2
    said = (
        "bench.py trl_delta: no TRL here: pip install trl==1.16.0, in an environment of its own\n"
    )
    assert capsys.readouterr().err == said


def test_trl_delta_finds_our_numbers_in_trl(capsys):
    """The whole check, where TRL is installed."""
    pytest.importorskip("trl")
    measured = trl_delta.trl_delta(ARGS)
    assert measured["range_1_1_differences"] == 0
    assert measured["delta_differences"] > 20
    assert abs(measured["weights_mean"] - 1) < 1e-6
    assert measured["weights_max"] - measured["weights_min"] > 0.1
    assert measured["advantage_difference"] < 1e-3
    assert measured["loss_difference"] < 1e-5
    assert measured["responses"] == 256
    assert "| largest difference in the loss |" in capsys.readouterr().out


# ---- plan ----------------------------------------------------------------------------------------


def small_work(**changes) -> roofline.Work:
    """1,000 parameters of which 600 multiply, on 16 GPUs; figures that are easy to multiply."""
    size = Sizes(1000, 200, layers=2, hidden=20, attention=8, mlp=40, vocabulary=20)
    nothing = Plan(**{field.name: 0 for field in fields(Plan)})
    planned = replace(nothing, cache=8000.0, cache_per_token=2, in_flight=1)
    machine = roofline.Machine(
        flop=1e6, memory=1e4, nvlink=1e4, network=1e3, pcie=1e3, launches=1e-9
    )
    given = {
        "size": size,
        "memory": planned,
        "gpus": 16,
        "length": 744,  # 1,000 with the prompt
        "responses": 32,
        "updates": 2,
        "micro_batch_tokens": 400,
        "longest": 1,
        "most_in_flight": 256,
        "machine": machine,
    }
    return roofline.Work(**(given | changes))


def test_plan_counts_tokens_flop_and_bytes_by_hand():
    work = small_work()
    assert work.tokens == 2000  # of two responses
    assert work.micro_batches == 2 * 3  # 1,000 tokens an update in rows of 400
    assert work.multiplying == 600
    assert work.forward_flop() == (2 * 600 + 2 * 2 * 8 * 1000) * 2000
    weights = 2 * 1000 * 7 / 8  # of which a GPU of eight has an eighth
    assert work.gathered() == weights
    assert work.nvlink_bytes() == {
        "sampling": weights,
        "log-probs": 6 * weights,
        "update": 6 * (2 * weights + 2 * weights),  # twice in 2 bytes, once in 4
    }
    # two updates, 500 bytes of gradients, there and back, over two nodes
    assert work.network_bytes() == 2 * 2 * 500 * 1 / 2
    assert small_work(gpus=8).network_bytes() == 0


def test_plan_takes_the_slowest_of_what_a_stage_does():
    work = small_work()
    assert work.in_flight() == 2  # four would fit
    reads = 2 * 600 + 2 * 372 * 2
    sampling = 744 * reads / 1e4 + work.gathered() / 1e4
    assert work.sampling() == pytest.approx(sampling)
    assert small_work(longest=10**5).sampling() > 10 * sampling
    assert small_work(memory=replace(work.memory, in_flight=0)).sampling() == float("inf")

    flop = work.forward_flop() / 1e6
    assert work.log_probs() == pytest.approx(flop)
    assert work.update() == pytest.approx(4 * flop + work.network_bytes() / 1e3)
    slow = replace(work.machine, nvlink=1.0)
    assert small_work(machine=slow).log_probs() == work.nvlink_bytes()["log-probs"]

    numbers = 2 * 744 * 20
    assert work.coefficients() == pytest.approx(5 * 10 * numbers / 1e4)
    on_host = replace(work.memory, hidden_on_host=True)
    assert small_work(memory=on_host).coefficients() == pytest.approx(5 * 2 * numbers / 1e3)


def test_plan_models_have_their_parameters():
    parameters = {name: sizes_of(config).parameters for name, config in roofline.MODELS.items()}
    billions = [round(count / 1e9, 1) for count in parameters.values()]
    assert billions == [8.2, 14.8, 32.8, 70.6]


def test_plan_table_row_has_the_columns_of_its_header():
    works = [small_work(length=length) for length in roofline.LENGTHS]
    row = roofline.table_row("small", works)
    assert row.count("|") - 1 == columns(roofline.HEADER)
    assert row.startswith("| small | 16 | 0, 0, 0 | yes |")


# ---- balance -------------------------------------------------------------------------------------


def test_balance_counts_what_is_useful_by_hand():
    padded = Layout()
    ranks = [[[10, 5], [4]], [[12], []]]  # steps of 20 and 12, of 4 and 0
    assert balance.useful_share(ranks, padded) == (2, (10 + 5 + 4 + 12) / (2 * (20 + 4)))
    packed = Layout(packed=True)
    assert balance.useful_share(ranks, packed) == (2, (10 + 5 + 4 + 12) / (2 * (15 + 4)))


def test_balance_deals_every_response_once_either_way():
    lengths = balance.lengths_of("log-normal, median 3,000")[:60]
    for deal in (balance.by_count, balance.balanced):
        ranks = deal(lengths, 4, Layout())
        dealt = [T for groups in ranks for group in groups for T in group]
        assert sorted(dealt) == sorted(lengths)
        assert len({len(groups) for groups in ranks}) == 1
