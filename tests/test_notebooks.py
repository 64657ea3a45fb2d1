"""The notebooks run from top to bottom, in a copy, and are committed as the teacher wants them."""
import json
import shutil

import nbformat
import pytest
from nbclient import NotebookClient

from conftest import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def test_there_are_seven():
    assert [path.name[0] for path in NOTEBOOKS] == list("1234567")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_and_its_checks_hold(path, tmp_path, monkeypatch):
    """Executed in a copy of notebooks/ beside the repository's files; a failed assertion in a cell fails here."""
    shutil.copytree(ROOT / "notebooks", tmp_path / "notebooks")
    shutil.copytree(ROOT / "results", tmp_path / "results")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = nbformat.read(tmp_path / "notebooks" / path.name, as_version=4)
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path / "notebooks")}}).execute()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_committed_with_outputs_and_short_cells(path):
    assert path.stat().st_size < 400_000
    cells = json.loads(path.read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert all(len(cell["source"]) <= 30 for cell in code)
    assert all(cell["execution_count"] for cell in code) and any("image/png" in str(cell["outputs"]) for cell in code)
    assert not any(output["output_type"] == "error" for cell in code for output in cell["outputs"])
    text = "".join("".join(cell["source"]) for cell in cells)
    assert "## Exercises" in text and "Read next" in text and text.count("assert ") >= 4


def test_every_equation_is_named_where_the_plan_says():
    """The table of notebooks/README.md names every equation from 1 to 15, and the notebook it names has it as a tag or by name."""
    plan = (ROOT / "notebooks" / "README.md").read_text()
    for number in range(1, 16):
        (row,) = [line for line in plan.splitlines() if line.startswith(f"| Eq. {number} ")]
        text = next(path for path in NOTEBOOKS if path.name.startswith(row.split("|")[2].strip()[0])).read_text()
        assert f"tag{{{number}}}" in text or f"Eq. {number}" in text or any(
            f"Eqs. {a}-{b}" in text or f"tag{{{a}, {b}}}" in text for a in range(1, 16) for b in range(a, 16) if a <= number <= b), number
