"""Draws a right and a wrong response to one problem of a run, each token coloured by its weight.

    python -m benchmarks.picture RUN ...     # RUN/tokens.png, for each RUN

RUN is an --output-dir of train.py. The two responses are the first of RUN/samples.jsonl that share
a step and a problem and differ in their reward; their last lines are drawn. Beside them stands the
weight of every token of that step's samples, against its probability p. The middle of the scale is
1, the weight of every token in DAPO. On the toy a frame marks the tokens that decided the reward.
The font has no Chinese and no emojis: benchmarks/samples.py shows them.
"""

import re
import textwrap
from itertools import product
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from benchmarks.samples import COLOURS, limits, parser_of_runs, read_samples
from infra.errors import UserError, one_line_endings

WIDTH = 700  # of the picture in pixels, as it is shown; the file has twice as many
PANEL = 440  # of a response, in such pixels
SIZE = 11  # of the letters
COLUMNS = int(PANEL / (0.62 * SIZE))  # a letter's width is 0.62 of its size
LINES = 6  # of a response, the last ones
SIDES = {"right": "#1b7837", "wrong": "#762a83"}  # green and purple: colour-blind readers see both


def pair_of(samples: list[dict]) -> tuple[dict, dict]:
    """The first right and wrong response to one problem. Raises UserError if there is none."""
    for one, other in product(samples, samples):
        alike = one["step"] == other["step"] and one["problem"] == other["problem"]
        if alike and one["reward"] > other["reward"]:
            return one, other
    raise UserError("no problem has a right and a wrong response yet: train for more steps")


def visible(text: str) -> str:
    """The text with a mark in place of each character that is not seen."""
    text = text.replace("\n", "↵").replace("\t", "→")
    return "".join(letter if letter.isprintable() else "�" for letter in text)


def place(
    tokens: list[str], columns: int, lines: int | None = None
) -> list[tuple[int, int, int, str]]:
    """Parts of tokens on the last `lines` lines: the token's index, column, line and visible text.

    A line ends after a token's line breaks, and where the next part does not fit.
    """
    placed = []
    column = line = 0
    for i, token in enumerate(tokens):
        for part in re.findall(rf"[^\n]{{0,{columns - 1}}}\n+|[^\n]{{1,{columns}}}", token):
            text = visible(part)[:columns]
            if column + len(text) > columns:
                column, line = 0, line + 1
            placed.append((i, column, line, text))
            column += len(text)
            if part.endswith("\n"):
                column = columns  # the next part does not fit
    above = max(0, line + 1 - (lines or line + 1))  # lines that are left out
    return [(i, column, line - above, text) for i, column, line, text in placed if line >= above]


def draw_tokens(
    axes: Axes,
    tokens: list[str],
    weights: np.ndarray,
    colours: ScalarMappable,
    framed: list[int],
    columns: int = 24,
    size: float = 14,
    lines: int | None = None,
) -> int:
    """Draw the tokens of the last lines, one box each, and a frame around some.

    Returns how many are drawn.
    """
    placed = place(tokens, columns, lines)
    for i, column, line, text in placed:
        shape = ((column + 0.05, line - 0.44), len(text) - 0.1, 0.88)
        axes.add_patch(Rectangle(*shape, color=colours.to_rgba(weights[i]), lw=0))
        if i in framed:
            axes.add_patch(Rectangle(*shape, fill=False, lw=1.8, zorder=2))
        for k, letter in enumerate(text):  # one box per letter, whatever the font's width
            at = {"ha": "center", "va": "center_baseline", "parse_math": False}
            axes.text(column + k + 0.5, line, letter, family="monospace", size=size, **at)
    axes.set(xlim=(-0.1, columns), ylim=(placed[-1][2] + 0.6, -0.7))
    axes.axis("off")
    return placed[-1][0] + 1 - placed[0][0]


def draw_response(axes: Axes, sample: dict, colours: ScalarMappable) -> None:
    """Draw a response's first tokens; those in sample["decisive"] have a frame."""
    weights = np.array(sample["lambda"], dtype=float)  # NaN, where there is none, has no colour
    framed = sample.get("decisive", [])
    drawn = draw_tokens(axes, sample["tokens"], weights, colours, framed, COLUMNS, SIZE, LINES)
    axes.set_ylim(LINES - 0.4, -0.7)
    kind, moved = ("right", "up") if sample["reward"] > 0 else ("wrong", "down")
    cut = ", cut off" if sample.get("truncated") else ""
    title = f"{kind}{cut}: tokens are pushed {moved}, blue ones more"
    if drawn < len(weights):
        title += f" (last {drawn} of {len(weights)})"
    axes.set_title(title, size=SIZE, loc="left", weight="bold", color=SIDES[kind])


def draw_weights(axes: Axes, samples: list[dict]) -> None:
    """Draw the weight of each token against its probability p, in a colour for each side."""
    for kind, sign in (("right", 1), ("wrong", -1)):
        side = [sample for sample in samples if sign * sample["advantage"] > 0]
        p = np.exp([x for sample in side for x in sample["logprob"]])
        weights = np.array([x for sample in side for x in sample["lambda"]], dtype=float)
        axes.scatter(p, weights, s=5, alpha=0.5, lw=0, color=SIDES[kind], label=kind)
    axes.axhline(1, color="grey", lw=0.8, zorder=0)
    axes.set(xlabel="probability p of the token", xlim=(-0.03, 1.03))
    axes.set_title("weight λ̄ of all tokens", size=SIZE, loc="left", weight="bold", pad=20)
    place = {"loc": "lower left", "bbox_to_anchor": (-0.03, 0.985), "ncols": 2}
    axes.legend(frameon=False, markerscale=3, handletextpad=0, borderpad=0, **place)


def colours_of(reach: float) -> ScalarMappable:
    """Weight -> colour, for weights from 1 - reach to 1 + reach."""
    between = LinearSegmentedColormap.from_list("credit", np.array(COLOURS) / 255)
    return ScalarMappable(Normalize(1 - reach, 1 + reach), between)


def draw_scale(axes: Axes, colours: ScalarMappable, low: float, high: float, note: str) -> None:
    """Draw the colours of the weights from low to high, and a note below."""
    bar = axes.figure.colorbar(colours, cax=axes, orientation="horizontal", label=note)
    axes.set_xlim(low, high)
    bar.set_ticks([1], labels=["1, as in DAPO"])
    axes.text(-0.01, 0.5, f"≤ {low:.2f}", ha="right", va="center", transform=axes.transAxes)
    axes.text(1.01, 0.5, f"≥ {high:.2f}", ha="left", va="center", transform=axes.transAxes)


def draw(one: dict, other: dict, samples: list[dict], path: Path) -> None:
    """Draw two responses below their problem, the scale, and the weights of `samples` beside."""
    problem = " ".join(one["problem"].split())
    head = textwrap.wrap(visible(problem), 118, max_lines=4, placeholder=" …")
    top, panel, bottom = 15 * len(head) + 34, 1.45 * SIZE * LINES, 62  # pixels
    height = top + 2 * panel + 30 + bottom
    pixels = np.array([WIDTH, height, WIDTH, height])
    figure = Figure(figsize=pixels[:2] / 72, dpi=72)  # so that a point is a pixel
    figure.text(8 / WIDTH, 1 - 8 / height, "\n".join(head), size=SIZE, va="top", parse_math=False)

    low, high = limits([one, other])
    colours = colours_of(max(1 - low, high - 1))
    for y, sample in ((bottom + panel + 30, one), (bottom, other)):
        axes = figure.add_axes(np.array([5, y, PANEL, panel]) / pixels)
        draw_response(axes, sample, colours)
    note = "weight λ̄ = λ / mean λ of the token in the loss"
    if "decisive" in one:
        note += "; framed: it decided the reward"
    scale = figure.add_axes(np.array([80, bottom - 26, PANEL - 150, 12]) / pixels)
    draw_scale(scale, colours, low, high, note)
    beside = [PANEL + 50, bottom - 14, WIDTH - PANEL - 60, 2 * panel + 30]
    draw_weights(figure.add_axes(np.array(beside) / pixels), samples)
    figure.savefig(path, dpi=144)


def main(argv: list[str] | None = None) -> None:
    folders = parser_of_runs("benchmarks.picture", __doc__).parse_args(argv).runs
    with one_line_endings("benchmarks.picture"):
        for folder in folders:
            run = read_samples(folder)
            one, other = pair_of(run["samples"])
            of_step = [sample for sample in run["samples"] if sample["step"] == one["step"]]
            draw(one, other, of_step, folder / "tokens.png")
            print(f"saved as {folder}/tokens.png")


if __name__ == "__main__":
    main()
