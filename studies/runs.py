"""One run of a row at a place, and the CSV files in which every study keeps its runs.

Runs go two at a time. A line is written as soon as its run has ended, and a run that the file holds
is not run again: a stopped study continues where it was.

A cell may have several numbers: `rewards` and `entropies` one for each step, `accuracy` and
`greedy` one for each evaluation. `0.65*5` stands for five steps of which only the mean was kept;
the first studies kept no more than that, and their other cells are empty.
"""

import contextlib
import hashlib
import io
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from tqdm import tqdm

import toy
import train
from grading import grades, sample_grades
from infra.errors import UserError
from infra.files import read_lines
from methods import Method
from rollout import Sampling
from studies.places import SETTINGS
from studies.rows import ROWS, configured
from studies.tables import appending, read_csv

PROBLEMS = 256  # held out
ENDS = 5  # steps, of the first and the last rewards
DROP = 0.1  # in reward, from the best to the last steps: a collapse


class Job(NamedTuple):
    """One run."""

    setting: str  # of SETTINGS
    row: str  # of ROWS
    rate: float  # learning rate
    seed: int


def seed_by_seed(place: str, rates: dict[str, float], seeds: range) -> list[Job]:
    """Each row at its rate, so that a study that was stopped has whole seeds."""
    return [Job(place, row, rate, seed) for seed in seeds for row, rate in rates.items()]


@dataclass(frozen=True)
class Trained:
    """What is kept of a run."""

    accuracies: tuple[float, ...]  # on held-out problems, temperature 1; the last one at the end
    greedies: tuple[float, ...]  # the same of the most likely tokens
    length: float  # of a response, mean over the last steps, tokens
    seconds: float  # of one core
    rewards: tuple[float, ...]  # mean of each step
    entropies: tuple[float, ...]  # mean over a step's tokens, nats

    @property
    def reward(self) -> float:
        """Mean training reward over all steps."""
        return float(np.mean(self.rewards))

    @property
    def first(self) -> float:
        return float(np.mean(self.rewards[:ENDS]))

    @property
    def last(self) -> float:
        return float(np.mean(self.rewards[-ENDS:]))

    @property
    def gained(self) -> float:
        return self.last - self.first

    @property
    def accuracy(self) -> float:
        return self.accuracies[-1]

    @property
    def greedy(self) -> float:
        return self.greedies[-1]

    @property
    def entropy(self) -> float:
        """Mean over the last steps."""
        return float(np.mean(self.entropies[-ENDS:]))

    @property
    def collapsed(self) -> bool:
        """Whether the last steps lie DROP below the best ones that follow each other, in reward."""
        return float(running_mean(self.rewards).max()) - self.last >= DROP


Runs = dict[Job, Trained]


def running_mean(values: Sequence[float]) -> np.ndarray:
    """[steps - ENDS + 1] means over ENDS steps that follow each other."""
    return np.convolve(values, np.ones(ENDS) / ENDS, mode="valid")


# ---- a run ---------------------------------------------------------------------------------------


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


def train_silently(cfg: train.Config, method: Method, **replaced) -> None:
    """train.py's loop with a method that its flags cannot name, and no curves that nobody looks at.

    replaced: functions in the place of those of train.py with these names.
    """
    with (
        patch.multiple(train, report=lambda run: None, **replaced),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        train.train(cfg, method)


def trained(job: Job) -> Trained:
    """One run, in this process.

    Its rewards are what the responses deserved, also where training saw flipped ones. A run that
    train.py does not evaluate is examined afterwards.
    """
    start = time.process_time()
    torch.set_num_threads(1)  # also: a base model that is built depends on their number
    setting = SETTINGS[job.setting]
    rewards = FlippedRewards(setting.flip, job.seed)
    with tempfile.TemporaryDirectory() as folder:
        further = f"{setting.flags} --lr {job.rate} --seed {job.seed} --output-dir".split()
        method, cfg = configured(ROWS[job.row], [*further, folder])
        cfg.model = str(setting.base())  # the presets above are those of --model toy
        train_silently(cfg, method, training_rewards=rewards)
        lines = read_lines(Path(folder) / "metrics.jsonl", step=int)
        evaluated = [line for line in lines if "eval_accuracy" in line]
        if not evaluated:
            evaluated = [held_out(job, Path(folder) / "model")]

    steps = [line for line in lines if "reward" in line]  # step 0 has but an evaluation
    deserved = np.array(rewards.deserved).reshape(len(steps), -1).mean(axis=1)  # [steps]
    return Trained(
        accuracies=rounded(line["eval_accuracy"] for line in evaluated),
        greedies=rounded(line["eval_greedy"] for line in evaluated),
        length=round(float(np.mean([step["response_length"] for step in steps[-ENDS:]])), 1),
        seconds=round(time.process_time() - start, 1),
        rewards=rounded(deserved),
        entropies=rounded(step["entropy"] for step in steps),
    )


def rounded(values: Iterable[float]) -> tuple[float, ...]:
    return tuple(round(float(value), 4) for value in values)


def held_out(job: Job, folder: Path) -> dict[str, float]:
    """Accuracies of the model in a folder, named as train.py's: one response to each problem."""
    setting = SETTINGS[job.setting]
    lm, tokenizer = toy.load_base(folder)
    # The seed is odd: no training set has it.
    if setting.code:
        asked = toy.code_task.problems(PROBLEMS, seed=1)
    else:
        asked = toy.problems(PROBLEMS, seed=1, k=setting.k)
    prompts = tokenizer([each["problem"] for each in asked]).input_ids

    found = {}
    for name, temperature in (("eval_accuracy", 1.0), ("eval_greedy", 0.0)):
        sampling = Sampling(setting.tokens, temperature, seed=job.seed)
        found[name] = sample_grades(lm, tokenizer, asked, prompts, 1, sampling).mean()
    return found


# ---- runs of a study and their CSV ---------------------------------------------------------------

ABOUT = ("setting", "row", "lr", "seed")
COLUMNS = (*ABOUT, "accuracy", "greedy", "length", "seconds", "flags", "rewards", "entropies")


def complete(jobs: list[Job], runs: Runs, path: Path, label: str) -> None:
    """Run the jobs that are not in `runs`, two at a time, in their order; adds them."""
    missing = [job for job in jobs if job not in runs]
    if not missing:
        return
    torch.set_num_threads(1)
    for name in {job.setting: None for job in missing}:
        SETTINGS[name].base()  # once, before two runs want it
    with appending(path, COLUMNS) as write, ProcessPoolExecutor(2) as pool:
        results = tqdm(pool.map(trained, missing), total=len(missing), desc=label)
        for job, run in zip(missing, results, strict=True):
            write([line_of(job, run)])
            runs[job] = run


def line_of(job: Job, run: Trained) -> dict:
    """A run's line of the CSV; `finished_runs` reads it back."""
    cells = {
        "accuracy": run.accuracies,
        "greedy": run.greedies,
        "rewards": run.rewards,
        "entropies": run.entropies,
    }
    line = {name: " ".join(str(value) for value in values) for name, values in cells.items()}
    line |= {"length": run.length, "seconds": run.seconds, "flags": flags_digest(job)}
    return line | dict(zip(ABOUT, job, strict=True))


def finished_runs(path: Path) -> Runs:
    """The lines of the CSV by job; raises UserError for one that was run otherwise."""
    runs = {}
    for number, line in enumerate(read_csv(path, COLUMNS), start=2):
        job = Job(line["setting"], line["row"], float(line["lr"]), int(line["seed"]))
        known = job.setting in SETTINGS and job.row in ROWS
        if not known or line["flags"] != flags_digest(job):
            raise UserError(
                f"{path}, line {number}: {job.row} in {job.setting} was run with other flags than "
                "these names have now: delete such lines, or move the file away"
            )
        runs[job] = Trained(
            accuracies=numbers(line["accuracy"]),
            greedies=numbers(line["greedy"]),
            length=float(line["length"] or "nan"),
            seconds=float(line["seconds"] or "nan"),
            rewards=numbers(line["rewards"]),
            entropies=numbers(line["entropies"]),
        )
    return runs


def numbers(cell: str) -> tuple[float, ...]:
    """The numbers of a cell; `0.65*5` is five of them."""
    found = []
    for part in cell.split():
        value, _, count = part.partition("*")
        found += [float(value)] * int(count or 1)
    return tuple(found)


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
