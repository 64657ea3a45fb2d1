"""What several notebooks need: exact token gradients, kinds of tokens, coloured text, a palette.

Importing it puts the repository's files on the path, so a notebook imports from here first.

Shapes: B responses, N packed response tokens, D parameters.
"""

import html
import inspect
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import matplotlib.pyplot as plt
import numpy as np
import torch
import transformers
from IPython.display import HTML, Code

import toy
from infra.packing import Rollouts
from infra.policy import Policy

# Okabe and Ito's colours: told apart also by those who see some colours alike.
BLUE = "#0072B2"
ORANGE = "#D55E00"
GREEN = "#009E73"
PURPLE = "#CC79A7"
GREY = "#7F7F7F"

plt.rcParams.update(
    {
        "figure.dpi": 80,
        "font.size": 12,
        "axes.titlesize": 13,
        "figure.constrained_layout.use": True,
        "axes.grid": True,
        "grid.alpha": 0.3,
    }
)
torch.set_num_threads(1)  # the toy is too small to gain by more: they would wait for each other
transformers.utils.logging.disable_progress_bar()  # a bar of loaded weights is no result


def source(function) -> Code:
    """The code of a function of this repository."""
    return Code(inspect.getsource(function), language="python")


def token_gradients(lm, rollouts: Rollouts) -> torch.Tensor:
    """∇ log π of every response token by autograd, over all parameters: [N, D]."""
    policy = Policy(lm)
    parameters = list(lm.parameters())

    gradients = []
    for i in range(len(rollouts)):  # one response at a time: autograd goes back through it alone
        logprob = policy.rows(rollouts, torch.tensor([i])).logprob
        for x in logprob:
            parts = torch.autograd.grad(x, parameters, retain_graph=True)
            gradients.append(torch.cat([part.flatten() for part in parts]))  # [D]
    return torch.stack(gradients)


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


def coloured(words: list[str], values, title: str) -> HTML:
    """Words on a background from blue (the lowest value) over white (0) to orange (the highest).

    Pointing at a word shows its value.
    """
    values = np.asarray(values, dtype=float)
    strength = np.abs(values) / (np.abs(values).max() or 1.0)

    spans = []
    for word, value, share in zip(words, values, strength, strict=True):
        rgb = "213,94,0" if value > 0 else "0,114,178"  # ORANGE, BLUE
        style = f"background:rgba({rgb},{0.75 * share:.2f})"
        text = html.escape(word).replace("\n", "↵<br>")
        spans.append(f'<span title="{value:.3g}" style="{style}">{text}</span>')
    return HTML(f"<b>{title}</b><pre style='line-height:1.5'>{''.join(spans)}</pre>")
