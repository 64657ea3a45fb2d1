"""What several notebooks need: the toy's model and a graded batch, exact token gradients, kinds of tokens, coloured text."""
import inspect, sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import matplotlib.pyplot as plt  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from IPython.display import HTML, Code  # noqa: E402

import delta  # noqa: E402, F401
import toy  # noqa: E402
from benchmarks.credit import auc, batch  # noqa: E402, F401
from policy import Policy  # noqa: E402

BLUE, ORANGE, GREEN, PURPLE, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#7F7F7F"  # Okabe and Ito: told apart by all
plt.rcParams.update({"figure.dpi": 80, "font.size": 12, "axes.titlesize": 13, "figure.constrained_layout.use": True, "axes.grid": True, "grid.alpha": 0.3})


def source(function) -> Code:
    """The code of a function of this repository."""
    return Code(inspect.getsource(function), language="python")


def token_gradients(lm, rollouts) -> torch.Tensor:
    """∇ log π of every response token by autograd, over all parameters: [N, D]."""
    rows = Policy(lm).rows(rollouts, torch.arange(len(rollouts.texts))).logprob
    parameters = list(lm.parameters())
    return torch.stack([torch.cat([g.flatten() for g in torch.autograd.grad(x, parameters, retain_graph=True)]) for x in rows])


def kinds(token_ids: torch.Tensor) -> list[str]:
    """`result` (the digit after =), `copy` (an operand or sign), `connective`, or `frame` (=, line ends, the box, the end token)."""
    words = [toy.VOCABULARY[i] for i in token_ids.tolist()]
    kind = lambda i, w: ("connective" if w in toy.CONNECTIVES else "frame" if w in ("=", "\n", "answer ", "\\boxed{", "}", "<eos>") else
                         "result" if i and words[i - 1] in ("=", "\\boxed{") else "copy")
    return [kind(i, w) for i, w in enumerate(words)]


def coloured(words: list[str], values, title: str, low: str = "blue", high: str = "orange") -> HTML:
    """Words on a background from blue (lowest value) over white (0, or the middle) to orange (highest)."""
    values = np.asarray(values, dtype=float)
    top = np.abs(values).max() or 1.0
    span = lambda w, x: (f'<span title="{x:.3g}" style="background:rgba({"213,94,0" if x > 0 else "0,114,178"},{0.75 * abs(x) / top:.2f})">'
                         f'{w.replace("<", "&lt;").replace(chr(10), "↵<br>")}</span>')
    return HTML(f"<b>{title}</b><pre style='line-height:1.5'>" + "".join(map(span, words, values)) + "</pre>")
