"""Do the answers found where training sharpens hold where it has to learn?

All rows of the paper's tables, DelTA's forms, both oracles and other papers' advantages, at one
place and one learning rate. Protocol and results: docs/results/learn.md.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from studies.comparisons import draw_differences, print_differences
from studies.rows import BEYOND, IN_RANGE, MAIN, ORACLE, SECONDARY
from studies.runs import Job, places
from studies.statistics import mean_interval
from studies.surprise import OUTCOMES, Counted, chosen, paired, print_gains, print_rows
from studies.surprise_runs import complete, finished
from studies.tables import table_line
from studies.training import CONTRASTS

[(PLACE, FIRST_SEED)] = places("learn").items()
RATE = 1.4e-4  # of all rows
SEEDS = 6
LEARN_ROWS = [*MAIN, *SECONDARY, *BEYOND]  # DAPO first
# Significantly different from DAPO where training sharpens: docs/results/training.md.
FOUND = (
    *("delta", "delta, held out", IN_RANGE, ORACLE),
    *("reinforce", "no_norm", "no_range_map", "select random"),
)


def learn(args) -> dict:
    """All rows of the tables where there is something to learn, at one rate (half an hour)."""
    path = Path(args.csv)
    runs = finished(path)
    jobs = []
    for seed in range(FIRST_SEED, FIRST_SEED + (args.seeds or SEEDS)):
        jobs += [Job(PLACE, row, RATE, seed) for row in LEARN_ROWS]
    complete(jobs, runs, path, "all rows")

    of = chosen(runs, jobs)
    print_gains(of)
    print_rows(of, {PLACE: dict.fromkeys(LEARN_ROWS, RATE)})
    others = [row for row in LEARN_ROWS if row not in ("dapo", *FOUND)]
    tested = {
        "minus dapo, significant on sharpen": against_dapo(of, FOUND),
        "minus dapo, the other rows": against_dapo(of, others),
        "one thing at a time": {name: paired(of, PLACE, *pair) for name, pair in CONTRASTS.items()},
    }
    measured = {}
    for label, differences in tested.items():
        measured[label] = print_differences(differences, label, ranks=True)
        print()
    print_outcomes(of)

    picture = path.with_suffix(".png")
    groups = dict(list(tested.items())[:2])
    draw_differences(groups, "Toy: every row where there is something to learn", picture)
    return measured


def against_dapo(of: Counted, rows: Sequence[str], what: str = "reward") -> dict[str, np.ndarray]:
    """Row -> [seeds] its difference from DAPO."""
    return {row: paired(of, PLACE, row, "dapo", what) for row in rows}


def print_outcomes(of: Counted) -> None:
    """Each row's differences from DAPO in the outcomes that are not tested."""
    columns = [against_dapo(of, LEARN_ROWS[1:], what) for what in OUTCOMES.values()]
    print(table_line(["minus dapo", *OUTCOMES]))
    print("|---|" + "---|" * len(OUTCOMES))
    for row in LEARN_ROWS[1:]:
        print(table_line([row, *(mean_interval(column[row]) for column in columns)]))
