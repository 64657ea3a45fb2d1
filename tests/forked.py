"""Runs the scripts in separate processes that start with everything imported.

Importing torch and transformers takes about five seconds; a fork is immediate. One server process
imports the scripts once and forks itself for every script. The torchrun agent is such a fork too,
and it forks its ranks. The server computes nothing, so a fork loses no threads.
"""

import os
import resource
import runpy
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import forkserver, get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import torch
from torch.distributed import run

ROOT = Path(__file__).parent.parent

SERVER = get_context("forkserver")
LATE = ["IPython.display", "matplotlib.pyplot", "pytest", "torch.profiler"]
SERVER.set_forkserver_preload([*LATE, "torch.distributed.run", "evaluate", "toy", "train"])


def ensure_server() -> None:
    """Start the server if needed. In Python 3.11 the server does not inherit sys.path."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    with mock.patch.dict(os.environ, PYTHONPATH=path, OMP_NUM_THREADS="1"):
        forkserver.ensure_running()


class Forked:
    """A script in a process of its own, in the project's folder, with as many threads as here."""

    def __init__(self, script: Callable, words: list[str], file_limit: int | None = None):
        self._folder = TemporaryDirectory()
        self._outputs = [Path(self._folder.name) / name for name in ("stdout", "stderr")]
        for path in self._outputs:
            path.touch()
        arguments = (script, words, self._outputs, torch.get_num_threads(), file_limit)
        ensure_server()
        self._process = SERVER.Process(target=begin, args=arguments)
        self._process.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def stdout(self) -> str:
        """What the script has printed so far."""
        return self._outputs[0].read_text()

    @property
    def stderr(self) -> str:
        return self._outputs[1].read_text()

    @property
    def returncode(self) -> int | None:
        """None while the script runs; the negative signal number if a signal killed it."""
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self, seconds: float = 300) -> int:
        """Wait until the script ends and return its exit code. Kills it after `seconds`."""
        self._process.join(seconds)
        if self.returncode is None:
            self._process.kill()
            raise TimeoutError(f"not finished after {seconds} s: {self.stderr[-3000:]}")
        return self.returncode


def start(*words: str, file_limit: int | None = None) -> Forked:
    """Start `python WORDS` in the background.

    file_limit: bytes; a write beyond the limit fails, as on a full disk.
    """
    return Forked(run_script, list(words), file_limit)


def torchrun(ranks: int, *words: str) -> Forked:
    """Start `torchrun --nproc_per_node RANKS WORDS`, with options first, in the background."""
    options = ["--nproc_per_node", str(ranks), "--start-method", "fork", "--run-path"]
    return Forked(run.main, [*options, "--standalone", *words])


def finished(process: Forked, code: int = 0, seconds: float = 300) -> Forked:
    """Wait for the process and assert that it succeeds if and only if `code` is 0."""
    is_expected = (process.wait(seconds) == 0) == (code == 0)
    assert is_expected, process.stderr[:1000] + process.stderr[-3000:]  # torchrun's can be long
    return process


def call(function: Callable, *arguments):
    """Run function(*arguments) in a separate process. Returns its result or raises its error."""
    ensure_server()
    with ProcessPoolExecutor(1, mp_context=SERVER) as pool:
        return pool.submit(function, *arguments).result()


def begin(script, words, outputs, threads, file_limit) -> None:
    """Set up output, signals, limits and folder as a shell would, and run the script."""
    for path, number in zip(outputs, (1, 2), strict=True):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    sys.stdout.reconfigure(line_buffering=True)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if file_limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))
    os.chdir(ROOT)
    del os.environ["PYTHONPATH"]
    os.environ |= {"OMP_NUM_THREADS": str(threads), "TQDM_DISABLE": "1"}
    torch.set_num_threads(threads)
    script(words)


def run_script(words: list[str]) -> None:
    sys.argv = words
    runpy.run_path(words[0], run_name="__main__")
