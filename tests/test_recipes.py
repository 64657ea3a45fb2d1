"""Tests every recipe: its diff changes a copy of the repository, where recipe_checks.py passes."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from forked import ROOT, call

NAMES = sorted(path.stem for path in (ROOT / "recipes").glob("*.diff"))


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_applies_and_gives_a_right_value(name, tmp_path):
    unread = shutil.ignore_patterns(".*", "__pycache__", "docs", "notebooks", "results", "runs")
    shutil.copytree(ROOT, tmp_path / "copy", ignore=unread)
    recipe = ROOT / f"recipes/{name}.diff"
    subprocess.run(["git", "apply", "--verbose", recipe], cwd=tmp_path / "copy", check=True)
    call(check, name, tmp_path / "copy")


def check(name: str, copy: Path) -> None:
    """Run one of the recipe_checks with the modules of the copy, in a process that then ends."""
    os.chdir(copy)
    ours = {path.stem for folder in (copy, copy / "tests") for path in folder.iterdir()}
    for module in list(sys.modules):
        if module.partition(".")[0] in ours:
            del sys.modules[module]
    sys.path[:0] = [str(copy), str(copy / "tests")]
    import recipe_checks

    getattr(recipe_checks, name)(copy / "runs")


def test_the_page_names_each_recipe_and_its_lines():
    """A recipe's lines are those that it adds, without empty ones."""
    page = (ROOT / "docs/extending.md").read_text()
    for name in NAMES:
        recipe = (ROOT / f"recipes/{name}.diff").read_text()
        added = re.findall(r"^\+(?!\+\+).", recipe, re.MULTILINE)
        assert page.count(f"| {len(added)} | [{name}](../recipes/{name}.diff) |") == 1, name
    assert len(NAMES) == page.count(".diff)")
