"""Whether the best row of the study of methods holds on what it was not chosen by (`confirm`).

The best of DelTA's other forms in results/methods.csv, with DelTA, DAPO and the oracle in DelTA's
range, each at the rate it had there: on fresh seeds, on another base model, and in other settings.
The protocol is in RESULTS.md, part 3.
"""

from pathlib import Path

import numpy as np

from studies.comparisons import print_differences
from studies.method_study import chosen
from studies.study_jobs import Done, Job, complete, finished_runs, rewards_of
from studies.study_runs import IN_RANGE, STUDY

STUDY_CSV = Path("results/methods.csv")
FIRST_SEED = 21  # none of the study's, which end at 20
PLACES = (STUDY, "k12, another base", "k5, filler 4", "k16")


def confirm(args) -> dict:
    """Fill --csv and print a table for each place."""
    path = Path(args.csv)
    done = finished_runs(path)
    best, rates, count = chosen(STUDY_CSV)
    seeds = range(FIRST_SEED, FIRST_SEED + args.seeds)
    print(f"to be confirmed: {best}, at {rates[best]:g}, the best on {count} seeds\n")

    measured = {"best": best}
    for place in PLACES:
        jobs = []
        for seed in seeds:
            for name in ("dapo", "delta", best, IN_RANGE):
                jobs.append(Job(place, name, rates[name], seed))
        complete(jobs, done, path, place)

        rewards = place_rewards(done, jobs)
        tested = {
            f"{best} minus dapo": rewards[best] - rewards["dapo"],
            f"{best} minus delta": rewards[best] - rewards["delta"],
        }
        beside = {
            "delta minus dapo": rewards["delta"] - rewards["dapo"],
            f"{IN_RANGE} minus dapo": rewards[IN_RANGE] - rewards["dapo"],
        }
        lines = print_differences(tested, f"{place}: tested")
        print()
        lines += print_differences(beside, f"{place}: beside it")
        print()
        measured[place] = lines
    return measured


def place_rewards(done: Done, jobs: list[Job]) -> dict[str, np.ndarray]:
    """Row -> [seeds] mean training reward, of jobs in one setting."""
    seeds = sorted({job.seed for job in jobs})
    rates = {job.row: job.rate for job in jobs}
    place = jobs[0].setting
    return {name: rewards_of(done, place, name, rate, seeds) for name, rate in rates.items()}
