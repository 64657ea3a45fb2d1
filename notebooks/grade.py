"""Grades what students have handed in: a mine.py, a notebook, or a folder of these.

    $ python notebooks/grade.py anna.py
    anna.py: 20 of 24 points (credit 1 of 1, gae 0 of 2, ..., train_step 3 of 3, weigh 0 of 1)
        gae: not right, λ = 0.5: ...: You get this with the sign of δ turned round.
        not handed in: predicted, weigh

A mine.py has the last answer to each exercise, right or refused. In a notebook the cell before
each check is the answer. Each answer is checked as its notebook checks it, with minimal.py's own
functions around it. This runs the students' code, so run it under a separate account.
"""

import contextlib
import io
import json
import linecache
import re
import sys
import tempfile
import traceback
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parent))
import helpers

import minimal

POINTS = {"gae": 2, "clipped_surrogate": 2, "token_outputs": 2, "token_weights": 3, "train_step": 3}
LIMIT = 300  # seconds for an answer; the slowest right one takes about ten on a free core
NAME = re.compile(r'^ +build\((\w+)|\bname="(\w+)"', re.MULTILINE)  # in the cell of a check


class Exercise(NamedTuple):
    """What its notebook has for an exercise."""

    before: str  # the imports, and the cells tagged `setup`
    check: str
    points: int


class Graded(BaseException):
    """Raised when the verdict is known; no answer catches it, because none is running."""


def code_cells(path: Path) -> list[dict]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def exercises() -> dict[str, Exercise]:
    """The graded exercises of all notebooks, by name."""
    found = {}
    for path in sorted(Path(__file__).parent.glob("*.ipynb")):
        cells = code_cells(path)
        before = "".join(cells[1]["source"]).replace("use_mine()", "")
        for cell in cells:
            source = "".join(cell["source"])
            if "setup" in cell["metadata"].get("tags", []):
                before += f"\n\n{source}"
            if named := NAME.search(source):
                name = named[1] or named[2]
                found[name] = Exercise(before, source, POINTS.get(name, 1))
    return found


def answers(path: Path) -> dict[str, str]:
    """Name of an exercise -> the source of its answer, which may be empty."""
    if path.suffix == ".ipynb":
        sources = ["", *("".join(cell["source"]) for cell in code_cells(path))]
        pairs = zip(sources, map(NAME.search, sources[1:]), strict=False)
        return {named[1] or named[2]: source for source, named in pairs if named}
    right, refused = {}, {}
    for title, part in helpers.parts_of(path).items():
        found = refused if title.startswith(helpers.REFUSED) else right
        found[title.removeprefix(helpers.REFUSED)] = f"# {part}"
    return refused | right


# ---- in a process of its own ---------------------------------------------------------------------


def work(connection) -> None:
    """Grade one answer after another."""
    helpers.MINE = Path(tempfile.mkdtemp()) / "mine.py"  # not the teacher's
    connection.send("ready")
    while True:
        connection.send(graded(*connection.recv()))


def graded(answer: str, before: str, check: str) -> tuple[bool | None, str]:
    """The verdict that `helpers.verdict` returns on an answer: see `helpers.Verdict`."""
    namespace, verdict, found = {"__name__": "__main__"}, helpers.verdict, []
    saved = {module: dict(vars(module)) for module in (minimal, helpers)}

    def recorded(*arguments, **named):
        helpers.verdict = verdict  # a check that the answer calls counts for nothing
        found.append(verdict(*arguments, **named))
        raise Graded

    def execute(name, text):
        linecache.cache[name] = (len(text), None, text.splitlines(True), name)
        exec(compile(text, name, "exec"), namespace)

    heard = io.StringIO()
    with contextlib.redirect_stdout(heard), contextlib.redirect_stderr(heard):
        try:
            execute("the imports", before)
            execute("the answer", answer)
            for module, names in saved.items():
                vars(module).update(names)
            namespace |= {"check": helpers.check, "build": helpers.build}
            with patch.object(helpers, "verdict", recorded):
                execute("the check", check)
        except Graded:
            return tuple(found[-1])
        except BaseException as error:  # SystemExit and KeyboardInterrupt, too
            frames = traceback.extract_tb(error.__traceback__)
            lines = [frame.line for frame in frames if frame.filename == "the answer"][-1:]
            notes = getattr(error, "__notes__", [])
            return False, ", ".join([f"{type(error).__name__}: {error}", *notes, *lines])
        finally:
            for module, names in saved.items():
                vars(module).update(names)
    return False, "its check came to no verdict"


# ---- here ----------------------------------------------------------------------------------------


class Worker:
    """A process that grades one student's answers."""

    def __init__(self):
        context = get_context("spawn")  # the one way that all systems have
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=work, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        self.connection.recv()

    def verdict(self, *job: str) -> tuple[bool | None, str]:
        """Of `graded`; an answer that takes too long or ends the process is wrong."""
        self.connection.send(job)
        try:
            if self.connection.poll(LIMIT):
                return self.connection.recv()
            said = f"never ended: stopped after {LIMIT} seconds"
        except (EOFError, ConnectionError):
            said = "it ended the process"
        self.process.kill()
        self.process.join()
        return False, said


def report(path: Path, every: dict[str, Exercise]) -> None:
    """Print a hand-in's points, and a remark on each wrong answer."""
    try:
        given = answers(path)
    except (ValueError, KeyError, TypeError):
        print(f"{path}: 0 points, because this is no notebook")
        return
    asked = (
        every if path.suffix == ".py" else {name: every[name] for name in every if name in given}
    )
    worker, points, marks, remarks, missing = None, 0, [], [], []
    for name, exercise in asked.items():
        right, said = None, ""
        if name in given:
            worker = worker if worker and worker.process.is_alive() else Worker()
            right, said = worker.verdict(given[name], exercise.before, exercise.check)
        points += exercise.points * bool(right)
        marks.append(f"{name} {exercise.points * bool(right)} of {exercise.points}")
        missing += [name] if right is None else []
        remarks += [f"{name}: {said}"] if right is False else []
    if worker:
        worker.process.kill()
    most = sum(exercise.points for exercise in asked.values())
    print(f"{path}: {points} of {most} points ({', '.join(marks)})")
    for remark in remarks + [f"not handed in: {', '.join(missing)}"] * bool(missing):
        print(f"    {remark}", flush=True)


def main(given: str) -> None:
    path, every = Path(given), exercises()
    if not path.exists():
        sys.exit(f"{given}: there is no such file or folder")
    inside = [x for x in sorted(path.rglob("*")) if x.suffix in (".py", ".ipynb")]
    shown = [x for x in inside if "/." not in f"/{x.relative_to(path).as_posix()}"]
    for file in [path] if path.is_file() else shown:
        report(file, every)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python notebooks/grade.py FILE_OR_FOLDER, of mine.py files or notebooks")
    main(sys.argv[1])
