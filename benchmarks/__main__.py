"""python -m benchmarks NAME runs one of these studies, none of which is needed for training."""

import argparse
import importlib
import sys

from infra.errors import one_line_endings

WHERE = {  # NAME, which is also the name of its module and of the function there -> what it does
    "plan": "estimates what fits on GPUs: <flags of train.py> --gpus 8 --gpu-gb 80",
    "speed": "times a step of --model FOLDER, beside `generate` and TRL",
    "gain": "estimates what a step of each method is worth: <flags of train.py> --batches 64",
    "compare": "trains rows x rates x seeds, and prints paired differences: compare OUT --rows ...",
}


def main(argv: list[str] | None = None) -> None:
    name, *flags = (sys.argv[1:] if argv is None else argv) or ["--help"]
    names = "\n".join(f"{name:11}{does}" for name, does in WHERE.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        usage="python -m benchmarks NAME [flags]; NAME --help lists its flags",
        description=f"{__doc__}\n{names}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=WHERE)
    args = parser.parse_args([name])
    args.flags = flags
    with one_line_endings(f"python -m benchmarks {args.name}"):
        module = importlib.import_module(f"benchmarks.{args.name}")
        getattr(module, args.name)(args)


if __name__ == "__main__":
    main()
