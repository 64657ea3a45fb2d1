"""Tests benchmarks/curves.py: how runs are read and grouped, and their running mean."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from toy_runs import refusal

from benchmarks import curves
from infra.folder import write_json


def run_of(rewards: list[float]) -> list[dict]:
    return [{"step": i, "reward": reward} for i, reward in enumerate(rewards, start=1)]


@pytest.mark.parametrize(
    "runs, steps, means",
    [
        ([run_of([0.1, 0.2, 0.9, 0.4]), run_of([0.3, 0.6, 0.1])], [1, 2, 3], [1.1 / 3] * 3),
        ([run_of([0, 0, 0, 1, 1])], [1, 2, 3, 4, 5], [0, 1 / 4, 2 / 5, 2 / 4, 2 / 3]),
        ([[{"step": t, "reward": t / 100} for t in (0, 10, 20)]], [0, 10, 20], [0, 0.1, 0.2]),
    ],
)
def test_a_curve_is_the_running_mean_over_runs_at_common_steps(runs, steps, means):
    found, values = curves.curve(runs, "reward")
    assert found == steps
    np.testing.assert_allclose(values, means)


def test_runs_that_differ_in_their_seed_share_a_line(finished, tmp_path, capsys, monkeypatch):
    folders = []
    for name, seed in (("delta-0", 0), ("delta-1", 1), ("dapo-1", 1)):
        folders.append(shutil.copytree(finished, tmp_path / name))
        write_json(folders[-1] / "config.json", {"seed": seed})
    groups = curves.read_runs(folders)
    assert {label: len(runs) for label, runs in groups.items()} == {"delta": 2, "dapo": 1}
    monkeypatch.chdir(tmp_path)
    assert curves.read_runs([Path("delta-0"), folders[2]]).keys() == {"delta", "dapo"}
    curves.main([str(folder) for folder in folders])
    assert Image.open(folders[0] / "compared.png").width == 1400
    absent = [*folders, "--metrics", "eval_greedy"]
    assert "share no metric that --metrics names" in refusal(curves.main, absent, capsys)
    (folders[1] / "metrics.jsonl").unlink()
    assert "delta-1 has no metrics yet" in refusal(curves.main, folders, capsys)
