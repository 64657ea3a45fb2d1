"""Tests infra/folder.py: who owns a folder, and files that survive a kill."""

import os
import shutil
import signal

import pytest
from models import change_weights
from toy_runs import SMALL, contents, refusal

import train
from config import Config
from infra import folder as files
from infra.errors import UserError
from infra.folder import append_line, claim, identity_of, read_lines, write_json, write_lines

WRITTEN = ("metrics.jsonl", "model", "checkpoint-*")


def test_claim_creates_a_folder_and_admits_its_owner_again(tmp_path):
    folder = tmp_path / "new" / "run"
    claim(folder, {"lr": 1.0}, WRITTEN)
    write_json(folder / "config.json", {"lr": 1.0, "K": 1, "steps": 5})
    write_lines(folder / "metrics.jsonl", [])
    claim(folder, {"lr": 1.0, "K": 1}, WRITTEN)
    with pytest.raises(UserError, match=r"another run .*\(lr 1.0, not 2.0; K 1, not 2\)"):
        claim(folder, {"lr": 2.0, "K": 2}, WRITTEN)
    with pytest.raises(UserError, match="run cannot be written .*Not a directory"):
        claim(folder / "config.json" / "run", {}, WRITTEN)


def test_an_identity_changes_with_all_that_results_depend_on(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    given = ("train", {"lr": 1.0, "prompts": 8}, tmp_path)
    first = identity_of(*given, prompts=[[1, 2]])
    assert (first["lr"], first["prompts"]) == (1.0, 8)
    assert identity_of(*given, prompts=[[1, 2]]) == first
    assert identity_of(*given, prompts=[[1, 3]])["prompts_hash"] != first["prompts_hash"]
    assert identity_of("gain", *given[1:], prompts=[[1, 2]])["command"] != first["command"]
    (tmp_path / "tokenizer.json").write_text("[]")
    assert identity_of(*given, prompts=[[1, 2]])["model_files"] != first["model_files"]


def test_a_flag_that_an_older_folder_lacks_had_its_default(tmp_path):
    write_json(tmp_path / "config.json", {"lr": 1e-6})
    claim(tmp_path, {"lr": 1e-6, "overlong_buffer": 0}, WRITTEN, Config)
    with pytest.raises(UserError, match=r"\(overlong_buffer 0, not 4\)"):
        claim(tmp_path, {"lr": 1e-6, "overlong_buffer": 4}, WRITTEN, Config)


def test_a_copy_of_a_model_is_the_same_and_a_trained_one_is_another(base_copy, tmp_path):
    before = files.hash_of([], base_copy)
    copy = shutil.copytree(base_copy, tmp_path / "elsewhere")
    for path in copy.iterdir():
        os.utime(path, (1, 1))
    assert files.hash_of([], copy) == before
    change_weights(copy, lambda ts: {name: 0.999 * x for name, x in ts.items()})  # a weight decay
    assert files.hash_of([], copy) != before
    change_weights(base_copy, lambda ts: {f"{name}.0": x for name, x in ts.items()})
    assert files.hash_of([], base_copy) != before


@pytest.mark.parametrize(
    "name", ["metrics.jsonl", "config.json", "model/mine", "checkpoint-000007/mine"]
)
def test_a_refused_folder_stays_as_it_is(name, tmp_path, capsys):
    """A folder that holds files of another program, such as a model, gets no lock file."""
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("{}")
    said = refusal(train.main, [*SMALL, "--output-dir", tmp_path], capsys)
    assert f"--output-dir {tmp_path} holds another run or other files (" in said
    assert contents(tmp_path) == {path: b"{}"}


def test_a_second_process_is_refused_while_the_first_is_alive(tmp_path):
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        files.lock(tmp_path)
        os.write(tell, b"held")
        signal.pause()
    try:
        assert os.read(told, 4) == b"held"
        with pytest.raises(UserError, match=f"{tmp_path} is being written by another process"):
            claim(tmp_path, {}, WRITTEN)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    claim(tmp_path, {}, WRITTEN)


def test_lines_survive_writing_and_a_kill_within_the_last(tmp_path):
    path = tmp_path / "lines.jsonl"
    lines = [{"x": 0.1 + 0.2, "text": "λ\u2028\n"}, {"x": [1e300, -0.0]}]
    assert read_lines(path) == []
    write_lines(path, lines)
    append_line(path, {"y": None})
    with open(path, "a") as file:
        file.write('{"z": {"a": 1}')
    assert read_lines(path) == [*lines, {"y": None}]
    assert [each.name for each in tmp_path.iterdir()] == ["lines.jsonl"]


@pytest.mark.parametrize("garbage", [b"\xff\xfe\n", b'{"a"\n'])
def test_garbage_in_a_file_is_reported(garbage, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(garbage)
    with pytest.raises(UserError, match=f"{path} cannot be read"):
        files.read_json(path)


@pytest.mark.parametrize("garbage", [8 * b"\0", b"\xff\xfe{}", b'{"a"'])
def test_a_garbled_line_is_reported_by_its_number(garbage, tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 0}\n' + garbage + b'\n{"step": 2}\n')
    with pytest.raises(UserError, match=f"{path}, line 2 is damaged: delete this line"):
        read_lines(path)
