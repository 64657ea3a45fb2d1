"""Runs of the studies as jobs, two at a time, and the CSV file that keeps what they gave.

A line is written as soon as its run has ended, and a run that the file holds is not run again: a
study that was stopped goes on where it was.
"""

import csv
import hashlib
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from tqdm import tqdm

from infra.errors import UserError
from studies.study_runs import ROWS, SETTINGS, run_row

ENDS = 5  # steps, of the first and the last rewards
COLUMNS = ("setting", "row", "lr", "seed", "reward", "first", "last", "seconds", "flags")


class Job(NamedTuple):
    """One run."""

    setting: str  # of SETTINGS
    row: str  # of ROWS
    rate: float  # learning rate
    seed: int


class Finished(NamedTuple):
    """What is kept of a run."""

    reward: float  # mean over all steps
    first: float  # over the first steps
    last: float  # over the last ones
    seconds: float


Done = dict[Job, Finished]


def flags_digest(job: Job) -> str:
    """Eight hex digits of the flags behind the names of a job's setting and row."""
    row = ROWS[job.row]
    oracle = row.weights.keywords if row.weights else ""
    text = f"{SETTINGS[job.setting]} {row.flags} {oracle}"
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def finished_runs(path: Path) -> Done:
    """The lines of the CSV by job; raises UserError where they are not of these studies."""
    if not path.exists():
        return {}
    with open(path, newline="") as file:
        reader = csv.DictReader(file)
        lines = list(reader)
    if tuple(reader.fieldnames or ()) != COLUMNS:
        raise UserError(f"{path} has other columns than {', '.join(COLUMNS)}: move it away")

    done = {}
    for number, line in enumerate(lines, start=2):
        job = Job(line["setting"], line["row"], float(line["lr"]), int(line["seed"]))
        known = job.setting in SETTINGS and job.row in ROWS
        if not known or line["flags"] != flags_digest(job):
            raise UserError(
                f"{path}, line {number}: {job.row} in {job.setting} was run with other flags than "
                "these names have now: delete such lines, or move the file away"
            )
        done[job] = Finished(*(float(line[name]) for name in Finished._fields))
    return done


def complete(jobs: list[Job], done: Done, path: Path, label: str) -> None:
    """Run the jobs that are not done, two at a time, in their order; adds them to `done`."""
    missing = [job for job in jobs if job not in done]
    if not missing:
        return
    torch.set_num_threads(1)
    for name in {job.setting: None for job in missing}:
        SETTINGS[name].base()  # once, before two runs want it

    path.parent.mkdir(exist_ok=True)
    with ProcessPoolExecutor(2) as pool, open(path, "a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if file.tell() == 0:
            writer.writerow(COLUMNS)
        results = pool.map(study_run, missing)
        for job, run in zip(missing, tqdm(results, total=len(missing), desc=label), strict=True):
            writer.writerow([*job, *run, flags_digest(job)])
            file.flush()
            done[job] = run


def study_run(job: Job) -> Finished:
    """One run."""
    start = time.perf_counter()
    steps = run_row(job.row, job.rate, job.seed, SETTINGS[job.setting])
    rewards = [step["reward"] for step in steps]
    return Finished(
        reward=round(float(np.mean(rewards)), 5),
        first=round(float(np.mean(rewards[:ENDS])), 5),
        last=round(float(np.mean(rewards[-ENDS:])), 5),
        seconds=round(time.perf_counter() - start, 1),
    )


def rewards_of(done: Done, setting: str, row: str, rate: float, seeds: range) -> np.ndarray:
    """[seeds] the mean training reward of a row's runs."""
    return np.array([done[Job(setting, row, rate, seed)].reward for seed in seeds])
