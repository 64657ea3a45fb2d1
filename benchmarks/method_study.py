"""Every row of the paper's tables on the toy, each at the best of three learning rates (`methods`).

A pilot picks a row's rate by the mean training reward; the other seeds then run at it. Finished
runs are read from --csv and not run again. All rows share problems and random numbers, so that
differences are taken seed by seed. 45 minutes on two cores.
"""

import csv
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from tqdm import tqdm

from benchmarks.statistics import half_width, mean_interval
from benchmarks.study_runs import ROWS, run_row
from benchmarks.tables import table_line

RATES = (2.5e-5, 5e-5, 1e-4)
PILOT_SEEDS = 1
SEEDS = 8
LAST = 8  # steps

Job = tuple[str, float, int]  # row, learning rate, seed


def methods(args) -> None:
    """Fill --csv, print the table of RESULTS.md, and draw the rows beside DAPO."""
    path = Path(args.csv)
    path.parent.mkdir(exist_ok=True)
    done = finished_runs(path)

    pilot = []
    for seed in range(PILOT_SEEDS):
        pilot += [(name, rate, seed) for rate in RATES for name in ROWS]
    complete(pilot, done, path, "pilot")

    best = {name: best_rate(name, done) for name in ROWS}
    others = []
    for seed in range(PILOT_SEEDS, SEEDS):
        others += [(name, best[name], seed) for name in ROWS]
    complete(others, done, path, "seeds")

    rewards = {}  # row -> [seeds] mean training reward
    last_rewards = {}
    for name in ROWS:
        runs = [done[name, best[name], seed] for seed in range(SEEDS)]
        rewards[name] = np.array([float(run["reward"]) for run in runs])
        last_rewards[name] = np.array([float(run["last_reward"]) for run in runs])
    print_table(best, rewards, last_rewards)
    plot(rewards, path.with_suffix(".png"))


def finished_runs(path: Path) -> dict[Job, dict]:
    """The lines of the CSV by what was run."""
    if not path.exists():
        return {}
    with open(path) as file:
        lines = list(csv.DictReader(file))
    return {(line["row"], float(line["lr"]), int(line["seed"])): line for line in lines}


def complete(jobs: list[Job], done: dict[Job, dict], path: Path, label: str) -> None:
    """Run the jobs that are not done, two at a time; each is written as soon as it is."""
    missing = [job for job in jobs if job not in done]
    with ProcessPoolExecutor(2) as pool, open(path, "a", newline="") as file:
        results = pool.map(study_run, missing)
        for job, line in zip(missing, tqdm(results, total=len(missing), desc=label), strict=True):
            writer = csv.DictWriter(file, list(line))
            if file.tell() == 0:
                writer.writeheader()
            writer.writerow(line)
            file.flush()
            done[job] = line


def study_run(job: Job) -> dict:
    """One run, as a line of results/methods.csv."""
    name, rate, seed = job
    start = time.perf_counter()
    rewards = [step["reward"] for step in run_row(name, rate, seed)]
    return {
        "row": name,
        "lr": rate,
        "seed": seed,
        "reward": round(float(np.mean(rewards)), 5),
        "last_reward": round(float(np.mean(rewards[-LAST:])), 5),
        "seconds": round(time.perf_counter() - start, 1),
    }


def best_rate(name: str, done: dict[Job, dict]) -> float:
    """The learning rate at which a row had the highest mean training reward in the pilot."""

    def pilot_reward(rate: float) -> float:
        runs = [done[name, rate, seed] for seed in range(PILOT_SEEDS)]
        return np.mean([float(run["reward"]) for run in runs])

    return max(RATES, key=pilot_reward)


def print_table(
    best: dict[str, float], rewards: dict[str, np.ndarray], last_rewards: dict[str, np.ndarray]
) -> None:
    """The table of RESULTS.md."""
    print(
        "| row | lr | mean training reward | minus dapo's | reward, last 8 steps | paper, 8B |\n"
        "|---|---|---|---|---|---|"
    )
    for name, row in ROWS.items():
        cells = [
            name,
            f"{best[name]:g}",
            mean_interval(rewards[name]),
            mean_interval(rewards[name] - rewards["dapo"]),
            mean_interval(last_rewards[name]),
            row.paper,
        ]
        print(table_line(cells))


def plot(rewards: dict[str, np.ndarray], path: Path) -> None:
    """Each row's mean training reward minus DAPO's on the same seeds, with its 95 % interval."""
    differences = {}
    for name, values in rewards.items():
        if name != "dapo":
            differences[name] = values - rewards["dapo"]

    names = sorted(differences, key=lambda name: differences[name].mean())
    means = [differences[name].mean() for name in names]
    widths = [half_width(differences[name]) for name in names]

    figure = Figure(figsize=(7, 6.5), layout="constrained")
    axes = figure.subplots()
    axes.errorbar(means, names, xerr=widths, fmt="o", color="#0072B2", capsize=3)
    axes.axvline(0, color="#D55E00", label="DAPO")
    axes.set(
        title="Toy, 12 operations: every row against DAPO",
        xlabel="difference in mean training reward, same seeds (95 % interval)",
    )
    axes.legend()
    figure.savefig(path, dpi=120)
