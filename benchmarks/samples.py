"""Writes a web page of a run's sampled responses, with each token's credit.

    python -m benchmarks.samples RUN           # RUN/samples.html
    python -m benchmarks.samples RUN OTHER     # RUN/compared.html: two runs side by side

RUN is an --output-dir of train.py. The page is one file and needs no network: open it in a browser.
Runs of two methods with the same seed sample the same responses in step 1, so their token weights
can be compared one by one.
"""

import json
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path

import numpy as np

from infra.errors import UserError, one_line_endings
from infra.folder import read_json, read_lines, write_text
from toy.by_name import decisive_tokens

# Token weights below 1 are orange and those above 1 are blue: colour-blind readers can tell these
# apart. Black letters are legible on both, and in grey, blue is darker than orange.
COLOURS = ((242, 160, 70), (247, 247, 247), (98, 154, 217))  # red, green, blue


def page(folders: list[Path]) -> str:
    """The page of one or two runs. Raises UserError if a folder has no samples."""
    runs = [read_samples(folder) for folder in folders]
    low, high = limits([sample for run in runs for sample in run["samples"]])
    data = json.dumps({"runs": runs, "low": low, "high": high, "colours": COLOURS})
    data = data.replace("<", "\\u003c")  # so that no response can close the data element
    template = Path(__file__).with_suffix(".html").read_text(encoding="utf-8")
    return template.replace(">DATA<", f">{data}<")


def limits(samples: list[dict]) -> tuple[float, float]:
    """The two token weights with the strongest colours: 1 % of all may lie below, and 1 % above.

    Both are at least 0.01 away from 1, because DAPO's token weights are all 1.
    """
    weights = [weight for sample in samples for weight in sample["lambda"]]
    low, high = np.quantile(weights, [0.01, 0.99], method="inverted_cdf")  # weights that occur
    return min(0.99, float(low)), max(1.01, float(high))


def read_samples(folder: Path) -> dict:
    """A run's data, as the page needs them. Raises UserError if the run has no samples yet."""
    config = read_json(folder / "config.json")
    samples = read_lines(folder / "samples.jsonl")
    if not samples:
        raise UserError(f"{folder} has no samples yet: wait until its first step is finished")
    for sample in samples:
        del sample["response"]  # the tokens contain it
        if (found := decisive_tokens(sample["problem"], sample["tokens"])) is not None:
            sample["decisive"] = found
    label = f"{config['method']}, seed {config['seed']}"
    return {"name": str(folder), "label": label, "seed": config["seed"], "samples": samples}


def parser_of_runs(program: str, about: str) -> ArgumentParser:
    """The command line `python -m PROGRAM RUN ...`. about: the program's docstring."""
    lines = RawDescriptionHelpFormatter
    parser = ArgumentParser(f"python -m {program}", description=about, formatter_class=lines)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    return parser


if __name__ == "__main__":
    folders = parser_of_runs("benchmarks.samples", __doc__).parse_args().runs
    with one_line_endings("benchmarks.samples"):
        if len(folders) > 2:
            raise UserError(f"{len(folders)} runs: pass one or two output folders of train.py")
        output = folders[0] / ("samples.html" if len(folders) == 1 else "compared.html")
        write_text(output, page(folders))
        print(f"{output}: open it in a browser")
