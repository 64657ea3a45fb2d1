"""infra/ranks.py and everything that must not depend on the number of ranks (gloo, one machine).

Several ranks give the same results as one, and a run survives kills, signals, damage and a full
disk. The number of ranks changes the summation order, and so the last digits. With the same number
of ranks, metrics are identical to the last digit.
"""

import os
import shutil
import signal
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from forked import finished, torchrun
from references import two_sides
from safetensors.torch import load_file
from torch import distributed as dist
from toy_runs import SMALL, contents, read_lines, train_small, wait_for_step
from worker import IN_FLIGHT, LENGTHS

from ablations import VARIANTS
from benchmarks.flights import Sampler, groups_of, simulated
from benchmarks.scripted import GROUP, PROMPT_WIDTH, UNLIMITED
from delta import delta_coefficients
from infra.errors import UserError, leave
from infra.folder import read_run
from infra.ranks import (
    check_environment,
    limit_nccl,
    prefer_expandable_segments,
    start_ranks,
)

NO_EVALUATION = [*SMALL, "--eval-data", ""]


def training(folder, *flags: str) -> list[str]:
    """The arguments of a train.py command that writes to `folder`."""
    return ["train.py", *NO_EVALUATION, "--output-dir", str(folder), *flags]


def metrics(folder) -> list[dict]:
    return read_lines(folder / "metrics.jsonl")


def assert_close(rows: list[dict], expected: list[dict]) -> None:
    """The metrics agree within 1e-4 for any numbers of ranks; mismatch is pure rounding error."""
    assert len(rows) == len(expected)
    for row, other in zip(rows, expected, strict=True):
        assert row.keys() == other.keys()
        for name in row:
            close = 1e-4 if name.startswith("mismatch") else 1e-7
            assert row[name] == pytest.approx(other[name], rel=1e-4, abs=close), name


@pytest.mark.parametrize("given", [None, "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_memory_segments_are_expandable_unless_the_environment_sets_them(monkeypatch, given):
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    if given:
        monkeypatch.setenv(given, "max_split_size_mb:512")
    prefer_expandable_segments()
    default = None if given == "PYTORCH_CUDA_ALLOC_CONF" else "expandable_segments:True"
    wanted = "max_split_size_mb:512" if given == "PYTORCH_ALLOC_CONF" else default
    assert os.environ.get("PYTORCH_ALLOC_CONF") == wanted


@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_rank_without_the_number_of_ranks_is_refused_at_once(rank, monkeypatch, capsys):
    for name in ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RANK", rank)
    wanted = "RANK is set in the environment, but not MASTER_ADDR, MASTER_PORT, WORLD_SIZE"
    with pytest.raises(UserError, match=wanted) as refused:
        check_environment()

    monkeypatch.setattr(time, "sleep", None)  # a single rank does not wait
    with pytest.raises(SystemExit):
        leave(f"train.py: {refused.value}", 2)
    assert wanted in capsys.readouterr().err

    monkeypatch.delenv("RANK")
    check_environment()


# ---- results on one and two ranks --------------------------------------------------------------


@pytest.fixture(scope="module")
def by_ranks(tmp_path_factory):
    """The output folders of tests/infra/worker.py on one and on two ranks.

    Six prompts in mini-batches of three and small micro-batches deliberately divide unevenly.
    """
    flags = [
        *NO_EVALUATION,
        *("--steps", "3"),
        *("--prompts", "6"),
        *("--mini-batch", "3"),
        *("--micro-batch-tokens", "300"),
        *("--lr", "1e-3"),
    ]
    folders = []
    for ranks in (1, 2):
        folders.append(tmp_path_factory.mktemp(f"on_{ranks}"))
        finished(torchrun(ranks, "tests/infra/worker.py", str(folders[-1]), *flags))
    return folders


@pytest.mark.parametrize("method", ["dapo", "delta", "control"])
def test_two_ranks_match_one(method, by_ranks):
    """Metrics and parameters agree within 1e-4, token weights within 1e-5, samples exactly."""
    one, two = by_ranks
    assert_close(metrics(two / method), metrics(one / method))

    steps = [torch.load(folder / "results.pt")[method] for folder in by_ranks]
    assert len(steps[0]) == len(steps[1]) == 3
    for alone, shared in zip(*steps, strict=True):
        assert torch.equal(shared["token"], alone["token"])
        torch.testing.assert_close(shared["weights"], alone["weights"], rtol=0, atol=1e-5)
        torch.testing.assert_close(shared["logprob"], alone["logprob"], rtol=1e-4, atol=1e-5)

    alone, shared = (load_file(folder / method / "model/model.safetensors") for folder in by_ranks)
    for name, weight in alone.items():
        assert (shared[name] - weight).norm() <= 1e-4 * weight.norm(), name


def test_a_rank_keeps_only_its_own_hidden_states(by_ranks):
    """DelTA splits its rows across two ranks. Other methods keep no hidden states."""
    one, two = (torch.load(folder / "results.pt") for folder in by_ranks)
    for method in ("dapo", "control"):
        for step in one[method] + two[method]:
            assert step["rows"] == 0
    for step in one["delta"]:
        assert step["rows"] == len(step["token"])
    for step in two["delta"]:
        assert 0 < step["rows"] < len(step["token"])


@pytest.mark.parametrize("variant", VARIANTS)
def test_delta_coefficients_match_for_rows_on_one_and_two_ranks(variant, by_ranks):
    v, advantage = two_sides(seed=4)
    expected = delta_coefficients(v, advantage, K=2, pieces=VARIANTS[variant])
    for folder in by_ranks:
        ours = torch.load(folder / "results.pt")["coefficients"][variant]
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-5)


def test_delta_coefficients_of_a_plain_tensor_stay_on_their_rank(by_ranks):
    """Without Rows, the ranks do not communicate."""
    for folder, ranks in zip(by_ranks, (1, 2), strict=True):
        ours = torch.load(folder / "results.pt")["own coefficients"]
        assert len(ours) == ranks
        for rank in range(ranks):
            v, advantage = two_sides(seed=10 + rank)
            expected = delta_coefficients(v, advantage, K=2)
            torch.testing.assert_close(ours[rank], expected, rtol=0, atol=1e-6)


def test_every_rank_detects_a_broken_row(by_ranks):
    for folder in by_ranks:
        assert torch.load(folder / "results.pt")["broken row seen"]


def test_exchanged_objects_arrive_complete_and_in_order(by_ranks):
    for folder, ranks in zip(by_ranks, (1, 2), strict=True):
        shares = torch.load(folder / "results.pt")["sent round"]
        assert len(shares) == ranks
        for rank, (odd, empty, numbers, said, error) in enumerate(shares):
            assert odd == [True, False, True, False][: 3 + rank]
            assert empty == []
            assert numbers == [[0.5] * (1 + rank)] * 2
            assert (said, error) == (rank, "UserError('ä')")


def test_dealing_responses_one_by_one_speeds_up_the_slowest_rank(by_ranks):
    """Lengths are scripted. benchmarks/flights.py predicts these forward passes."""
    one, two = (torch.load(folder / "results.pt") for folder in by_ranks)
    expected, _ = one["dealt groups"]
    assert [len(tokens) for tokens in expected] == LENGTHS
    assert one["dealt responses"] == one["dealt groups"]

    passes = {}
    sampler = Sampler(1, 1, IN_FLIGHT, UNLIMITED)
    for way, results in (("groups", one), ("groups", two), ("responses", two)):
        tokens, passes[way] = results[f"dealt {way}"]
        assert tokens == expected
        dealt = groups_of(np.array(LENGTHS).reshape(-1, GROUP), PROMPT_WIDTH)
        if way == "responses":
            dealt = [[each] for each in sum(dealt, [])]
        for rank, counted in enumerate(passes[way]):
            mine = sum(dealt[rank :: len(passes[way])], [])  # dealt round-robin
            assert counted == simulated(sampler, mine).passes

    assert max(passes["responses"]) < 0.75 * max(passes["groups"])
    assert min(passes["responses"]) > 0.9 * max(passes["responses"])


def test_two_nodes_of_two_ranks_match_one_rank(tmp_path):
    """HSDP, sharded within a node and replicated across nodes: two torchrun agents on loopback."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    rendezvous = [
        *("--nnodes", "2"),
        *("--rdzv-backend", "c10d"),
        *("--rdzv-endpoint", f"127.0.0.1:{store.port}"),
        *("--rdzv-conf", "is_host=0"),
    ]
    command = [*rendezvous, *training(tmp_path / "four", "--steps", "2")]
    for agent in [torchrun(2, *command), torchrun(2, *command)]:
        finished(agent)

    alone = train_small(tmp_path / "one", "--eval-data", "", steps=2)
    assert_close(metrics(tmp_path / "four"), alone)


def test_ranks_wait_a_week_on_cpus_and_an_hour_on_gpus():
    start_ranks()
    gloo = dist.group.WORLD._get_backend(torch.device("cpu"))
    assert gloo.options._timeout == timedelta(days=7)

    limits = {}

    def backend(device):
        def set_limit(limit):
            limits[device.type] = limit

        return SimpleNamespace(_set_default_timeout=set_limit)

    limit_nccl(SimpleNamespace(_get_backend=backend))
    assert limits == {"cuda": timedelta(hours=1)}


# ---- interruptions of long runs ----------------------------------------------------------------


@pytest.fixture(scope="module")
def six_steps(tmp_path_factory):
    """An uninterrupted run on two ranks: six steps, checkpoints at steps 4 and 6. Read-only."""
    folder = tmp_path_factory.mktemp("ranks") / "six"
    done = finished(torchrun(2, *training(folder, "--steps", "6")))
    assert "done: 6 steps" in done.stdout
    names = sorted(path.name for path in folder.glob("checkpoint-*"))
    assert names == ["checkpoint-000004", "checkpoint-000006"]
    return folder


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="finds the ranks in /proc")
def test_a_killed_worker_is_restarted_and_the_run_resumes(tmp_path, six_steps):
    folder = tmp_path / "cut"
    restarts = ["--max-restarts", "2", "--monitor-interval", "0.1"]
    agent = torchrun(2, *restarts, *training(folder, "--steps", "6"))
    wait_for_step(3, folder, agent)
    ranks = Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split()
    assert len(ranks) == 2
    os.kill(int(ranks[-1]), signal.SIGKILL)
    assert "continuing" in finished(agent).stdout
    assert metrics(folder) == metrics(six_steps)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_on_all_ranks_and_the_run_can_be_continued(number, tmp_path, six_steps):
    """Here a single rank continues the run; test_train.py repeats the same command."""
    folder = tmp_path / "cut"
    agent = torchrun(2, *training(folder, "--steps", "6", "--save-every", "100"))
    wait_for_step(2, folder, agent)
    agent.send_signal(number)
    agent.wait()
    assert agent.stderr.count(f"stopped by {number.name} after step") == 1
    assert len(list(folder.glob("checkpoint-*[0-9]"))) == 1

    assert_close(train_small(folder, "--eval-data", "", steps=6), metrics(six_steps))


def test_two_ranks_replace_the_model_of_their_own_run(tmp_path, six_steps):
    folder = shutil.copytree(six_steps, tmp_path / "copy")
    before = contents(folder / "model")
    finished(torchrun(2, *training(folder, "--steps", "7")))
    assert contents(folder / "model") != before


def test_a_refusal_on_one_rank_ends_all_ranks(tmp_path, six_steps):
    """The first rank checks the folder, informs the others and prints the message.

    torchrun's report ends with the message.
    """
    folder = shutil.copytree(six_steps, tmp_path / "copy")
    (folder / "run.json").unlink()
    before = contents(folder)
    done = finished(torchrun(2, *training(folder, "--steps", "7")), code=1)
    said = "from another program (no run.json)"
    lines = [line for line in done.stderr.splitlines() if said in line]
    assert [line.partition(":")[0].strip() for line in lines] == ["train.py", "traceback"]
    assert done.stderr.splitlines()[-2] == lines[1]
    assert done.stderr.count("exitcode  :") == 1
    assert 'train.py", line' not in done.stderr  # no traceback from a rank
    assert contents(folder) == before


SPEAKS = """
import os, sys
sys.path.insert(0, os.getcwd())
from infra import errors
errors.GRACE = 0.5
if os.environ["RANK"] == "1":
    errors.leave("only rank 1 knows", 2)
import time
time.sleep(600)
"""


def test_a_rank_that_fails_alone_prints_its_message(tmp_path):
    script = tmp_path / "speaks.py"
    script.write_text(SPEAKS)
    done = finished(torchrun(2, str(script)), code=1)
    assert done.stderr.count("only rank 1 knows") == 2  # from rank 1 and in torchrun's report


def test_a_different_number_of_ranks_skips_damaged_checkpoints(tmp_path, six_steps, capsys):
    folder = shutil.copytree(six_steps, tmp_path / "copy")
    cut_off = folder / f"writing-{read_run(folder)['id']}"
    cut_off.mkdir()
    shards = (folder / "checkpoint-000006").glob("*.distcp")
    shard = max(shards, key=lambda path: path.stat().st_size)
    shard.write_bytes(shard.read_bytes()[:1000])  # renamed, then damaged

    alone = train_small(folder, "--eval-data", "", steps=6)
    said = capsys.readouterr().out
    assert f"{cut_off}: it is incomplete" in said
    assert "checkpoint-000006: it is damaged" in said
    assert "after step 4" in said
    assert not cut_off.exists()
    assert_close(alone, metrics(six_steps))


def test_a_full_disk_keeps_earlier_checkpoints(tmp_path, six_steps):
    """Writes beyond 100 kB fail as on a full disk (RLIMIT_FSIZE)."""
    folder = shutil.copytree(six_steps, tmp_path / "copy")
    checkpoints = [folder / "checkpoint-000004", folder / "checkpoint-000006"]
    before = [contents(path) for path in checkpoints]

    command = training(folder, "--steps", "8")
    done = finished(torchrun(2, *command, file_limit=100_000), code=1)
    assert "could not be written" in done.stderr, done.stderr[-3000:]
    assert "free some disk space" in done.stderr
    assert [contents(path) for path in checkpoints] == before

    steps = [row["step"] for row in train_small(folder, "--eval-data", "", steps=8)]
    assert steps == [1, 2, 3, 4, 5, 6, 7, 8]
