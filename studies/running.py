"""Fills a study's CSV, and trains and evaluates one run.

A run's line is written when the run ends, and runs in the file are not repeated. An interrupted
study can therefore resume.
"""

import contextlib
import io
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from tqdm import tqdm

import toy
import train
from grading import grades
from infra.folder import read_lines
from methods import Method
from rollout import Sampling
from studies.places import SETTINGS
from studies.rows import ROWS, configured
from studies.runs import COLUMNS, ENDS, Job, Runs, Trained, finished_runs, line_of
from studies.tables import appending

PROBLEMS = 256  # held out
AT_ONCE = torch.get_num_threads()  # jobs, on one core each; OMP_NUM_THREADS=1 runs one at a time


def fill(
    path: Path, columns: Sequence[str], work: Callable[..., list[dict]], jobs: list, label: str
) -> None:
    """Call work(job) for AT_ONCE jobs at a time, and append the returned lines to a CSV in order.

    A job's lines are written when it ends. `work` sets its process's number of threads.
    """
    if not jobs:
        return  # without a pool
    with appending(path, columns) as write, ProcessPoolExecutor(AT_ONCE) as pool:
        for lines in tqdm(pool.map(work, jobs), total=len(jobs), desc=label):
            write(lines)


def complete(jobs: list[Job], runs: Runs, path: Path, label: str, samples: int = 1) -> None:
    """Train the jobs missing from `runs`, and add all runs in the CSV to `runs`.

    samples: responses to each held-out problem at temperature 1.
    """
    missing = [job for job in jobs if job not in runs]
    if not missing:
        return
    torch.set_num_threads(1)  # a base model built here depends on the number of threads
    for name in {job.setting: None for job in missing}:
        SETTINGS[name].base()  # now, so that two runs do not build it at the same time
    fill(path, COLUMNS, partial(lines_of_job, samples), missing, label)
    runs |= finished_runs(path)


def lines_of_job(samples: int, job: Job) -> list[dict]:
    """Train and evaluate one run. Returns its line."""
    return [line_of(job, trained(job, samples))]


# ---- one run -------------------------------------------------------------------------------------


class FlippedRewards:
    """Replaces train.training_rewards and flips a random share of the grades.

    With the same seed, every row has the same grades flipped, by their order in the run. `deserved`
    keeps the true grades.
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
    """Run train.py's loop with a method that flags cannot select, without output or plots.

    replaced: name of a function in train.py -> its replacement.
    """
    with (
        patch.multiple(train, report=lambda run: None, **replaced),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        train.train(cfg, method)


def trained(job: Job, samples: int = 1) -> Trained:
    """Train and evaluate one run, in this process.

    The returned rewards are the true ones, even if training saw flipped rewards. A run that
    train.py does not evaluate is evaluated after training, with `samples` responses per problem.
    """
    start = time.process_time()
    torch.set_num_threads(1)  # a base model built here depends on the number of threads
    setting = SETTINGS[job.setting]
    rewards = FlippedRewards(setting.flip, job.seed)
    with tempfile.TemporaryDirectory() as folder:
        further = f"{setting.flags} --lr {job.rate} --seed {job.seed} --output-dir".split()
        method, cfg = configured(ROWS[job.row], [*further, folder])
        cfg.model = str(setting.base())  # the settings above are the presets for --model toy
        train_silently(cfg, method, training_rewards=rewards)
        lines = read_lines(Path(folder) / "metrics.jsonl")
        evaluated = [line for line in lines if "eval_accuracy" in line]
        if not evaluated:
            evaluated = [held_out(job, Path(folder) / "model", samples)]

    steps = [line for line in lines if "reward" in line]  # step 0 has only an evaluation
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


def held_out(job: Job, folder: Path, samples: int = 1) -> dict[str, float]:
    """The model's accuracies, named as in train.py.

    samples: responses to each problem at temperature 1. Greedy decoding gives one.
    """
    setting = SETTINGS[job.setting]
    lm, tokenizer = toy.load_base(folder)
    # The seed is odd, and no training set has an odd seed.
    if setting.code:
        asked = toy.code_task.problems(PROBLEMS, seed=1)
    else:
        asked = toy.problems(PROBLEMS, seed=1, k=setting.tested or setting.k)
    prompts = tokenizer([each["problem"] for each in asked]).input_ids

    found = {}
    limit = setting.tested_tokens or setting.tokens
    for name, temperature, n in (("eval_accuracy", 1.0, samples), ("eval_greedy", 0.0, 1)):
        sampling = Sampling(limit, temperature, seed=job.seed)
        found[name] = train.accuracy(lm, tokenizer, asked, prompts, n, sampling)
    return found
