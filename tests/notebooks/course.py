"""Runs a notebook of the course in this process: its cells, and answers to its exercises.

All cells share one namespace, as in a kernel. Before an exercise's cell is executed, answers are
tried, each as a cell of its own: the stub, the folded solution, and those in answers.txt. After
each answer the names are restored, and so are the pieces of minimal.py and the file mine.py.

This command prints the CPU seconds of a whole notebook in which all exercises are solved:

    PYTHONPATH=. OMP_NUM_THREADS=1 .venv/bin/python tests/notebooks/course.py notebooks/6_duel.ipynb
"""

import io
import json
import linecache
import os
import re
import shutil
import sys
import tempfile
import time
from contextlib import contextmanager, redirect_stdout
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from operator import call
from pathlib import Path
from unittest.mock import patch

import matplotlib
import matplotlib.pyplot as plt
import torch

GRADED = re.compile(r"^ +(?:if )?(check|build)\(\s*(\w+)", re.MULTILINE)
ANSWER = re.compile(r"^== (\d)\.(\d) (right|wrong)\n", re.MULTILINE)
SOLUTION = re.compile(r"<summary>Solution</summary>.*?```python\n(.*?)```.*?</details>", re.DOTALL)

FAULTY = {(2, 2)}  # exercises that begin with a wrong answer, not with an empty one

# Tests make the notebooks' runs shorter: text of a notebook -> its replacement.
SHORTER = {
    "M = 128": "M = 48",
    "toy.problems(32, seed=5)": "toy.problems(16, seed=5)",
    "(few.values())[:6]": "(few.values())[:2]",
    "group_size=256": "group_size=128",
    "rewards, 256)": "rewards, 128)",
    "sizes = [16, 32, 64, 128, 256]": "sizes = [16, 32, 64, 128]",
    "responses(20, 2), responses(13, 7)": "responses(17, 2), responses(9, 7)",
    "toy.problems(PROMPTS * STEPS, seed=1000 + seed)": "toy.problems(8, seed=1000 + seed, k=3)",
    'method="yours", seed=seed)': 'method="yours", seed=seed, max_new_tokens=28)',
    "64, 81]": "64, 70]",
    "range(0, 160, 3)": "range(0, 136, 3)",
    "range(0, 104, 3)": "range(0, 72, 3)",
    "range(65, 104, 3)": "range(65, 72, 3)",
    "= 10, 16, 8": "= 2, 4, 8",
    "RATES = (2e-4, 4e-4, 8e-4)": "RATES = (8e-4,)",
    "range(100, 101), range(4)": "range(1), range(2)",
    "oracle=False, n=24": "oracle=False, n=3",
    "assert learnt > 0.02": "assert learnt > -1",
    "run(steps=10, prompts=16": "run(steps=2, prompts=6",
    '"16 problems": (16,)': '"6 problems": (6,)',
    "range(200)": "range(20)",
    "right_sign > 160": "right_sign > 12",
}


@dataclass
class Cell:
    """A code cell; if it is an exercise, with its number and the solution that follows it."""

    name: str  # the file name in tracebacks
    source: str
    exercise: int = 0
    solution: str = ""


def read(path: Path) -> list[dict]:
    """A notebook's cells. Importing nbformat takes three seconds."""
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def code_cells(path: Path) -> list[Cell]:
    """The code cells of a notebook, in order; its exercises are numbered from 1."""
    cells, count = [], 0
    for i, cell in enumerate(read(path)):
        source = "".join(cell["source"])
        if cell["cell_type"] == "code":
            cells.append(Cell(f"<cell {i}>", source))
            if GRADED.search(source):
                count += 1
                cells[-1].exercise = count
            continue
        solution = SOLUTION.search(source)
        if solution and cells and cells[-1].exercise:
            cells[-1].solution = solution[1]
    return cells


def answers_before(path: Path) -> str:
    """The mine.py of a student who has solved all earlier notebooks."""
    helpers, grade = import_module("helpers"), import_module("grade")  # from the notebook's folder
    parts = ['"""My answers."""']
    for earlier in sorted(path.parent.glob("*.ipynb")):
        for cell in code_cells(earlier) if earlier < path else []:
            if named := grade.NAME.search(cell.source):
                name = named[1] or named[2]
                parts.append(f"{name}\n{helpers.IMPORTS}{cell.solution}")
    return helpers.BAR.join(parts)


def begin(path: Path, folder: Path) -> dict:
    """The names with which a notebook begins in `folder`, a copy of notebooks/."""
    matplotlib.use("Agg")
    os.environ.pop("COURSE_FOLDER", None)  # it may hold the pieces of the student at this machine
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    Path("mine.py").write_text(answers_before(path))
    return {"__name__": "__main__", "display": lambda *objects, **named: None}


def run(path: Path, folder: Path, try_answers: bool = True) -> list[str]:
    """Execute a notebook in `folder` and try its exercises. Returns its problems, one line each."""
    namespace = begin(path, folder)
    number, problems = int(path.name[0]), []
    with redirect_stdout(io.StringIO()), computed_once():
        for cell in code_cells(path):
            for old, new in SHORTER.items():
                cell.source = cell.source.replace(old, new)
            if cell.exercise and try_answers:
                problems += tried(number, cell, namespace)
            try:
                execute(cell.name, cell.source, namespace)
            except Exception as error:
                return [*problems, f"{cell.name}: {error!r}"]
    return problems


@contextmanager
def computed_once():
    """Inside, minimal.sample and the pieces that answers are compared with compute a result once.

    The answers to an exercise repeat these calls. A result's key has all that it depends on.
    """
    helpers, minimal = import_module("helpers"), import_module("minimal")
    verdict, sample, results = helpers.verdict, minimal.sample, {}

    def once(function, key, *arguments, **named):
        content = io.BytesIO()
        torch.save((arguments, named), content)
        key = (key, content.getvalue())
        if key not in results:
            results[key] = function(*arguments, **named)
        return deepcopy(results[key])

    def sample_once(*arguments, **named):
        return once(sample, minimal.inverse_cdf, *arguments, **named)

    def verdict_once(answer, expected, hint, cases=None, run=call, **how):
        def run_once(function, *case):
            if function not in helpers.PIECES.values():
                return run(function, *case)
            return once(partial(run, function), function.__code__, *case)

        return verdict(answer, expected, hint, cases, run=run_once, **how)

    sampling, judging = patch.object(minimal, "sample", sample_once), {"verdict": verdict_once}
    with sampling, patch.multiple(helpers, **judging):
        yield


def execute(name: str, source: str, namespace: dict) -> None:
    """Execute one cell, then close its figures, as a kernel does."""
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)  # `build` reads it
    exec(compile(source, name, "exec"), namespace)
    plt.close("all")


def answers(number: int, exercise: int) -> list[tuple[str, bool]]:
    """The (answer, whether it is right) pairs of an exercise, from answers.txt."""
    _, *parts = ANSWER.split(Path(__file__).with_name("answers.txt").read_text())
    found = []
    for notebook, place, kind, text in zip(*[iter(parts)] * 4, strict=True):
        if (int(notebook), int(place)) == (number, exercise):
            found.append((text, kind == "right"))
    return found


def tried(number: int, cell: Cell, namespace: dict) -> list[str]:
    """Try an exercise with its stub, its solution, and the answers in answers.txt."""
    listed = answers(number, cell.exercise)
    if not cell.solution or all(right for _, right in listed):
        return [f"exercise {number}.{cell.exercise}: no folded solution, or no wrong answer"]
    problems = []
    stub = False if (number, cell.exercise) in FAULTY else None
    for text, expected in [("", stub), (cell.solution, True), *listed]:
        text = edited(cell.solution, text)
        try:
            found = grade(cell, text, namespace)
        except Exception as error:
            found = repr(error)
        if found is not expected:
            problems.append(f"{number}.{cell.exercise}: {found}, not {expected}: {text.strip()}")
    return problems


def edited(solution: str, answer: str) -> str:
    """The answer. If it has lines `~ old => new`, the solution with these edits instead."""
    edits = [line[2:] for line in answer.splitlines() if line.startswith("~ ")]
    for edit in edits:
        old, _, new = edit.replace("\\n", "\n").partition(" =>")
        assert old in solution, f"no solution has {old!r}"
        solution = solution.replace(old, new.removeprefix(" "))
    return solution if edits else answer


def grade(cell: Cell, text: str, namespace: dict) -> bool | None:
    """Whether an answer is accepted; None if it counts as a stub."""
    helpers = import_module("helpers")  # from the notebook's folder
    found = []

    def recorded(function):
        def graded(*arguments, **named):
            found.append(function(*arguments, **named))
            return found[-1]

        return graded

    with put_back(namespace), redirect_stdout(io.StringIO()):
        graders = {name: recorded(getattr(helpers, name)) for name in ("check", "build")}
        namespace |= graders
        execute(f"{cell.name} answer", text, namespace)
        execute(cell.name, cell.source, namespace)
    return found[-1]


@contextmanager
def put_back(namespace: dict):
    """Restore the names, minimal.py's pieces, mine.py and torch's generator on exit."""
    minimal = import_module("minimal")
    saved, pieces, mine = dict(namespace), dict(vars(minimal)), Path("mine.py").read_text()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        namespace.clear()
        namespace.update(saved)
        vars(minimal).update(pieces)
        Path("mine.py").write_text(mine)
        plt.close("all")


def solved_seconds(path: Path) -> float:
    """CPU seconds of this process after a notebook with its folded solutions, imports included."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(path.parent, folder, dirs_exist_ok=True)
        namespace = begin(path, Path(folder))
        with redirect_stdout(io.StringIO()):
            for cell in code_cells(path):
                execute(f"{cell.name} solution", cell.solution, namespace)
                execute(cell.name, cell.source, namespace)
    return time.process_time()


if __name__ == "__main__":
    print(f"{solved_seconds(Path(sys.argv[1]).resolve()):.0f} CPU seconds")
