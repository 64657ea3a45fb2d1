"""infra/vllm_engine.py with tests/fake_vllm.py instead of vllm, without a GPU."""

import json
import os
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fake_vllm import TAGS, Logprob, engines, installed
from forked import call, finished, torchrun
from toy_runs import SMALL, read_lines, refusal, small_config, train_small

import train
from infra import vllm_engine
from infra.errors import Interrupted, UserError
from infra.folder import unlock
from infra.vllm_engine import drawn, request_seed
from rollout import Job

VLLM = ["--engine", "vllm"]
ROLLOUT = ["wake_up weights", "apply_model load", "reset_prefix_cache", "wake_up kv_cache"]


@pytest.fixture
def fake():
    """Pretend that vllm is installed and that the engine has a GPU."""
    with installed():
        yield


def prepared(folder, *flags: str, steps: int = 1) -> train.Run:
    return train.prepare(small_config(folder, *VLLM, *flags, steps=steps))


# ---- a run ---------------------------------------------------------------------------------------


def test_a_run_samples_from_vllm_in_training_and_evaluation(tmp_path, fake):
    flags = ["--eval-samples", "1", "--eval-greedy", "--importance-cap", "2"]
    rows = train_small(tmp_path, *VLLM, *flags, steps=2)
    (engine,) = engines
    evaluation = [*ROLLOUT, "enqueue 48", "enqueue 48", "sleep 2"]  # the second is greedy
    rollouts = 2 * [*ROLLOUT, "enqueue 32", "sleep 2"]
    assert engine.calls == ["sleep 2", *evaluation, *rollouts, *evaluation]

    steps = [row for row in rows if "mismatch" in row]
    assert len(steps) == 2
    for row in steps:  # the engine used current weights and returned its tokens' log p
        assert 0 < row["reward"] < 1
        assert row["grad_norm"] > 0
        assert row["mismatch"] < 1e-5
        assert row["mismatch_max"] < 1e-3


def test_the_engine_runs_in_this_process(tmp_path, fake):
    run = prepared(tmp_path, "--rollout-rows", "24")
    unlock(tmp_path)
    weights = sum(parameter.numel() for parameter in run.policy.parameters())
    assert engines[0].settings == {
        "tensor_parallel_size": 1,
        "dtype": torch.float32,  # bfloat16 on a GPU
        "seed": 0,
        "gpu_memory_utilization": pytest.approx(0.85 * (1 - 12 * weights / 80e9)),
        "enable_sleep_mode": True,
        "max_model_len": max(len(prompt) for prompt in run.prompts) + run.cfg.max_new_tokens,
        "max_num_seqs": 24,
        "max_num_batched_tokens": 4096,
        "distributed_executor_backend": "external_launcher",
        "logprobs_mode": "processed_logprobs",
    }
    assert [os.environ[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")] == ["0", "0", "1"]
    assert os.environ["PYTORCH_ALLOC_CONF"] == "expandable_segments:False"


def test_weights_arrive_by_name_in_the_engines_dtype(tmp_path, fake, monkeypatch):
    """The engine's rounding error shows up in `mismatch`."""
    monkeypatch.setattr(vllm_engine, "computation_dtype", lambda: torch.bfloat16)
    run = prepared(tmp_path, "--importance-cap", "2")
    train.train_step(run, 1)
    unlock(tmp_path)
    names = [name for name, _ in run.policy.lm.named_parameters()]
    assert "model.layers.0.self_attn.q_proj.weight" in names
    assert engines[0].model.streamed == [(name, torch.bfloat16) for name in names]
    (row,) = read_lines(tmp_path / "metrics.jsonl")
    assert 1e-4 < row["mismatch"] < 0.1


def test_a_missing_weight_ends_the_run(tmp_path, fake):
    run = prepared(tmp_path)
    unlock(tmp_path)
    engines[0].model.left_out = "model.norm.weight"
    with pytest.raises(UserError, match=r"1 weights of .* such as model\.norm\.weight"):
        train.train_step(run, 1)


def test_a_signal_ends_sampling_and_puts_the_engine_to_sleep(tmp_path, fake):
    run = prepared(tmp_path)
    unlock(tmp_path)
    run.told_to_stop = 15
    with pytest.raises(Interrupted):
        train.train_step(run, 1)
    (engine,) = engines
    assert engine.asleep == TAGS
    assert not engine.llm_engine.has_unfinished_requests()


# ---- reproducible requests -----------------------------------------------------------------------


def test_a_resumed_run_sends_the_same_requests(tmp_path, fake):
    whole = train_small(tmp_path / "whole", *VLLM, "--eval-data", "", steps=3)
    in_two = train_small(tmp_path / "in two", *VLLM, "--eval-data", "", steps=2)
    in_two = train_small(tmp_path / "in two", *VLLM, "--eval-data", "", steps=3)
    assert in_two == whole
    once, first, second = (engine.seeds for engine in engines)
    assert first + second == once
    assert len(set(once)) == 3 * 32


@pytest.fixture(scope="module")
def by_ranks(tmp_path_factory):
    """The output folders of tests/infra/vllm_worker.py on one and on two ranks."""
    folders = []
    for ranks in (1, 2):
        folders.append(tmp_path_factory.mktemp(f"vllm_on_{ranks}"))
        flags = [*SMALL, "--eval-data", "", "--steps", "2"]
        finished(torchrun(ranks, "tests/infra/vllm_worker.py", str(folders[-1]), *flags))
    return folders


def test_two_ranks_send_the_same_requests_as_one(by_ranks):
    one, two = by_ranks
    alone, *shares = (
        json.loads((folder / f"asked-{rank}.json").read_text())
        for folder, rank in ((one, 0), (two, 0), (two, 1))
    )
    assert sorted(shares[0]["seeds"] + shares[1]["seeds"]) == sorted(alone["seeds"])
    for rank, share in enumerate(shares):
        assert share["calls"] == ["sleep 2", *2 * [*ROLLOUT, "enqueue 16", "sleep 2"]]
        assert share["streamed"] == alone["streamed"]
        assert share["settings"] == alone["settings"] | {
            "seed": str(rank),
            "gpu_memory_utilization": share["settings"]["gpu_memory_utilization"],
        }

    metrics = [read_lines(folder / "metrics.jsonl") for folder in by_ranks]
    for row, other in zip(*metrics, strict=True):
        assert row["mismatch"] < 1e-5
        for name in ("reward", "response_length", "loss", "grad_norm"):
            assert row[name] == pytest.approx(other[name], rel=1e-4, abs=1e-6), name


def test_the_seed_is_unique_to_a_request_and_ignores_the_prompt():
    names = [(0, 1, 2, 3), (1, 1, 2, 3), (0, 2, 2, 3), (0, 1, 3, 3), (0, 1, 2, 4)]
    jobs = [Job([5], name) for name in names] + [Job([5], names[0], begin=1)]
    seeds = [request_seed(job) for job in jobs]
    assert len(set(seeds)) == len(jobs)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert request_seed(Job([7, 8], names[0])) == seeds[0]


# ---- engine output -------------------------------------------------------------------------------


def completion(*logprobs: float) -> SimpleNamespace:
    """Tokens 3, 4, ...; each position also lists a more likely token, as vLLM may do."""
    at = [{99: Logprob(-0.1), 3 + i: Logprob(value)} for i, value in enumerate(logprobs)]
    return SimpleNamespace(token_ids=(*range(3, 3 + len(at)),), logprobs=at)


def test_tokens_and_their_log_probabilities_are_arrays():
    tokens, logprob = drawn(completion(-1.5, -0.25))
    assert tokens.dtype == np.int32
    assert tokens.tolist() == [3, 4]
    assert logprob.dtype == np.float32
    assert logprob.tolist() == [-1.5, -0.25]


@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_log_probabilities_that_are_not_finite_stop_the_run(bad):
    with pytest.raises(FloatingPointError, match="not finite"):
        drawn(completion(-1.0, bad))


# ---- refusals ------------------------------------------------------------------------------------


def test_without_vllm_the_flag_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "vllm", None)  # as if not installed
    error = refusal(train.main, [*VLLM, "--output-dir", tmp_path / "run"], capsys)
    assert "--engine vllm: vllm cannot be imported" in error
    assert "pip install vllm" in error
    assert not (tmp_path / "run").exists()


def test_without_a_gpu_the_flag_is_refused(tmp_path, fake, monkeypatch, capsys):
    monkeypatch.setattr(vllm_engine, "this_device", lambda: torch.device("cpu"))
    error = refusal(train.main, [*VLLM, "--output-dir", tmp_path / "run"], capsys)
    assert "--engine vllm needs a GPU" in error


@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_expandable_segments_are_refused(name, tmp_path, fake, monkeypatch, capsys):
    monkeypatch.setenv(name, "max_split_size_mb:512,expandable_segments:True")
    error = refusal(train.main, [*VLLM, "--output-dir", tmp_path / "run"], capsys)
    assert f"{name} enables expandable segments" in error
    assert engines == []


def test_allocator_settings_in_the_environment_are_kept(fake, monkeypatch):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:512")
    vllm_engine.refuse_machine()
    assert "PYTORCH_ALLOC_CONF" not in os.environ  # it would take precedence over the older name


def test_the_module_is_imported_only_with_the_flag():
    imported = "'infra.vllm_engine' in __import__('sys').modules"
    assert call(eval, imported) is False  # train and evaluate do not import it
    assert call(eval, imported.replace("vllm_engine", "run")) is True
