"""Where the studies of training run, one run of a row there, and the CSV files that keep them.

Mostly chains of 12 operations with rare errors, where credit matters most: a response of some 90
tokens is wrong because of one of them. Runs go two at a time. A line is written as soon as its run
has ended, and a run that the file holds is not run again: a stopped study continues where it was.
"""

import contextlib
import hashlib
import io
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from tqdm import tqdm

import ablations
import toy
import train
from grading import grades
from infra.errors import UserError
from studies.rows import ROWS, configured
from studies.tables import appending, read_csv

# ---- settings ------------------------------------------------------------------------------------

SIZE = "--prompts 16 --group-size 8 --mini-batch 4 --steps 28"


@dataclass(frozen=True)
class Setting:
    """A place of studies: a task, its base model, how long a run is, and which seeds count."""

    k: int = 12  # operations
    noise: float = 0.06  # share of wrong results in the base model's demonstrations
    filler: int = 1  # connectives that open a step
    build: int = 0  # seed of the base model
    flip: float = 0.0  # share of the training rewards that are turned over
    tokens: int = 112  # longest response
    size: str = SIZE  # and further flags of train.py
    seeds: dict[str, int] = field(default_factory=dict)  # study -> the first seed that counts
    regime: str = "sharpen"  # how the base model errs
    zipf: bool = False  # many connectives
    code: bool = False  # the task of programs; nothing above but `tokens` and `size` counts

    @property
    def flags(self) -> str:
        """Of train.py, which has none for `build` and `flip`. Evaluation is off but for `size`."""
        if self.code:
            return f"--model toy-code --eval-data= --save-every 1000 {self.size}"
        zipf = "--toy-zipf " if self.zipf else ""
        return (
            f"--toy-regime {self.regime} --toy-k {self.k} --toy-noise {self.noise} "
            f"--toy-filler {self.filler} {zipf}--eval-data= "
            f"--max-prompt-tokens 40 --max-new-tokens {self.tokens} --save-every 1000 {self.size}"
        )

    def base(self) -> Path:
        """The folder of the base model; it is built where it is neither committed nor cached."""
        if self.code:
            return toy.code_base_folder()
        return toy.base_folder(self.k, self.noise, self.filler, self.build, self.regime, self.zipf)


STUDY = "k12"
SETTINGS = {
    STUDY: Setting(seeds={"methods": 5, "confirm": 21, "curves": 61, "surprise": 201}),
    "k12, more errors": Setting(noise=0.1, seeds={"bases": 201}),
    "k12, another base": Setting(build=1, seeds={"confirm": 21}),
    "flipped 10 %": Setting(flip=0.1, seeds={"noise": 41}),
    "flipped 20 %": Setting(flip=0.2, seeds={"noise": 41}),
    "often wrong": Setting(noise=0.4, seeds={"noise": 41}),  # a fifth of demonstrations is right
    "often right": Setting(noise=0.01, seeds={"noise": 41}),  # nine in ten
    "k5, filler 0": Setting(k=5, noise=0.2, filler=0, tokens=38, seeds={"noise": 41}),
    "k5, filler 4": Setting(
        k=5, noise=0.2, filler=4, tokens=58, seeds={"confirm": 21, "noise": 41}
    ),
    "k16": Setting(k=16, noise=0.05, tokens=148, seeds={"confirm": 21}),  # right about as often
    "learn, k12": Setting(noise=0.02, regime="learn", seeds={"surprise": 201}),
    "learn minus": Setting(
        k=5, noise=0.1, tokens=44, regime="learn-minus", seeds={"surprise": 201}
    ),
    "learn, filler 4": Setting(
        k=5, noise=0.1, filler=4, tokens=58, regime="learn", seeds={"surprise": 201, "learn": 301}
    ),
    "learn, Zipf": Setting(
        k=5, noise=0.1, filler=4, tokens=58, regime="learn", zipf=True, seeds={"surprise": 211}
    ),
    "learn, long": Setting(  # 85 connectives among 120 tokens
        k=5, noise=0.1, filler=17, tokens=124, regime="learn", seeds={"surprise": 201}
    ),
    "learn, filler 4, 110 steps": Setting(
        k=5,
        noise=0.1,
        filler=4,
        tokens=58,
        size=SIZE.replace("28", "110"),
        regime="learn",
        seeds={"longer": 401},
    ),
    "programs": Setting(
        tokens=32, size=SIZE.replace("28", "100"), code=True, seeds={"longer": 401}
    ),
    "k5, 160 steps": Setting(
        k=5, noise=0.2, tokens=64, size="--eval-data toy-held-out", seeds={"seeds": 0}
    ),
    "make train": Setting(  # evaluated before and after only
        k=5,
        noise=0.1,
        tokens=64,
        size="--eval-data toy-held-out --eval-every 160",
        seeds={"make_train": 0},
        regime="learn",
    ),
}
PILOT_SEEDS = range(2)  # they pick learning rates, and count nowhere on the task of STUDY


def places(study: str) -> dict[str, int]:
    """Setting -> first seed that counts, of all settings in which a study runs."""
    return {name: each.seeds[study] for name, each in SETTINGS.items() if study in each.seeds}


# ---- a run ---------------------------------------------------------------------------------------


class Job(NamedTuple):
    """One run."""

    setting: str  # of SETTINGS
    row: str  # of ROWS
    rate: float  # learning rate
    seed: int


class FlippedRewards:
    """Grades of which a share is turned over at random; called as train.training_rewards.

    The n-th grade of a run is turned over in every row or in none. `deserved` keeps them as they
    were.
    """

    def __init__(self, share: float, seed: int):
        self.share = share
        self.random = np.random.default_rng([seed, 17])
        self.deserved = []

    def __call__(
        self, responses: list[str], problems: list[dict], truncated: list[bool]
    ) -> list[float]:
        deserved = np.array(grades(responses, problems, truncated))
        self.deserved += deserved.tolist()
        flipped = self.random.random(len(deserved)) < self.share
        return np.where(flipped, 1 - deserved, deserved).tolist()


def run_row(job: Job, examine: Callable[[Path], dict] | None = None) -> list[dict]:
    """One run, in this process and silent: its metrics, step by step.

    `reward` is what the responses deserved, also where training saw flipped rewards.
    examine: is given the folder of the trained model; its answer joins the last step's metrics.
    """
    torch.set_num_threads(1)  # also: a base model that is built depends on their number
    setting = SETTINGS[job.setting]
    rewards = FlippedRewards(setting.flip, job.seed)
    with tempfile.TemporaryDirectory() as folder:
        further = f"{setting.flags} --lr {job.rate} --seed {job.seed} --output-dir".split()
        method, cfg = configured(ROWS[job.row], [*further, folder])
        cfg.model = str(setting.base())  # the presets above are those of --model toy
        with (
            patch.object(ablations, "configured", return_value=method),
            patch.object(train, "training_rewards", rewards),
            patch.object(train, "report"),  # curves that nobody looks at
            contextlib.redirect_stdout(io.StringIO()),
        ):
            train.train(cfg)
        lines = (Path(folder) / "metrics.jsonl").read_text().splitlines()
        examined = examine(Path(folder) / "model") if examine else {}

    steps = [json.loads(line) for line in lines]
    steps[-1] |= examined
    trained = [step for step in steps if "reward" in step]  # step 0 has but an evaluation
    deserved = np.array(rewards.deserved).reshape(len(trained), -1)  # [steps, B]
    for step, of_step in zip(trained, deserved, strict=True):
        step["reward"] = float(of_step.mean())
    return steps


# ---- runs of a study and their CSV ---------------------------------------------------------------

ENDS = 5  # steps, of the first and the last rewards
COLUMNS = ("setting", "row", "lr", "seed", "reward", "first", "last", "seconds", "flags")


class Finished(NamedTuple):
    """What is kept of a run."""

    reward: float  # mean over all steps
    first: float  # over the first steps
    last: float  # over the last ones
    seconds: float


Done = dict[Job, Finished]


def flags_digest(job: Job) -> str:
    """Eight hex digits of the flags behind the names of a job's setting and row."""
    row, setting = ROWS[job.row], SETTINGS[job.setting]
    # Fields after `size` are younger than the files in results/: they count where they are set.
    cells = []
    for number, each in enumerate(fields(setting)):
        value = getattr(setting, each.name)
        if each.name != "seeds" and (number < 7 or value != each.default):
            cells.append(f"{each.name}={value!r}")
    oracle = dict(zip(("low", "high"), row.oracle, strict=True)) if row.oracle else ""
    text = f"Setting({', '.join(cells)}) {row.flags} {oracle}{' permuted' * row.permuted}"
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def finished_runs(path: Path) -> Done:
    """The lines of the CSV by job; raises UserError where they are not of these studies."""
    done = {}
    for job, line in lines_by_job(path, COLUMNS):
        done[job] = Finished(*(float(line[name]) for name in Finished._fields))
    return done


def lines_by_job(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[Job, dict[str, str]]]:
    """The lines of a CSV and their jobs; raises UserError for one that was run otherwise."""
    for number, line in enumerate(read_csv(path, columns), start=2):
        job = Job(line["setting"], line["row"], float(line["lr"]), int(line["seed"]))
        known = job.setting in SETTINGS and job.row in ROWS
        if not known or line["flags"] != flags_digest(job):
            raise UserError(
                f"{path}, line {number}: {job.row} in {job.setting} was run with other flags than "
                "these names have now: delete such lines, or move the file away"
            )
        yield job, line


def two_at_a_time(function, jobs: list[Job], label: str) -> Iterator[tuple]:
    """(job, function(job)) of each job, in their order, as soon as it is there."""
    if not jobs:
        return
    torch.set_num_threads(1)
    for name in {job.setting: None for job in jobs}:
        SETTINGS[name].base()  # once, before two runs want it
    with ProcessPoolExecutor(2) as pool:
        results = tqdm(pool.map(function, jobs), total=len(jobs), desc=label)
        yield from zip(jobs, results, strict=True)


def complete(jobs: list[Job], done: Done, path: Path, label: str) -> None:
    """Run the jobs that are not done, two at a time, in their order; adds them to `done`."""
    missing = [job for job in jobs if job not in done]
    with appending(path, COLUMNS) as write:
        for job, run in two_at_a_time(study_run, missing, label):
            cells = [*job, *run, flags_digest(job)]
            write([dict(zip(COLUMNS, cells, strict=True))])
            done[job] = run


def study_run(job: Job) -> Finished:
    """One run."""
    start = time.perf_counter()
    rewards = [step["reward"] for step in run_row(job)]
    return Finished(
        reward=round(float(np.mean(rewards)), 5),
        first=round(float(np.mean(rewards[:ENDS])), 5),
        last=round(float(np.mean(rewards[-ENDS:])), 5),
        seconds=round(time.perf_counter() - start, 1),
    )


def rewards_of(done: Done, setting: str, row: str, rate: float, seeds: range) -> np.ndarray:
    """[seeds] the mean training reward of a row's runs."""
    return np.array([done[Job(setting, row, rate, seed)].reward for seed in seeds])


def place_rewards(done: Done, jobs: list[Job]) -> dict[str, np.ndarray]:
    """Row -> [seeds] mean training reward, of jobs in one setting."""
    seeds = sorted({job.seed for job in jobs})
    rates = {job.row: job.rate for job in jobs}
    place = jobs[0].setting
    return {name: rewards_of(done, place, name, rate, seeds) for name, rate in rates.items()}
