"""python -m benchmarks speed, at a small size. Its TRL and vLLM need other packages."""

import json
import os
import signal
import time

import forked
import pytest
import torch
from models import SMALL
from transformers import AutoModelForCausalLM, Qwen3Config

import train
from benchmarks import speed
from benchmarks.__main__ import main
from config import parse_config

FLAGS = "--data toy --eval-data= --prompts 3 --group-size 2 --mini-batch 3 --max-new-tokens 24"
FLAGS += " --max-prompt-tokens 64 --micro-batch-tokens 100"


def test_all_weights_that_multiply_are_counted_once():
    """Two layers: q and o, k and v, three of the MLP; and the head, in response tokens alone."""
    cfg = parse_config(["--model", "x", *FLAGS.split(), "--in-flight", "5"])
    with torch.device("meta"):
        lm = AutoModelForCausalLM.from_config(Qwen3Config(**SMALL))
    work = speed.workload(cfg, [[7] * 10, [8] * 3, [9] * 4], lm)
    body = 2 * (2 * 32 * 32 + 2 * 16 * 32 + 3 * 48 * 32)
    expected = [("sampling", body + 40 * 32, 5, 144)]
    expected += [("old_logprob", body, 100, 17 + 144), ("old_logprob", 40 * 32, 100, 144)]
    counted = [(stage, sum(a * b for a, b in shapes), *rest) for stage, shapes, *rest in work]
    assert counted == expected


def test_a_part_has_a_line_of_rates(monkeypatch):
    part = {"responses": 4, "length": 25, "peak": 2.5e9, "seconds": {"sampling": 5.0, "step": 40.0}}
    monkeypatch.setattr(speed, "in_own_process", lambda *_: part)
    (line,) = speed.lines_of([("train.py", "python", "")], [])
    assert line == ["train.py, 4 x 25", "20", "", "", "", "2.5", "2.5"]


@pytest.mark.parametrize("name", ["products", "train.py", "generate"])
def test_a_part_is_measured(name, tmp_path, monkeypatch):
    """In train.py's steps no response ends early, and all have an advantage."""
    sampled = []
    sample = train.sample

    def kept(*arguments) -> list:
        sampled.append(sample(*arguments))
        return sampled[-1]

    monkeypatch.setattr(train, "sample", kept)
    measure = speed.Timer.blocked_autorange
    monkeypatch.setattr(
        speed.Timer, "blocked_autorange", lambda timer, **_: measure(timer, None, 0.01)
    )
    speed.main(str(tmp_path), name, "--model", "toy", *FLAGS.split())
    part = json.loads((tmp_path / "measured.json").read_text())
    assert (part["responses"], part["length"]) == (6, 24)
    assert min(part["seconds"].values()) > 0 and part["peak"] > 0
    if name != "train.py":
        return
    lengths = [[len(x.response.tokens) for x in rollouts] for rollouts in sampled]
    assert lengths == [6 * [speed.WARM_UP], 6 * [24]]
    assert [response.reward for response in sampled[1]] == [0, 1, 0, 1, 0, 1]
    prompts = [sorted(str(x.response.prompt) for x in rollouts) for rollouts in sampled]
    assert prompts[0] == prompts[1]


def speed_with(words):
    """The command, with another interpreter for its parts."""
    speed.sys.executable = words[0]
    main(["speed", "--model", "toy", *FLAGS.split()])


@pytest.fixture
def interpreter(tmp_path):
    """interpreter(commands) -> a script of the shell that writes its process id to `pid`."""

    def written(commands) -> str:
        path = tmp_path / "python"
        path.write_text(f"#!/bin/sh\necho $$ > {tmp_path / 'pid'}\n{commands}\n")
        path.chmod(0o755)
        return str(path)

    return written


def test_a_part_ends_with_the_program(interpreter, tmp_path):
    process = forked.Forked(speed_with, [interpreter("exec sleep 60")])
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert process.returncode is None, process.stderr
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_a_users_mistake_in_a_part_is_one_line_and_exit_code_2(interpreter):
    process = forked.Forked(speed_with, [interpreter("echo wrong >&2; exit 2")])
    assert (process.wait(), process.stderr) == (2, "wrong\n")
