"""Grades the pieces of minimal.py that students have handed in: a mine.py, or a folder of them.

    $ python notebooks/grade.py anna.py
    anna.py: 10 of 13 points (group_advantages 1 of 1, inverse_cdf 1 of 1, ..., train_step 0 of 3)
        train_step: not right, one mini-batch, ...: You get this with the sign turned round ...

Each piece is checked as its notebook checks it, with minimal.py's own functions around it. This
runs the students' code, so run it under a separate account.
"""

import contextlib
import io
import json
import linecache
import re
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import helpers

import minimal

POINTS = {"clipped_surrogate": 2, "token_weights": 3, "train_step": 3}  # 1 for each of the others


def checks() -> dict[str, tuple[str, str]]:
    """Piece -> its notebook's cell of imports, and the cell that checks it."""
    found = {}
    for path in sorted(Path(__file__).parent.glob("*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        codes = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        for code in codes:
            if built := re.search(r"^ +build\((\w+)", code, re.MULTILINE):
                found[built[1]] = codes[1].replace("use_mine()", ""), code
    return found


def grade(piece: str, source: str, imports: str, check: str) -> tuple[bool, str]:
    """Whether a piece is right, and what its check prints."""
    namespace, page = {"__name__": "__main__"}, dict(vars(minimal))
    with contextlib.redirect_stdout(io.StringIO()) as said:
        try:
            for name, text in (("imports", imports), ("the answer", source), ("check", check)):
                linecache.cache[name] = (len(text), None, text.splitlines(True), name)
                exec(compile(text, name, "exec"), namespace)
        except (Exception, SystemExit) as error:
            print(f"{type(error).__name__}: {error}")
        finally:
            vars(minimal).update(page)
    text = said.getvalue().strip()
    return text.startswith("right"), f"{piece}: {text}"


def main(given: str) -> None:
    path, cells = Path(given), checks()
    most = sum(POINTS.get(piece, 1) for piece in cells)
    for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
        parts, points, remarks, marks = helpers.pieces_in(file), 0, [], []
        for piece, (imports, check) in cells.items():
            worth = POINTS.get(piece, 1)
            right, said = grade(piece, f"# {parts.get(piece, '')}", imports, check)
            points += worth * right
            marks.append(f"{piece} {worth * right} of {worth}")
            remarks += [] if right else [said if piece in parts else f"{piece}: not handed in"]
        print(f"{file}: {points} of {most} points ({', '.join(marks)})")
        for remark in remarks:
            print(f"    {remark}")


if __name__ == "__main__":
    if len(sys.argv) != 2 or not Path(sys.argv[1]).exists():
        sys.exit("usage: python notebooks/grade.py FILE_OR_FOLDER, of mine.py files")
    helpers.MINE = Path(tempfile.mkdtemp()) / "mine.py"  # `build` must not write to the teacher's
    main(sys.argv[1])
