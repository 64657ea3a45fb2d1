"""Studies that keep every step: `make train`, three methods, and the rows of RESULTS.md.

A run that the CSV holds is not run again.
"""

import json
from pathlib import Path

import numpy as np

from studies.rows import IN_RANGE, ORACLE
from studies.runs import ENDS, SETTINGS, STUDY, Job, run_row, two_at_a_time
from studies.statistics import mean_interval
from studies.tables import appending, read_csv, table_line
from studies.training import STUDY_CSV, chosen

THREE_ROWS = ("grpo", "dapo", "delta")
DEFAULT_RATE = 1e-4  # of train.py on the toy
Runs = dict[tuple[str, int], list[dict]]  # (row, seed) -> metrics, step by step


def make_train(args) -> None:
    """What `make train` makes of its base, over several seeds (10 minutes)."""
    count = args.seeds or 8
    measured = ("reward", "entropy", "response_length", "eval_accuracy", "eval_greedy")
    jobs = [Job("make train", "delta", DEFAULT_RATE, seed) for seed in range(count)]
    runs = by_step(jobs, Path(args.csv), ("row", "seed", "step", *measured))

    print("| accuracy | before | after | least after | seeds |\n|---|---|---|---|---|")
    for name, what in (("temperature 1", "eval_accuracy"), ("greedy", "eval_greedy")):
        before = [run[0][what] for run in runs.values()]
        after = [run[-1][what] for run in runs.values()]
        print(before_and_after(f"held out, {name}", before, after))

    rewards = [[step["reward"] for step in run[1:]] for run in runs.values()]
    first = [np.mean(of_run[:ENDS]) for of_run in rewards]
    last = [np.mean(of_run[-ENDS:]) for of_run in rewards]
    print(before_and_after(f"training, first and last {ENDS} steps", first, last))


def before_and_after(name: str, before: list[float], after: list[float]) -> str:
    """A line of `make_train`'s table."""
    cells = [mean_interval(before), mean_interval(after), f"{min(after):.3f}", len(after)]
    return table_line([name, *cells])


def seeds(args) -> None:
    """Three methods on a base of five operations that only sharpens, over seeds (20 minutes)."""
    count = args.seeds or 8
    measured = ("reward", "entropy", "response_length", "lambda_std", "eval_accuracy")
    jobs = []
    for seed in range(count):
        jobs += [Job("k5, 160 steps", name, DEFAULT_RATE, seed) for name in THREE_ROWS]
    runs = by_step(jobs, Path(args.csv), ("method", "seed", "step", *measured))

    last = runs[THREE_ROWS[0], 0][-1]["step"]
    print(
        f"| method | held-out accuracy after | mean training reward over all {last} steps "
        "| seeds |\n|---|---|---|---|"
    )
    for name in THREE_ROWS:
        of_row = [runs[name, seed] for seed in range(count)]
        after = mean_interval([run[-1]["eval_accuracy"] for run in of_row])
        reward = mean_interval([mean_reward(run) for run in of_row])
        print(table_line([name, after, reward, count]))

    before = mean_interval([runs["delta", seed][0]["eval_accuracy"] for seed in range(count)])
    print(f"held-out accuracy before: {before} (one base model, {count} sampling seeds)")


def curves(args) -> None:
    """Step by step: DAPO, DelTA, its best other form and the oracles (7 minutes)."""
    best, rates, _ = chosen(STUDY_CSV)
    rows = ("dapo", "delta", best, IN_RANGE, ORACLE)
    first = SETTINGS[STUDY].seeds["curves"]
    counted = range(first, first + (args.seeds or 8))
    jobs = [Job(STUDY, name, rates[name], seed) for seed in counted for name in rows]
    measured = ("reward", "response_length", "entropy", "lambda_std")
    runs = by_step(jobs, Path(args.csv), ("row", "lr", "seed", "step", *measured))
    for name in rows:
        print(f"{name}: {mean_interval([mean_reward(runs[name, seed]) for seed in counted])}")


def by_step(jobs: list[Job], path: Path, columns: tuple[str, ...]) -> Runs:
    """The runs of the jobs, from the CSV; what it lacks is run and added.

    columns: of the CSV. A cell stays empty where a step has no such number.
    """
    runs = read_runs(path, columns)
    missing = [job for job in jobs if (job.row, job.seed) not in runs]
    with appending(path, columns) as write:
        for job, run in two_at_a_time(run_row, missing, "runs"):
            write(lines_of(job, run, columns))
    return read_runs(path, columns)


def lines_of(job: Job, run: list[dict], columns: tuple[str, ...]) -> list[dict]:
    """A run's lines of the CSV."""
    about = {"method": job.row, "row": job.row, "lr": job.rate, "seed": job.seed}
    lines = []
    for step in run:
        numbers = {name: round(step[name], 4) for name in columns if name in step}
        lines.append({name: (about | numbers).get(name, "") for name in columns})
    return lines


def read_runs(path: Path, columns: tuple[str, ...]) -> Runs:
    """The runs in the CSV, without its empty cells."""
    runs = {}
    for cells in read_csv(path, columns):
        name = cells.pop(columns[0])
        step = {column: json.loads(text) for column, text in cells.items() if text}
        runs.setdefault((name, step["seed"]), []).append(step)
    return runs


def mean_reward(run: list[dict]) -> float:
    """The mean training reward over the steps of a run; step 0 has none."""
    return float(np.mean([step["reward"] for step in run if "reward" in step]))
