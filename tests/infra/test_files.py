"""infra/files.py: a failed write gives a one-line message and never leaves a partial file."""

from pathlib import Path

import pytest
from infra.files import append_line, write_aside

from infra.errors import Stop


def test_a_line_that_does_not_fit_on_disk_gets_a_one_line_error():
    wanted = "/dev/full could not be written .*No space left on device.*free some disk space"
    with pytest.raises(Stop, match=wanted) as stopped:
        append_line(Path("/dev/full"), {"step": 1})
    assert stopped.value.code == 1


def test_a_failed_replacement_gets_a_one_line_error_and_leaves_nothing(tmp_path):
    (tmp_path / "config.json").mkdir()
    with pytest.raises(Stop, match="config.json could not be written"):
        write_aside(tmp_path / "config.json", "{}")
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
