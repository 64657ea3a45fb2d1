"""How much DAPO gains on the bases of the studies, at a rate with no cliff next to it.

The bases of `bench.py surprise` that learn, of which its pilot has the neighbouring rate 2e-4, and
one that sharpens with more to gain than the one there.
"""

from pathlib import Path

from studies.runs import Job, places
from studies.surprise import chosen, print_gains
from studies.surprise_runs import LEARN, PLACES, complete, finished

RATE = 1.4e-4
SEEDS = 16


def bases(args) -> None:
    """What DAPO gains on six bases, over sixteen seeds (twenty minutes)."""
    path = Path(args.csv)
    runs = finished(path)
    first_seeds = {place: PLACES[place] for place in LEARN} | places("bases")
    jobs = []
    for number in range(args.seeds or SEEDS):
        jobs += [Job(place, "dapo", RATE, first + number) for place, first in first_seeds.items()]
    complete(jobs, runs, path, "DAPO")
    print_gains(chosen(runs, jobs))
