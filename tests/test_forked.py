"""tests/forked.py: runs scripts in forks of a process that has already imported them."""

import os
import signal
import sys

import forked
import pytest


def imported() -> bool:
    return {"train", "evaluate", "torch.distributed.run"} <= sys.modules.keys()


def test_a_new_process_has_everything_imported():
    """Otherwise all tests that start processes would take several times as long."""
    assert forked.call(imported)


def test_call_raises_what_the_function_raised():
    with pytest.raises(FileNotFoundError):
        forked.call(os.listdir, "/no/such/folder")


@pytest.fixture
def script(tmp_path):
    """A function that writes a script and returns its path."""

    def write(source: str) -> str:
        path = tmp_path / "script.py"
        path.write_text(source)
        return str(path)

    return write


def test_a_script_gets_its_arguments_threads_folder_and_outputs(script):
    source = """
import os, sys, torch
assert __name__ == "__main__"
print(*sys.argv[1:], torch.get_num_threads(), os.path.exists("train.py"))
sys.exit("the end")
"""
    done = forked.finished(forked.start(script(source), "one", "two", threads=2), code=1)
    assert done.stdout == "one two 2 True\n"
    assert done.stderr == "the end\n"
    assert done.returncode == 1


def test_finished_refuses_an_unexpected_exit_code(script):
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        forked.finished(forked.start(script("1 / 0")))
    with pytest.raises(AssertionError):
        forked.finished(forked.start(script("")), code=1)


def test_a_killed_script_reports_the_signal_as_its_returncode(script):
    process = forked.start(script("import time; time.sleep(600)"))
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL


def test_a_write_beyond_the_limit_fails(script):
    source = """
import sys
with open(sys.argv[1], "wb") as file:
    file.write(bytes(2000))
"""
    path = script(source)
    forked.finished(forked.start(path, path + ".out"))
    done = forked.finished(forked.start(path, path + ".out", file_limit=1000), code=1)
    assert "File too large" in done.stderr
