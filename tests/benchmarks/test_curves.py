"""benchmarks/curves.py: how runs are grouped, their mean and band, and errors."""

import json
import shutil

import numpy as np
from PIL import Image
from toy_runs import refusal

from benchmarks import curves
from benchmarks.curves import curve, group_runs
from benchmarks.statistics import half_width
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


def test_a_curve_is_the_mean_over_runs_at_common_steps():
    runs = [fake_run(rewards=x)[1] for x in ([0.1, 0.2, 0.9], [0.3, 0.6], [0.5, 0.1, 0.7])]
    steps, mean, width = curve(runs, "reward")
    assert steps == [1, 2]
    np.testing.assert_allclose(mean, [0.3, 0.3])
    np.testing.assert_allclose(width, [half_width([0.1, 0.3, 0.5]), half_width([0.2, 0.6, 0.1])])
    assert curve(runs[:1], "reward")[2].tolist() == [0, 0, 0]


def test_runs_of_train_py_are_drawn(finished, tmp_path, capsys):
    other = shutil.copytree(finished, tmp_path / "other")
    write_json(other / "config.json", read_json(other / "config.json") | {"seed": 1})
    picture = tmp_path / "both.png"
    curves.main([str(finished), str(other), "--output", str(picture)])
    assert "delta: 2 run(s), reward 0." in capsys.readouterr().out
    width, height = Image.open(picture).size
    assert width > height


def test_a_duplicate_is_refused(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps(fake_run()[0]))
    (tmp_path / "metrics.jsonl").write_text(json.dumps(fake_run()[1][0]) + "\n")
    said = refusal(curves.main, [tmp_path, tmp_path], capsys)
    assert "two runs are delta with --seed 0" in said
