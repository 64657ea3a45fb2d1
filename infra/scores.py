"""Writes and prints an evaluation's scores.json; reads and checks the inputs of `compare`."""

from pathlib import Path

from infra.errors import UserError
from infra.files import check_kinds, damaged, read_json, write_json


def write_scores(scores: dict, folder: Path) -> None:
    """Write scores.json, and print its averages as a Markdown table."""
    write_json(folder / "scores.json", scores)
    n = scores["samples"]
    print(f"| benchmark | problems | avg@{n} | pass@{n} | standard error |\n|---|---|---|---|---|")
    for name, result in scores["benchmarks"].items():
        cells = [name, str(result["problems"])]
        for key in ("avg", "pass", "stderr"):
            cells.append("-" if result[key] is None else f"{result[key]:.2%}")
        print("| " + " | ".join(cells) + " |")
    print(f"question-weighted average: {scores['average']:.2%} ({folder / 'scores.json'})")


def read_scores(folder: str) -> dict:
    """The scores.json of an output folder. Raises UserError if it is missing or damaged."""
    path = Path(folder) / "scores.json"
    if not path.exists():
        raise UserError(
            f"{folder} has no scores.json: run evaluate.py with --output-dir {folder} first"
        )
    scores = read_json(path, benchmarks=dict, samples=int)
    for name, result in scores["benchmarks"].items():
        where = f"{path}, {name},"
        check_kinds(result, where, problems=int, repetitions=list, by_problem=list)
        check_accuracies(result["repetitions"], scores["samples"], f"{where} repetitions")
        check_accuracies(result["by_problem"], result["problems"], f"{where} by_problem")
    return scores


def check_accuracies(values: list, count: int, where: str) -> None:
    """Raise UserError unless `values` contains `count` numbers, each between 0 and 1."""
    if len(values) != count or count < 1:
        raise UserError(damaged(where, f"expected {count} values, found {len(values)}"))
    for value in values:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (is_number and 0 <= value <= 1):  # also excludes NaN
            raise UserError(damaged(where, f"{value} is not an accuracy"))


def common_benchmarks(first: str, second: str, one: dict, two: dict) -> list[str]:
    """The benchmarks in both evaluations. Raises UserError if none, or if their sizes differ."""
    names = [name for name in one["benchmarks"] if name in two["benchmarks"]]
    if not names:
        raise UserError(f"{first} and {second} have no benchmark in common")
    for name in names:
        here = one["benchmarks"][name]["problems"]
        there = two["benchmarks"][name]["problems"]
        if here != there:
            raise UserError(
                f"{name} has {here} problems in {first} and {there} in {second}: "
                "evaluate both on the same set"
            )
    return names
