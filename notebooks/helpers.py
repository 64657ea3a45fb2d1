"""What several notebooks need: pictures, coloured text, exercises, the blackboard, token gradients.

Importing it puts the repository's files on the path, so a notebook imports from here first.

Shapes: B responses, N packed response tokens, D parameters.
"""

import base64
import html
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
from IPython.display import HTML, Code, display

import toy
from infra.packing import Rollouts

# Okabe and Ito's colours: told apart also by those who see some colours alike.
BLUE = "#0072B2"
ORANGE = "#D55E00"
GREEN = "#009E73"
PURPLE = "#CC79A7"
GREY = "#7F7F7F"

# The two sides of an update, told apart by colour and by mark; the toy's truth.
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
torch.set_num_threads(1)  # the toy is too small to gain by more: they would wait for each other
transformers.utils.logging.disable_progress_bar()  # a bar of loaded weights is no result


# ---- pictures ------------------------------------------------------------------------------------


def show(fig: plt.Figure, alt: str) -> None:
    """Display a figure as a PNG with a text for those who cannot see it, and close it."""
    data, metadata = as_png(fig, alt)
    display(data, metadata=metadata, raw=True)


def as_png(fig: plt.Figure, alt: str) -> tuple[dict, dict]:
    """A figure as what `display` takes, (data, metadata), with its text; the figure is closed.

    Its colours are rounded to 32 steps a channel, which makes the notebook's file smaller.
    """
    fig.canvas.draw()
    rgba = np.asarray(fig.canvas.buffer_rgba()) / 255
    png = io.BytesIO()
    plt.imsave(png, np.round(31 * rgba) / 31, format="png")
    plt.close(fig)
    data = {"image/png": base64.b64encode(png.getvalue()).decode(), "text/plain": alt}
    return data, {"image/png": {"alt": alt}}


class LivePicture:
    """A picture that is drawn again in its place while a cell runs."""

    def __init__(self, alt: str):
        self.alt = alt
        self.handle = None

    def draw(self, function: Callable, *arguments) -> None:
        """function(figure, *arguments) draws it, on an empty figure."""
        fig = plt.figure(figsize=(11, 4))
        function(fig, *arguments)
        data, metadata = as_png(fig, self.alt)
        if self.handle is None:
            self.handle = display(data, metadata=metadata, raw=True, display_id=True)
        else:
            self.handle.update(data, metadata=metadata, raw=True)


def panels(draw: Callable, name: str, values: Sequence, alt: str, live: bool | None = None) -> None:
    """A row of small pictures, one for each value of a parameter, in the place of a slider.

    draw: draw(ax, value) draws one panel and names its axes; the title is set here.
    name: of the parameter, for the titles `name = value`.
    live: whether a slider follows below the row. None: where ipywidgets is there and the notebook
        is open in Jupyter, and not run from a command line.
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
    """One panel with a slider over the values; nothing where ipywidgets is missing."""
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
    words: list[str],
    values,
    title: str,
    side: str,
    marks=None,
    centre: float = 0.0,
    limit: float | None = None,
    marked: str = "marked",
) -> HTML:
    """Words on a background by their value: blue above the centre, orange below.

    Without colours it reads by the underline: solid above the centre, dotted below, and the thicker
    the farther away. Pointing at a word shows its value.
    values: one for each word.
    side: "+" or "-", the side of the update that the response is on.
    marks: a bool for each word; those marked stand in a frame. None: no word is.
    centre: the value of no colour, 0 of a score and 1 of a weight.
    limit: the distance from the centre from which colour and underline are fullest; None: the
        largest that occurs. Give one where texts are compared, or where few values are far away.
    marked: what the frame says, for the legend.
    """
    distance = np.asarray(values, dtype=float) - centre
    limit = limit or float(np.abs(distance).max()) or 1.0
    marks = [False] * len(words) if marks is None else marks

    spans = []
    for word, away, mark in zip(words, distance, marks, strict=True):
        span = f'<span title="{centre + away:.3g}" style="{word_style(away / limit, mark)}">'
        text = html.escape(word).replace("\n", "↵")
        spans.append(f"{span}{text}</span>" + "<br>" * word.count("\n"))

    beyond = (bool(distance.min() < -1.001 * limit), bool(distance.max() > 1.001 * limit))
    legend = [colour_bar(centre - limit, centre, centre + limit, beyond)]
    legend.append(f'<span style="{word_style(-0.7, False)}">below</span>')
    legend.append(f'<span style="{word_style(0.7, False)}">above</span>')
    if any(marks):
        legend.append(f'<span style="{word_style(0.0, True)}">{html.escape(marked)}</span>')
    heading = f"<b>({side}) {html.escape(title)}</b><br>{' &nbsp; '.join(legend)}"
    return HTML(f"{heading}<pre style='line-height:1.9'>{''.join(spans)}</pre>")


def word_style(strength: float, mark: bool) -> str:
    """The CSS of a word whose value is `strength` limits from the centre."""
    share = min(abs(strength), 1.0)
    rgb, line = ("0,114,178", "solid") if strength > 0 else ("213,94,0", "dotted")  # BLUE, ORANGE
    style = f"background:rgba({rgb},{0.6 * share:.2f});padding:0 1px"
    width = round(4 * share)  # pixels
    if width:
        style += f";border-bottom:{width}px {line} rgb({rgb})"
    if mark:
        style += f";outline:2px solid {TRUTH};outline-offset:1px"
    return style


def colour_bar(
    low: float, centre: float, high: float, beyond: tuple[bool, bool] = (False, False)
) -> str:
    """The colours of credit_text from low to high, with their values.

    beyond: whether there are values below low, and above high; they have the colour of that end.
    """
    shades = "rgba(213,94,0,0.6), rgba(213,94,0,0), rgba(0,114,178,0), rgba(0,114,178,0.6)"
    box = "display:inline-block;width:140px;text-align:center"
    bar = f"background:linear-gradient(90deg, {shades});border:1px solid {GREY}"
    ends = (f"{'≤ ' * beyond[0]}{low:.3g}", f"{'≥ ' * beyond[1]}{high:.3g}")
    return f'{ends[0]} <span style="{box};{bar}">{centre:.3g}</span> {ends[1]}'


# ---- exercises -----------------------------------------------------------------------------------


def check(answer, expected, hint: str, tolerance: float = 1e-4) -> bool | None:
    """Say whether an answer is right: True, False, or None where there is none yet.

    answer: None or ... where the stub was not filled in; else a number, a bool, or a list, array or
        tensor of them.
    tolerance: of the difference, as a share of the expected number where that exceeds 1.
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
    """Numbers of any kind as float64."""
    if isinstance(numbers, torch.Tensor):
        numbers = numbers.detach().cpu().double().numpy()
    return np.asarray(numbers, dtype=float)


def leaderboard(
    yours, others: dict[str, float], unit: str, lowest_first: bool = False
) -> int | None:
    """Print a table with your number in its place, and return the place; None without a number.

    unit: what the numbers are, as `cosine to the true gradient`.
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
    p: torch.Tensor  # [3] π of each word, in the one context there is
    token: torch.Tensor  # [4] the word that each response consists of
    v: torch.Tensor  # [4, 3] its token gradient with respect to the three logits: e_x - p
    rewards: torch.Tensor  # [4]
    A: torch.Tensor  # [4] group advantages


def blackboard() -> Blackboard:
    """The example that returns in every notebook.

    The policy is a softmax over three logits with p = (1/2, 1/4, 1/4); the responses a, b, a, c of
    one prompt have the rewards 1, 1, 0, 0. So that numbers stay round, advantages take the
    population's standard deviation, 1/2, and no ε: they are ±1. (`grpo.group_advantages` takes the
    unbiased one; with it all are ±0.866, and nothing else changes.)
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
    """The code of a function of this repository.

    start: text in the first line to show, so that what stands before it is left out.
    """
    code = inspect.getsource(function)
    if start:
        line = code.rindex("\n", 0, code.index(start)) + 1
        names = ", ".join(inspect.signature(function).parameters)
        code = f"def {function.__name__}({names}):\n    ...\n{code[line:]}"
    return Code(code, language="python")


def token_gradients(lm, rollouts: Rollouts) -> torch.Tensor:
    """∇ log π of every response token by autograd, over all parameters: [N, D]."""
    parameters = list(lm.parameters())

    gradients = []
    for i in range(len(rollouts)):  # one response at a time: autograd goes back through it alone
        start = int(rollouts.prompt_length[i])
        token = rollouts.response_ids(i)  # [T]
        ids = rollouts.ids[i, : start + len(token)]
        logits = lm(input_ids=ids[None], use_cache=False).logits[0, start - 1 : -1]  # [T, V]
        logprob = logits.log_softmax(dim=1).gather(1, token[:, None])[:, 0]  # [T]

        # Row t of the identity asks for the gradient of token t; all T go back at once.
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
    """The kind of one word that stands after `last`."""
    if word in toy.CONNECTIVES:
        return "connective"
    if word in FRAME:
        return "frame"
    if last in ("=", "\\boxed{"):
        return "result"
    return "copy"
