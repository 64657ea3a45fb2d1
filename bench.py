"""The measurements behind README.md and RESULTS.md: python bench.py NAME [--json FILE].

seeds      grpo, dapo and delta on the toy over several seeds (20 minutes; resumes
           results/seeds.csv)
methods    DelTA, its interventions, two oracles and the rows of the paper's tables on the toy, each
           at its best learning rate (an hour and a half; resumes results/methods.csv)
confirm    the best of these rows on fresh seeds, another base model and other settings (an hour;
           resumes results/confirm.csv)
noise      a few of these rows under flipped rewards, with rare or plentiful reward, with idle
           tokens (half an hour; resumes results/noise.csv)
curves     step by step, five of these rows (7 minutes)
credit     which tokens the methods' weights single out on the toy, how near their update is to the
           true policy gradient, and why: sides, shape, saturation (half an hour; resumes
           results/credit.csv; compares with results/truth.csv where that is)
truth      the true advantage of single tokens on the toy, by continuing from each prefix (half an
           hour)
verify     verify.py against math_verify on labelled answers, on all pairs of golds, and its slowest
           hostile inputs
soups      verify.py on three million random token soups (--soups: fewer)
plan       what a run needs of each GPU, by counting: plan <flags of train.py> --gpus 8 --gpu-gb 80;
           without flags what Qwen3-0.6B to 14B need of 1, 4 and 8 GPUs
balance    what padding and ranks in step take of an update, simulated
overhead   DelTA's coefficients as a share of a training step, and against the released code's extra
           forward passes
rollouts   chunked sampling against one plain generate call, on even, mild and heavy mixes of
           lengths
logprobs   blockwise log-probabilities against a full log-softmax at a vocabulary of 151,936
mismatch   the sampler's log p against the scored one, in float32 and bfloat16; how many responses
           are the same when sampled alone
padding    what the padding of unequal responses costs where caches are full, by counting
scaling    how a step grows with responses, their length, the group size and the ranks
kills      a run killed 20 times and continued, against one left alone (5 minutes)
programs   programs that the sandbox runs in a second, and the worst latency, with 1 and 2 workers
gpu        the stages of a step of Qwen3-0.6B to 8B, random weights, on the GPU there is
trl        a step of ours against one of TRL's GRPOTrainer (pip install trl==1.16.0 beside
           requirements.txt, in an environment of its own)
trl_delta  README's DelTA inside that trainer against ours, to the last digits (same environment)

Speed is measured as a ratio in one run, by alternating repetitions: medians, with the smallest and
largest. Each NAME is a function in benchmarks/.
"""

import argparse
import importlib
import json
import os
import platform
import sys
from importlib.metadata import version

from infra.errors import UserError

WHERE = {  # a bench, and the module in which its function is
    "seeds": "studies.seed_study",
    "methods": "studies.method_study",
    "confirm": "studies.confirm_study",
    "noise": "studies.noise_study",
    "curves": "studies.curve_study",
    "credit": "studies.credit_study",
    "truth": "studies.truth",
    "verify": "benchmarks.graders",
    "soups": "benchmarks.soups",
    "plan": "benchmarks.plan",
    "balance": "benchmarks.balance",
    "overhead": "benchmarks.overhead",
    "rollouts": "benchmarks.rollouts",
    "logprobs": "benchmarks.logprobs",
    "mismatch": "benchmarks.mismatch",
    "padding": "benchmarks.padding",
    "scaling": "benchmarks.scaling",
    "kills": "benchmarks.kills",
    "programs": "benchmarks.programs",
    "gpu": "benchmarks.gpu",
    "trl": "benchmarks.trl_step",
    "trl_delta": "benchmarks.trl_delta",
}

SEEDS = {"seeds": 8, "methods": 16, "confirm": 16, "noise": 6}  # by default


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="bench.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,  # --seed is train.py's
    )
    parser.add_argument("name", choices=WHERE)
    parser.add_argument("--repetitions", type=int, default=3, help="of each timing")
    parser.add_argument(
        "--seeds",
        type=int,
        choices=range(2, 17),
        metavar="2..16",
        help="of the studies of training; default: "
        + ", ".join(f"{name} {count}" for name, count in SEEDS.items()),
    )
    parser.add_argument("--soups", type=int, default=3_000_000, help="pairs that `soups` grades")
    parser.add_argument("--output-dir", default="runs/seeds", help="where `seeds` keeps its runs")
    parser.add_argument(
        "--csv", default="", help="where a study keeps its rows; default results/NAME.csv"
    )
    parser.add_argument("--json", default="", help="also write what was measured to this file")
    args, args.flags = parser.parse_known_args(argv)
    if args.flags and args.name != "plan":
        parser.error(f"unrecognized arguments: {' '.join(args.flags)}")
    if args.seeds is None:
        args.seeds = SEEDS.get(args.name)
    if not args.csv:
        args.csv = f"results/{args.name}.csv"
    return args


def write_json(path: str, name: str, measured) -> None:
    """What was measured, and on what."""
    about = {
        "name": name,
        "machine": platform.machine(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "transformers": version("transformers"),
        "numpy": version("numpy"),
    }
    with open(path, "w") as file:
        json.dump({**about, "measured": measured}, file, indent=1)


def main(argv: list[str] | None = None) -> None:
    args = parse_arguments(argv)
    # Hugging Face libraries read it once; their bars over weights would stand between our lines.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

    # Only the file that is asked for: some need packages that the others do without.
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
