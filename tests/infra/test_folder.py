"""infra/folder.py: a run changes only its own folder, models and data."""

import json
import shutil
import subprocess
import sys

import pytest
import torch
from infra.checkpoints import damage
from toy_runs import PROBLEMS, SMALL, contents, read_lines, refusal, train_small

import toy
import train
from infra import folder as folders
from infra.folder import data_hash, fingerprint, lock, mark_file, read_run, unlock


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """The folder of a finished run of two steps on a copy of the problems."""
    folder = tmp_path_factory.mktemp("runs")
    shutil.copy(PROBLEMS, folder / "mine.jsonl")
    train_small(folder / "run", "--data", str(folder / "mine.jsonl"), steps=2)
    return folder


@pytest.fixture
def two_steps(original, tmp_path):
    """A copy of `original`, with its flags, to be continued or damaged."""
    return shutil.copytree(original / "run", tmp_path / "copy")


TOY_SIZED = [
    *("--max-new-tokens", 64),
    *("--max-prompt-tokens", 64),
    *("--micro-batch-tokens", 4096),
    *("--eval-samples", 1),
]


def longer(original, folder, steps=4):
    """The command that continues the run in `folder`."""
    data = ["--data", original / "mine.jsonl"]
    return [*SMALL, *data, "--steps", steps, "--output-dir", folder]


# ---- models ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["model", "best"])
def test_a_users_model_is_never_lost(name, original, two_steps, base):
    shutil.rmtree(two_steps / name)
    base[0].save_pretrained(two_steps / name)
    before = set(contents(two_steps / name).values())
    train.main([str(word) for word in longer(original, two_steps)])
    assert before <= set(contents(two_steps).values())
    assert list((two_steps / "model").glob("model-of-*.json"))


@pytest.mark.parametrize("place", ["model", "model/", "best", "."])
def test_a_model_is_not_trained_into_its_own_folder(place, original, tmp_path, capsys):
    shutil.copytree(original / "run" / "model", tmp_path / place, dirs_exist_ok=True)
    before = contents(tmp_path)
    flags = [*SMALL, "--model", f"{tmp_path}/{place}", *TOY_SIZED, "--output-dir", tmp_path]
    said = refusal(train.main, flags, capsys)
    assert f"{tmp_path} holds " in said
    assert "from another program (no run.json): choose another --output-dir" in said
    assert contents(tmp_path) == before | {tmp_path / "lock": b""}


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
    assert "(training problems " in said
    assert contents(two_steps) == before


def test_data_hash_depends_on_texts_answers_and_order():
    one = {"problem": "1+1?", "answer": "2"}
    two = {"problem": "2+2?", "answer": "4"}
    hashes = [data_hash(each) for each in ([one, two], [two, one], [one], [one | {"answer": "3"}])]
    assert len(set(hashes)) == 4
    assert data_hash([dict(reversed(one.items())), two]) == hashes[0]


def test_fingerprint_depends_on_every_byte_in_a_model_but_not_on_times(tmp_path):
    (tmp_path / "evaluation").mkdir()
    (tmp_path / ".DS_Store").write_text("a file browser's")
    (tmp_path / "config.json").write_text("{}")
    large = bytearray(3 * 2**20)
    (tmp_path / "model.safetensors").write_bytes(large)
    before = fingerprint({}, tmp_path)
    assert list(before) == ["config.json of the model", "model.safetensors of the model"]

    (tmp_path / "model.safetensors").write_bytes(large)  # same bytes, new time
    assert fingerprint({}, tmp_path) == before
    large[1_234_567] = 1
    (tmp_path / "model.safetensors").write_bytes(large)
    now = fingerprint({}, tmp_path)
    changed = [name for name in now if now[name] != before[name]]
    assert changed == ["model.safetensors of the model"]


MODEL_FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")


def test_a_run_is_not_continued_with_another_model_or_optimiser(tmp_path, capsys, monkeypatch):
    """The model's name is unchanged, but a byte in a file or the optimiser's class differs."""
    model = shutil.copytree(toy.base_folder(), tmp_path / "base")
    command = [*SMALL, "--model", model, *TOY_SIZED, "--steps", 1]
    command = [str(word) for word in (*command, "--output-dir", tmp_path / "run")]
    train.main(command)
    before = contents(tmp_path / "run")

    present = [name for name in MODEL_FILES if (model / name).exists()]
    assert {"config.json", "generation_config.json", "tokenizer.json"} <= set(present)
    for name in present:
        text = (model / name).read_text()
        (model / name).write_text(text + "\n")
        said = refusal(train.main, [*command, "--steps", 2], capsys)
        assert f"({name} of the model " in said
        (model / name).write_text(text)

    with monkeypatch.context() as patch:
        patch.setattr(torch.optim, "AdamW", torch.optim.Adam)
        said = refusal(train.main, [*command, "--steps", 2], capsys)
    assert "(optimiser AdamW there, Adam here)" in said
    assert contents(tmp_path / "run") == before


# ---- other users' files --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "metrics.jsonl",
        "samples.jsonl",
        "config.json",
        "model/mine",
        "best/m",
    ],
)
def test_a_run_does_not_begin_in_a_folder_with_other_files(name, tmp_path, capsys):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("mine")
    said = refusal(train.main, [*SMALL, "--output-dir", tmp_path], capsys)
    assert f"{name.partition('/')[0]} from another program (no run.json)" in said
    assert contents(tmp_path) == {path: b"mine", tmp_path / "lock": b""}


USERS = [
    "best.old/notes",
    "model.old/notes",
    "best.tmp/notes",
    "config.json.tmp",
    "metrics.jsonl.tmp",
    "checkpoint-7.tmp/notes",
    "checkpoint-000008.tmp/notes",
    "checkpoint-good1/state.pt",
    "checkpoint-000099/notes",
    "checkpoint-000002/.DS_Store",
    "checkpoint-000002/folder/notes",
    "model/notes",
    "best/folder/notes",
    "lock",
]


def test_a_run_deletes_nothing_that_it_did_not_write(original, two_steps, capsys):
    """Ten more steps delete old checkpoints and write the models again."""
    for name in USERS:
        path = two_steps / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"mine: {name}")
    shutil.copytree(two_steps / "checkpoint-000002", two_steps / "checkpoint-000050")

    train.main([str(word) for word in longer(original, two_steps, steps=10)])
    said = capsys.readouterr().out
    assert f"continuing {two_steps} after step 2" in said  # .DS_Store does not count as damage
    assert "damaged" not in said
    found = {content for content in contents(two_steps).values() if content.startswith(b"mine: ")}
    assert found == {f"mine: {name}".encode() for name in USERS}

    for name in USERS:
        if not name.startswith(("model", "best/")):
            assert (two_steps / name).exists(), name
    assert (two_steps / "model-kept-1" / "notes").exists()
    assert "model holds files that this run did not write: it is kept as" in said
    assert (two_steps / "checkpoint-000050" / "state.pt").exists()
    assert not (two_steps / "checkpoint-000002" / "state.pt").exists()
    numbers = [path.name for path in two_steps.glob("checkpoint-*") if list(path.glob("*-of-*"))]
    assert sorted(numbers) == ["checkpoint-000008", "checkpoint-000010", "checkpoint-000050"]


@pytest.mark.parametrize("steps", [2, 4])
def test_a_run_whose_checkpoints_were_deleted_does_not_restart(steps, original, two_steps, capsys):
    shutil.rmtree(two_steps / "checkpoint-000002")
    before = contents(two_steps)
    said = refusal(train.main, longer(original, two_steps, steps), capsys)
    assert f"{two_steps} are missing (the last was checkpoint-000002)" in said
    assert contents(two_steps) == before


# ---- the lock ----------------------------------------------------------------------------------

HOLD = """
import sys, time
from pathlib import Path
from infra.folder import lock
lock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(600)
"""


def test_a_second_process_in_a_folder_gets_a_one_line_error(tmp_path, capsys):
    """The error lasts only while the first process is alive."""
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


def test_a_run_releases_its_lock(tmp_path):
    train_small(tmp_path, "--eval-data", "", steps=1)
    assert not [folder for folder in folders.LOCKED if folder == tmp_path.resolve()]


# ---- damage ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, garbage, message",
    [
        ("metrics.jsonl", b"\x00\x00\n", "metrics.jsonl, line 4, is damaged"),
        ("metrics.jsonl", b"\xff\xfe\n", "metrics.jsonl, line 4, is damaged"),
        ("metrics.jsonl", b"[1]\n", "metrics.jsonl, line 4, is damaged (not a dictionary)"),
        ("metrics.jsonl", b"{}\n", "metrics.jsonl, line 4, is damaged (no step)"),
        ("metrics.jsonl", b'{"step": "x"}\n', "line 4, is damaged (step is of type str, not int)"),
        ("metrics.jsonl", b"[" * 100_000 + b"\n", "metrics.jsonl, line 4, is damaged"),
        ("samples.jsonl", b"garbage\n", "is damaged"),
        ("run.json", b"garbage", "run.json is damaged"),
    ],
)
def test_garbage_in_a_runs_files_is_reported(name, garbage, message, original, two_steps, capsys):
    with open(two_steps / name, "ab") as file:
        file.write(garbage)
    before = contents(two_steps)
    assert message in refusal(train.main, longer(original, two_steps), capsys)
    assert contents(two_steps) == before


def test_a_run_file_with_wrong_types_is_reported(original, two_steps, capsys):
    (two_steps / "run.json").write_text('{"id": "x", "fingerprint": []}')
    said = refusal(train.main, longer(original, two_steps), capsys)
    assert "run.json is damaged (fingerprint is of type list, not dict)" in said


@pytest.mark.parametrize("pattern", ["*.distcp", "state.pt", ".metadata", "*-of-*.json"])
def test_a_checkpoint_with_one_flipped_byte_is_damaged_and_replaced(
    pattern, original, two_steps, capsys
):
    """The newer of two checkpoints is damaged: the run continues from the older one."""
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


def test_a_run_whose_only_checkpoint_is_damaged_is_refused(original, two_steps, capsys):
    (two_steps / "checkpoint-000002" / "state.pt").write_text("garbage")
    said = refusal(train.main, longer(original, two_steps), capsys)
    assert "every checkpoint" in said


def test_a_checkpoint_whose_mark_lists_no_files_counts_as_damaged(two_steps):
    run_id = read_run(two_steps)["id"]
    checkpoint = two_steps / "checkpoint-000002"
    assert damage(checkpoint, run_id) == ""
    mark_file(checkpoint, run_id).write_text('{"files": {}}')
    assert "has changed since it was written" in damage(checkpoint, run_id)


def test_run_json_has_id_fingerprint_and_newest_checkpoint(two_steps):
    known = json.loads((two_steps / "run.json").read_text())
    assert known.keys() == {"id", "fingerprint", "code", "saved"}
    assert known["saved"] == "checkpoint-000002"
    assert (two_steps / "model" / f"model-of-{known['id']}.json").exists()


def test_a_run_with_an_unknown_setting_is_refused(original, two_steps, capsys):
    """Its results may depend on a flag that this version lacks."""
    path = two_steps / "run.json"
    known = json.loads(path.read_text())
    known["fingerprint"]["older_flag"] = 3
    path.write_text(json.dumps(known))
    said = refusal(train.main, longer(original, two_steps), capsys)
    assert "(older_flag 3 there, None here)" in said


def test_another_methods_flag_does_not_affect_a_run(original, two_steps, capsys):
    """A fork that adds a method with a flag can still continue its earlier runs."""
    fingerprint = json.loads((two_steps / "run.json").read_text())["fingerprint"]
    assert "K" in fingerprint and "right_weight" not in fingerprint


def test_changed_method_code_is_reported(original, two_steps, capsys):
    path = two_steps / "run.json"
    known = json.loads(path.read_text())
    train.main([str(word) for word in longer(original, two_steps)])
    assert "changed since" not in capsys.readouterr().out
    known["code"]["methods.py"] = "other"
    path.write_text(json.dumps(known))
    train.main([str(word) for word in longer(original, two_steps)])
    assert "warning: methods.py changed since the run in" in capsys.readouterr().out
    assert json.loads(path.read_text())["code"] == known["code"]
