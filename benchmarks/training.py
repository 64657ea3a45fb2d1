"""The training studies at fixed learning rates, and the tables of any CSV of runs.

All rows share problems and random numbers, so differences are taken seed by seed. Protocols and
results: docs/results/training.md and surprise.md.
"""

from pathlib import Path

from benchmarks.comparisons import (
    against,
    counted,
    draw_differences,
    print_differences,
    print_rows,
)
from benchmarks.rows import MAIN, SECONDARY
from benchmarks.runs import Job, complete, finished_runs
from benchmarks.settings import MAKE_TRAIN, STUDY
from infra.errors import UserError

RATE = 2e-4  # the best for every row on the pilot seeds 0 and 1, but for
RATES = {"no_range_map": 5e-5}
FIRST_SEED = 5
MAIN_SEEDS = 16
SECONDARY_SEEDS = 6
DEFAULT_RATE = 1e-4  # the default of train.py on the toy


def make_train(args) -> None:
    """The gain from `make train` over several seeds (10 minutes)."""
    jobs = [Job(MAKE_TRAIN, "delta", DEFAULT_RATE, seed) for seed in range(args.seeds or 8)]
    print_rows(counted(complete(jobs, Path(args.csv))))


def methods(args) -> None:
    """DelTA, its variants, two oracles and the paper's rows, where training sharpens (4 hours).

    The main rows run on 16 seeds, the others on the first six of these.
    """
    path = Path(args.csv)
    jobs = []
    for rows, count in ((MAIN, MAIN_SEEDS), (SECONDARY, SECONDARY_SEEDS)):
        for seed in range(FIRST_SEED, FIRST_SEED + min(count, args.seeds or count)):
            jobs += [Job(STUDY, row, RATES.get(row, RATE), seed) for row in rows]
    complete(jobs, path)
    compare(args)
    tested = against(counted(finished_runs(path)), "dapo")
    draw_differences(tested, "Toy, 12 operations: every row against DAPO", path.with_suffix(".png"))


def compare(args) -> None:
    """The tables of a CSV of runs, each row minus --minus (default dapo): compare --csv FILE."""
    runs = finished_runs(Path(args.csv))
    if not runs:
        raise UserError(f"{args.csv} holds no runs: pass --csv results/NAME.csv")
    of = counted(runs)
    tested = against(of, args.minus)
    if not tested:
        raise UserError(f"{args.csv} has no row {args.minus} to subtract on common seeds")
    print_rows(of)
    print_differences(tested)
    minutes = sum(run.seconds for run in runs.values()) / 60
    print(f"{len(runs)} runs, {minutes:.0f} minutes of one core")
