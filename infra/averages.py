"""Writes and prints an evaluation's averages.json; matches those of two for `compare`."""

from pathlib import Path

from infra.errors import UserError, printable
from infra.folder import write_json


def write_averages(averages: dict, folder: Path) -> None:
    """Write averages.json, and print its averages as a Markdown table."""
    write_json(folder / "averages.json", averages)
    n = averages["sampling"]["samples"]
    print(f"| benchmark | problems | avg@{n} | pass@{n} | standard error |\n|---|---|---|---|---|")
    for name, result in averages["benchmarks"].items():
        cells = [name, str(result["problems"])]
        for key in ("avg", "pass", "stderr"):
            cells.append("-" if result[key] is None else f"{result[key]:.2%}")
        print("| " + " | ".join(cells) + " |")
    print(f"question-weighted average: {averages['average']:.2%} ({folder / 'averages.json'})")


def common_benchmarks(first: str, second: str, one: dict, two: dict) -> list[str]:
    """The benchmarks in both evaluations; prints which sampling flags differ.

    Raises UserError if there are none, or one has other problems or another order in the two. An
    earlier version's averages.json does not say which problems it is about.
    """
    names = [name for name in one["benchmarks"] if name in two["benchmarks"]]
    if not names:
        raise UserError(f"{first} and {second} have no benchmark in common")
    for name in names:
        here, there = (averages["benchmarks"][name] for averages in (one, two))
        if here.get("hash", "none") != there.get("hash"):
            raise UserError(
                f"{name}: {first} and {second} have different problems, or another order "
                f"({here['problems']} and {there['problems']} problems): run evaluate.py --regrade "
                "for both with the same data"
            )

    flags, others = (averages["sampling"] for averages in (one, two))
    differing = [
        f"{name} {value} and {others[name]}"
        for name, value in flags.items()
        if others.get(name, value) != value  # an earlier version wrote fewer
    ]
    if differing:
        line = f"{first} and {second} were sampled differently: {', '.join(differing)}"
        print(printable(line))
    return names
