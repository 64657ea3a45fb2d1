"""Sampled responses with the credit of each token: samples.jsonl, and the page samples.html.

    python -m infra.samples RUN           # RUN/samples.html, as training writes it
    python -m infra.samples RUN OTHER     # RUN/compared.html: two runs side by side

RUN is an --output-dir of train.py. The page is one file and needs no network: open it in a browser.
Runs of two methods with one seed sample the same responses in step 1, so that their weights can be
compared token by token.

A policy wrote the responses. The page sets them as text, and its Content-Security-Policy allows no
script but its own.
"""

import argparse
import base64
import hashlib
import json
import math
import re
from pathlib import Path

import torch

from infra.errors import UserError, one_line_endings
from infra.files import append_line, read_json, read_lines, write_aside
from infra.packing import Rollouts, TokenBatch, packed_rows
from toy.by_name import decisive_tokens

TEMPLATE = Path(__file__).with_suffix(".html")
GROUPS = 4  # whose responses are saved in one step


# ---- samples.jsonl -------------------------------------------------------------------------------


def save_samples(
    run,
    step: int,
    problems: list[dict],
    rollouts: Rollouts,
    rewards: torch.Tensor,
    tokens: TokenBatch,
    weights: torch.Tensor,
) -> None:
    """Append two responses of each of four groups, spread over the batch, to samples.jsonl.

    The two have unequal rewards where the group has. Only the first rank writes.
    problems: B; the tests of programs, often long, are left out. rewards: [B]. weights: [N], as
    `lambda` of each token.
    """
    if run.rank > 0:
        return
    G = run.cfg.group_size
    groups = rewards.view(-1, G).tolist()
    every = max(1, len(groups) // GROUPS)
    for g in range(0, len(groups), every)[:GROUPS]:
        first = groups[g][0]
        differing = [j for j in range(G) if groups[g][j] != first]
        for j in (0, differing[0] if differing else 1):
            i = g * G + j
            rows = packed_rows(torch.tensor([i]), rollouts.response_length.cpu())
            rows = rows.to(weights.device)
            ids = rollouts.response_ids(i).tolist()
            sample = {
                "step": step,
                **{name: cell for name, cell in problems[i].items() if name != "tests"},
                "group": g,
                "group_rewards": groups[g],
                "reward": groups[g][j],
                "advantage": round(float(tokens.advantage[rows[0]]), 4),
                "response": rollouts.texts[i],
                "tokens": [run.tokenizer.decode([token]) for token in ids],
                "lambda": rounded(weights[rows], 4),
                "logprob": rounded(tokens.logprob[rows], 3),
                "entropy": rounded(tokens.entropy[rows], 3),
            }
            append_line(run.folder / "samples.jsonl", sample)


def rounded(values: torch.Tensor, digits: int) -> list[float | None]:
    """The values, and None for one that is not finite: JSON has no word for that."""
    return [round(value, digits) if math.isfinite(value) else None for value in values.tolist()]


# ---- samples.html --------------------------------------------------------------------------------


def write_page(folder: Path) -> None:
    """samples.html of a run so far, if it has samples."""
    samples = folder / "samples.jsonl"
    if samples.exists() and samples.stat().st_size > 0:
        write_aside(folder / "samples.html", page([folder]))


def page(folders: list[Path]) -> str:
    """The page of one run, or of two. Raises UserError where a folder has no samples."""
    runs = [read_samples(folder) for folder in folders]
    low, high = shading(runs)
    data = json.dumps({"runs": runs, "low": low, "high": high}, separators=(",", ":"))
    for character in "<>&":  # so that no response ends the element that holds the data
        data = data.replace(character, f"\\u{ord(character):04x}")

    html = TEMPLATE.read_text(encoding="utf-8")
    for tag, place in (("style", "STYLE_HASH"), ("script", "SCRIPT_HASH")):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        html = html.replace(place, f"sha256-{digest}", 1)
    before, after = html.split(">DATA<")
    return f"{before}>{data}<{after}"


def read_samples(folder: Path) -> dict:
    """What the page shows of a run. Raises UserError where it has no samples yet."""
    if not (folder / "config.json").exists():
        raise UserError(f"{folder} holds no run of train.py: it has no config.json")
    config = read_json(folder / "config.json", method=str, seed=int)
    kinds = {"step": int, "reward": float, "advantage": float, "tokens": list, "lambda": list}
    samples = read_lines(folder / "samples.jsonl", **kinds)
    if not samples:
        raise UserError(f"{folder} has no samples yet: wait for its first step")

    for sample in samples:
        del sample["response"]  # its tokens are there
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
    """A problem as one text; a chat as its turns."""
    if isinstance(problem, str):
        return problem
    return "\n".join(f"{turn['role']}: {turn['content']}" for turn in problem)


def shading(runs: list[dict]) -> tuple[float, float]:
    """The weights at which the shades of the page begin and end: the 1 % and 99 % quantiles."""
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
