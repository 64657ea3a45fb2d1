"""benchmarks/curves.py: how runs are read and grouped, their running mean, and errors."""

import json
import shutil

import numpy as np
from PIL import Image
from toy_runs import refusal

from benchmarks import curves
from benchmarks.curves import curve, group_runs, read_table
from infra.folder import read_json, write_json


def fake_run(method="delta", seed=0, rewards=(0.25, 0.5), **settings) -> tuple[dict, list[dict]]:
    metrics = [{"step": i, "reward": reward} for i, reward in enumerate(rewards, start=1)]
    return {"method": method, "seed": seed, "lr": 1e-4} | settings, metrics


def test_labels_show_only_the_settings_that_differ():
    """Flags of one method alone do not differ, as long as its runs agree."""
    runs = [fake_run(lr=1e-4, K=1), fake_run(lr=3e-4, seed=1, K=1), fake_run(lr=3e-4, K=1)]
    counts = {label: len(of_label) for label, of_label in group_runs(runs).items()}
    assert counts == {"delta, --lr 0.0001": 1, "delta, --lr 0.0003": 2}
    assert list(group_runs([runs[0], fake_run("dapo")])) == ["delta", "dapo"]
    three = [runs[0], fake_run("dapo"), fake_run(K=3)]
    assert list(group_runs(three)) == ["delta, --K 1", "dapo", "delta, --K 3"]


def test_a_curve_is_the_running_mean_over_runs_at_common_steps():
    runs = [fake_run(rewards=x)[1] for x in ([0.1, 0.2, 0.9, 0.4], [0.3, 0.6, 0.1])]
    assert curve(runs, "reward", 1)[0] == [1, 2, 3]
    for window, expected in ((1, [0.2, 0.4, 0.5]), (3, [0.3, 1.1 / 3, 0.45])):
        np.testing.assert_allclose(curve(runs, "reward", window)[1], expected)
    sparse = [{"step": step, "reward": step / 100} for step in (0, 10, 20)]
    np.testing.assert_allclose(curve([sparse], "reward", 5)[1], [0, 0.1, 0.2])


def test_a_table_has_a_line_for_each_step_of_a_run(tmp_path):
    lines = ["row,seed,step,reward,entropy", "dapo,0,1,0.25,", "dapo,1,1,0.5,2", "dapo,0,2,1,3"]
    path = tmp_path / "runs.csv"
    path.write_text("\n".join(lines))
    first, second = read_table(path)
    assert first[0]["method"] == second[0]["method"] == "dapo"
    assert first[1] == [{"step": 1, "reward": 0.25}, {"step": 2, "reward": 1, "entropy": 3}]
    assert second[1] == [{"step": 1, "reward": 0.5, "entropy": 2}]


def test_runs_of_train_py_are_drawn(finished, tmp_path, capsys):
    other = shutil.copytree(finished, tmp_path / "other")
    write_json(other / "config.json", read_json(other / "config.json") | {"seed": 1})
    picture = tmp_path / "both.png"
    curves.main([str(finished), str(other), "--output", str(picture)])
    assert Image.open(picture).width == 1400
    table = tmp_path / "one.csv"
    table.write_text("method,step,reward\ndapo,1,0.5\n")
    curves.main([str(table), "--metrics", "reward"])
    assert (tmp_path / "curves.png").exists()
    refused = refusal(curves.main, [table, "--metrics", "entropy"], capsys)
    assert "share no metric" in refused
    table.write_text("seed,step,reward\n0,1,0.5\n")
    assert "needs the columns" in refusal(curves.main, [table], capsys)


def test_a_duplicate_is_refused(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps(fake_run()[0]))
    (tmp_path / "metrics.jsonl").write_text(json.dumps(fake_run()[1][0]) + "\n")
    said = refusal(curves.main, [tmp_path, tmp_path], capsys)
    assert "two runs are delta with --seed 0" in said
