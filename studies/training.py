"""The studies of training where it sharpens: which rows beat DAPO, and does it hold elsewhere?

All rows share problems and random numbers, so that differences are taken seed by seed. What --csv
holds is not run again; fewer --seeds are a shorter version. Protocol: docs/results/protocol.md.
"""

from pathlib import Path

from studies.comparisons import (
    Counted,
    against_dapo,
    completed,
    counted,
    draw_differences,
    over_seeds,
    paired,
    print_differences,
)
from studies.pilot import PILOT_SEEDS, pilot
from studies.places import SETTINGS, STUDY, places
from studies.rows import IN_RANGE, MAIN, ORACLE, ROWS, SECONDARY
from studies.running import complete
from studies.runs import Runs, finished_runs, seed_by_seed
from studies.statistics import mean_interval
from studies.tables import table_line

GRID = (1e-4, 2e-4, 4e-4)
FIRST_SEED = SETTINGS[STUDY].seeds["methods"]
SECONDARY_SEEDS = 6
CONFIRMED = places("confirm")
NOISY = places("noise")

# One thing at a time: what is changed, the row with it, the row without it.
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

# DelTA otherwise than by default, in forms that a large model can run; the one of them with the
# highest mean in results/methods.csv; and the learning rate that this file gives all main rows.
CANDIDATES = [name for name in MAIN if name.startswith(("delta, ", "topk"))]
BEST = "delta, K = 0"
RATE = 2e-4


# ---- the studies ---------------------------------------------------------------------------------


def methods(args) -> dict:
    """DelTA, its interventions, two oracles and the paper's rows on the toy (an hour and a half).

    Pilot seeds pick each row's learning rate. The main rows then run on the counted seeds, and
    after them the other rows of the paper's tables on fewer.
    """
    path = Path(args.csv)
    runs = finished_runs(path)
    seeds = range(FIRST_SEED, FIRST_SEED + (args.seeds or 16))
    rates = pilot(STUDY, MAIN, GRID, PILOT_SEEDS, runs, path, widens=True)
    jobs = seed_by_seed(STUDY, rates, seeds)
    complete(jobs, runs, path, "main rows")
    of = counted(runs, jobs)
    print_dapo(of, STUDY)
    print()
    print_paper_rows(of, runs, rates)
    main = against_dapo(of, STUDY, rates)
    lines = {"main": print_differences(main, "minus dapo")}
    picture = path.with_name(f"{path.stem}_main.png")
    groups = {f"{len(seeds)} seeds": main}
    draw_differences(groups, "Toy, 12 operations: the main rows against DAPO", picture)
    print()
    contrasts = {label: paired(of, STUDY, *pair) for label, pair in CONTRASTS.items()}
    lines["contrasts"] = print_differences(contrasts, "one thing at a time")

    few = seeds[:SECONDARY_SEEDS]
    others = pilot(STUDY, SECONDARY, GRID, PILOT_SEEDS[:1], runs, path, widens=True)
    others = {"dapo": rates["dapo"]} | others
    jobs = seed_by_seed(STUDY, others, few)
    complete(jobs, runs, path, "other rows")
    of = counted(runs, jobs)
    print()
    print_paper_rows(of, runs, others)
    secondary = against_dapo(of, STUDY, others)
    lines["secondary"] = print_differences(secondary, "minus dapo")
    minutes = sum(run.seconds for run in runs.values()) / 60
    print(f"\n{len(runs)} runs, {minutes:.0f} minutes of one core")

    groups[f"{len(few)} seeds"] = secondary
    title = "Toy, 12 operations: every row against DAPO"
    draw_differences(groups, title, path.with_suffix(".png"))
    return lines


def confirm(args) -> dict:
    """The best of these rows on fresh seeds, another base model and other settings (an hour).

    The best of DelTA's other forms beside DelTA, DAPO and the oracle in DelTA's range.
    """
    of = completed(args, CONFIRMED, ("dapo", "delta", BEST, IN_RANGE), RATE, 16)
    pairs = {
        "tested": ((BEST, "dapo"), (BEST, "delta")),
        "beside it": (("delta", "dapo"), (IN_RANGE, "dapo")),
    }
    measured = {}
    for place in CONFIRMED:
        for role, of_role in pairs.items():
            differences = {f"{a} minus {b}": paired(of, place, a, b) for a, b in of_role}
            label = f"{place}: {role}"
            measured[label] = print_differences(differences, label)
            print()
    return measured


def noise(args) -> list[dict]:
    """A few rows under flipped, rare or plentiful rewards, and with idle tokens (half an hour).

    The rewards compared are the deserved ones.
    """
    rows = ("dapo", "delta", BEST, IN_RANGE, ORACLE)
    of = completed(args, NOISY, rows, RATE, 6)
    differences = {}
    groups = {row: {} for row in rows[1:]}
    for place in NOISY:
        print_dapo(of, place)
        for row, values in against_dapo(of, place, rows).items():
            differences[f"{place}: {row}"] = groups[row][place] = values
    print()
    lines = print_differences(differences, "minus dapo")
    picture = Path(args.csv).with_suffix(".png")
    draw_differences(groups, "Toy: noise and sparsity", picture)
    return lines


# ---- what is printed -----------------------------------------------------------------------------


def print_dapo(of: Counted, place: str) -> None:
    """DAPO's mean reward at a place, and how much it learns: if little, nothing is compared."""
    reward, first, last, gained = (
        mean_interval(over_seeds(of, place, "dapo", what))
        for what in ("reward", "first", "last", "gained")
    )
    print(f"{place}: DAPO {reward}, first 5 steps {first}, last 5 {last}, gained {gained}")


def print_paper_rows(of: Counted, runs: Runs, rates: dict[str, float]) -> None:
    """A table of each row: flags, what the paper has, rewards."""
    print(
        "| row | flags | paper, 8B | learning rate | mean training reward | last 5 steps |\n"
        "|---|---|---|---|---|---|"
    )
    for name, rate in rates.items():
        row = ROWS[name]
        rewards = [mean_interval(over_seeds(of, STUDY, name, what)) for what in ("reward", "last")]
        print(table_line([name, row.spelled, row.paper, rate_cell(runs, name, rate), *rewards]))
    print()


def rate_cell(runs: Runs, name: str, rate: float) -> str:
    """The rate, and the edges of the row's grid where that had to be widened."""
    tried = {job.rate for job in runs if job.row == name}
    if tried <= set(GRID):
        return f"{rate:g}"
    return f"{rate:g} (of {min(tried):g} to {max(tried):g})"
