"""The notebooks run from top to bottom, in a copy, and are committed in the required form."""

import re
import shutil
import subprocess

import course
import forked
import nbformat
import pytest
from conftest import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def each(paths):
    """Run a test once for each of these notebooks."""
    return pytest.mark.parametrize("path", paths, ids=[path.stem for path in paths])


def read(path):
    return nbformat.read(path, as_version=4)


def text_of(notebook):
    """The sources of all cells, without outputs."""
    return "\n".join(cell.source for cell in notebook.cells)


@each(NOTEBOOKS)
def test_lesson_runs_with_the_pieces_of_earlier_ones_and_grades_answers_correctly(path, tmp_path):
    """Runs in a separate process, because the cells set the state of matplotlib and torch."""
    shutil.copytree(ROOT / "notebooks", tmp_path / "notebooks")
    shutil.copytree(ROOT / "results", tmp_path / "results")
    assert forked.call(course.run, path, tmp_path / "notebooks") == []


# ---- the parts of a lesson -----------------------------------------------------------------------

PARTS = (
    "Where we are",
    "The question",
    "Before you look",
    "What you should see",
    "What would refute it",
    "What it means for 8B",
    "## Exercises",
    "Read next",
)


@each(NOTEBOOKS)
def test_lesson_has_its_parts_in_order_on_lines_that_fit_the_page(path):
    notebook = read(path)
    places = [text_of(notebook).find(part) for part in PARTS]
    assert -1 not in places, PARTS[places.index(-1)]
    assert places == sorted(places)
    for cell in notebook.cells:
        lines = cell.source.splitlines()
        tables = [line for line in lines if line.startswith(("| ", "[Open in"))]
        assert max(len(line) for line in lines if line not in tables) <= 100
        assert cell.cell_type != "code" or len(lines) <= 35


@each(NOTEBOOKS)
def test_each_picture_has_words_beside_it_and_an_assertion_that_can_refute_it(path):
    """The alternative text describes it; the text after it names assertions above."""
    cells = read(path).cells
    asserted = False
    for i, cell in enumerate(cells):
        if cell.cell_type == "code":
            asserted |= re.search(r"^\s*assert ", cell.source, re.MULTILINE) is not None
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                assert len(output.metadata["image/png"]["alt"]) >= 40
                later = "\n".join(each.source for each in cells[i + 1 : i + 5])
                assert "What you should see" in later and "What would refute it" in later
        if "What would refute it" in cell.source:
            assert asserted, cell.source
            asserted = False


EXERCISE = re.compile(r"^\*\*(?:Exercise )?([1-4])[.,]", re.MULTILINE)


@each(NOTEBOOKS)
def test_exercises_are_numbered_and_have_two_hints_and_a_solution(path):
    """`check` prints the first hint. In an exercise with a leaderboard, that hint is folded."""
    exercises = [cell for cell in course.code_cells(path) if cell.exercise]
    text = text_of(read(path))
    assert EXERCISE.findall(text) == [str(cell.exercise) for cell in exercises]
    assert text.count("<summary>Second hint</summary>") == len(exercises)
    assert text.count("<summary>Solution</summary>") == len(exercises)
    assert text.count("<summary>Hint</summary>") == len(re.findall(r"^leaderboard\(", text, re.M))


# ---- a host --------------------------------------------------------------------------------------


@each(NOTEBOOKS)
def test_lesson_can_be_opened_on_a_host(path):
    """A link to the notebook itself follows the title, and one cell prepares the host."""
    link = r"\[Open in Colab\]\(https://colab.research.google.com/github/[\w-]+/[\w.-]+/blob/main/"
    found = re.fullmatch(link + r"notebooks/(.*)\)", read(path).cells[0].source.splitlines()[2])
    assert found[1] == path.name
    assert course.code_cells(path)[0].source == course.code_cells(NOTEBOOKS[0])[0].source


def test_host_cell_finds_the_notebooks_again_or_names_what_to_replace(tmp_path, monkeypatch):
    """Here `git clone` and pip are only recorded; the clone makes the folder."""
    cell = re.sub('COPY = ".*?"', 'COPY = "OWNER/NAME"', course.code_cells(NOTEBOOKS[0])[0].source)
    asked = []

    def run(command, check):
        asked.append(command[0])
        (tmp_path / "delta" / "notebooks").mkdir(parents=True, exist_ok=True)
        (tmp_path / "delta" / "notebooks" / "helpers.py").touch()

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="COPY above"):
        exec(cell, {})
    for begin in (".", ".", "delta", "delta/notebooks"):  # where a kernel may start again
        monkeypatch.chdir(tmp_path / begin)
        exec(cell.replace("OWNER/NAME", "you/your-copy"), {})
        assert (tmp_path / "delta" / "notebooks").samefile(".")
    assert asked.count("git") == 1


# ---- outputs -------------------------------------------------------------------------------------


@each(NOTEBOOKS)
def test_notebook_is_committed_with_clean_outputs(path):
    """All cells ran in order, without errors, warnings, progress bars or a machine's paths."""
    assert path.stat().st_size < 800_000
    cells = [cell for cell in read(path).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))

    outputs = [output for cell in cells for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    for output in outputs:
        assert output.output_type != "error" and output.get("name") != "stderr"
        assert "application/vnd.jupyter.widget-view+json" not in output.get("data", {})
    assert str(ROOT) not in path.read_text()


# ---- size ----------------------------------------------------------------------------------------


def test_the_course_keeps_its_size():
    assert [path.name[0] for path in NOTEBOOKS] == list("01234567")
    cells = [cell for path in NOTEBOOKS for cell in read(path).cells]
    words = [len(cell.source.split()) for cell in cells if cell.cell_type == "markdown"]
    assert sum(words) <= 17_000
