"""Studies at one learning rate, without a pilot. Runs in --csv are not repeated.

docs/results/learn.md holds the protocol of `learn`.
"""

from pathlib import Path

from studies.comparisons import (
    OUTCOMES,
    Counted,
    against_dapo,
    completed,
    draw_differences,
    over_places,
    over_seeds,
    paired,
    print_differences,
    print_gains,
    print_rows,
)
from studies.places import LEARN, places
from studies.rows import BEYOND, IN_RANGE, MAIN, ORACLE, SECONDARY
from studies.runs import ENDS
from studies.statistics import mean_interval
from studies.surprise import EVERY_SEED
from studies.tables import table_line
from studies.training import BEST, CONTRASTS, RATE

DEFAULT_RATE = 1e-4  # of train.py on the toy
LEARN_RATE = 1.4e-4  # of 28 steps where there is something to learn: below the unstable rates

LEARN_ROWS = (*MAIN, *SECONDARY, *BEYOND)  # DAPO first
# Significantly different from DAPO where training sharpens: docs/results/training.md.
FOUND = (
    *("delta", "delta, held out", IN_RANGE, ORACLE),
    *("reinforce", "no_norm", "no_range_map", "select random"),
)


# ---- where there is something to learn -----------------------------------------------------------


def bases(args) -> None:
    """What DAPO gains on six bases, over sixteen seeds (twenty minutes).

    Five bases learn: those of `bench.py surprise`, whose pilot tries the next rate, 2e-4. The sixth
    sharpens, with more to gain than the sharpening base of that study.
    """
    print_gains(completed(args, LEARN | places("bases"), ["dapo"], LEARN_RATE, 16))


def learn(args) -> dict:
    """All rows of the tables where there is something to learn, at one rate (half an hour).

    Tests whether the findings from training that sharpens hold where training must learn.
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
    measured = {}
    for label, differences in (tested | {"one thing at a time": contrasts}).items():
        measured[label] = print_differences(differences, label, ranks=True)
        print()
    print_outcomes(of, place)
    return measured


def longer(args) -> dict:
    """DAPO, DelTA, surprise and its control in 110 steps and on programs (quarter of an hour).

    The second study of docs/results/surprise.md: protocol and results.
    """
    of = completed(args, places("longer"), EVERY_SEED, LEARN_RATE, 3)
    print_gains(of)
    print_rows(of, dict.fromkeys(places("longer"), dict.fromkeys(EVERY_SEED, LEARN_RATE)))
    measured = {}
    for a, b in (("surprise", "dapo"), ("surprise", "no centroids"), ("no centroids", "dapo")):
        for name, what in {"reward": "reward", "last 5 steps": "last", **OUTCOMES}.items():
            label = f"{name}: {a} minus {b}"
            measured[label] = print_differences(over_places(of, a, b, what), label, ranks=True)
            print()
    return measured


def print_outcomes(of: Counted, place: str) -> None:
    """Print each row's differences from DAPO in the outcomes that are not tested."""
    columns = [against_dapo(of, place, LEARN_ROWS, what) for what in OUTCOMES.values()]
    print(table_line(["minus dapo", *OUTCOMES]))
    print("|---|" + "---|" * len(OUTCOMES))
    for row in LEARN_ROWS[1:]:
        print(table_line([row, *(mean_interval(column[row]) for column in columns)]))


def make_train(args) -> None:
    """The gain of `make train`, over several seeds (10 minutes)."""
    of = completed(args, places("make_train"), ["delta"], DEFAULT_RATE, 8)
    [runs] = (by_seed.values() for by_seed in of.values())
    ends = {
        "held out, temperature 1": [(run.accuracies[0], run.accuracy) for run in runs],
        "held out, greedy": [(run.greedies[0], run.greedy) for run in runs],
        f"training, first and last {ENDS} steps": [(run.first, run.last) for run in runs],
    }
    print("| accuracy | before | after | least after | seeds |\n|---|---|---|---|---|")
    for name, pairs in ends.items():
        before, after = zip(*pairs, strict=True)
        cells = [mean_interval(before), mean_interval(after), f"{min(after):.3f}", len(after)]
        print(table_line([name, *cells]))


# ---- where training sharpens ---------------------------------------------------------------------


def seeds(args) -> None:
    """Three methods on a base of five operations where training sharpens (20 minutes)."""
    of = completed(args, places("seeds"), ("grpo", "dapo", "delta"), DEFAULT_RATE, 8)
    print(
        "| method | held-out accuracy after | mean training reward over all 160 steps | seeds |\n"
        "|---|---|---|---|"
    )
    for (place, row), by_seed in of.items():
        cells = [mean_interval(over_seeds(of, place, row, what)) for what in ("accuracy", "reward")]
        print(table_line([row, *cells, len(by_seed)]))
    before = [run.accuracies[0] for run in of[place, "delta"].values()]
    print(
        f"held-out accuracy before: {mean_interval(before)} "
        f"(one base model, {len(before)} sampling seeds)"
    )


def curves(args) -> None:
    """Curves over the steps: DAPO, DelTA, its best other form and the oracles (7 minutes)."""
    of = completed(args, places("curves"), ("dapo", "delta", BEST, IN_RANGE, ORACLE), RATE, 8)
    for place, row in of:
        print(f"{row}: {mean_interval(over_seeds(of, place, row))}")
