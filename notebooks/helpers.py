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

PASS = ("with_prompts", "token_outputs", "one_pass")  # which every answer may call
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


class Verdict(NamedTuple):
    """What a check finds: whether the answer is right, and a line about it."""

    right: bool | None  # None without an answer
    said: str


def check(answer, expected, hint: str, cases=None, name="", kept=None, **how) -> bool | None:
    """Print and return whether an answer is right: True, False, or None without an answer.

    MINE keeps the whole cell that defines the answer, right or not, as the exercise `name`. kept:
    what to keep in place of the answer. The other arguments are those of `verdict`.

    Call it inside a function, because a cell's names could replace the student's own.
    """
    text = cell_of(answer if kept is None else kept, name) if name else ""
    try:
        right, said = verdict(answer, expected, hint, cases, **how)
    except Exception:
        keep(name, text, right=False)
        raise
    print(said)
    if right and text and cases and kept is None:
        try:
            run, case = how.get("run", call), deepcopy(next(iter(cases.values())))
            run(loaded(name, f"{name}\n{text}"), *case)
        except NameError as error:
            print(f"but not saved: {error}; define or import that in the same cell")
            right = False
    if right is not None:
        keep(name, text, right)
    return right


def verdict(
    answer, expected, hint: str, cases=None, tolerance=1e-4, may_use=(), run=call, mistakes=None
) -> Verdict:
    """Whether an answer is right.

    answer: numbers; or with `cases`, name -> arguments, a function. Then `expected` is a function
        too, and run(function, *arguments) is compared case by case. A stub is or returns None.
    hint: said if the first case fails. If a later case fails, only its name is said.
    tolerance: the largest difference, relative to the largest expected number if that exceeds 1.
    may_use: the names of the repository's functions that the answer may call; None allows all.
    mistakes: what somebody did -> the wrong answer; a mistake that gives this answer is said. With
        results that have names: the beginning of the one in which it shows, and the wrong answer.

    An error in the answer's own lines is raised, with the case in a note.
    """
    for where, case in ({"": ()} if cases is None else cases).items():
        found, right, place = answer, expected, where and f", {where}"
        try:
            if cases is not None:
                right, given = run(expected, *case), deepcopy(case)
                with nullcontext() if may_use is None else closed(may_use):
                    found = run(answer, *given)
                if not same(case, given):
                    raise ValueError("it overwrites its argument, which others need: make a copy")
            if found is None:
                return Verdict(None, "not yet")
            compare(found, right, tolerance, told=cases is not None)
        except Exception as fault:
            code = getattr(inspect.unwrap(answer), "__code__", None)
            its_own = code and inspect.trace()[-1].filename == code.co_filename
            if its_own or not isinstance(fault, ValueError):
                fault.add_note(f"in the case: {where}")
                raise
            of_result = not str(fault).startswith("it ")  # and not of what it calls or changes
            fits = of_result and (not where or where == next(iter(cases)))
            named = ""
            if of_result:
                named = name_of(mistakes or {}, str(fault), found, case, tolerance, run)
            return Verdict(False, f"not right{place}: {fault}.{named or f' {hint}' * fits}")
    return Verdict(True, "right")


def name_of(mistakes: dict, fault: str, found, case: tuple, tolerance, run: Callable) -> str:
    """A sentence with the first mistake whose result is the one found, or nothing."""
    for name, wrong in mistakes.items():
        shows_in, wrong = wrong if isinstance(wrong, tuple) else ("", wrong)
        if not fault.startswith(shows_in):
            continue
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
BAR, IMPORTS = "\n\n# ---- ", "import minimal\nimport numpy as np\nimport torch\nimport toy\n\n\n"
REFUSED = "not yet right: "  # before the name of an attempt that was refused


def build(yours: Callable, hint: str, cases, **how) -> bool | None:
    """`check` a piece of minimal.py's loop. If it is right, put it there, in later notebooks, too.

    The piece may call earlier pieces, as minimal.NAME.
    """
    inner = unwrapped(yours)
    name = next(name for name in PIECES if inner.__globals__.get(name) is yours)
    may_use = list(PIECES)[: list(PIECES).index(name)]
    with patch.object(minimal, name, PIECES[name]):  # not an earlier answer
        right = check(yours, PIECES[name], hint, cases, name, may_use=may_use, **how)
    if right:
        setattr(minimal, name, loaded(name, parts_of(MINE)[name]))
        print(f"minimal.{name} is now yours, here and in later notebooks ({MINE})")
    return right


def unwrapped(answer):
    """The function inside decorators and functools.partial."""
    inner = inspect.unwrap(answer)
    return inspect.unwrap(getattr(inner, "func", inner))


def cell_of(answer, name: str) -> str:
    """The cell that defines a student's function, or an assignment of other answers to `name`."""
    inner = unwrapped(answer)
    if not callable(inner):
        return f"{name} = {getattr(answer, 'tolist', lambda: answer)()!r}"
    if inner.__module__ != "__main__":
        return ""  # a function of somebody else
    return IMPORTS + "".join(inspect.findsource(inner)[0]).strip()


def keep(name: str, text: str, right: bool) -> None:
    """Write an answer into MINE, in place of the last right one or of the last refused one."""
    parts = parts_of(MINE)
    parts.pop(REFUSED + name, None)
    title = name if right else REFUSED + name
    if text:
        parts[title] = f"{title}\n{text}\n"
        MINE.write_text(BAR.join(["", *parts.values()]), encoding="utf-8")


def parts_of(path: Path) -> dict[str, str]:
    """Title of an answer -> its part of a mine.py, which begins with a line of this title."""
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    return {part.split("\n")[0]: part for part in text.split(BAR)[1:]}


def loaded(name: str, text: str) -> Callable:
    """An answer from its source. A piece's results may be any numbers, and become minimal.py's."""
    namespace = {"__name__": "mine"}
    exec(compile(f"# {text}", str(MINE), "exec"), namespace)
    dtype = torch.int64 if name == "inverse_cdf" else torch.float32

    def piece(*arguments, **named):
        found = namespace[name](*arguments, **named)
        if name in ("train_step", "clipped_surrogate") or name not in PIECES:
            return found  # with its gradient
        return torch.as_tensor(numbers(found)).to(dtype)

    return piece


def use_mine() -> None:
    """Put the right pieces in mine.py in place of minimal.py's."""
    mine = {name: part for name, part in parts_of(MINE).items() if name in PIECES}
    for name, part in mine.items():
        setattr(minimal, name, loaded(name, part))
    print("yours in minimal.py's loop:", ", ".join(mine) or "nothing yet")


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
    problems = minimal.with_prompts(problems, tokenizer, cfg)
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
