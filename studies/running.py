"""Runs are trained and examined: one of them, or those that the CSV of a study lacks.

Runs go two at a time. A line is written as soon as its run has ended, and a run that the file holds
is not run again: a stopped study continues where it was.
"""

import contextlib
import io
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from tqdm import tqdm

import toy
import train
from grading import grades, sample_grades
from infra.files import read_lines
from methods import Method
from rollout import Sampling
from studies.places import SETTINGS
from studies.rows import ROWS, configured
from studies.runs import COLUMNS, ENDS, Job, Runs, Trained, line_of
from studies.tables import appending

PROBLEMS = 256  # held out


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


# ---- one run -------------------------------------------------------------------------------------


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
