"""A run of the toy killed with SIGKILL again and again, against one that nobody touched (`kills`).

60 steps with evaluations, checkpoints and exports. Each of 20 times the same command is started and
killed after a random time, so the kills fall anywhere: while torch is imported, in a step, in an
evaluation, while a checkpoint or an exported model is written. Then it runs to its end. A quarter
of an hour on two cores.
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
        started = time.monotonic()
        finish(alone)
        whole = time.monotonic() - started

        # So that each start makes a few steps and the last kills fall near the end.
        draw = np.random.default_rng(0)
        moments = []
        for _ in tqdm(range(KILLS), desc="kills", disable=None):
            moments.append(kill(killed, draw.uniform(0, 0.5 * whole)))
        finish(killed)

        equal = {name: content(alone / name) == content(killed / name) for name in COMPARED}
        left_over = [path.name for path in killed.rglob("*.tmp")]

    print(f"{whole:.0f} s without a kill; {KILLS} kills:")
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


def finish(folder: Path) -> None:
    """Run the command to its end."""
    done = subprocess.run(command(folder), env=environment(), capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command(folder))} failed:\n{done.stderr}")


def kill(folder: Path, seconds: float) -> str:
    """Start the command, SIGKILL it after `seconds`; what was going on then."""
    process = subprocess.Popen(
        command(folder), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    time.sleep(seconds)
    process.kill()
    process.communicate()
    if process.returncode == 0:
        return f"after {seconds:.1f} s: it had ended"

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
