"""python -m benchmarks NAME: a study measures only what is missing from its CSV file."""

import argparse
import importlib
import os

from infra.errors import one_line_endings

WHERE = {  # NAME -> the module of its function, what it does
    "plan": ("plan", "what fits: <flags of train.py> --gpus 8 --gpu-gb 80"),
    "speed": ("speed", "a step of --model FOLDER, beside this machine's limit and other programs"),
    "credit": ("credit", "what DelTA gives to real text: <flags of train.py>"),
    "weights": ("weights", "which token weights help on the toy, each at its own best rate"),
    "branches": ("branches", "what its tokens deserve, by branching: <the same flags>"),
}


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The parsed command line. The flags of train.py, and a program's own, are left in `flags`."""
    names = "\n".join(f"{name:11}{does}" for name, (_, does) in WHERE.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=f"{__doc__}\n{names}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,  # --seed is a flag of train.py
    )
    parser.add_argument("name", choices=WHERE)
    parser.add_argument("--csv", default="", help="a study's CSV file; default results/NAME.csv")
    args, args.flags = parser.parse_known_args(argv)
    args.csv = args.csv or f"results/{args.name}.csv"
    return args


def main(argv: list[str] | None = None) -> None:
    args = parse_arguments(argv)
    # Hugging Face libraries read this once, at import. Progress bars would break up the output.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    with one_line_endings(f"python -m benchmarks {args.name}"):
        module = importlib.import_module(f"benchmarks.{WHERE[args.name][0]}")
        getattr(module, args.name)(args)


if __name__ == "__main__":
    main()
