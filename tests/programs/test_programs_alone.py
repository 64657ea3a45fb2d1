"""programs/ works as its README says when copied under another name, beside answers/thoughts.py."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

from conftest import ROOT

FOLDER = Path(ROOT) / "programs"


def test_a_copy_under_another_name_runs_its_readme_example(tmp_path):
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(FOLDER, tmp_path / "judge", ignore=ignored)
    (tmp_path / "answers").mkdir()
    shutil.copy(FOLDER.parent / "answers" / "thoughts.py", tmp_path / "answers")
    example = re.search(r"```python\n(.*?)^```$", (FOLDER / "README.md").read_text(), re.S | re.M)[
        1
    ]
    promised = re.findall(r"^# (.*)$", example, re.MULTILINE)
    command = [sys.executable, "-c", example.replace("from programs.", "from judge.")]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert run.stdout.splitlines() == promised, run.stderr
    assert len(promised) == 2
