"""A web page of a run's sampled responses, with each token's credit.

    python -m infra.samples RUN           # RUN/samples.html
    python -m infra.samples RUN OTHER     # RUN/compared.html: two runs side by side

RUN is an --output-dir of train.py. The page is one file and needs no network: open it in a browser.
Runs of two methods with the same seed sample the same responses in step 1, so their weights can be
compared token by token.

A policy writes the responses, so the page inserts them as text, and its Content-Security-Policy
allows no script but its own.
"""

import argparse
import base64
import hashlib
import json
import re
from pathlib import Path

from infra.errors import UserError, one_line_endings
from infra.files import read_json, read_lines, write_aside
from toy.by_name import decisive_tokens

TEMPLATE = Path(__file__).with_suffix(".html")


# ---- the page ------------------------------------------------------------------------------------


def page(folders: list[Path]) -> str:
    """The page of one or two runs. Raises UserError if a folder has no samples."""
    runs = [read_samples(folder) for folder in folders]
    low, high = shading(runs)
    data = json.dumps({"runs": runs, "low": low, "high": high}, separators=(",", ":"))
    for character in "<>&":  # so that no response can close the data element
        data = data.replace(character, f"\\u{ord(character):04x}")

    html = TEMPLATE.read_text(encoding="utf-8")
    for tag, place in (("style", "STYLE_HASH"), ("script", "SCRIPT_HASH")):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        html = html.replace(place, f"sha256-{digest}", 1)
    before, after = html.split(">DATA<")
    return f"{before}>{data}<{after}"


def read_samples(folder: Path) -> dict:
    """A run's data for the page. Raises UserError if the run has no samples yet."""
    if not (folder / "config.json").exists():
        raise UserError(f"{folder} holds no run of train.py: it has no config.json")
    config = read_json(folder / "config.json", method=str, seed=int)
    kinds = {"step": int, "reward": float, "advantage": float, "tokens": list, "lambda": list}
    samples = read_lines(folder / "samples.jsonl", **kinds)
    if not samples:
        raise UserError(f"{folder} has no samples yet: wait for its first step")

    for sample in samples:
        del sample["response"]  # the tokens contain it
        sample["problem"] = spoken(sample.get("problem", ""))
        found = decisive_tokens(sample["problem"], sample["tokens"])
        if found is not None:
            sample["decisive"] = found
    return {
        "name": str(folder),
        "label": f"{config['method']}, seed {config['seed']}",
        "seed": config["seed"],
        "samples": samples,
    }


def spoken(problem: str | list[dict]) -> str:
    """A problem as one text; a chat as one line per turn."""
    if isinstance(problem, str):
        return problem
    return "\n".join(f"{turn['role']}: {turn['content']}" for turn in problem)


def shading(runs: list[dict]) -> tuple[float, float]:
    """The weights with the lightest and the darkest shade: the 1 % and 99 % quantiles."""
    weights = [weight for run in runs for sample in run["samples"] for weight in sample["lambda"]]
    weights = sorted(weight for weight in weights if weight is not None)
    low = weights[len(weights) // 100]
    high = weights[-1 - len(weights) // 100]
    if high - low < 0.01:  # as with DAPO, whose weights are all 1
        return low - 0.5, high + 0.5
    return low, high


# ---- main ----------------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m infra.samples",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", type=Path, metavar="RUN")
    parser.add_argument("other", nargs="?", type=Path, metavar="OTHER")
    parser.add_argument("--output", type=Path, help="default: a file in RUN")
    args = parser.parse_args(argv)
    folders = [args.run] if args.other is None else [args.run, args.other]
    name = "samples.html" if args.other is None else "compared.html"
    output = args.output or args.run / name
    with one_line_endings("infra.samples"):
        write_aside(output, page(folders))
    print(f"{output}: open it in a browser")


if __name__ == "__main__":
    main()
