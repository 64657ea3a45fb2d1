"""python -m benchmarks NAME: measurements beside training."""

import argparse
import importlib

from infra.errors import one_line_endings

WHERE = {  # NAME, which is also the name of its module and of the function there -> what it does
    "plan": "what fits: <flags of train.py> --gpus 8 --gpu-gb 80",
    "speed": "a step of --model FOLDER, beside `generate` and TRL",
    "gain": "what a step with each weighting is worth: <flags of train.py> --batches 64",
    "training": "RUN ...: several rows, rates and seeds, each row at its best rate",
    "races": "twelve steps from one model: DelTA, DAPO, and DAPO at a higher rate",
}


def main(argv: list[str] | None = None) -> None:
    names = "\n".join(f"{name:11}{does}" for name, does in WHERE.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=f"{__doc__}\n{names}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,  # --seed is a flag of train.py
    )
    parser.add_argument("name", choices=WHERE)
    args, args.flags = parser.parse_known_args(argv)  # flags of train.py, and a program's own
    with one_line_endings(f"python -m benchmarks {args.name}"):
        module = importlib.import_module(f"benchmarks.{args.name}")
        getattr(module, args.name)(args)


if __name__ == "__main__":
    main()
