"""programs/ works as its README says when copied under another name, beside answers/thoughts.py."""

import re
import shutil
import subprocess
import sys

from conftest import ROOT

FOLDER = ROOT / "programs"


def test_a_copy_under_another_name_runs_its_readme_example(tmp_path):
    shutil.copytree(FOLDER, tmp_path / "judge", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "answers").mkdir()
    shutil.copy(ROOT / "answers" / "thoughts.py", tmp_path / "answers")
    example = (FOLDER / "README.md").read_text().split("```python\n")[1].split("```\n")[0]
    promised = re.findall(r"^# (.*)$", example, re.MULTILINE)
    command = [sys.executable, "-c", example.replace("from programs.", "from judge.")]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert run.stdout.splitlines() == promised and promised, run.stderr
