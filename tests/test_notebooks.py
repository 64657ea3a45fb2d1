"""The notebooks run from top to bottom, in a copy, and are committed as the teacher wants them."""

import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from subprocess import DEVNULL

import nbformat
import pytest
from conftest import ROOT
from nbclient import NotebookClient

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PLAN = ROOT / "notebooks" / "README.md"

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read(path):
    return nbformat.read(path, as_version=4)


def text_of(notebook):
    """What the teacher wrote: the sources of all cells."""
    return "\n".join(cell.source for cell in notebook.cells)


def test_there_are_seven():
    assert [path.name[0] for path in NOTEBOOKS] == list("1234567")


# ---- they run ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(request, tmp_path_factory):
    """Path -> the future of the notebook's execution, two at a time with a thread each.

    Only the notebooks whose tests were selected.
    """
    copy = tmp_path_factory.mktemp("copy")
    shutil.copytree(ROOT / "notebooks", copy / "notebooks")
    shutil.copytree(ROOT / "results", copy / "results")

    wanted = set()
    for item in request.session.items:
        if item.function is test_notebook_runs_and_its_checks_hold:
            wanted.add(item.callspec.params["path"])
    with ThreadPoolExecutor(2) as pool:
        yield {path: pool.submit(execute, path, copy / "notebooks") for path in sorted(wanted)}


def execute(path, folder):
    """Run the notebook in a folder; a cell that raises raises here."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    where = {"metadata": {"path": str(folder)}}
    client = NotebookClient(read(path), timeout=600, resources=where)
    client.execute(env=environment, stderr=DEVNULL)  # a kernel greets there


@each_notebook
def test_notebook_runs_and_its_checks_hold(path, runs):
    """Executed in a copy of notebooks/; a failed assertion in a cell fails here."""
    runs[path].result()


# ---- they are committed as they should be --------------------------------------------------------


@each_notebook
def test_notebook_is_short_and_has_its_parts(path):
    notebook = read(path)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            lines = cell.source.splitlines()
            assert len(lines) <= 30
            assert max(len(line) for line in lines) <= 100

    text = text_of(notebook)
    assert "## Exercises" in text
    assert "Read next" in text
    assert text.count("assert ") >= 4


@each_notebook
def test_notebook_is_committed_with_clean_outputs(path):
    """All cells were run in order, there is a picture, and no error, warning or progress bar."""
    assert path.stat().st_size < 400_000

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
    """The numbers of all equations that a text names, as Eq. 4, Eqs. 5-7, or a formula's tag."""
    found = set()
    for first, last in re.findall(r"(?:Eqs?\. |tag\{)(\d+)(?:(?:-|, )(\d+))?", text):
        found.update(range(int(first), int(last or first) + 1))
    return found


def test_every_equation_is_named_where_the_plan_says():
    """The plan has a row for every equation, with the number of a notebook that names it."""
    named = {path.name[0]: equations(text_of(read(path))) for path in NOTEBOOKS}
    plan = dict(re.findall(r"^\| Eq\. (\d+) \| (\d) \|", PLAN.read_text(), re.MULTILINE))
    assert list(plan) == [str(number) for number in range(1, 16)]
    for number, notebook in plan.items():
        assert int(number) in named[notebook], number
