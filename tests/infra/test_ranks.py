"""Tests infra/ranks.py, and that results do not depend on the number of ranks (gloo, one machine).

The number of ranks changes the order of summation, and so the last digits. With the same number of
ranks, metrics are identical to the last digit.
"""

import os
import shutil
import signal
from functools import partial
from pathlib import Path

import pytest
import torch
from forked import finished, start, torchrun
from models import save_random_model
from references import two_sides
from safetensors.torch import load_file
from toy_runs import SCRIPT, SMALL, contents, read_lines, train_small, wait_for_step
from transformers import AutoConfig

from delta import delta_coefficients, token_gradient_proxy
from infra import ranks
from infra.loading import computation_dtype
from infra.ranks import choose_threads

LOW_RATE = ["--lr", "3e-6"]  # AdamW turns a gradient that is mere rounding into a step of size lr
FLAGS = [*LOW_RATE, "--delta-variant", "fixed_gamma"]  # whose temperatures are in the checkpoint


def training(folder, *flags: str) -> list[str]:
    """The arguments of a train.py command that writes to `folder`."""
    return [SCRIPT, *SMALL, *FLAGS, "--steps", "4", "--output-dir", str(folder), *flags]


def metrics(folder) -> list[dict]:
    return read_lines(folder / "metrics.jsonl")


def assert_close(rows: list[dict], expected: list[dict]) -> None:
    """Assert that the metrics of two numbers of ranks agree within 1e-6.

    The exceptions: mismatch is pure rounding error, and lambda_corr_pos and lambda_corr_neg are
    computed from values 1 - p near 0, which have the error of log p, 1e-6.
    """
    limits = {"mismatch": 1e-4, "lambda_corr_pos": 1e-5, "lambda_corr_neg": 1e-5}
    for row, other in zip(rows, expected, strict=True):
        assert row.keys() == other.keys()
        for name in row:
            limit = limits.get(name, 1e-6)
            assert row[name] == pytest.approx(other[name], rel=limit, abs=limit), name


@pytest.fixture(scope="module")
def by_ranks(tmp_path_factory):
    """(folder, results) of tests/infra/worker.py, on one and on two ranks.

    Six prompts, mini-batches of three and small micro-batches deliberately divide unevenly.
    """
    flags = [*SMALL, *LOW_RATE, "--steps", "2", "--prompts", "6", "--mini-batch", "3"]
    flags += ["--micro-batch-tokens", "150"]
    found = []
    for launch in (start, partial(torchrun, 2)):
        folder = tmp_path_factory.mktemp("worker")
        finished(launch("tests/infra/worker.py", str(folder), *flags))
        found.append((folder, torch.load(folder / "results.pt")))
    return found


def test_two_ranks_match_one(by_ranks):
    """Metrics, token weights and parameters agree with AdamW, and samples are identical."""
    (one, alone), (two, shared) = by_ranks
    assert_close(metrics(two), metrics(one))
    assert len(alone["steps"]) == 2
    for a, b in zip(alone["steps"], shared["steps"], strict=True):
        assert torch.equal(a["token"], b["token"])
        torch.testing.assert_close(a["weights"], b["weights"], rtol=0, atol=1e-5)
        assert 0 < b["rows"] < a["rows"] == len(a["token"])

    weights, others = (load_file(folder / "model/model.safetensors") for folder in (one, two))
    for key, weight in weights.items():
        assert (others[key] - weight).norm() <= 1e-6 * weight.norm(), key


def test_a_refusal_on_one_rank_reaches_all(by_ranks):
    for count, (_, results) in enumerate(by_ranks, start=1):
        assert results["refusals"] == ["7 is refused"] * count


def test_the_lines_for_another_trainer_give_the_weights_of_all_tokens(by_ranks):
    h, A = two_sides()
    rho = delta_coefficients(token_gradient_proxy(h, -h[:, 0].abs()), A)
    for _, results in by_ranks:
        torch.testing.assert_close(results["ported"], rho * A)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run on two ranks. Read-only."""
    folder = tmp_path_factory.mktemp("ranks") / "whole"
    finished(torchrun(2, *training(folder)))
    return folder


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="finds the ranks in /proc")
def test_a_killed_rank_is_restarted_and_the_run_resumes_bit_equal(tmp_path, whole):
    folder = tmp_path / "cut"
    restarts = ["--max-restarts", "2", "--monitor-interval", "0.1"]
    agent = torchrun(2, *restarts, *training(folder))
    wait_for_step(3, folder, agent)
    processes = Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split()
    assert len(processes) == 2
    os.kill(int(processes[-1]), signal.SIGKILL)
    assert "continuing" in finished(agent).stdout
    assert metrics(folder) == metrics(whole)
    exported = [(each / "model/model.safetensors").read_bytes() for each in (folder, whole)]
    assert exported[0] == exported[1]


def test_a_signal_saves_on_all_ranks_and_one_rank_can_continue(tmp_path, whole):
    folder = tmp_path / "cut"
    agent = torchrun(2, *training(folder, "--save-every", "100"))
    wait_for_step(1, folder, agent)
    agent.send_signal(signal.SIGTERM)
    agent.wait()
    assert agent.stderr.count("stopped by SIGTERM after step") == 1
    assert_close(train_small(folder, *FLAGS, steps=4), metrics(whole))


def test_a_refusal_ends_all_ranks_with_one_message(tmp_path, whole):
    """The first rank checks the folder, tells the others to end, and prints."""
    folder = shutil.copytree(whole, tmp_path / "copy")
    before = contents(folder)
    done = finished(torchrun(2, *training(folder, "--seed", "1")), code=1)
    (said,) = [line for line in done.stderr.splitlines() if "seed" in line]
    assert said.startswith("train.py: ")
    assert 'train.py", line' not in done.stderr  # no traceback from a rank
    assert contents(folder) == before


def test_a_hybrid_trains_on_two_ranks_as_on_one(tmp_path):
    """The proxy needs the LM head, which is sharded."""
    save_random_model("qwen3_5", tmp_path / "model")
    flags = ["--model", str(tmp_path / "model"), "--proxy", "topk", "--proxy-topk", "5"]
    flags += ["--max-new-tokens", "8", "--prompts", "2", "--mini-batch", "2"]
    one = train_small(tmp_path / "one", *flags, steps=2)
    assert all(row["grad_norm"] > 0 for row in one)

    words = [*SMALL, *flags, "--steps", "2", "--output-dir", str(tmp_path / "two")]
    finished(torchrun(2, SCRIPT, *words))
    for row, other in zip(one, read_lines(tmp_path / "two" / "metrics.jsonl"), strict=True):
        assert row == pytest.approx(other, rel=1e-5, abs=1e-5)
    assert AutoConfig.from_pretrained(tmp_path / "one/model").model_type == "qwen3_5_text"


@pytest.mark.parametrize(
    "quota, variables, threads",
    [
        ("max 100000", {}, []),
        ("350000 100000", {}, [3]),
        ("50000 100000", {}, [1]),
        ("50000 100000", {"OMP_NUM_THREADS": "5"}, []),
    ],
)
def test_a_containers_quota_limits_the_threads(quota, variables, threads, tmp_path, monkeypatch):
    chosen = []
    monkeypatch.setattr(os, "environ", variables)
    monkeypatch.setattr(ranks, "QUOTA", tmp_path / "cpu.max")
    (tmp_path / "cpu.max").write_text(quota + "\n")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    choose_threads()
    assert chosen == threads


@pytest.mark.parametrize("has_bfloat16", [True, False])
def test_a_gpu_without_bfloat16_computes_in_float32(has_bfloat16, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: has_bfloat16)
    assert computation_dtype() == (torch.bfloat16 if has_bfloat16 else torch.float32)
