"""The notebooks run from top to bottom, in a copy, and are committed in the required form."""

import ast
import re
import shutil

import course
import forked
import nbformat
import pytest
from conftest import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PLAN = ROOT / "notebooks" / "README.md"


def each(paths):
    """Run a test once for each of these notebooks."""
    return pytest.mark.parametrize("path", paths, ids=[path.stem for path in paths])


def read(path):
    return nbformat.read(path, as_version=4)


def text_of(notebook):
    """The sources of all cells, without outputs."""
    return "\n".join(cell.source for cell in notebook.cells)


def test_notebooks_are_numbered_from_0():
    assert [path.name[0] for path in NOTEBOOKS] == list("012345678")


# ---- execution -----------------------------------------------------------------------------------


@each(NOTEBOOKS)
def test_lesson_runs_its_assertions_can_fail_and_its_exercises_are_graded_correctly(path, tmp_path):
    """Runs in a separate process, because the cells set the state of matplotlib and torch."""
    own = shutil.ignore_patterns("*.csv")  # the user's duels, which a notebook would show
    shutil.copytree(ROOT / "notebooks", tmp_path / "notebooks", ignore=own)
    shutil.copytree(ROOT / "results", tmp_path / "results")
    report = forked.call(course.run, path, tmp_path / "notebooks")
    assert report == course.Report()


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
DRAWS = re.compile(r"^(show|panels)\(", re.MULTILINE)


@each(NOTEBOOKS)
def test_lesson_has_its_parts_in_order(path):
    text = text_of(read(path))
    places = [text.find(part) for part in PARTS]
    assert -1 not in places, PARTS[places.index(-1)]
    assert places == sorted(places)


@each(NOTEBOOKS)
def test_lesson_fits_the_page(path):
    for cell in read(path).cells:
        lines = cell.source.splitlines()
        assert max(len(line) for line in lines) <= 100
        assert cell.cell_type != "code" or len(lines) <= 25


@each(NOTEBOOKS)
def test_lesson_imports_by_name(path):
    for cell in course.code_cells(path):
        for node in ast.walk(ast.parse(cell.source)):
            if isinstance(node, ast.ImportFrom):
                assert "*" not in [alias.name for alias in node.names]


@each(NOTEBOOKS)
def test_lesson_has_at_most_a_dozen_imports_each_with_a_comment(path):
    """The first cell does not count: it prepares a host such as Colab and never differs."""
    count = 0
    for cell in course.code_cells(path)[1:]:
        lines = ["", *cell.source.splitlines()]  # ast numbers lines from 1
        for node in ast.walk(ast.parse(cell.source)):
            if isinstance(node, ast.Import | ast.ImportFrom):
                count += 1
                above, line = lines[node.lineno - 1], lines[node.lineno]
                assert "  # " in line or above.startswith("# "), line
    assert count <= 12


@each(NOTEBOOKS)
def test_each_picture_is_followed_by_what_to_see_and_what_would_refute_it(path):
    cells = read(path).cells
    for cell, following in zip(cells, [*cells[1:], None], strict=True):
        if cell.cell_type == "code" and DRAWS.search(cell.source):
            assert following is not None and following.cell_type == "markdown", cell.source
            assert "What you should see" in following.source, cell.source
            assert "What would refute it" in following.source, cell.source


@each(NOTEBOOKS)
def test_pictures_are_described_in_words(path):
    assert "plt.show" not in text_of(read(path))
    for cell in read(path).cells:
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                assert len(output.metadata["image/png"]["alt"]) >= 40


@each(NOTEBOOKS)
def test_lesson_has_three_exercises_and_the_last_is_a_leaderboard(path):
    exercises = [cell for cell in course.code_cells(path) if cell.is_exercise]
    assert len(exercises) == 3
    assert re.search(r"^leaderboard\(", exercises[-1].source, re.MULTILINE)

    *lesson, exercise_part = text_of(read(path)).split("## Exercises")
    assert len(lesson) == 1
    assert all(exercise.source in exercise_part for exercise in exercises)


EXERCISE = re.compile(r"^\*\*[123](?:\.|, open\.)", re.MULTILINE)


@each(NOTEBOOKS)
def test_exercises_have_two_hints_and_the_second_is_folded(path):
    """`check` prints the first hint. In an exercise with a leaderboard, that hint is folded."""
    _, exercise_part = text_of(read(path)).split("## Exercises")
    _, *exercises = EXERCISE.split(exercise_part)
    assert len(exercises) == 3
    for exercise in exercises:
        before, _ = exercise.split("<summary>Solution</summary>")
        asked = re.search(r"^check\(", before, re.MULTILINE)
        assert ("<summary>Hint</summary>" in before) == (asked is None)
        assert before.count("<summary>Second hint</summary>") == 1


@each(NOTEBOOKS)
def test_exercises_do_not_show_the_expected_numbers(path):
    """The second argument of `check` is computed: its only numbers are keyword arguments."""
    for cell in course.code_cells(path):
        for node in ast.walk(ast.parse(cell.source)):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "check":
                numbers = [x for x in ast.walk(node.args[1]) if isinstance(x, ast.Constant)]
                named = [k.value for k in ast.walk(node.args[1]) if isinstance(k, ast.keyword)]
                assert all(number in named for number in numbers), cell.source


@each(NOTEBOOKS)
def test_lesson_can_be_opened_on_a_host(path):
    """A link follows the title, and the first code cell is the same in every notebook."""
    cells = read(path).cells
    link = "[Open in Colab](https://colab.research.google.com/github/OWNER/NAME)"
    assert cells[0].source.splitlines()[2] == link
    assert cells[1].source == read(NOTEBOOKS[0]).cells[1].source
    assert 'if not Path("helpers.py").exists():' in cells[1].source


# ---- outputs -------------------------------------------------------------------------------------


@each(NOTEBOOKS)
def test_notebook_is_committed_with_clean_outputs(path):
    """All cells ran in order. There is a picture, but no error, warning or progress bar."""
    assert path.stat().st_size < 800_000

    cells = [cell for cell in read(path).cells if cell.cell_type == "code"]
    counts = [cell.execution_count for cell in cells]
    assert counts == list(range(1, len(cells) + 1))

    outputs = [output for cell in cells for output in cell.outputs]
    data = [output.data for output in outputs if "data" in output]
    assert any("image/png" in each for each in data)
    assert not any("application/vnd.jupyter.widget-view+json" in each for each in data)
    for output in outputs:
        assert output.output_type != "error"
        assert output.get("name") != "stderr"
    assert str(ROOT) not in path.read_text()


# ---- the plan ------------------------------------------------------------------------------------


def equations(text):
    """The numbers of all equations that a text cites: Eq. 4, Eqs. 5-7, or a formula's tag."""
    found = set()
    for first, last in re.findall(r"(?:Eqs?\. |tag\{)(\d+)(?:(?:-|, )(\d+))?", text):
        found.update(range(int(first), int(last or first) + 1))
    return found


def test_every_equation_is_cited_in_the_notebook_named_in_the_plan():
    """The plan has a row for every equation, with the number of a notebook that cites it."""
    named = {path.name[0]: equations(text_of(read(path))) for path in NOTEBOOKS}
    plan = dict(re.findall(r"^\| Eq\. (\d+) \| (\d) \|", PLAN.read_text(), re.MULTILINE))
    assert list(plan) == [str(number) for number in range(1, 16)]
    for number, notebook in plan.items():
        assert int(number) in named[notebook], number
