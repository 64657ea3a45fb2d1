"""How much DAPO gains on the bases that learn, at a rate with no cliff next to it.

The pilot of `bench.py surprise` has the neighbouring rate 2e-4 at the same places.
"""

from pathlib import Path

from studies.runs import Job
from studies.surprise import chosen, print_gains
from studies.surprise_runs import LEARN, PLACES, complete, finished

RATE = 1.4e-4
SEEDS = 16


def bases(args) -> None:
    """What DAPO gains on each base that learns, over sixteen seeds (fifteen minutes)."""
    path = Path(args.csv)
    runs = finished(path)
    jobs = []
    for number in range(args.seeds or SEEDS):
        jobs += [Job(place, "dapo", RATE, PLACES[place] + number) for place in LEARN]
    complete(jobs, runs, path, "DAPO")
    print_gains(chosen(runs, jobs))
