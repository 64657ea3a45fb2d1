"""A run of the toy killed with SIGKILL again and again, against one that nobody touched (`kills`).

60 steps with evaluations, checkpoints and exports. Each of 20 times the same command is started and
killed at a random moment: every other time before its first step, while torch is imported or a
checkpoint is read, else up to a fifth of the run later, in a step, in an evaluation, while a
checkpoint or an exported model is written. Then it runs to its end. A run that ends before all
kills are done is followed by another. Five minutes on two quiet cores.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import train

KILLS = 20
PROBLEMS = Path(__file__).parent.parent / "tests" / "data" / "toy_problems.jsonl"
FLAGS = "--steps 60 --eval-every 5 --save-every 3 --prompts 8 --group-size 4"
COMPARED = ("metrics.jsonl", "samples.jsonl", "model", "best")


def kills(args) -> dict:
    """Print where the kills fell and whether everything is as in the run that was left alone."""
    with TemporaryDirectory() as parent:
        alone = Path(parent, "alone")
        before, steps = finish(alone)
        draw = np.random.default_rng(0)
        moments = []
        runs = [Path(parent, "killed-1")]
        while len(moments) < KILLS:
            in_start = len(moments) % 2 == 0
            moment = kill(runs[-1], in_start, draw.uniform(0, before if in_start else steps / 5))
            if moment:
                moments.append(moment)
                print(f"{len(runs)}: {moment}", flush=True)
            else:  # it had ended
                runs.append(Path(parent, f"killed-{len(runs) + 1}"))
        finish(runs[-1])

        equal = {}
        for name in COMPARED:
            equal[name] = all(content(alone / name) == content(run / name) for run in runs)
        left_over = [path.name for run in runs for path in half_written(run)]

    print(f"{KILLS} kills of {len(runs)} run(s), against one without a kill:")
    for name, same in equal.items():
        print(f"{name}: {'equal' if same else 'DIFFERENT'}")
    print(f"left over: {', '.join(left_over) or 'nothing'}")
    return {"kills": moments, "runs": len(runs), "equal": equal, "left over": left_over}


def command(folder: Path) -> list[str]:
    flags = [*FLAGS.split(), "--eval-data", str(PROBLEMS), "--output-dir", str(folder)]
    return [sys.executable, train.__file__, *flags]


def start(folder: Path) -> subprocess.Popen:
    """The command in the background."""
    return subprocess.Popen(
        command(folder),
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_step(folder: Path, process: subprocess.Popen) -> None:
    """Until a line of metrics is written, or the process has ended."""
    path = folder / "metrics.jsonl"
    began = time.time()
    while process.poll() is None:
        if path.exists() and path.stat().st_size and path.stat().st_mtime > began:
            return
        time.sleep(0.02)


def finish(folder: Path) -> tuple[float, float]:
    """Run the command to its end; the seconds to its first line of metrics, and from there on."""
    started = time.monotonic()
    process = start(folder)
    wait_for_step(folder, process)
    first = time.monotonic()
    _, error = process.communicate()
    if process.returncode:
        raise RuntimeError(f"{' '.join(command(folder))} failed:\n{error}")
    return first - started, time.monotonic() - first


def kill(folder: Path, in_start: bool, seconds: float) -> str:
    """Start the command; SIGKILL it `seconds` from there, or from its first step after that.

    Returns what was going on then; an empty string if it had ended before.
    """
    process = start(folder)
    if not in_start:
        wait_for_step(folder, process)
    time.sleep(seconds)
    process.kill()
    _, error = process.communicate()
    if process.returncode == 0:
        return ""
    if process.returncode != -signal.SIGKILL:
        raise RuntimeError(f"{' '.join(command(folder))} failed:\n{error}")

    steps = 0
    if (folder / "metrics.jsonl").exists():
        steps = len((folder / "metrics.jsonl").read_text().splitlines()) - 1  # step 0 is there, too
    names = [path.name for path in half_written(folder)]
    writing = f", writing {', '.join(names)}" if names else ""
    where = "starting" if in_start else "running"
    return f"{where}, {max(0, steps)} steps logged{writing}"


def half_written(folder: Path) -> list[Path]:
    """What a write or an export leaves that a kill has cut off."""
    return [*folder.rglob("writing-*"), *folder.rglob("*-before")]


def content(path: Path):
    """What must be equal: rows without wall-clock times, and files of a model byte for byte."""
    if path.is_dir():
        files = [each for each in path.iterdir() if "-of-" not in each.name]  # the run's mark
        return {each.name: each.read_bytes() for each in files}
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        row.pop("seconds", None)
    return rows
