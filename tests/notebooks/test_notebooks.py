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


@each(NOTEBOOKS)
def test_lesson_runs_with_the_pieces_of_earlier_ones_and_grades_answers_correctly(path, tmp_path):
    """Runs in a separate process, because the cells set the state of matplotlib and torch."""
    shutil.copytree(ROOT / "notebooks", tmp_path / "notebooks")
    shutil.copytree(ROOT / "results", tmp_path / "results")
    assert forked.call(course.run, path, tmp_path / "notebooks") == []


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
        if "image/png" in output.get("data", {}):
            assert len(output.metadata["image/png"]["alt"]) >= 40
    assert str(ROOT) not in path.read_text()
