"""infra/progress.py: a bar on a terminal, a line a minute in a log, nothing from other ranks."""

import io
import sys

import pytest
from torch import distributed as dist

from infra import progress
from infra.progress import Progress


class Clock:
    """time.monotonic, moved by hand."""

    def __init__(self):
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def test_a_log_gets_a_line_a_minute_and_nothing_of_a_short_stage(clock, capsys):
    stage = Progress("sampling", 1_000_000)
    for _ in range(59):
        clock.now += 1
        stage.add(10)
    assert capsys.readouterr().err == ""

    for _ in range(181):
        clock.now += 1
        stage.add(10)
    stage.close()
    assert capsys.readouterr().err.splitlines() == [
        "  sampling: 600 of at most 1,000,000 tokens after 60 s",
        "  sampling: 1,200 of at most 1,000,000 tokens after 120 s",
        "  sampling: 1,800 of at most 1,000,000 tokens after 180 s",
        "  sampling: 2,400 of at most 1,000,000 tokens after 240 s",
    ]


def test_after_a_long_silence_there_is_one_line_and_no_flood(clock, capsys):
    stage = Progress("update", 100)
    clock.now += 600
    for _ in range(5):
        stage.add(1)
    assert capsys.readouterr().err.count("\n") == 1


def test_a_terminal_gets_a_bar_in_tokens_that_goes(monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    stage = Progress("scoring", 500)
    stage.bar.delay = 0
    stage.bar.mininterval = 0
    stage.add(100)
    stage.show(250, 400)  # fewer will be needed
    assert "scoring" in terminal.getvalue()
    assert "250/400" in terminal.getvalue()
    stage.close()
    assert "\n" not in terminal.getvalue()


def test_other_ranks_are_silent(clock, monkeypatch, capsys):
    """By torchrun's word: evaluate.py samples without a process group."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(dist, "is_initialized", lambda: False)
    stage = Progress("update", 100)
    clock.now += 1000
    stage.add(50)
    stage.close()
    assert capsys.readouterr().err == ""
