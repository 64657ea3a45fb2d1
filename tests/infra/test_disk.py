"""infra/disk.py: what a run writes is known before it starts, and a full disk is refused then."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from toy_runs import small_config, train_small

from infra import disk
from infra.disk import GB, checkpoint_bytes, run_bytes
from infra.errors import Stop
from infra.files import append_line, write_aside

P = 8_190_735_360  # Qwen3-8B


def flags(steps, save_every):
    return SimpleNamespace(steps=steps, save_every=save_every)


def size_of(folder):
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def test_run_bytes_of_8b_are_three_checkpoints_and_two_models():
    assert checkpoint_bytes(P) == pytest.approx(98.3 * GB, rel=1e-3)
    assert run_bytes(P, 2, flags(220, 10)) == 3 * checkpoint_bytes(P) + 2 * 2 * P
    assert run_bytes(P, 2, flags(10, 10)) == checkpoint_bytes(P) + 2 * 2 * P


def test_checkpoint_bytes_are_those_on_disk(tmp_path):
    """Of the toy, whose 102,528 parameters leave some room for what else a checkpoint says."""
    train_small(tmp_path / "run", steps=2)
    (path,) = (tmp_path / "run").glob("checkpoint-*")
    counted = checkpoint_bytes(102_528)
    assert counted < size_of(path) < 1.25 * counted
    assert size_of(tmp_path / "run" / "model") > 4 * 102_528


def test_a_run_that_the_disk_cannot_hold_is_refused_before_its_first_step(
    tmp_path, monkeypatch, capsys
):
    cfg = small_config(tmp_path / "run", steps=2)
    needed = run_bytes(102_528, 4, cfg)
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda path: SimpleNamespace(free=needed - 1000))
    with pytest.raises(SystemExit) as stopped:
        train_small(tmp_path / "run", "--eval-data", "", steps=2)
    assert stopped.value.code == 2
    assert "make room" in capsys.readouterr().err
    assert not list((tmp_path / "run").glob("checkpoint-*"))
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_what_a_run_holds_already_is_no_longer_needed(tmp_path, monkeypatch):
    """It continues on a disk that has no room for all of it anew."""
    train_small(tmp_path / "run", "--eval-data", "", steps=2)
    written = [*(tmp_path / "run").glob("checkpoint-*"), tmp_path / "run" / "model"]
    held = sum(size_of(folder) for folder in written)
    cfg = small_config(tmp_path / "run", steps=4)
    missing = run_bytes(102_528, 4, cfg) - held
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda path: SimpleNamespace(free=missing))
    assert shutil.disk_usage is disk.shutil.disk_usage
    disk.check_disk(tmp_path / "run", run_bytes(102_528, 4, cfg))


def test_a_line_that_the_disk_cannot_hold_is_one_message():
    wanted = "/dev/full could not be written .*No space left on device.*make room"
    with pytest.raises(Stop, match=wanted) as stopped:
        append_line(Path("/dev/full"), {"step": 1})
    assert stopped.value.code == 1


def test_a_file_that_cannot_be_replaced_is_one_message_and_leaves_nothing(tmp_path):
    (tmp_path / "config.json").mkdir()
    with pytest.raises(Stop, match="config.json could not be written"):
        write_aside(tmp_path / "config.json", "{}")
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
