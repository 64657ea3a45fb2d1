"""Does a credit without the truth win where there is something to learn? (`surprise`)

The runs are those of surprise_runs.py. Protocol: docs/results/surprise.md.
"""

from pathlib import Path

from studies.surprise_runs import (
    PLACES,
    SEEDS,
    best_rates,
    complete,
    counted_jobs,
    finished,
    pilot_jobs,
)


def surprise(args) -> None:
    """The proxy of mean zero, where there is something to learn and where not (two hours).

    One pilot seed picks the learning rates of each place; --seeds is how many are counted.
    """
    path = Path(args.csv)
    runs = finished(path)
    complete(pilot_jobs(), runs, path, "pilot")
    rates = {place: best_rates(runs, place) for place in PLACES}
    complete(counted_jobs(rates, args.seeds or SEEDS), runs, path, "counted seeds")
