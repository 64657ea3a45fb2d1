"""infra/identity.py: a run's folder, its models and its data are nobody else's."""

import json
import shutil
import subprocess
import sys

import pytest
from toy_runs import PROBLEMS, SMALL, contents, read_lines, refusal, train_small

import train
from infra import identity
from infra.checkpoints import damage
from infra.identity import data_hash, file_hash, lock, model_fingerprint, unlock


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """The folder of a finished run of two steps on its own copy of the problems."""
    folder = tmp_path_factory.mktemp("runs")
    shutil.copy(PROBLEMS, folder / "mine.jsonl")
    train_small(folder / "run", "--data", str(folder / "mine.jsonl"), steps=2)
    return folder


@pytest.fixture
def two_steps(original, tmp_path):
    """A copy of it, to be continued or spoilt, with the flags of the original's run."""
    return shutil.copytree(original / "run", tmp_path / "copy")


def longer(original, folder, steps=4):
    """The command that continues the run in `folder`."""
    data = ["--data", original / "mine.jsonl"]
    return [*SMALL, *data, "--steps", steps, "--output-dir", folder]


# ---- models ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["model", "best"])
def test_a_model_of_another_is_never_replaced(name, original, two_steps, base, capsys):
    shutil.rmtree(two_steps / name)
    base[0].save_pretrained(two_steps / name)
    before = contents(two_steps)
    said = refusal(train.main, longer(original, two_steps), capsys)
    assert f"{two_steps / name} holds a model that this run did not write" in said
    assert contents(two_steps) == before


def test_a_run_does_not_begin_beside_a_model_of_another(tmp_path, base, capsys):
    base[0].save_pretrained(tmp_path / "model")
    before = contents(tmp_path)
    said = refusal(train.main, [*SMALL, "--output-dir", tmp_path], capsys)
    assert "holds a model that this run did not write: move it away" in said
    assert contents(tmp_path) == before | {tmp_path / "lock": b""}


@pytest.mark.parametrize("place", ["model", "model/", "best", "."])
def test_a_model_is_not_trained_into_its_own_place(place, original, tmp_path, capsys):
    source = shutil.copytree(original / "run" / "model", tmp_path / place, dirs_exist_ok=True)
    before = contents(tmp_path)
    flags = [*SMALL, "--model", f"{tmp_path}/{place}", "--output-dir", tmp_path]
    said = refusal(train.main, flags, capsys)
    assert f"--model {source.resolve()} is where --output-dir {tmp_path} would be written" in said
    assert contents(tmp_path) == before


def test_a_run_replaces_its_own_models(original, two_steps):
    before = contents(two_steps / "model")
    train.main([str(word) for word in longer(original, two_steps)])
    after = contents(two_steps / "model")
    assert after.keys() == before.keys()
    assert after != before


# ---- data --------------------------------------------------------------------------------------


def test_a_run_is_not_continued_on_changed_data(original, two_steps, capsys):
    path = original / "mine.jsonl"
    text = path.read_text()
    before = contents(two_steps)
    lines = text.splitlines(keepends=True)
    path.write_text("".join([lines[1], lines[0], *lines[2:]]))
    try:
        said = refusal(train.main, longer(original, two_steps), capsys)
    finally:
        path.write_text(text)
    assert "holds a run on other training problems" in said
    assert contents(two_steps) == before


def test_data_hash_knows_texts_answers_and_order():
    one = {"problem": "1+1?", "answer": "2"}
    two = {"problem": "2+2?", "answer": "4"}
    hashes = [data_hash(each) for each in ([one, two], [two, one], [one], [one | {"answer": "3"}])]
    assert len(set(hashes)) == 4
    assert data_hash([dict(reversed(one.items())), two]) == hashes[0]


def test_model_fingerprint_looks_into_small_and_large_files(tmp_path):
    (tmp_path / "evaluation").mkdir()
    (tmp_path / "config.json").write_text("{}")
    large = bytearray(3 * identity.SMALL)
    (tmp_path / "model.safetensors").write_bytes(large)
    before = model_fingerprint(tmp_path)
    assert list(before) == ["config.json", "model.safetensors"]

    large[-1] = 1
    (tmp_path / "other").write_bytes(large)
    assert file_hash(tmp_path / "other") != file_hash(tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("[]")
    assert model_fingerprint(tmp_path)["config.json"] != before["config.json"]


# ---- the lock ----------------------------------------------------------------------------------

HOLD = """
import sys, time
from pathlib import Path
from infra.identity import lock
lock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(600)
"""


def test_a_second_process_on_a_folder_gets_one_line(tmp_path, capsys):
    """As long as the first one lives, and not longer."""
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "held\n"
        said = refusal(train.main, [*SMALL, "--output-dir", tmp_path], capsys)
        assert f"--output-dir {tmp_path} is being written by another process" in said
        assert contents(tmp_path) == {tmp_path / "lock": b""}
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
    lock(tmp_path)
    unlock(tmp_path)


def test_a_run_gives_up_its_lock(tmp_path):
    train_small(tmp_path, "--eval-data", "", steps=1)
    assert not [folder for folder in identity.LOCKED if folder == tmp_path.resolve()]


# ---- damage ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, garbage, message",
    [
        ("metrics.jsonl", b"\x00\x00\n", "metrics.jsonl, line 4, is damaged"),
        ("metrics.jsonl", b"\xff\xfe\n", "metrics.jsonl, line 4, is damaged"),
        ("metrics.jsonl", b"[1]\n", "metrics.jsonl, line 4, is damaged (no dictionary)"),
        ("metrics.jsonl", b"{}\n", "metrics.jsonl, line 4, is damaged (no step)"),
        ("metrics.jsonl", b'{"step": "x"}\n', "line 4, is damaged (step is of type str, not int)"),
        ("metrics.jsonl", b"[" * 100_000 + b"\n", "metrics.jsonl, line 4, is damaged"),
        ("samples.jsonl", b"garbage\n", "is damaged"),
        ("config.json", b"garbage", "config.json is damaged"),
        ("run.json", b"garbage", "run.json is damaged"),
    ],
)
def test_garbage_in_a_run_is_named(name, garbage, message, original, two_steps, capsys):
    with open(two_steps / name, "ab") as file:
        file.write(garbage)
    before = contents(two_steps)
    assert message in refusal(train.main, longer(original, two_steps), capsys)
    assert contents(two_steps) == before


def test_a_run_file_of_other_types_is_named(original, two_steps, capsys):
    (two_steps / "run.json").write_text('{"id": "x", "data": []}')
    said = refusal(train.main, longer(original, two_steps), capsys)
    assert "run.json is damaged (data is of type list, not dict)" in said


@pytest.mark.parametrize("pattern", ["*.distcp", "state.pt", ".metadata", "checksums.json"])
def test_one_flipped_byte_is_damage_and_the_checkpoint_is_replaced(
    pattern, original, two_steps, capsys
):
    """Of two checkpoints the newer is damaged: the run goes on from the older, and writes anew."""
    longer_run = [str(word) for word in longer(original, two_steps)]
    train.main(longer_run)
    expected = read_lines(two_steps / "metrics.jsonl")
    damaged = two_steps / "checkpoint-000004"
    path = max(damaged.glob(pattern))
    flipped = bytearray(path.read_bytes())
    flipped[len(flipped) // 2] ^= 1
    path.write_bytes(flipped)

    capsys.readouterr()
    train.main(longer_run)
    said = capsys.readouterr().out
    assert f"skipping {damaged}: it is damaged" in said
    assert f"continuing {two_steps} after step 2" in said
    assert read_lines(two_steps / "metrics.jsonl") == expected

    train.main(longer_run)
    assert "after step 4" in capsys.readouterr().out


def test_a_lone_damaged_checkpoint_is_refused(original, two_steps, capsys):
    (two_steps / "checkpoint-000002" / "state.pt").write_text("garbage")
    said = refusal(train.main, longer(original, two_steps), capsys)
    assert "every checkpoint" in said


def test_a_checkpoint_whose_checksums_name_no_file_is_damaged(two_steps):
    checkpoint = two_steps / "checkpoint-000002"
    assert damage(checkpoint) == ""
    (checkpoint / "checksums.json").write_text("{}")
    assert "state.pt changed since it was written" in damage(checkpoint)


def test_the_runs_own_file_says_what_it_is(two_steps):
    known = json.loads((two_steps / "run.json").read_text())
    assert known.keys() == {"id", "data"}
    assert json.loads((two_steps / "model" / "exported-by.json").read_text())["id"] == known["id"]
