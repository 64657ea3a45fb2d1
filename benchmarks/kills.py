"""A run of the toy killed with SIGKILL again and again, against one that nobody touched (`kills`).

60 steps with evaluations, checkpoints and exports. Each of 20 times the same command is started and
killed after a random time, so the kills fall anywhere: while torch is imported, in a step, in an
evaluation, while a checkpoint or an exported model is written. Then it runs to its end. Five
minutes on two quiet cores.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from tqdm import tqdm

import train

KILLS = 20
FLAGS = "--steps 60 --eval-every 5 --save-every 3 --prompts 8 --group-size 4"
COMPARED = ("metrics.jsonl", "samples.jsonl", "model", "best")


def kills(args) -> dict:
    """Print where the kills fell and whether everything is as in the run that was left alone."""
    with TemporaryDirectory() as parent:
        alone = Path(parent, "alone")
        killed = Path(parent, "killed")
        before, steps = finish(alone)

        # A kill falls before the first step as often as after it, and in a step so soon that some
        # are left for the kills to come.
        draw = np.random.default_rng(0)
        moments = []
        with tqdm(total=KILLS, desc="kills", disable=None) as bar:
            while len(moments) < KILLS:
                moment = kill(killed, draw.uniform(0, before + steps / 6))
                if moment:
                    moments.append(moment)
                    bar.update()
        finish(killed)

        equal = {name: content(alone / name) == content(killed / name) for name in COMPARED}
        left_over = [path.name for path in killed.rglob("*.tmp")]

    print(
        f"without a kill {before:.0f} s to the first step, {steps:.0f} s of steps; {KILLS} kills:"
    )
    for moment in moments:
        print(f"  {moment}")
    for name, same in equal.items():
        print(f"{name}: {'equal' if same else 'DIFFERENT'}")
    print(f"left over: {', '.join(left_over) or 'nothing'}")
    return {"kills": moments, "equal": equal, "left over": left_over}


def command(folder: Path) -> list[str]:
    return [sys.executable, train.__file__, *FLAGS.split(), "--output-dir", str(folder)]


def environment() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1"}


def finish(folder: Path) -> tuple[float, float]:
    """Run the command to its end; the seconds to its first line of metrics, and from there on."""
    started = time.monotonic()
    process = subprocess.Popen(
        command(folder), env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    while not (folder / "metrics.jsonl").exists() and process.poll() is None:
        time.sleep(0.05)
    first = time.monotonic()
    _, error = process.communicate()
    if process.returncode:
        raise RuntimeError(f"{' '.join(command(folder))} failed:\n{error.decode()}")
    return first - started, time.monotonic() - first


def kill(folder: Path, seconds: float) -> str:
    """Start the command and SIGKILL it after `seconds`.

    Returns what was going on then; an empty string if it had ended before.
    """
    process = subprocess.Popen(
        command(folder), env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    time.sleep(seconds)
    process.kill()
    process.wait()
    if process.returncode == 0:
        return ""

    steps = 0
    if (folder / "metrics.jsonl").exists():
        steps = len((folder / "metrics.jsonl").read_text().splitlines()) - 1  # step 0 is there, too
    half_written = [path.name for path in folder.glob("*.tmp")]
    writing = f", writing {', '.join(half_written)}" if half_written else ""
    return f"after {seconds:.1f} s: {max(0, steps)} steps logged{writing}"


def content(path: Path):
    """What must be equal: rows without wall-clock times, and files of a model byte for byte."""
    if path.is_dir():
        files = {each.name: each.read_bytes() for each in path.iterdir()}
        files.pop("exported-by.json")  # the id of the run
        return files
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        row.pop("seconds", None)
    return rows
