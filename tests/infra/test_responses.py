"""infra/responses.py: benchmarks have folders of their own, and ranks share what is missing."""

import shutil

import pytest

import evaluate
import toy
from infra.errors import UserError
from infra.folder import append_line, write_lines
from infra.responses import load_benchmarks, missing_responses


def test_load_benchmarks_names_a_folder_for_each(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "bench.jsonl", toy.problems(3))
    (tmp_path / "some").mkdir()
    shutil.copy("bench.jsonl", "some/other.jsonl")
    config = evaluate.Config(benchmarks=" ./bench.jsonl, some/other.jsonl,,toy-held-out ", limit=2)
    benchmarks = load_benchmarks(config)
    assert list(benchmarks) == ["bench.jsonl", "other.jsonl", "toy-held-out"]
    assert [len(problems) for problems in benchmarks.values()] == [2, 2, 2]
    for names in ("some/other.jsonl,other.jsonl", "toy,toy"):
        with pytest.raises(UserError, match="two would share the folder .*: rename one"):
            load_benchmarks(evaluate.Config(benchmarks=names))


def test_missing_responses_are_dealt_to_the_ranks(tmp_path):
    problems = [{"problem": f"{i}?"} for i in range(3)]
    (tmp_path / "b").mkdir()
    for file, i, sample in (("responses-0", 0, 1), ("responses-4", 2, 0)):
        line = {"asked": f"{i}?", "sample": sample, "response": "x"}
        append_line(tmp_path / "b" / f"{file}.jsonl", line)
    benchmarks = {"a": problems[:2], "b": problems}
    shares = [missing_responses(benchmarks, 2, tmp_path, rank, 2) for rank in range(2)]
    missing = [("a", 0, 0), ("a", 0, 1), ("a", 1, 0), ("a", 1, 1)]
    missing += [("b", 0, 0), ("b", 1, 0), ("b", 1, 1), ("b", 2, 1)]
    assert sorted(shares[0] + shares[1]) == missing
    for share in shares:  # at most one of a problem's two responses, which may both be long
        assert len({(name, i) for name, i, _ in share}) == len(share)
