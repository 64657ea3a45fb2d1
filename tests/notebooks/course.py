"""Runs a notebook of the course in this process: its cells, its mutations and its exercises.

All cells share one namespace, as in a kernel, and each cell is executed once. Before a cell is
executed, its mutations and the answers to its exercise run in the same namespace. The names are
then restored, but not the objects: cells must not modify objects of earlier cells in place.
"""

import ast
import io
import os
import re
import sys
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import nbformat
import torch
from IPython.display import display
from mutations import Mutation

GRADED = re.compile(r"^(check|leaderboard)\(", re.MULTILINE)
SOLUTION = re.compile(
    r"<details><summary>Solution</summary>.*?```python\n(.*?)```.*?</details>", re.DOTALL
)


@dataclass
class Cell:
    """A code cell and, if it is an exercise, the solution that follows it."""

    name: str  # the file name in tracebacks
    source: str
    solution: str = ""

    @property
    def is_exercise(self) -> bool:
        return GRADED.search(self.source) is not None


@dataclass
class Report:
    """The problems of a notebook, one line each. A correct notebook has three empty lists."""

    cells: list[str] = field(default_factory=list)
    mutations: list[str] = field(default_factory=list)
    exercises: list[str] = field(default_factory=list)


def code_cells(path: Path) -> list[Cell]:
    """The code cells of a notebook, in order."""
    cells = []
    for i, cell in enumerate(nbformat.read(path, as_version=4).cells):
        if cell.cell_type == "code":
            cells.append(Cell(f"<cell {i}>", cell.source))
            continue
        solution = SOLUTION.search(cell.source)
        if solution and cells and cells[-1].is_exercise:
            cells[-1].solution = solution[1]
    return cells


def run(path: Path, folder: Path) -> Report:
    """Execute and examine a notebook in `folder`. Call it in a separate process."""
    matplotlib.use("Agg")
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    module = import_module(f"mutations.notebook_{path.name[0]}")
    cells = smaller(code_cells(path), getattr(module, "SMALLER", []))
    with redirect_stdout(io.StringIO()):
        return examine(cells, module.MUTATIONS)


def smaller(cells: list[Cell], changes: list[tuple[str, str]]) -> list[Cell]:
    """The cells with every (old, new) text replaced, to shorten a slow notebook.

    Raises ValueError if an old text does not occur exactly once.
    """
    for old, new in changes:
        count = sum(cell.source.count(old) for cell in cells)
        if count != 1:
            raise ValueError(f"occurs {count} times: {old}")
        cells = [replace(cell, source=cell.source.replace(old, new)) for cell in cells]
    return cells


def examine(cells: list[Cell], mutations: list[Mutation]) -> Report:
    """Execute the cells in order. Before each cell, try its mutations and its exercise."""
    report = Report(mutations=misplaced(cells, mutations))
    if report.mutations:
        return report

    namespace = {"__name__": "__main__", "display": display}
    for i, cell in enumerate(cells):
        for mutation in mutations:
            if mutation.old in cell.source:
                report.mutations += attempt(cells[i:], mutation, namespace)
        if cell.is_exercise:
            report.exercises += grade(cell, namespace)
        try:
            execute(cell.name, cell.source, namespace)
        except Exception as error:
            report.cells.append(f"{cell.name}: {error!r} at {failed_line(error, cell)}")
            return report
    return report


def execute(name: str, source: str, namespace: dict) -> None:
    """Execute one cell, then close its figures, as a kernel does."""
    exec(compile(source, name, "exec"), namespace)
    plt.close("all")


@contextmanager
def names_put_back(namespace: dict):
    """Restore the names in the namespace and the state of torch's generator on exit."""
    saved = dict(namespace)
    with torch.random.fork_rng(devices=[]):
        yield
    namespace.clear()
    namespace.update(saved)
    plt.close("all")


# ---- mutations -----------------------------------------------------------------------------------


def assertions(source: str) -> list[str]:
    """The first line of every assertion in a cell."""
    lines = source.splitlines()
    found = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Assert)]
    return [lines[node.lineno - 1].strip() for node in found]


def misplaced(cells: list[Cell], mutations: list[Mutation]) -> list[str]:
    """Mutations whose text or assertion does not occur exactly once, and unbroken assertions."""
    problems = []
    unbroken = [line for cell in cells for line in assertions(cell.source)]
    every = list(unbroken)
    source = "\n".join(cell.source for cell in cells)
    for mutation in mutations:
        if source.count(mutation.old) != 1:
            problems.append(f"occurs {source.count(mutation.old)} times: {mutation.old}")
        broken = [line for line in every if line.startswith(mutation.breaks)]
        if len(broken) != 1:
            problems.append(f"begins {len(broken)} assertions: {mutation.breaks}")
        unbroken = [line for line in unbroken if line not in broken]
    return problems + [f"no mutation breaks: {line}" for line in unbroken]


def attempt(cells: list[Cell], mutation: Mutation, namespace: dict) -> list[str]:
    """Run the mutated cell and later cells until one fails. Returns the problem, if any.

    The mutation is right if the first failure is the assertion that it should break.
    """
    mutated = Cell(cells[0].name, cells[0].source.replace(mutation.old, mutation.new))
    with names_put_back(namespace):
        for cell in [mutated, *cells[1:]]:
            try:
                execute(cell.name, cell.source, namespace)
            except AssertionError as error:
                line = failed_line(error, cell)
                if line.startswith(mutation.breaks):
                    return []
                return [f"{mutation.old} -> {mutation.new}: breaks {line}"]
            except Exception as error:
                return [f"{mutation.old} -> {mutation.new}: {error!r} in {cell.name}"]
            if any(line.startswith(mutation.breaks) for line in assertions(cell.source)):
                return [f"{mutation.old} -> {mutation.new}: does not break {mutation.breaks}"]
    return [f"{mutation.old} -> {mutation.new}: {mutation.breaks} comes before it"]


def failed_line(error: BaseException, cell: Cell) -> str:
    """The first line of the statement in the cell where an exception was raised."""
    number = 0
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == cell.name:
            number = trace.tb_lineno
        trace = trace.tb_next
    if number == 0:  # for example, a syntax error
        return "its beginning"

    for node in ast.walk(ast.parse(cell.source)):
        if isinstance(node, ast.Assert) and node.lineno <= number <= node.end_lineno:
            number = node.lineno
    return cell.source.splitlines()[number - 1].strip()


# ---- exercises -----------------------------------------------------------------------------------


def grade(cell: Cell, namespace: dict) -> list[str]:
    """Try an exercise with its stub, its solution, and an answer that is 1 too large."""
    if not cell.solution:
        return [f"{cell.name}: no folded solution follows"]
    start = GRADED.search(cell.source).start()
    solved = cell.solution + "\n" + cell.source[start:]
    problems = []
    try:
        if any(grade is not None for grade in grades(cell.name, cell.source, namespace)):
            problems.append(f"{cell.name}: its stub is graded as an answer")
        if not all(grades(cell.name, solved, namespace)):
            problems.append(f"{cell.name}: its solution is graded as wrong")
        if any(grades(cell.name, solved, namespace, too_large=1.0)):
            problems.append(f"{cell.name}: a wrong answer is graded as right")
    except Exception as error:
        problems.append(f"{cell.name}: {error!r} in its stub or solution")
    return problems


def grades(name: str, source: str, namespace: dict, too_large: float = 0.0) -> list:
    """The results of check and leaderboard in a cell, with `too_large` added to check's answer.

    A leaderboard accepts any number, so it is skipped if too_large is not 0.
    """
    helpers = import_module("helpers")  # from the notebook's folder
    found = []

    def check(answer, *rest, **named):
        if too_large:
            answer = helpers.as_array(answer) + too_large
        found.append(helpers.check(answer, *rest, **named))

    def leaderboard(*arguments, **named):
        if not too_large:
            found.append(helpers.leaderboard(*arguments, **named))

    with names_put_back(namespace):
        namespace |= {"check": check, "leaderboard": leaderboard}
        execute(name, source, namespace)
    return found
