"""Tests python -m benchmarks speed at a small size, without TRL, which needs other packages."""

import json

import pytest

import train
from benchmarks import speed
from benchmarks.__main__ import main

FLAGS = "--data toy --eval-data= --prompts 3 --group-size 2 --mini-batch 3 --max-new-tokens 24"
FLAGS += " --max-prompt-tokens 64 --micro-batch-tokens 100"


def test_a_part_has_a_line_of_rates(monkeypatch):
    part = {"responses": 4, "length": 25, "peak": 2.5e9, "seconds": {"sampling": 5.0, "step": 40.0}}
    monkeypatch.setattr(speed, "in_own_process", lambda *_: part)
    (line,) = speed.lines_of({"train.py": "python"}, [])
    assert line == ["train.py, 4 x 25", "20", "", "", "", "2.5", "2.5"]


@pytest.mark.parametrize("name", ["train.py", "generate"])
def test_a_part_is_measured(name, tmp_path, monkeypatch):
    """In train.py's steps no response ends early, and all responses have an advantage."""
    sampled = []
    sample = train.sample

    def kept(*arguments) -> list:
        sampled.append(sample(*arguments))
        return sampled[-1]

    monkeypatch.setattr(train, "sample", kept)
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


def test_a_users_mistake_in_a_part_is_one_line_and_exit_code_2(tmp_path, monkeypatch, capfd):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho wrong >&2; exit 2\n")
    python.chmod(0o755)
    monkeypatch.setattr(speed.sys, "executable", str(python))
    with pytest.raises(SystemExit) as ended:
        main(["speed", "--model", "toy", *FLAGS.split()])
    assert ended.value.code == 2 and capfd.readouterr().err == "wrong\n"
