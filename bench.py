"""Runs the measurements behind README.md and RESULTS.md: python bench.py NAME [--json FILE].

Speeds are ratios between two programs that alternate in one process: the median, minimum and
maximum over repetitions. Training and credit studies keep their results in a CSV file and measure
only the missing rows.
"""

import argparse
import ast
import importlib
import json
import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path

from infra.errors import UserError

# Benchmark -> its function's module. The first line of the function's docstring is the help text.
WHERE = {
    "make_train": "studies.training",
    "seeds": "studies.training",
    "methods": "studies.training",
    "confirm": "studies.training",
    "noise": "studies.training",
    "surprise": "studies.surprise",
    "mean": "studies.mean",
    "centring": "studies.centring",
    "bases": "studies.training",
    "longer": "studies.training",
    "learn": "studies.training",
    "curves": "studies.training",
    "credit": "studies.credit_study",
    "truth": "studies.truth",
    "verify": "benchmarks.graders",
    "plan": "benchmarks.plan",
    "rollouts": "benchmarks.rollouts",
    "gpu": "benchmarks.gpu",
}


def help_of(name: str) -> str:
    """The first line of a benchmark's docstring, read without importing its packages."""
    path = Path(__file__).parent / f"{WHERE[name].replace('.', '/')}.py"
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return ast.get_docstring(node).splitlines()[0]
    raise LookupError(f"{path} has no function {name}")


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The parsed command line."""
    benches = "\n".join(f"{name:11}{help_of(name)}" for name in WHERE)
    parser = argparse.ArgumentParser(
        prog="bench.py",
        description=f"{__doc__}\n{benches}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,  # --seed is a flag of train.py
    )
    parser.add_argument("name", choices=WHERE)
    parser.add_argument("--repetitions", type=int, default=3, help="repetitions of each timing")
    parser.add_argument(
        "--seeds",
        type=int,
        choices=range(2, 17),
        metavar="2..16",
        help="number of seeds in a training study; default: as in RESULTS.md",
    )
    parser.add_argument(
        "--csv", default="", help="CSV file of a study's results; default results/NAME.csv"
    )
    parser.add_argument("--json", default="", help="also write the measurements to this file")
    args, args.flags = parser.parse_known_args(argv)
    if args.flags and args.name != "plan":
        parser.error(f"unrecognized arguments: {' '.join(args.flags)}")
    if not args.csv:
        args.csv = f"results/{args.name}.csv"
    return args


def write_json(path: str, name: str, measured) -> None:
    """Write the measurements, the machine type and the package versions."""
    about = {
        "name": name,
        "machine": platform.machine(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "transformers": version("transformers"),
        "numpy": version("numpy"),
    }
    with open(path, "w") as file:
        json.dump({**about, "measured": measured}, file, indent=1, default=list)


def main(argv: list[str] | None = None) -> None:
    args = parse_arguments(argv)
    # Hugging Face libraries read this once, at import. Progress bars would break up the output.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

    # Import only the requested benchmark: some need packages that others do not.
    module = importlib.import_module(WHERE[args.name])
    bench = getattr(module, args.name)
    try:
        measured = bench(args)
    except UserError as error:
        print(f"bench.py {args.name}: {error}", file=sys.stderr)
        sys.exit(2)

    if args.json:
        write_json(args.json, args.name, measured)


if __name__ == "__main__":
    main()
