"""Helpers for the notebooks: pictures, graded exercises, tokens of the toy and of a real model.

Import this module first, because it adds the repository to the path.

Shapes: B responses, N tokens of all responses without padding, H hidden size, V vocabulary.
"""

import inspect
import io
import os
import sys
import warnings
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from importlib import import_module
from operator import call
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import matplotlib.pyplot as plt
import numpy as np
import torch
import transformers
from IPython.display import Image, display

import minimal
import toy

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#7F7F7F"  # for the colour-blind too
POS, NEG = {"color": BLUE, "marker": "o"}, {"color": ORANGE, "marker": "X"}  # an update's sides

PASS = ("token_outputs", "one_pass")  # the model's pass, which every answer may call
ANSWERS = ("ablations", "delta", "extensions", "grpo", "methods", "minimal")  # modules with answers
style = {"figure.dpi": 110, "font.size": 12, "axes.titlesize": 12, "axes.grid": True}
plt.rcParams.update(style | {"figure.constrained_layout.use": True, "grid.alpha": 0.3})
torch.set_num_threads(1)  # more threads would not speed up so small a model
transformers.utils.logging.disable_progress_bar()


def show(fig: plt.Figure, alt: str) -> None:
    """Display a figure as a small PNG with alternative text, and close it."""
    fig.canvas.draw()
    rgba, png = np.asarray(fig.canvas.buffer_rgba()) / 255, io.BytesIO()
    plt.imsave(png, np.round(31 * rgba) / 31, format="png")  # few colours make a small file
    plt.close(fig)
    display(Image(png.getvalue(), alt=alt))


def check(
    answer, expected, hint: str, cases=None, tolerance=1e-4, may_use=(), run=call, mistakes=None
):
    """Print and return whether an answer is right: True, False, or None without an answer.

    answer: numbers; or with `cases`, name -> arguments, a function. Then `expected` is a function
        too, and run(function, *arguments) is compared case by case. A stub is or returns None.
    hint: printed if the first case fails. If a later case fails, only its name is printed.
    tolerance: the largest difference, relative to the largest expected number if that exceeds 1.
    may_use: the names of the repository's functions that the answer may call; None allows all.
    mistakes: what somebody did -> the wrong answer; a mistake that gives this answer is printed.

    Call it inside a function, because a cell's names could replace the student's own.
    """
    try:
        for where, case in ({"": ()} if cases is None else cases).items():
            found, right, place = answer, expected, where and f", {where}"
            if cases is not None:
                right, given = run(expected, *case), deepcopy(case)
                with nullcontext() if may_use is None else closed(may_use):
                    found = run(answer, *given)
                if not same(case, given):
                    raise ValueError("it overwrites its argument, which others need: make a copy")
            if found is None:
                print("not yet")
                return None
            compare(found, right, tolerance, told=cases is not None)
    except ValueError as fault:
        code = getattr(inspect.unwrap(answer), "__code__", None)
        if code and inspect.trace()[-1].filename == code.co_filename:
            raise  # an error in the answer's own lines
        of_result = not str(fault).startswith("it ")  # and not of what the answer calls or changes
        fits = of_result and (not where or where == next(iter(cases)))
        named = name_of(mistakes or {}, found, case, tolerance, run) if of_result else ""
        print(f"not right{place}: {fault}.{named or f' {hint}' * fits}")
        return False
    print("right")
    return True


def name_of(mistakes: dict, found, case: tuple, tolerance: float, run: Callable) -> str:
    """A sentence with the first mistake whose result is the one found, or nothing."""
    for name, wrong in mistakes.items():
        try:
            with warnings.catch_warnings(action="ignore"):
                wrong = run(wrong, *deepcopy(case)) if callable(wrong) else wrong
            compare(found, wrong, tolerance)
        except (ValueError, TypeError, RuntimeError):  # another result, or none
            continue
        return f" You get this {name}."
    return ""


@contextmanager
def closed(may_use):
    """Inside, the functions that would answer an exercise raise ValueError, under any name."""

    def refuse(*arguments, **named):
        raise ValueError("it calls a function that does this already; write that part yourself")

    every = [x for name in ANSWERS for x in vars(import_module(name)).values()]
    functions = {*PIECES.values(), *filter(inspect.isfunction, every)}
    inner = {inspect.unwrap(x) for x in functions if x.__name__ not in {*may_use, *PASS}}
    codes = {x: x.__code__ for x in inner if x.__module__ in ANSWERS}
    try:
        for function in codes:
            function.__code__ = refuse.__code__
        yield
    except RecursionError:  # the answer has replaced minimal.py's function, and so calls itself
        refuse()
    finally:
        for function, code in codes.items():
            function.__code__ = code


def same(old, new) -> bool:
    """Whether two values are equal: tensors, lists, tuples, and whatever these contain."""
    if isinstance(old, list | tuple):
        return len(old) == len(new) and all(map(same, old, new))
    return torch.equal(old, new) if isinstance(old, torch.Tensor) else old == new


def numbers(answer) -> np.ndarray:
    """Numbers, arrays, tensors, or lists of these as one float64 array. Refuses 16-bit numbers."""
    if "float16" in str(getattr(answer, "dtype", "")):
        raise ValueError("its numbers have 16 bits, with three digits: return float32")
    return np.asarray(answer.detach() if isinstance(answer, torch.Tensor) else answer, dtype=float)


def compare(answer, expected, tolerance: float, told: bool = True, name: str = "") -> None:
    """Raises ValueError, which says what is different, unless the answer is as expected.

    Both are numbers, or name -> numbers, which are compared in the order of `expected`. told:
    whether the message has the numbers.
    """
    if isinstance(expected, dict):
        for part in expected:
            compare(answer[part], expected[part], tolerance, told, f"{part}: ")
        return
    found, right = numbers(answer), numbers(expected)
    if found.shape != right.shape:
        raise ValueError(f"{name}shape {found.shape} where {right.shape} is expected")
    allowed = tolerance * max(1.0, np.abs(right[np.isfinite(right)]).max(initial=0))
    # NaNs count as equal, for named mistakes that give NaN. No right answer has a NaN.
    if not np.isclose(found, right, rtol=0, atol=allowed, equal_nan=True).all():
        raise ValueError(name + difference(found, right, allowed, told))
    if "int" in str(getattr(expected, "dtype", "")) and np.asarray(answer).dtype.kind == "f":
        raise ValueError("a token is a whole number: return integers")


def difference(found: np.ndarray, right: np.ndarray, allowed: float, told: bool) -> str:
    """A phrase about how numbers differ from the right ones, which have the same shape."""
    n, wrong, nan = right.size, ~(np.abs(found - right) <= allowed), np.isnan(found)
    if nan.any():
        return f"{nan.sum()} of {n} numbers are NaN"
    factor = np.vdot(found, right) / max(1e-30, np.vdot(right, right))
    of_a_factor = np.ptp(right) > 0 and (np.abs(found - factor * right) <= allowed).all()
    if of_a_factor and abs(factor) > 1e-3 and abs(factor - 1) > 0.01:
        return f"yours is {factor:.4g} times what is expected"
    longer = np.linalg.norm(found) / max(1e-30, np.linalg.norm(right))
    if n > 9999 and longer > 0 and max(abs(longer - 1), abs(factor - 1)) > 0.005:
        return f"{longer:.3g} times as long as expected, with a cosine of {factor / longer:.3f}"
    if not told:
        return f"{wrong.sum()} of {n} differ"
    if (np.abs(np.sort(found, axis=None) - np.sort(right, axis=None)) <= allowed).all():
        return "the right numbers in another order"
    first = np.argwhere(wrong)[0].tolist()
    place = f"{wrong.sum()} of {n} numbers differ, the first at {first}: " if first else ""
    return f"{place}{found[*first]:.6g}, not {right[*first]:.6g}"


COURSE = Path(os.environ.get("COURSE_FOLDER", "."))  # a host may delete its working folder
if "google.colab" in sys.modules:
    sys.modules["google.colab"].drive.mount("/content/drive")
    COURSE = Path("/content/drive/MyDrive")
MINE = COURSE / "mine.py"  # the pieces that a student has written, on one page
NAMES = "group_advantages inverse_cdf clipped_surrogate centroids token_gradient_proxy margins"
NAMES += " token_weights temperatures train_step"  # one exercise: token_weights with temperatures
PIECES = {name: getattr(minimal, name) for name in NAMES.split()}
BAR, IMPORTS = "\n\n# ---- ", "import minimal\nimport numpy as np\nimport torch\n\n\n"


def build(
    yours: Callable, hint: str, cases, tolerance=1e-4, run=call, mistakes=None
) -> bool | None:
    """`check` a piece of minimal.py's loop. If it is right, put it there, in later notebooks, too.

    The piece may call earlier pieces, as minimal.NAME. MINE gets the whole cell that defines it.
    """
    inner = inspect.unwrap(yours)
    inner = inspect.unwrap(getattr(inner, "func", inner))  # of functools.partial
    name = next(name for name in PIECES if inner.__globals__.get(name) is yours)
    may_use = list(PIECES)[: list(PIECES).index(name)]
    with patch.object(minimal, name, PIECES[name]):  # not an earlier answer
        right = check(yours, PIECES[name], hint, cases, tolerance, may_use, run, mistakes)
    if not right:
        return right
    text = IMPORTS + "".join(inspect.findsource(inner)[0]).strip()
    try:
        piece = loaded(name, text)
        run(piece, *deepcopy(next(iter(cases.values()))))
    except NameError as error:
        print(f"but not saved: {error}; define or import that in the same cell")
        return False
    setattr(minimal, name, piece)
    MINE.write_text(BAR.join(["", *(pieces_in(MINE) | {name: f"{name}\n{text}\n"}).values()]))
    print(f"minimal.{name} is now yours, here and in later notebooks ({MINE})")
    return True


def pieces_in(path: Path) -> dict[str, str]:
    """Name of a piece -> its part of a mine.py, which begins with a line of this name."""
    parts = path.read_text().split(BAR)[1:] if path.exists() else []
    return {part.split("\n")[0]: part for part in parts}


def loaded(name: str, text: str) -> Callable:
    """A piece from its source. Its results may be any numbers, and become minimal.py's tensors."""
    namespace = {"__name__": "mine"}
    exec(compile(text, str(MINE), "exec"), namespace)
    dtype = torch.int64 if name == "inverse_cdf" else torch.float32

    def piece(*arguments, **named):
        found = namespace[name](*arguments, **named)
        if name in ("train_step", "clipped_surrogate"):
            return found  # with its gradient
        return torch.as_tensor(numbers(found)).to(dtype)

    return piece


def use_mine() -> None:
    """Put the pieces in mine.py in place of minimal.py's."""
    for name, part in pieces_in(MINE).items():
        setattr(minimal, name, loaded(name, f"# {part}"))
    print("yours in minimal.py's loop:", ", ".join(pieces_in(MINE)) or "nothing yet")


class Tokens(NamedTuple):
    """What training has of a batch's N response tokens; a method's token weights may use it all."""

    token: torch.Tensor  # [N] ids: toy.VOCABULARY[id] is the word
    length: torch.Tensor  # [B] tokens of each response; G responses to a problem in a row
    advantage: torch.Tensor  # [N] A of the token's response
    logprob: torch.Tensor  # [N] log p of the token, nats
    entropy: torch.Tensor  # [N] of p in the token's context, nats
    hidden: torch.Tensor  # [N, H] h, which enters the LM head


def real_text() -> SimpleNamespace:
    """A real model's responses to two problems: data/real_text.npz.

    Commit 73fc6e6 has the program that made the file, notebooks/real_text.py.

    about: model, licences, date. problems, rewards, length: of the responses, [B]. words,
    advantage, logprob, entropy, hidden: of the tokens, [N] and [N, H]. values: rows of a
    response, a place in it, and the value V before this place, [n, 3].
    """
    with np.load(Path(__file__).parent / "data" / "real_text.npz") as file:
        lists = {name: file[name].tolist() for name in ("about", "problems", "words")}
        tensors = {x: torch.from_numpy(file[x]).float() for x in {*file.files} - {*lists}}
    return SimpleNamespace(**lists, **tensors | {"length": tensors["length"].long()})


@torch.no_grad()
def batch(lm, tokenizer, problems: list[dict], cfg=None, step=0, chosen=None) -> SimpleNamespace:
    """What minimal.sample gets for these problems, or only for those of the indices `chosen`.

    rollouts: minimal.sample's. tokens: Tokens. problems: each response's, [B]. decisive: whether
    each token decided the reward, [N].
    """
    cfg = cfg or minimal.Settings()
    chosen, G = range(len(problems)) if chosen is None else chosen, cfg.group_size
    rollouts = minimal.sample(lm, tokenizer, problems, chosen, cfg, step)
    logprob, hidden = minimal.token_outputs(lm, rollouts.ids, rollouts.is_token)
    logp = lm.lm_head(hidden).log_softmax(dim=1)  # [N, V]
    length = rollouts.is_token.sum(dim=1)
    A = minimal.group_advantages(rollouts.rewards, G).repeat_interleave(length)
    token = rollouts.ids[rollouts.is_token]
    tokens = Tokens(token, length, A, logprob, -(logp.exp() * logp).sum(dim=1), hidden)
    asked = [problems[i] for i in chosen for _ in range(G)]
    responses = zip(asked, token.split(length.tolist()), strict=True)
    decisive = torch.cat([toy.decisive(problem["problem"], ids) for problem, ids in responses])
    return SimpleNamespace(rollouts=rollouts, tokens=tokens, problems=asked, decisive=decisive)


def blackboard() -> SimpleNamespace:
    """A softmax over the words a, b, c, and its responses a, b, a, c with rewards 1, 1, 0, 0."""
    p, token = torch.tensor([0.5, 0.25, 0.25]), torch.tensor([0, 1, 0, 2])
    rewards, A = torch.tensor([1.0, 1, 0, 0]), torch.tensor([1.0, 1, -1, -1])  # std 1/2, no ε
    v = torch.eye(3)[token] - p  # [4, 3]: ∇ log softmax(z)_x = e_x - p
    return SimpleNamespace(p=p, token=token, v=v, rewards=rewards, A=A)
