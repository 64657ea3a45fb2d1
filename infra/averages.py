"""Writes and prints an evaluation's averages.json; matches those of two for `compare`."""

from pathlib import Path

from infra.errors import UserError
from infra.folder import write_json


def write_averages(averages: dict, folder: Path) -> None:
    """Write averages.json, and print its averages as a Markdown table."""
    write_json(folder / "averages.json", averages)
    n = averages["samples"]
    print(f"| benchmark | problems | avg@{n} | pass@{n} | standard error |\n|---|---|---|---|---|")
    for name, result in averages["benchmarks"].items():
        cells = [name, str(result["problems"])]
        for key in ("avg", "pass", "stderr"):
            cells.append("-" if result[key] is None else f"{result[key]:.2%}")
        print("| " + " | ".join(cells) + " |")
    print(f"question-weighted average: {averages['average']:.2%} ({folder / 'averages.json'})")


def common_benchmarks(first: str, second: str, one: dict, two: dict) -> list[str]:
    """The benchmarks in both evaluations. Raises UserError if none, or if their sizes differ."""
    names = [name for name in one["benchmarks"] if name in two["benchmarks"]]
    if not names:
        raise UserError(f"{first} and {second} have no benchmark in common")
    for name in names:
        here = one["benchmarks"][name]["problems"]
        there = two["benchmarks"][name]["problems"]
        if here != there:
            raise UserError(f"{name} has {here} problems in {first} and {there} in {second}")
    return names
