"""programs/ works as its README says when copied into another project under another name."""

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

from conftest import ROOT

FOLDER = Path(ROOT) / "programs"


def imported_names(path: Path) -> set[str]:
    """The top-level modules that a file imports, without relative imports."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add(node.module.partition(".")[0])
    return names


def test_only_the_standard_library_and_the_folder_itself_are_imported():
    for path in FOLDER.rglob("*.py"):
        own = {"sandbox"} if path.name == "server.py" else set()  # server.py is started as a script
        assert imported_names(path) <= sys.stdlib_module_names | own, path


def test_a_copy_under_another_name_runs_its_readme_example(tmp_path):
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(FOLDER, tmp_path / "judge", ignore=ignored)
    example = re.search(r"```python\n(.*?)^```$", (FOLDER / "README.md").read_text(), re.S | re.M)[
        1
    ]
    promised = re.findall(r"^# (.*)$", example, re.MULTILINE)
    command = [sys.executable, "-c", example.replace("from programs.", "from judge.")]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert run.stdout.splitlines() == promised, run.stderr
    assert len(promised) == 2
