"""infra/progress.py: a bar on a terminal, a line per minute in a log, nothing on other ranks."""

import io
import sys

import pytest
from torch import distributed as dist

from infra.progress import Progress


class Clock:
    """time.time, advanced by hand."""

    def __init__(self):
        self.now = 100.0

    def time(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("tqdm.std.time", clock.time)
    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    return clock


def test_a_log_gets_one_line_per_minute_and_none_for_a_short_stage(clock, capsys):
    stage = Progress("sampling", 1_000_000)
    for _ in range(59):
        clock.now += 1
        stage.update(10)
    assert capsys.readouterr().err == ""

    for _ in range(182):
        clock.now += 1
        stage.show(stage.n + 10, 1_000_000)
    lines = [line.strip() for line in capsys.readouterr().err.split("\n") if line.strip()]
    assert len(lines) == 4
    assert lines[0] == "sampling: 600 of at most 1000000 tokens after 01:00"
    stage.close()


def test_a_terminal_shows_a_bar_that_counts_tokens_and_disappears(monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    stage = Progress("scoring", 500)
    stage.delay = 0
    stage.mininterval = 0
    stage.update(100)
    stage.show(250, 400)  # the total becomes smaller
    assert "scoring" in terminal.getvalue()
    assert "250/400" in terminal.getvalue()
    stage.close()
    assert "\n" not in terminal.getvalue()


def test_other_ranks_are_silent(clock, monkeypatch, capsys):
    """The rank is read from torchrun's environment: evaluate.py has no process group."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(dist, "is_initialized", lambda: False)
    stage = Progress("update", 100)
    clock.now += 1000
    stage.update(50)
    stage.close()
    assert capsys.readouterr().err == ""
