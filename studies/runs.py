"""The runs of a study: which there are, what is kept of each, and the CSV files that keep them.

A cell may have several numbers: `rewards` and `entropies` one for each step, `accuracy` and
`greedy` one for each evaluation. `0.65*5` stands for five steps of which only the mean was kept;
the first studies kept no more than that, and their other cells are empty.
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


# ---- their CSV -----------------------------------------------------------------------------------

ABOUT = ("setting", "row", "lr", "seed")
COLUMNS = (*ABOUT, "accuracy", "greedy", "length", "seconds", "flags", "rewards", "entropies")


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
