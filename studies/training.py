"""All training studies except the one on the zero-mean proxy (studies/surprise.py).

All rows share problems and random numbers, so differences are taken seed by seed. Runs in --csv are
not repeated. Fewer --seeds give a shorter study. Only `methods` picks learning rates with a pilot.
Protocols: docs/results/protocol.md where training sharpens, docs/results/learn.md for `learn`.
"""

from pathlib import Path

import numpy as np

from studies.comparisons import (
    OUTCOMES,
    Counted,
    against_dapo,
    completed,
    counted,
    draw_differences,
    over_places,
    over_seeds,
    paired,
    print_differences,
    print_ends,
    print_gains,
    print_rows,
)
from studies.pilot import PILOT_SEEDS, pilot
from studies.places import LEARN, SETTINGS, STUDY, places
from studies.rows import BEYOND, IN_RANGE, MAIN, ORACLE, ROWS, SECONDARY
from studies.running import complete
from studies.runs import ENDS, Runs, finished_runs, seed_by_seed
from studies.statistics import mean_interval
from studies.surprise import EVERY_SEED
from studies.tables import print_table

GRID = (1e-4, 2e-4, 4e-4)
FIRST_SEED = SETTINGS[STUDY].seeds["methods"]
SECONDARY_SEEDS = 6
CONFIRMED = places("confirm")
NOISY = places("noise")

# One change at a time: the change, the row with it, the row without it.
CONTRASTS = {
    "row proxy: γ fresh, not lagged": ("delta, fresh", "delta"),
    "top-K proxy: γ fresh, not lagged": ("topk, fresh", "topk"),
    "exact proxy: γ fresh, not lagged": ("exact, fresh", "exact"),
    "row proxy: no refinement": ("delta, K = 0", "delta"),
    "top-K proxy: no refinement": ("topk, K = 0", "topk"),
    "row proxy: each side of mean 1": ("delta, side", "delta"),
    "row proxy: centroids held out": ("delta, held out", "delta"),
    "lagged: top-K, not row proxy": ("topk", "delta"),
    "lagged: exact, not row proxy": ("exact", "delta"),
    "fresh: top-K, not row proxy": ("topk, fresh", "delta, fresh"),
    "fresh: exact, not row proxy": ("exact, fresh", "delta, fresh"),
}

# CANDIDATES: the DelTA variants that a large model can run. BEST: the candidate with the highest
# mean in results/methods.csv. RATE: the learning rate for all main rows in that file.
CANDIDATES = [name for name in MAIN if name.startswith(("delta, ", "topk"))]
BEST = "delta, K = 0"
RATE = 2e-4

DEFAULT_RATE = 1e-4  # the default in train.py on the toy
LEARN_RATE = 1.4e-4  # for 28 steps in learning settings: below the unstable rates
LEARN_ROWS = (*MAIN, *SECONDARY, *BEYOND)  # DAPO first
# Significantly different from DAPO where training sharpens: docs/results/training.md.
FOUND = (
    *("delta", "delta, held out", IN_RANGE, ORACLE),
    *("reinforce", "no_norm", "no_range_map", "select random"),
)

Tested = dict[str, dict[str, np.ndarray]]  # a table's label -> its lines: [seeds] each


# ---- where training sharpens ---------------------------------------------------------------------


def methods(args) -> Tested:
    """DelTA, its interventions, two oracles and the paper's rows on the toy (an hour and a half).

    Pilot seeds pick each row's learning rate. Then the main rows are trained on the counted
    seeds, and the other rows from the paper's tables on the first few of these seeds.
    """
    path = Path(args.csv)
    runs = finished_runs(path)
    seeds = range(FIRST_SEED, FIRST_SEED + (args.seeds or 16))
    rates = pilot(STUDY, MAIN, GRID, PILOT_SEEDS, runs, path, widens=True)
    of = compared(rates, seeds, runs, path)
    print_dapo(of, STUDY)
    main = against_dapo(of, STUDY, rates)
    contrasts = {label: paired(of, STUDY, *pair) for label, pair in CONTRASTS.items()}
    tested = {"minus dapo": main, "one thing at a time": contrasts}
    print_differences(tested)

    few = seeds[:SECONDARY_SEEDS]
    others = pilot(STUDY, SECONDARY, GRID, PILOT_SEEDS[:1], runs, path, widens=True)
    others = {"dapo": rates["dapo"]} | others
    of = compared(others, few, runs, path)
    secondary = against_dapo(of, STUDY, others)
    print_differences({"minus dapo": secondary})
    minutes = sum(run.seconds for run in runs.values()) / 60
    print(f"{len(runs)} runs, {minutes:.0f} minutes of one core")

    groups = {f"{len(seeds)} seeds": main}
    title = "Toy, 12 operations: the main rows against DAPO"
    draw_differences(groups, title, path.with_name(f"{path.stem}_main.png"))
    groups[f"{len(few)} seeds"] = secondary
    draw_differences(groups, "Toy, 12 operations: every row against DAPO", path.with_suffix(".png"))
    return tested | {"other rows": secondary}


def compared(rates: dict[str, float], seeds: range, runs: Runs, path: Path) -> Counted:
    """Each row's runs at its rate. Prints the flags, the paper's result and the rewards."""
    jobs = seed_by_seed(STUDY, rates, seeds)
    complete(jobs, runs, path, f"{len(rates)} rows")
    of = counted(runs, jobs)
    lines = []
    for name, rate in rates.items():
        row = ROWS[name]
        rewards = [mean_interval(over_seeds(of, STUDY, name, what)) for what in ("reward", "last")]
        lines.append([name, row.spelled, row.paper, rate_cell(runs, name, rate), *rewards])
    header = ["row", "flags", "paper, 8B", "learning rate", "mean training reward"]
    print_table([*header, f"last {ENDS} steps"], lines)
    return of


def rate_cell(runs: Runs, name: str, rate: float) -> str:
    """The rate; with the edges of the row's grid if the grid was widened."""
    tried = {job.rate for job in runs if job.row == name}
    if tried <= set(GRID):
        return f"{rate:g}"
    return f"{rate:g} (of {min(tried):g} to {max(tried):g})"


def print_dapo(of: Counted, place: str) -> None:
    """Print DAPO's mean reward and gain at a place. A small gain leaves nothing to compare."""
    reward, first, last, gained = (
        mean_interval(over_seeds(of, place, "dapo", what))
        for what in ("reward", "first", "last", "gained")
    )
    print(f"{place}: DAPO {reward}, first 5 steps {first}, last 5 {last}, gained {gained}\n")


def confirm(args) -> Tested:
    """DelTA's best variant on fresh seeds, another base model and other settings (an hour).

    Compares that variant with DelTA and DAPO, and also trains the oracle in DelTA's range.
    """
    of = completed(args, CONFIRMED, ("dapo", "delta", BEST, IN_RANGE), RATE, 16)
    pairs = {
        "tested": ((BEST, "dapo"), (BEST, "delta")),
        "beside it": (("delta", "dapo"), (IN_RANGE, "dapo")),
    }
    tested = {}
    for place in CONFIRMED:
        for role, of_role in pairs.items():
            differences = {f"{a} minus {b}": paired(of, place, a, b) for a, b in of_role}
            tested[f"{place}: {role}"] = differences
    print_differences(tested)
    return tested


def noise(args) -> Tested:
    """A few rows with flipped, rare or plentiful rewards, or with filler tokens (half an hour).

    The compared rewards are the true ones, before flipping.
    """
    rows = ("delta", BEST, IN_RANGE, ORACLE)
    of = completed(args, NOISY, ("dapo", *rows), RATE, 6)
    for place in NOISY:
        print_dapo(of, place)
    groups = {row: over_places(of, row, "dapo") for row in rows}
    lines = {f"{place}: {row}": groups[row][place] for place in NOISY for row in rows}
    print_differences({"minus dapo": lines})
    draw_differences(groups, "Toy: noise and sparsity", Path(args.csv).with_suffix(".png"))
    return groups


def curves(args) -> None:
    """Learning curves for DAPO, DelTA, its best variant and the oracles (7 minutes)."""
    of = completed(args, places("curves"), ("dapo", "delta", BEST, IN_RANGE, ORACLE), RATE, 8)
    for place, row in of:
        print(f"{row}: {mean_interval(over_seeds(of, place, row))}")


def seeds(args) -> None:
    """Three methods on chains of five operations, where training sharpens (20 minutes)."""
    print_ends(completed(args, places("seeds"), ("grpo", "dapo", "delta"), DEFAULT_RATE, 8))


# ---- where there is something to learn -----------------------------------------------------------


def make_train(args) -> None:
    """The gain from `make train` over several seeds (10 minutes)."""
    print_ends(completed(args, places("make_train"), ["delta"], DEFAULT_RATE, 8))


def bases(args) -> None:
    """What DAPO gains on six bases, over sixteen seeds (20 minutes).

    Five bases must learn. They come from `bench.py surprise`, whose pilot also tries 2e-4, the next
    rate. On the sixth, training sharpens; it can gain more than that study's sharpening base.
    """
    print_gains(completed(args, LEARN | places("bases"), ["dapo"], LEARN_RATE, 16))


def learn(args) -> Tested:
    """All table rows where there is something to learn, at one rate (half an hour).

    Tests whether the sharpening results also hold where the model must learn.
    """
    of = completed(args, places("learn"), LEARN_ROWS, LEARN_RATE, 6)
    [place] = places("learn")
    print_gains(of)
    print_rows(of, {place: dict.fromkeys(LEARN_ROWS, LEARN_RATE)})
    others = [row for row in LEARN_ROWS if row not in FOUND]
    tested = {
        "minus dapo, significant on sharpen": against_dapo(of, place, FOUND),
        "minus dapo, the other rows": against_dapo(of, place, others),
    }
    picture = Path(args.csv).with_suffix(".png")
    draw_differences(tested, "Toy: every row where there is something to learn", picture)
    contrasts = {name: paired(of, place, *pair) for name, pair in CONTRASTS.items()}
    tested |= {"one thing at a time": contrasts}
    print_differences(tested, ranks=True)

    columns = [against_dapo(of, place, LEARN_ROWS, what) for what in OUTCOMES.values()]
    lines = []
    for row in LEARN_ROWS[1:]:
        lines.append([row, *(mean_interval(column[row]) for column in columns)])
    print_table(["minus dapo", *OUTCOMES], lines)  # not tested
    return tested


def longer(args) -> Tested:
    """DAPO, DelTA, surprise and its control over 110 steps, and on programs (15 minutes).

    Protocol and results: the second study in docs/results/surprise.md.
    """
    of = completed(args, places("longer"), EVERY_SEED, LEARN_RATE, 6)
    print_gains(of)
    print_rows(of, dict.fromkeys(places("longer"), dict.fromkeys(EVERY_SEED, LEARN_RATE)))
    outcomes = {"reward": "reward", "last 5 steps": "last", **OUTCOMES}
    tested = {}
    for a, b in (("surprise", "dapo"), ("surprise", "no centroids"), ("no centroids", "dapo")):
        for name, what in outcomes.items():
            tested[f"{name}: {a} minus {b}"] = over_places(of, a, b, what)
    print_differences(tested, ranks=True)
    return tested
