"""Helpers for the notebooks: pictures, coloured words, exercises, blackboard, token gradients.

Importing this file adds the repository to the path, so a notebook imports from here first.

Shapes: B responses, N packed response tokens, D parameters.
"""

import base64
import inspect
import io
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import matplotlib.pyplot as plt
import numpy as np
import torch
import transformers
from IPython.display import Code, display
from matplotlib.patches import Rectangle

import toy
from batch import Rollout

# Okabe and Ito's colours, which colour-blind readers can distinguish.
BLUE = "#0072B2"
ORANGE = "#D55E00"
GREEN = "#009E73"
PURPLE = "#CC79A7"
GREY = "#7F7F7F"

# The two sides of an update differ in colour and in marker. TRUTH marks decisive tokens.
POS = {"color": BLUE, "marker": "o"}
NEG = {"color": ORANGE, "marker": "X"}
TRUTH = GREEN

plt.rcParams.update(
    {
        "figure.dpi": 110,
        "font.size": 12,
        "axes.titlesize": 12,
        "figure.constrained_layout.use": True,
        "axes.grid": True,
        "grid.alpha": 0.3,
    }
)
torch.set_num_threads(1)  # more threads would not speed up so small a model
transformers.utils.logging.disable_progress_bar()  # no progress bar in the output


# ---- pictures ------------------------------------------------------------------------------------


def show(fig: plt.Figure, alt: str) -> None:
    """Display a figure as a PNG with alternative text, and close it."""
    data, metadata = as_png(fig, alt)
    display(data, metadata=metadata, raw=True)


def as_png(fig: plt.Figure, alt: str) -> tuple[dict, dict]:
    """A figure's data and metadata, with alternative text, as `display` takes them; closes it.

    Colours are rounded to 32 steps per channel, which makes the notebook's file smaller.
    """
    fig.canvas.draw()
    rgba = np.asarray(fig.canvas.buffer_rgba()) / 255
    png = io.BytesIO()
    plt.imsave(png, np.round(31 * rgba) / 31, format="png")
    plt.close(fig)
    data = {"image/png": base64.b64encode(png.getvalue()).decode(), "text/plain": alt}
    return data, {"image/png": {"alt": alt}}


class LivePicture:
    """A picture that is redrawn in place while a cell runs."""

    def __init__(self, alt: str):
        self.alt = alt
        self.handle = None

    def draw(self, function: Callable, *arguments) -> None:
        """Redraw with function(figure, *arguments), on an empty figure."""
        fig = plt.figure(figsize=(11, 4))
        function(fig, *arguments)
        data, metadata = as_png(fig, self.alt)
        if self.handle is None:
            self.handle = display(data, metadata=metadata, raw=True, display_id=True)
        else:
            self.handle.update(data, metadata=metadata, raw=True)


def panels(draw: Callable, name: str, values: Sequence, alt: str, live: bool | None = None) -> None:
    """A row of small pictures, one for each value of a parameter, instead of a slider.

    draw: draw(ax, value) draws one panel and names its axes; the title is set here.
    name: the parameter's name, for the titles `name = value`.
    live: whether to add a slider below the row. None: add it if ipywidgets is installed and the
        notebook is open in Jupyter rather than run from a command line.
    """
    size = (3.2 * len(values), 3.2)
    fig, axes = plt.subplots(1, len(values), figsize=size, sharex=True, sharey=True, squeeze=False)
    for ax, value in zip(axes[0], values, strict=True):
        draw(ax, value)
        ax.set_title(f"{name} = {value}")
        ax.label_outer()
    show(fig, alt)

    if live is None:
        live = "JPY_SESSION_NAME" in os.environ  # set by a Jupyter server for its notebooks
    if live:
        slider(draw, name, values, alt)


def slider(draw: Callable, name: str, values: Sequence, alt: str) -> None:
    """One panel with a slider over the values; nothing if ipywidgets is missing."""
    try:
        from ipywidgets import SelectionSlider, interact
    except ImportError:
        return

    def one(value):
        fig, ax = plt.subplots(figsize=(4.6, 3.6))
        draw(ax, value)
        ax.set_title(f"{name} = {value}")
        show(fig, alt)

    interact(one, value=SelectionSlider(options=list(values), description=name))


# ---- coloured text -------------------------------------------------------------------------------


def credit_text(
    ax: plt.Axes,
    words: list[str],
    values,
    title: str,
    marks=None,
    centre: float = 0.0,
    limit: float | None = None,
) -> None:
    """Draw words on a background coloured by value: blue above the centre, orange below.

    The underline shows the values without colours: solid above the centre, dotted below, and
    thicker farther away. The output is a picture because some pages strip styles from HTML.

    values: one per word.
    marks: a bool per word; a frame is drawn around marked words, the tokens that decided.
        None: no word is marked.
    centre: the value shown without colour: 0 for scores, 1 for weights.
    limit: the distance from the centre at which colour and underline are strongest; None: the
        largest distance. Set it to compare texts, or if a few values are far away.
    """
    distance = np.asarray(values, dtype=float) - centre
    limit = limit or float(np.abs(distance).max()) or 1.0
    marks = [False] * len(words) if marks is None else marks

    x, y, widest = 0, 0, 0
    for word, away, mark in zip(words, distance, marks, strict=True):
        text = word.replace("\n", "↵")
        draw_word(ax, x, y, text, away / limit, mark)
        widest = max(widest, x + len(text))
        x, y = (0, y + 1) if "\n" in word else (x + len(text), y)
    ax.set(xlim=(-0.5, max(21, widest) + 0.5), ylim=(y + 0.9, -0.9), title=title)
    ax.axis("off")
    note = f"blue, solid: above {centre:g}; orange, dotted: below"
    frame = "; green frame: the token decided" if any(marks) else ""
    ax.figure.supxlabel(note + frame, fontsize=12)


def draw_word(ax: plt.Axes, x: int, y: int, text: str, strength: float, mark: bool) -> None:
    """One word of credit_text from column x of line y; its value is `strength` limits away."""
    share = min(abs(strength), 1.0)
    colour, line = (BLUE, "-") if strength > 0 else (ORANGE, ":")
    width = len(text)
    ax.add_patch(Rectangle((x, y - 0.5), width, 0.9, fc=colour, alpha=0.5 * share, lw=0))
    thick = round(
        4 * share
    )  # points; Matplotlib scales dots with it, so a hair would have millions
    if thick:
        ax.plot([x + 0.1, x + width - 0.1], [y + 0.4] * 2, line, color=colour, lw=thick)
    if mark:
        ax.add_patch(Rectangle((x, y - 0.55), width, 1.05, fill=False, ec=TRUTH, lw=3))
    for k, letter in enumerate(text):  # one box per letter, whatever the font's width
        ax.text(x + k + 0.5, y, letter, va="center", ha="center", family="monospace", size=14)


# ---- exercises -----------------------------------------------------------------------------------


def check(answer, expected, hint: str, tolerance: float = 1e-4) -> bool | None:
    """Print and return whether an answer is right: True, False, or None without an answer.

    answer: None or ... if the stub was not filled in; else a number, a bool, or a list, array or
        tensor of numbers or bools.
    tolerance: maximum difference, relative to the expected number if that exceeds 1.
    """
    if answer is None or answer is ...:
        print("not yet")
        return None
    expected = as_array(expected)
    try:
        answer = as_array(answer)
    except (TypeError, ValueError, RuntimeError):
        print(f"not right: {type(answer).__name__} where numbers are expected. {hint}")
        return False

    if answer.shape != expected.shape:
        print(f"not right: shape {answer.shape} where {expected.shape} is expected. {hint}")
        return False
    allowed = tolerance * np.maximum(1.0, np.abs(expected))
    right = bool((np.abs(answer - expected) <= allowed).all())  # a NaN is not right
    print("right" if right else f"not right: {hint}")
    return right


def as_array(numbers) -> np.ndarray:
    """Numbers of any type as float64."""
    if isinstance(numbers, torch.Tensor):
        numbers = numbers.detach().cpu().double().numpy()
    return np.asarray(numbers, dtype=float)


def leaderboard(
    yours, others: dict[str, float], unit: str, lowest_first: bool = False
) -> int | None:
    """Print a table with your number at its rank, and return the rank; None without a number.

    unit: what the numbers are, such as `cosine to the true gradient`.
    lowest_first: whether a smaller number is better.
    """
    rows = [(float(number), name) for name, number in others.items()]
    place = None
    remark = ""
    if yours is None or yours is ...:
        remark = "not yet"
    elif np.isnan(float(yours)):
        remark = "not allowed (NaN)"
    else:
        rows.append((float(yours), "you"))
    rows.sort(reverse=not lowest_first)

    print(f"      {unit}")
    for i, (number, name) in enumerate(rows, start=1):
        if name == "you":
            place = i
        print(f"{i:3d}.  {number:8.4f}  {name}")
    if remark:
        print(f"  -   {remark}   you")
    return place


# ---- the blackboard ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Blackboard:
    """Four one-word responses of a policy over three words: small enough to compute by hand."""

    words: list[str]  # a, b, c
    p: torch.Tensor  # [3] π of each word, in the only context
    token: torch.Tensor  # [4] the word that each response consists of
    v: torch.Tensor  # [4, 3] its token gradient with respect to the three logits: e_x - p
    rewards: torch.Tensor  # [4]
    A: torch.Tensor  # [4] group advantages


def blackboard() -> Blackboard:
    """The example that recurs in every notebook.

    The policy is a softmax over three logits with p = (1/2, 1/4, 1/4); the responses a, b, a, c of
    one prompt have the rewards 1, 1, 0, 0. To keep the numbers simple, advantages use the
    population standard deviation, 1/2, and no ε: they are ±1. (`grpo.group_advantages` uses the
    unbiased standard deviation; then all are ±0.866, and nothing else changes.)
    """
    words = ["a", "b", "c"]
    p = torch.tensor([0.5, 0.25, 0.25])
    token = torch.tensor([0, 1, 0, 2])
    rewards = torch.tensor([1.0, 1.0, 0.0, 0.0])
    A = (rewards - rewards.mean()) / rewards.std(correction=0)
    v = torch.eye(3)[token] - p  # ∇ log softmax(z)_x = e_x - p
    return Blackboard(words, p, token, v, rewards, A)


# ---- the toy -------------------------------------------------------------------------------------


def source(function, start: str = "") -> Code:
    """The source code of a function in this repository.

    start: text in the first line to show; earlier lines are left out.
    """
    code = inspect.getsource(function)
    if start:
        line = code.rindex("\n", 0, code.index(start)) + 1
        names = ", ".join(inspect.signature(function).parameters)
        code = f"def {function.__name__}({names}):\n    ...\n{code[line:]}"
    return Code(code, language="python")


def token_gradients(lm, rollouts: list[Rollout]) -> torch.Tensor:
    """∇ log π of every response token by autograd, over all parameters: [N, D]."""
    parameters = list(lm.parameters())

    gradients = []
    for rollout in rollouts:  # one response at a time, to keep the graph small
        start = len(rollout.prompt)
        token = torch.from_numpy(rollout.tokens).long()  # [T]
        ids = torch.cat([torch.tensor(rollout.prompt), token])
        logits = lm(input_ids=ids[None], use_cache=False).logits[0, start - 1 : -1]  # [T, V]
        logprob = logits.log_softmax(dim=1).gather(1, token[:, None])[:, 0]  # [T]

        # Row t of the identity selects the gradient of token t; one call computes all T.
        every = torch.eye(len(token))
        parts = torch.autograd.grad(logprob, parameters, every, is_grads_batched=True)
        gradients.append(torch.cat([part.flatten(1) for part in parts], dim=1))  # [T, D]
    return torch.cat(gradients)


FRAME = ("=", "\n", "answer ", "\\boxed{", "}", "<eos>")


def kinds(token_ids: torch.Tensor) -> list[str]:
    """The kind of each token of a response.

    `result` (the digit after = or in the box), `connective`, `frame` (=, line ends, the box, the
    end token), or `copy` (an operand or its sign).
    """
    words = [toy.VOCABULARY[i] for i in token_ids.tolist()]
    before = ["", *words[:-1]]
    return [kind(word, last) for word, last in zip(words, before, strict=True)]


def kind(word: str, last: str) -> str:
    """The kind of one word that follows `last`."""
    if word in toy.CONNECTIVES:
        return "connective"
    if word in FRAME:
        return "frame"
    if last in ("=", "\\boxed{"):
        return "result"
    return "copy"
