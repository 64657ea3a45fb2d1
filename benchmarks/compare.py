"""Does one evaluated model beat another? The paper's test and one it lacks; `python evaluate.py compare A B` prints both.

The paper's is a one-sided Mann-Whitney U over repetitions (App. K). Repetitions of one model do not vary over which problems were asked, so
a paired bootstrap over problems stands beside it.
"""
import json, math
from pathlib import Path

import numpy as np

from data import UserError
from evaluate import weighted_average

T975 = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131]  # Student's t


def half_width(values) -> float:
    """Of the 95 % t-interval over independent runs (2 to 16 of them)."""
    values = np.asarray(values, dtype=float)
    return T975[len(values) - 2] * values.std(ddof=1) / len(values) ** 0.5


def mean_interval(values) -> str:
    """`mean ± half-width` of the 95 % t-interval over independent runs (2 to 16 of them)."""
    return f"{np.mean(values):.3f} ± {half_width(values):.3f}"


def mann_whitney(a: list[float], b: list[float]) -> tuple[float, float]:
    """(U, p) of the one-sided test that a's scores exceed b's (App. K): U counts pairs a_i > b_j, ties one half; p is exact, the share of
    all ways to deal the pooled scores (ties at their mid-ranks) that give a U as large; normal with tie correction above 60 scores."""
    n, m = len(a), len(b)
    U = sum((x > y) + 0.5 * (x == y) for x in a for y in b)
    pooled = sorted([*a, *b])
    twice_rank = [pooled.index(x) + 1 + len(pooled) - pooled[::-1].index(x) for x in pooled]  # twice the mid-rank, a whole number
    if n + m > 60:
        ties = sum(c**3 - c for c in (pooled.count(x) for x in set(pooled)))
        deviation = math.sqrt(n * m / 12 * (n + m + 1 - ties / ((n + m) * (n + m - 1))))
        return U, 0.5 * math.erfc((U - n * m / 2 - 0.5) / deviation / math.sqrt(2)) if deviation else 1.0
    ways = [{0: 1}] + [{} for _ in range(n)]  # ways[k][s]: how many k-subsets have twice the rank sum s
    for rank in twice_rank:
        for k in range(n, 0, -1):
            for total, count in ways[k - 1].items():
                ways[k][total + rank] = ways[k].get(total + rank, 0) + count
    observed = 2 * U + n * (n + 1)  # twice a's rank sum
    return U, sum(count for total, count in ways[n].items() if total >= observed) / math.comb(n + m, n)


def paired_bootstrap(a: list[float], b: list[float], resamples: int = 10_000, seed: int = 0) -> tuple[float, float, float, float]:
    """(mean difference, low, high, p) of a - b over problems drawn with replacement: 95 % interval, p the share of differences <= 0."""
    difference = np.asarray(a) - np.asarray(b)
    means = difference[np.random.default_rng(seed).integers(len(difference), size=(resamples, len(difference)))].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(difference.mean()), float(low), float(high), float((means <= 0).mean())


def compare(*folders: str) -> None:
    """Print whether the model evaluated in folder `first` beats that in `second`, on the benchmarks both were evaluated on."""
    if len(folders) != 2:
        raise UserError("compare takes two output folders: python evaluate.py compare A B")
    first, second = folders
    one, two = (read_scores(Path(folder)) for folder in (first, second))
    names = [name for name in one["benchmarks"] if name in two["benchmarks"]]
    for name in names:
        if one["benchmarks"][name]["problems"] != two["benchmarks"][name]["problems"]:
            raise UserError(f"{name} has {one['benchmarks'][name]['problems']} problems in {first} and "
                            f"{two['benchmarks'][name]['problems']} in {second}: evaluate both on the same set")
    if not names: raise UserError(f"{first} and {second} have no benchmark in common")
    sizes = [one["benchmarks"][name]["problems"] for name in names]
    repetitions = [[weighted_average(rep, sizes) for rep in zip(*(run["benchmarks"][name]["repetitions"] for name in names))] for run in (one, two)]
    problems = [[x for name in names for x in run["benchmarks"][name]["by_problem"]] for run in (one, two)]
    U, p = mann_whitney(*repetitions)
    mean, low, high, p_problems = paired_bootstrap(*problems)
    print(f"{first} {np.mean(repetitions[0]):.4f}, {second} {np.mean(repetitions[1]):.4f} on {', '.join(names)}")
    print(f"over repetitions: U = {U:g} of {len(repetitions[0]) * len(repetitions[1])}, one-sided p = {p:.3g} (Mann-Whitney, App. K)")
    print(f"over problems: difference {mean:+.4f}, 95 % interval {low:+.4f} to {high:+.4f}, p = {p_problems:.3g} (paired bootstrap)")


def read_scores(folder: Path) -> dict:
    if not (folder / "scores.json").exists():
        raise UserError(f"{folder} has no scores.json: run evaluate.py with --output-dir {folder} first")
    return json.loads((folder / "scores.json").read_text())
