"""Draws a right and a wrong response to one problem of a run, each token coloured by its weight.

    python -m benchmarks.picture RUN                 # RUN/tokens.png, from step 1
    python -m benchmarks.picture RUN --step 40 --output FILE

RUN is an --output-dir of train.py. The two responses are the first of RUN/samples.jsonl at that
step that share a problem and differ in their reward. On the toy a frame marks the tokens known to
decide the reward.
"""

import argparse
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from benchmarks.samples import read_samples
from infra.errors import UserError, one_line_endings

WIDTH = 24  # characters in a line
LINES = 20  # of a response; the rest is left out
COLOURS = "PuOr"  # from orange, below 1, to violet; colour-blind readers can tell them apart


def pair_of(samples: list[dict], step: int) -> tuple[dict, dict]:
    """The first right and wrong response to one problem at a step. Raises UserError if none."""
    for one in samples:
        for other in samples:
            alike = one["step"] == other["step"] == step and one["problem"] == other["problem"]
            if alike and one["reward"] > other["reward"]:
                return one, other
    steps = ", ".join(str(x) for x in dict.fromkeys(sample["step"] for sample in samples))
    raise UserError(
        f"no problem has a right and a wrong response at step {step}: --step takes one of {steps}"
    )


def place(tokens: list[str]) -> list[tuple[int, int, str]]:
    """The column, the line and the visible text of each token, on at most LINES lines."""
    placed = []
    column = line = 0
    for token in tokens:
        text = token.replace("\n", "↵").replace("\t", "→")
        if column and column + len(text) > WIDTH:
            column, line = 0, line + 1
        if line == LINES:
            break
        placed.append((column, line, text[:WIDTH]))
        column += len(text)
        if token.endswith("\n"):
            column, line = 0, line + 1
    return placed


def draw_tokens(
    axes: Axes, tokens: list[str], weights: np.ndarray, colours: ScalarMappable, framed: list[int]
) -> int:
    """Draw the tokens, one box each, and a frame around some. Returns how many are drawn."""
    placed = place(tokens)
    for i, (column, line, text) in enumerate(placed):
        shape = ((column + 0.04, line - 0.42), len(text) - 0.08, 0.84)
        axes.add_patch(Rectangle(*shape, color=colours.to_rgba(weights[i]), lw=0))
        if i in framed:
            axes.add_patch(Rectangle(*shape, fill=False, lw=1.8, zorder=2))
        for k, letter in enumerate(text):  # one box per letter, whatever the font's width
            place_at = {"ha": "center", "va": "center", "parse_math": False}
            axes.text(column + k + 0.5, line, letter, family="monospace", size=14, **place_at)
    axes.set(xlim=(-0.1, WIDTH), ylim=(placed[-1][1] + 0.6, -0.7))
    axes.axis("off")
    return len(placed)


def draw_response(axes: Axes, sample: dict, colours: ScalarMappable) -> None:
    """Draw a response's tokens; those in sample["decisive"] have a frame."""
    weights = np.array(sample["lambda"], dtype=float)  # NaN, where there is none, has no colour
    drawn = draw_tokens(axes, sample["tokens"], weights, colours, sample.get("decisive", []))
    title = "right" if sample["reward"] > 0 else "wrong"
    title += f" response, A = {sample['advantage']:+.2f}"
    if drawn < len(weights):
        title += f", first {drawn} of {len(weights)} tokens"
    axes.set_title(title, size=12, loc="left")


def colours_of(reach: float) -> ScalarMappable:
    """Weight -> colour, for weights from 1 - reach to 1 + reach.

    The darkest half of the map is left out, because black letters stand on its colours.
    """
    return ScalarMappable(TwoSlopeNorm(1, 1 - 2 * reach, 1 + 2 * reach), COLOURS)


def draw(one: dict, other: dict, label: str, path: Path) -> None:
    """Draw two responses side by side, with the scale of the weights below."""
    weights = np.array([*one["lambda"], *other["lambda"]], dtype=float)
    reach = max(0.01, np.nanmax(np.abs(weights - 1)))  # of the scale, on both sides of 1
    colours = colours_of(reach)
    lines = max(place(sample["tokens"])[-1][1] for sample in (one, other)) + 1
    figure = Figure(figsize=(6.6, 1.7 + 0.3 * lines), layout="constrained")
    panels = figure.subplots(1, 2)
    for axes, sample in zip(panels, (one, other), strict=True):
        draw_response(axes, sample, colours)
    bar = figure.colorbar(colours, ax=panels, location="bottom", aspect=40, fraction=0.06)
    bar.ax.set_xlim(1 - reach, 1 + reach)
    bar.set_ticks([1 - reach, 1, 1 + reach], labels=[f"{1 + x * reach:.2f}" for x in (-1, 0, 1)])
    framed = "; framed: it decided the reward" if "decisive" in one else ""
    bar.set_label(f"weight of the token in the loss{framed}")
    problem = one["problem"].strip().split("\n")[0][:50]
    figure.suptitle(f"{problem}   ({label}, step {one['step']})", parse_math=False)
    figure.savefig(path, dpi=140)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.picture",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", type=Path, metavar="RUN")
    parser.add_argument("--step", type=int, default=1)
    parser.add_argument("--output", type=Path, help="another file for the picture")
    args = parser.parse_args(argv)
    with one_line_endings("benchmarks.picture"):
        run = read_samples(args.run)
        output = args.output or args.run / "tokens.png"
        draw(*pair_of(run["samples"], args.step), run["label"], output)
        print(f"saved as {output}")


if __name__ == "__main__":
    main()
