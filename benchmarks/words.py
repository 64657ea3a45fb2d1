"""Sorts the tokens of real text into kinds, and draws them coloured by token weight."""

import re

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.patches import Rectangle

from benchmarks.samples import COLOURS

KINDS = {  # kind of token -> what its text matches, without spaces around it; the first counts
    "end": r"<\|.*\|>|</s>|<end_of_turn>|<eos>",
    "space": r"",
    "digits": r"[\d.,]*\d[\d.,]*",
    "operator": r"[-+*/=<>×÷·%^]+",
    "LaTeX": r"\\.*|frac|times|text|boxed|div|cdot|left|right",
    "word": r"[^\W\d_]+'?[^\W\d_]*",
    "punctuation": r".*",
}


def kind_of(text: str) -> str:
    """The kind of a token, such as `digits` for ` 12`."""
    stripped = text.strip()
    return next(kind for kind, form in KINDS.items() if re.fullmatch(form, stripped, re.DOTALL))


def visible(text: str) -> str:
    """The text with a mark in place of each character that is not seen."""
    text = text.replace("\n", "↵").replace("\t", "→")
    return "".join(letter if letter.isprintable() else "�" for letter in text)


def place(tokens: list[str], columns: int) -> list[tuple[int, int, int, str]]:
    """Places parts of tokens in lines of `columns`: (token's index, column, line, visible text).

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
    return placed


def draw_tokens(
    axes: Axes,
    tokens: list[str],
    weights: np.ndarray,
    colours: ScalarMappable,
    columns: int = 24,
    size: float = 14,
) -> None:
    """Draw the tokens in lines, one box each."""
    placed = place(tokens, columns)
    for i, column, line, text in placed:
        shape = ((column + 0.05, line - 0.44), len(text) - 0.1, 0.88)
        axes.add_patch(Rectangle(*shape, color=colours.to_rgba(weights[i]), lw=0))
        for k, letter in enumerate(text):  # one box per letter, whatever the font's width
            at = {"ha": "center", "va": "center_baseline", "parse_math": False}
            axes.text(column + k + 0.5, line, letter, family="monospace", size=size, **at)
    axes.set(xlim=(-0.1, columns), ylim=(placed[-1][2] + 0.6, -0.7))
    axes.axis("off")


def colours_of(reach: float) -> ScalarMappable:
    """Weight -> colour, for weights from 1 - reach to 1 + reach."""
    between = LinearSegmentedColormap.from_list("credit", np.array(COLOURS) / 255)
    return ScalarMappable(Normalize(1 - reach, 1 + reach), between)
