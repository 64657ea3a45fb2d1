"""Tests infra/errors.py: an error that users can act on ends a program with one line and a code."""

import runpy
import sys

import pytest
import torch
from forked import ROOT

from infra import errors
from infra.errors import GRACE, Stop, UserError, one_line_endings

ENDINGS = [
    (UserError("--lr is wrong"), 2, "--lr is wrong"),
    (Stop("the disk is full", 7), 7, "the disk is full"),
    (KeyboardInterrupt(), 130, "stopped by Ctrl-C: rerun the command to resume"),
    (FloatingPointError("NaN"), 1, "stopped, NaN: the checkpoints are untouched, try a lower --lr"),
    (
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nmore"),
        1,
        "CUDA out of memory. Tried to allocate 2 GiB: "
        "lower --micro-batch-tokens, or --in-flight if it was sampling",
    ),
]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("error, code, said", ENDINGS)
def test_an_error_ends_with_one_line_and_a_code(error, code, said, rank, monkeypatch, capsys):
    """The first rank prints at once. The others wait for torchrun, unless a signal ends all."""
    monkeypatch.setenv("RANK", str(rank))
    slept = []
    monkeypatch.setattr(errors.time, "sleep", slept.append)
    with pytest.raises(SystemExit) as stopped, one_line_endings("train.py"):
        raise error
    assert stopped.value.code == code
    silent = rank == 1 and code == 130
    assert capsys.readouterr().err == ("" if silent else f"train.py: {said}\n")
    assert slept == ([GRACE] if rank == 1 and not silent else [])


def test_trl_delta_without_trl_ends_in_one_line(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "trl", None)
    with pytest.raises(SystemExit) as stopped:
        runpy.run_path(str(ROOT / "trl_delta.py"))
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("trl_delta.py: TRL 1.16 is needed") and said.count("\n") == 1
