"""A study's runs, their measurements, and the CSV files that store them.

A cell may contain several numbers: one per step in `rewards` and `entropies`, one per evaluation in
`accuracy` and `greedy`. `0.65*5` stands for five steps of which only the mean, 0.65, was kept. The
first studies kept only such means, and their other cells are empty.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import NamedTuple

import numpy as np

from infra.errors import UserError
from studies.places import SETTINGS
from studies.rows import ROWS
from studies.tables import read_csv

ENDS = 5  # number of steps in the means of the first and the last rewards
DROP = 0.1  # a drop in reward from the best to the last steps that counts as a collapse


class Job(NamedTuple):
    """One run."""

    setting: str  # key of SETTINGS
    row: str  # key of ROWS
    rate: float  # learning rate
    seed: int


def seed_by_seed(place: str, rates: dict[str, float], seeds: range) -> list[Job]:
    """Each row at its rate, seed by seed, so that an interrupted study has complete seeds."""
    return [Job(place, row, rate, seed) for seed in seeds for row, rate in rates.items()]


@dataclass(frozen=True)
class Trained:
    """A run's measurements."""

    accuracies: tuple[float, ...]  # on held-out problems, temperature 1; last: after training
    greedies: tuple[float, ...]  # the same, with greedy decoding
    length: float  # mean response length over the last steps, tokens
    seconds: float  # CPU time, on one core
    rewards: tuple[float, ...]  # each step's mean
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
        """Whether the last steps' reward is DROP below the reward in the best consecutive steps."""
        return float(running_mean(self.rewards).max()) - self.last >= DROP


Runs = dict[Job, Trained]


def running_mean(values: Sequence[float]) -> np.ndarray:
    """Means over ENDS consecutive steps: [steps - ENDS + 1]."""
    return np.convolve(values, np.ones(ENDS) / ENDS, mode="valid")


# ---- the CSV of runs -----------------------------------------------------------------------------

ABOUT = ("setting", "row", "lr", "seed")
COLUMNS = (*ABOUT, "accuracy", "greedy", "length", "seconds", "flags", "rewards", "entropies")


def line_of(job: Job, run: Trained) -> dict:
    """A run's line in the CSV; `finished_runs` reads it back."""
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
    """The runs in the CSV by job. Raises UserError for a line whose flags have changed."""
    runs = {}
    for number, line in enumerate(read_csv(path, COLUMNS), start=2):
        job = Job(line["setting"], line["row"], float(line["lr"]), int(line["seed"]))
        known = job.setting in SETTINGS and job.row in ROWS
        if not known or line["flags"] != flags_digest(job):
            raise UserError(
                f"{path}, line {number}: {job.row} in {job.setting} was run with flags that have "
                "changed since: delete such lines, or move the file away"
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
    """The numbers in a cell; `0.65*5` gives five numbers."""
    found = []
    for part in cell.split():
        value, _, count = part.partition("*")
        found += [float(value)] * int(count or 1)
    return tuple(found)


def flags_digest(job: Job) -> str:
    """Eight hex digits: a hash of the flags from a job's setting and row."""
    row, setting = ROWS[job.row], SETTINGS[job.setting]
    # Fields after `size` are newer than the files in results/, so unset ones are left out.
    cells = []
    for number, each in enumerate(fields(setting)):
        value = getattr(setting, each.name)
        if each.name != "seeds" and (number < 7 or value != each.default):
            cells.append(f"{each.name}={value!r}")
    oracle = dict(zip(("low", "high"), row.oracle, strict=True)) if row.oracle else ""
    text = f"Setting({', '.join(cells)}) {row.flags} {oracle}{' permuted' * row.permuted}"
    text += " results" * row.results
    return hashlib.sha256(text.encode()).hexdigest()[:8]
