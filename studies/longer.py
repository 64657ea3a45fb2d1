"""Does the gain of `--proxy surprise` last in longer runs, and does it hold on programs?

The second study of docs/results/surprise.md, which has its protocol and results.
"""

from pathlib import Path

from studies.comparisons import print_differences
from studies.runs import Job, places
from studies.surprise import OUTCOMES, chosen, over_places, print_gains, print_rows
from studies.surprise_runs import EVERY_SEED, complete, finished

PLACES = places("longer")
RATE = 1.4e-4  # of all rows
SEEDS = 6
PAIRS = (("surprise", "dapo"), ("surprise", "no centroids"), ("no centroids", "dapo"))


def longer(args) -> dict:
    """DAPO, DelTA, surprise and its control in 110 steps and on programs (half an hour)."""
    path = Path(args.csv)
    runs = finished(path)
    jobs = []
    for number in range(args.seeds or SEEDS):
        for row in EVERY_SEED:
            jobs += [Job(place, row, RATE, first + number) for place, first in PLACES.items()]
    complete(jobs, runs, path, "longer")

    of = chosen(runs, jobs)
    print_gains(of)
    print_rows(of, {place: dict.fromkeys(EVERY_SEED, RATE) for place in PLACES})
    measured = {}
    for a, b in PAIRS:
        for name, what in {"reward": "reward", "last 5 steps": "last", **OUTCOMES}.items():
            label = f"{name}: {a} minus {b}"
            measured[label] = print_differences(over_places(of, a, b, what), label, ranks=True)
            print()
    return measured
