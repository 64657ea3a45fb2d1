"""Several ranks (gloo, on this machine): the same numbers as one, and runs that survive what happens to long runs."""
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import load_file

import toy
from conftest import ROOT

SMALL = ["--prompts", "4", "--group-size", "4", "--mini-batch", "2", "--save-every", "2", "--eval-data", ""]
ENV = os.environ | {"OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1"}
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def command(ranks, folder, *flags, script="train.py", options=()):
    start = [*TORCHRUN, "--nproc_per_node", str(ranks), "--master_port", str(free_port()), *options] if ranks > 1 else [sys.executable]
    return [*start, script, *([str(folder) + ".pt"] if "worker" in script else []), *SMALL, "--output-dir", str(folder), *flags]


def run(*args, code=0, **options):
    done = subprocess.run(command(*args, **options), cwd=ROOT, env=ENV, capture_output=True, text=True, timeout=300)
    assert (done.returncode == 0) == (code == 0), done.stderr[-3000:]
    return done


def rows(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]


def close(a, b, relative):
    assert len(a) == len(b)
    for x, y in zip(a, b):
        assert x == pytest.approx(y, rel=relative, abs=1e-7)


@pytest.fixture(scope="module", autouse=True)
def built():
    toy.base_folder()  # once, before ranks share it


@pytest.mark.parametrize("method", ["dapo", "delta"])
def test_two_ranks_do_what_one_does(method, tmp_path):
    """Loss, gradient norm and parameters within 1e-4, λ within 1e-5, sampled tokens equal; prompts and micro-batches uneven on purpose."""
    flags = ["--method", method, "--steps", "3", "--prompts", "6", "--mini-batch", "3", "--micro-batch-tokens", "300", "--lr", "1e-3"]
    one, two = tmp_path / "one", tmp_path / "two"
    run(1, one, *flags, script="tests/worker.py")
    run(2, two, *flags, script="tests/worker.py")
    close(rows(one), rows(two), 1e-4)
    a, b = (torch.load(f"{folder}.pt") for folder in (one, two))
    assert len(a) == len(b) == 3
    for x, y in zip(a, b):
        assert torch.equal(x["token"], y["token"])
        torch.testing.assert_close(x["weights"], y["weights"], rtol=0, atol=1e-5)
        torch.testing.assert_close(x["logprob"], y["logprob"], rtol=1e-4, atol=1e-5)
        assert 0 < y["rows"] < x["rows"] == len(x["token"])  # a rank keeps the hidden states of its own rows only
    a, b = (load_file(folder / "model" / "model.safetensors") for folder in (one, two))
    for name in a:
        assert (a[name] - b[name]).norm() <= 1e-4 * a[name].norm(), name


def wait_for(path, text, process, seconds=120):
    deadline = time.time() + seconds
    while time.time() < deadline and process.poll() is None:
        if path.exists() and text in path.read_text():
            return
        time.sleep(0.005)
    raise AssertionError(f"{text!r} did not appear in {path}")


def workers(folder):
    """Process ids of the ranks that write to `folder`, the launcher not among them."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = open(f"/proc/{pid}/cmdline").read().split("\0")
        except OSError:
            continue
        if str(folder) in words and "torch.distributed.run" not in words:
            found.append(int(pid))
    return sorted(found)


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="finds the workers in /proc")
def test_a_killed_worker_is_restarted_and_the_run_resumes(tmp_path):
    run(2, tmp_path / "whole", "--steps", "6")
    folder = tmp_path / "cut"
    process = subprocess.Popen(command(2, folder, "--steps", "6", options=["--max-restarts", "2", "--monitor-interval", "0.1"]), cwd=ROOT, env=ENV,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(folder / "metrics.jsonl", '"step": 3', process)
    os.kill(workers(folder)[-1], signal.SIGKILL)
    out, error = process.communicate(timeout=200)
    assert process.returncode == 0 and "continuing" in out, error
    assert rows(folder) == rows(tmp_path / "whole")


def test_sigterm_saves_and_the_same_command_continues(tmp_path):
    run(2, tmp_path / "whole", "--steps", "5", "--save-every", "100")
    folder = tmp_path / "cut"
    process = subprocess.Popen(command(2, folder, "--steps", "5", "--save-every", "100"), cwd=ROOT, env=ENV, stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, text=True)
    wait_for(folder / "metrics.jsonl", '"step": 2', process)
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate(timeout=100)
    assert "stopped by SIGTERM after step" in error and len(list(folder.glob("checkpoint-*[0-9]"))) == 1
    assert "continuing" in run(2, folder, "--steps", "5", "--save-every", "100").stdout
    assert rows(folder) == rows(tmp_path / "whole")


@pytest.fixture(scope="module")
def four_steps(tmp_path_factory):
    """Two ranks, four steps, checkpoints of steps 2 and 4."""
    folder = tmp_path_factory.mktemp("ranks") / "four"
    run(2, folder, "--steps", "4")
    assert sorted(path.name for path in folder.glob("checkpoint-*")) == ["checkpoint-000002", "checkpoint-000004"]
    return folder


def test_damaged_checkpoints_are_skipped_and_another_number_of_ranks_continues(tmp_path, four_steps):
    run(1, tmp_path / "whole", "--steps", "5")
    folder = shutil.copytree(four_steps, tmp_path / "copy")
    (folder / "checkpoint-000006.tmp").mkdir()  # cut off while it was written
    shard = max((folder / "checkpoint-000004").glob("*.distcp"), key=lambda path: path.stat().st_size)
    shard.write_bytes(shard.read_bytes()[:1000])  # renamed, then damaged
    done = run(1, folder, "--steps", "5")
    assert "checkpoint-000006.tmp: it was cut off" in done.stdout and "checkpoint-000004: it is damaged" in done.stdout
    assert "after step 2" in done.stdout and not (folder / "checkpoint-000006.tmp").exists()
    close(rows(folder), rows(tmp_path / "whole"), 1e-4)


def test_a_full_disk_leaves_the_checkpoints_before_it(tmp_path, four_steps):
    """Writes beyond 100 kB fail as they do when there is no room (RLIMIT_FSIZE)."""
    folder = shutil.copytree(four_steps, tmp_path / "copy")
    before = {path: path.read_bytes() for path in folder.glob("checkpoint-*/*")}
    limited = ["bash", "-c", 'ulimit -f 100; exec "$@"', "bash", *command(2, folder, "--steps", "6")]
    done = subprocess.run(limited, cwd=ROOT, env=ENV, capture_output=True, text=True, timeout=200)
    assert done.returncode and "could not be written" in done.stderr and "make room" in done.stderr
    assert {path: path.read_bytes() for path in folder.glob("checkpoint-*/*")} == before
    assert "after step 4" in run(2, folder, "--steps", "6").stdout and rows(folder)[-1]["step"] == 6


def test_two_nodes_of_two_ranks_do_what_one_rank_does(tmp_path):
    """torchrun --nnodes 2 with two agents on loopback: HSDP, shards inside a node and copies across."""
    flags, port = ["--method", "delta", "--steps", "2"], free_port()
    run(1, tmp_path / "one", *flags)
    agents = [subprocess.Popen([*TORCHRUN, "--nnodes", "2", "--nproc_per_node", "2", "--node_rank", str(node), "--master_addr", "127.0.0.1",
                                "--master_port", str(port), "train.py", *SMALL, "--output-dir", str(tmp_path / "four"), *flags],
                               cwd=ROOT, env=ENV, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for node in (0, 1)]
    errors = [agent.communicate(timeout=250)[1] for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], errors[0][-2000:]
    close(rows(tmp_path / "one"), rows(tmp_path / "four"), 1e-4)


def test_a_user_error_is_said_once_by_several_ranks(tmp_path):
    done = run(2, tmp_path / "r", "--prompts", "5", code=2)
    assert done.stderr.count("is not a multiple") == 1
