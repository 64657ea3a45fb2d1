"""Tests infra/evaluation_files.py: benchmarks have folders of their own."""

import shutil

import pytest

import evaluate
import toy
from infra.errors import UserError
from infra.evaluation_files import load_benchmarks
from infra.folder import write_lines


def test_load_benchmarks_names_a_folder_for_each(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "bench.jsonl", toy.problems(3))
    (tmp_path / "some").mkdir()
    shutil.copy("bench.jsonl", "some/other.jsonl")
    config = evaluate.Settings(
        benchmarks=" ./bench.jsonl, some/other.jsonl,,toy-held-out ", limit=2
    )
    benchmarks = load_benchmarks(config)
    assert list(benchmarks) == ["bench.jsonl", "other.jsonl", "toy-held-out"]
    assert [len(problems) for problems in benchmarks.values()] == [2, 2, 2]
    for names in ("some/other.jsonl,other.jsonl", "toy,toy"):
        with pytest.raises(UserError, match="two would share the folder .*: rename one"):
            load_benchmarks(evaluate.Settings(benchmarks=names))
