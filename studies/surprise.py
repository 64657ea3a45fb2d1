"""Does a credit without the truth win where there is something to learn? (`surprise`)

The runs are those of surprise_runs.py; here is what is printed and drawn of them. Protocol and
results: docs/results/surprise.md.
"""

from pathlib import Path

import numpy as np

from studies.comparisons import draw_differences, print_differences
from studies.rows import IN_RANGE
from studies.runs import ENDS, Job
from studies.statistics import mean_interval
from studies.surprise_runs import (
    AGAIN,
    AGAIN_RATE,
    BEYOND,
    EVERY_SEED,
    PERMUTED,
    PILOT_SEED,
    PLACES,
    RATES,
    SEEDS,
    Runs,
    Trained,
    again_jobs,
    again_seeds,
    best_rates,
    complete,
    counted_jobs,
    edge_jobs,
    finished,
    pilot_jobs,
    running_mean,
)
from studies.tables import table_line

ALL_ROWS = (*EVERY_SEED, IN_RANGE, PERMUTED)
PRIMARY = ("surprise", "dapo")
SECONDARY = (("surprise", "no centroids"), ("surprise", "delta"))
DESCRIBED = (("delta", "dapo"), ("no centroids", "dapo"), (IN_RANGE, "dapo"), (PERMUTED, "dapo"))
OUTCOMES = {  # beside the mean training reward
    "held-out accuracy": "accuracy",
    "held-out, greedy": "greedy",
    "entropy": "entropy",
}

Counted = dict[tuple[str, str], dict[int, Trained]]  # (place, row) -> seed -> run


def surprise(args) -> dict:
    """The proxy of mean zero, where there is something to learn and where not (two hours).

    One pilot seed picks the learning rates of each place; --seeds is how many are counted at most.
    """
    path = Path(args.csv)
    runs = finished(path)
    complete(pilot_jobs(), runs, path, "pilot")
    rates = {place: best_rates(runs, place) for place in PLACES}
    count = args.seeds or SEEDS
    complete(counted_jobs(rates, count), runs, path, "counted seeds")
    complete(again_jobs(), runs, path, "one place again")
    complete(edge_jobs(), runs, path, "one rate beyond the grid")
    return print_study(runs, rates, count, path.with_suffix(".png"))


def chosen(runs: Runs, jobs: list[Job]) -> Counted:
    """The runs of these jobs, none of which differ in their rate alone."""
    found = {}
    for job in jobs:
        found.setdefault((job.setting, job.row), {})[job.seed] = runs[job]
    return found


# ---- differences ---------------------------------------------------------------------------------


def paired(of: Counted, place: str, a: str, b: str, what: str = "reward") -> np.ndarray:
    """[seeds] row `a` minus row `b` at a place, on the seeds that both have."""
    one, other = of[place, a], of[place, b]
    seeds = sorted(one.keys() & other.keys())
    return np.array([getattr(one[seed], what) - getattr(other[seed], what) for seed in seeds])


def over_places(of: Counted, a: str, b: str, what: str = "reward") -> dict[str, np.ndarray]:
    """Place -> `paired`, where both rows ran."""
    all_places = dict.fromkeys(place for place, _ in of)
    both = [place for place in all_places if (place, a) in of and (place, b) in of]
    return {place: paired(of, place, a, b, what) for place in both}


def at_the_entropy(run: Trained, dapo: Trained) -> float:
    """The run's reward when its entropy is that of DAPO's end, minus DAPO's reward there.

    NaN where the run's entropy does not get as low.
    """
    reached = np.flatnonzero(running_mean(run.entropies) <= dapo.entropy + 1e-9)  # rounding
    if not len(reached):
        return float("nan")
    return float(running_mean(run.rewards)[reached[0]]) - dapo.last


# ---- what is printed -----------------------------------------------------------------------------


def print_study(runs: Runs, rates: dict, count: int, picture: Path) -> dict:
    """Tables of all outcomes, and a picture of the differences in mean training reward."""
    of = chosen(runs, counted_jobs(rates, count))
    print_pilot(runs)
    print_gains(of)
    print_rows(of, rates)

    measured = {}
    for a, b in (PRIMARY, *SECONDARY, *DESCRIBED):
        name = f"{a} minus {b}"
        measured[name] = print_differences(over_places(of, a, b), name, ranks=True)
        print()
    print_again(runs)
    for name, what in OUTCOMES.items():
        label = f"{name}: surprise minus dapo"
        measured[label] = print_differences(over_places(of, *PRIMARY, what), label, ranks=True)
        print()
    print_at_the_entropy(of)

    minutes = sum(run.seconds for run in runs.values()) / 60
    print(f"\n{len(runs)} runs, {minutes:.0f} minutes of one core")
    groups = {row: over_places(of, row, "dapo") for row in ALL_ROWS if row != "dapo"}
    draw_differences(groups, "Toy: where there is something to learn, and not (k12)", picture)
    return measured


def print_pilot(runs: Runs) -> None:
    """The mean training reward of each rate on the seed that does not count."""
    rates = (*RATES, BEYOND)
    print(table_line(["pilot: place", "row", *(f"{rate:g}" for rate in rates)]))
    print("|---|---|---|---|---|---|")
    for place in PLACES:
        for row in EVERY_SEED:
            cells = [pilot_cell(runs.get(Job(place, row, rate, PILOT_SEED))) for rate in rates]
            print(table_line([place, row, *cells]))
    print()


def pilot_cell(run: Trained | None) -> str:
    if run is None:
        return ""
    return f"{run.reward:.3f}{' (collapsed)' * run.collapsed}"


def print_gains(of: Counted) -> None:
    """How much DAPO gains at each place: where it is little, there is nothing to compare."""
    print(
        "| DAPO at | seeds | first 5 steps | last 5 steps | gained | least gained "
        "| held-out accuracy after | greedy after |\n|---|---|---|---|---|---|---|---|"
    )
    for place in [place for place, row in of if row == "dapo"]:
        of_place = of[place, "dapo"].values()
        first = np.array([run.first for run in of_place])
        last = np.array([run.last for run in of_place])
        cells = [mean_interval(first), mean_interval(last), mean_interval(last - first)]
        cells.append(f"{(last - first).min():.3f}")
        for what in ("accuracy", "greedy"):
            cells.append(mean_interval([getattr(run, what) for run in of_place]))
        print(table_line([place, len(first), *cells]))
    print()


def print_rows(of: Counted, rates: dict[str, dict[str, float]]) -> None:
    """A line for each place and row, with every outcome."""
    print(
        f"| place | row | rate | seeds | mean training reward | last {ENDS} steps "
        "| held-out accuracy | greedy | entropy | tokens | collapsed |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for (place, row), by_seed in of.items():
        done = by_seed.values()
        cells = [place, row, f"{rates[place][row]:g}", len(done)]
        for what in ("reward", "last", "accuracy", "greedy", "entropy"):
            cells.append(mean_interval([getattr(run, what) for run in done]))
        cells.append(f"{np.mean([run.length for run in done]):.0f}")
        cells.append(sum(run.collapsed for run in done))
        print(table_line(cells))
    print()


def print_again(runs: Runs) -> None:
    """The places that ran again at another rate, beside rows that had it; without a claim."""
    jobs = []
    for place in AGAIN:
        for row in EVERY_SEED:
            of_row = [Job(place, row, AGAIN_RATE, seed) for seed in again_seeds(place)]
            if all(job in runs for job in of_row):
                jobs += of_row
    of = chosen(runs, jobs)
    print_rows(of, dict.fromkeys(AGAIN, dict.fromkeys(EVERY_SEED, AGAIN_RATE)))
    differences = {}
    for a, b in (PRIMARY, *SECONDARY, *DESCRIBED[:2]):
        for place, values in over_places(of, a, b).items():
            differences[f"{place}: {a} minus {b}"] = values
    print_differences(differences, f"at {AGAIN_RATE:g}", ranks=True)
    print()


def print_at_the_entropy(of: Counted) -> None:
    """Reward at the entropy of DAPO's end, minus DAPO's, over the seeds on which it is reached."""
    print("| at DAPO's entropy: place | row | difference, 95 % interval | reached |")
    print("|---|---|---|---|")
    for place in PLACES:
        for row in ALL_ROWS[1:]:
            if (place, row) not in of:
                continue
            runs = of[place, row]
            found = np.array([at_the_entropy(runs[s], of[place, "dapo"][s]) for s in runs])
            reached = found[~np.isnan(found)]
            interval = mean_interval(reached) if len(reached) > 1 else "-"
            print(table_line([place, row, interval, f"{len(reached)} of {len(found)}"]))
