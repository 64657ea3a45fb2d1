"""infra/checkpoints.py: runs that are interrupted and continued, refused, or exported."""

import json
import shutil
import signal

import forked
import pytest
import torch
from infra.checkpoints import RunState, begin_writing, claim_folder, export, restore, save
from toy_runs import (
    PROBLEMS,
    SMALL,
    contents,
    read_lines,
    refusal,
    same_weights,
    small_config,
    train_small,
    train_steps,
    wait_for_step,
)
from transformers import AutoModelForCausalLM

import train
from infra import checkpoints
from infra import folder as folders
from infra.errors import Stop
from infra.folder import file_hash, mark, mark_file, read_run, scratch, written
from infra.problems import load_problems
from toy.by_name import model_folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of an uninterrupted run of six steps. Read-only."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    train_small(folder, steps=6)
    return folder


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """The folder of a finished run of two steps. Read-only."""
    folder = tmp_path_factory.mktemp("runs") / "two"
    train_small(folder, steps=2)
    return folder


@pytest.fixture
def two_steps(original, tmp_path):
    """A copy of `original`, to be continued or damaged."""
    return shutil.copytree(original, tmp_path / "copy")


def same_run(a, b):
    """Whether two runs wrote the same metrics, samples and models."""
    for name in ("metrics.jsonl", "samples.jsonl"):
        if read_lines(a / name) != read_lines(b / name):
            return False
    models = [AutoModelForCausalLM.from_pretrained(folder / "model") for folder in (a, b)]
    return same_weights(*models)


# ---- continuing --------------------------------------------------------------------------------


def start_six_steps(folder):
    """Start the run of `whole` in a separate process, with the same number of threads."""
    words = ["train.py", *SMALL, "--steps", "6", "--output-dir", str(folder)]
    return forked.start(*words, threads=torch.get_num_threads())


def test_a_killed_run_continues_to_the_same_metrics(whole, tmp_path):
    """kill -9 after step 3, between two checkpoints; then the same command continues."""
    folder = tmp_path / "cut"
    process = start_six_steps(folder)
    wait_for_step(3, folder, process)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    with open(folder / "metrics.jsonl", "a") as file:
        file.write('{"step": 4, "lo')  # as if killed in mid-write

    continued = forked.finished(start_six_steps(folder))
    assert f"continuing {folder} after step" in continued.stdout
    assert same_run(folder, whole)


def test_ctrl_c_leaves_a_checkpoint_and_no_traceback(whole, tmp_path):
    folder = tmp_path / "cut"
    process = start_six_steps(folder)
    wait_for_step(2, folder, process)
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130
    assert "stopped by SIGINT after step" in process.stderr
    assert "Traceback" not in process.stderr
    assert list(folder.glob("checkpoint-*[0-9]"))

    train_small(folder, steps=6)
    assert same_run(folder, whole)


def test_a_finished_run_continues_with_more_steps(two_steps, whole):
    train_small(two_steps, steps=6)
    assert same_run(two_steps, whole)


def test_rerunning_a_finished_run_changes_nothing(two_steps):
    before = (two_steps / "metrics.jsonl").read_bytes()
    train_small(two_steps, steps=2)
    assert (two_steps / "metrics.jsonl").read_bytes() == before


def test_fixed_gamma_survives_resuming(tmp_path):
    """A checkpoint contains the temperatures of the run's first batch."""
    flags = ["--delta-variant", "fixed_gamma"]
    for folder, steps in (("cut", 2), ("cut", 4), ("whole", 4)):
        run = train_steps(small_config(tmp_path / folder, *flags, steps=steps))
        assert len(run.state.memory["gamma"]) == 2
    cut = read_lines(tmp_path / "cut" / "metrics.jsonl")
    assert [row["step"] for row in cut] == [1, 2, 3, 4]
    assert cut == read_lines(tmp_path / "whole" / "metrics.jsonl")


def test_best_evaluation_is_remembered_after_resuming(two_steps):
    """A run whose best accuracy is already 1 exports no better model."""
    checkpoint = two_steps / "checkpoint-000002"
    state = torch.load(checkpoint / "state.pt", weights_only=True)
    torch.save(state | {"best": 1.0}, checkpoint / "state.pt")
    path = mark_file(checkpoint, read_run(two_steps)["id"])
    listed = json.loads(path.read_text())
    listed["files"]["state.pt"] = file_hash(checkpoint / "state.pt")
    path.write_text(json.dumps(listed))
    before = contents(two_steps / "best")
    train_small(two_steps, steps=4)
    assert contents(two_steps / "best") == before


# ---- refusing ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--lr", "1"], "another run or evaluation (lr 0.0001 there, 1.0 here)"),
        (["--steps", "1"], "already at step 2"),
    ],
)
def test_a_run_is_never_overwritten(flags, message, two_steps, capsys):
    before = contents(two_steps)
    with pytest.raises(SystemExit) as stopped:
        train_small(two_steps, *flags, steps=2)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
    assert contents(two_steps) == before


def reopen(folder, *flags):
    """Call claim_folder as the finished run's command does, with extra flags."""
    command = [*SMALL, "--steps", "2", "--output-dir", str(folder), *flags]
    optimizer = torch.optim.AdamW([torch.zeros(1)])
    problems = load_problems(PROBLEMS)
    data = {"training": problems, "evaluation": problems}
    cfg = train.parse_config(command)
    return claim_folder(cfg, model_folder(cfg), data, optimizer)


@pytest.mark.parametrize(
    "flags",
    [
        ["--save-every", "7"],
        ["--rollout-rows", "5"],
        ["--recompute"],
        ["--steps", "9"],
        ["--micro-batch-tokens", "300"],  # suggested by the out-of-memory message
        ["--packing", "False"],
        ["--proxy-budget-gb", "1"],
    ],
)
def test_claim_folder_allows_flags_that_change_no_result(flags, two_steps):
    reopen(two_steps, *flags)


def test_a_continued_run_removes_unfinished_files(two_steps, capsys):
    cut_off = scratch(two_steps, read_run(two_steps)["id"])
    (cut_off / "checkpoint-000004").mkdir(parents=True)
    train_small(two_steps, steps=2)
    assert not cut_off.exists()
    assert (two_steps / "checkpoint-000002").exists()
    assert f"deleting {cut_off}: it is incomplete" in capsys.readouterr().out


def test_a_run_whose_checkpoints_are_all_damaged_is_refused(two_steps, capsys):
    shard = max((two_steps / "checkpoint-000002").glob("*.distcp"))
    shard.write_bytes(shard.read_bytes()[:1000])
    before = contents(two_steps)
    with pytest.raises(SystemExit) as stopped:
        train_small(two_steps, steps=4)
    assert stopped.value.code == 2
    said = capsys.readouterr()
    assert "checkpoint-000002: it is damaged" in said.out
    assert "every checkpoint" in said.err
    assert contents(two_steps) == before


def test_a_checkpoint_from_another_version_is_refused(two_steps, capsys):
    """Its state has different fields, so a resumed run could silently differ."""
    newest = two_steps / "checkpoint-000002"
    run_id = read_run(two_steps)["id"]
    state = torch.load(newest / "state.pt")
    torch.save(state | {"stepped": True}, newest / "state.pt")
    listed = written(newest, run_id)
    mark(newest, run_id, {name: file_hash(newest / name) for name in listed})
    before = contents(two_steps)
    said = refusal(train.main, [*SMALL, "--steps", "4", "--output-dir", two_steps], capsys)
    assert f"{newest} is from another version of this code" in said
    assert contents(two_steps) == before


# ---- contents of the files ---------------------------------------------------------------------


def test_begin_writing_drops_the_lines_after_the_checkpoint(tmp_path):
    lines = [json.dumps({"step": step}) + "\n" for step in (0, 1, 2, 2, 3)]
    for name in ("metrics.jsonl", "samples.jsonl"):
        (tmp_path / name).write_text("".join(lines) + '{"step": 3, "lo')
    cfg = small_config(tmp_path, steps=5)
    begin_writing(cfg, "1f2e", RunState(step=2))
    for name in ("metrics.jsonl", "samples.jsonl"):
        assert (tmp_path / name).read_text() == "".join(lines[:4])
    assert json.loads((tmp_path / "config.json").read_text())["steps"] == 5


def test_an_unlogged_step_is_logged_only_once(tmp_path):
    """The run resumes twice from a checkpoint that was written before its step was logged."""
    for name in ("metrics.jsonl", "samples.jsonl"):
        (tmp_path / name).write_text('{"step": 1}\n{"step": 2}\n')
    state = RunState(step=2, unlogged={"step": 2})
    begin_writing(small_config(tmp_path, steps=5), "1f2e", state)
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1}\n'
    assert (tmp_path / "samples.jsonl").read_text() == '{"step": 1}\n{"step": 2}\n'


def test_begin_writing_without_a_checkpoint_empties_the_files(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 0}\n{"step": 1}\n')
    begin_writing(small_config(tmp_path, steps=5), "1f2e", RunState())
    assert (tmp_path / "metrics.jsonl").read_text() == ""


@pytest.fixture
def run(tmp_path):
    """A run before its first step."""
    return train.prepare(small_config(tmp_path / "run", steps=9))


def test_save_keeps_the_newest_two(run):
    for step in (2, 4, 6):
        run.state.step = step
        save(run.folder, run.policy, run.optimizer, run.state)
    names = sorted(path.name for path in run.folder.glob("checkpoint-*"))
    assert names == ["checkpoint-000004", "checkpoint-000006"]


def test_restore_returns_weights_moments_state_and_random_numbers(run):
    cfg = run.cfg
    train.train_step(run, 1)
    run.state = RunState(step=1, position=8, streak=2, best=0.5, memory={"gamma": [1.0, 2.0]})
    torch.manual_seed(7)
    save(run.folder, run.policy, run.optimizer, run.state)
    drawn = torch.rand(3)

    fresh = train.prepare(cfg)  # restores
    assert fresh.state == run.state
    assert torch.equal(torch.rand(3), drawn)
    assert same_weights(fresh.policy, run.policy)
    pairs = zip(fresh.policy.parameters(), run.policy.parameters(), strict=True)
    for new, old in pairs:
        moments = fresh.optimizer.state[new], run.optimizer.state[old]
        for name in ("exp_avg", "exp_avg_sq"):
            restored, saved = (moment[name].full_tensor() for moment in moments)
            assert torch.equal(restored, saved)
            assert saved.abs().sum() > 0


def test_a_run_stopped_before_its_first_update_starts_over(run):
    """Before its first step the optimiser has no moments, so there is no checkpoint to write."""
    assert not run.save()
    assert not list(run.folder.glob("checkpoint-*"))
    fresh = train.prepare(run.cfg)
    assert not fresh.optimizer.state
    train.train_step(run, 1)
    train.train_step(fresh, 1)
    assert same_weights(fresh.policy, run.policy)


def test_restore_from_a_folder_without_checkpoints_gives_a_fresh_state(run):
    assert restore(run.cfg, run.policy, run.optimizer) == RunState()


def test_a_failed_save_stops_the_run_and_keeps_earlier_checkpoints(run, monkeypatch):
    run.state.step = 2
    save(run.folder, run.policy, run.optimizer, run.state)
    before = contents(run.folder)

    def no_room(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoints.torch, "save", no_room)
    run.state.step = 4
    with pytest.raises(Stop, match="could not be written .*No space left.* free some") as stopped:
        save(run.folder, run.policy, run.optimizer, run.state)
    assert stopped.value.code == 1
    assert contents(run.folder) == before
    assert not list(run.folder.glob("writing-*"))


def test_export_replaces_the_whole_folder(run, first_model):
    target = run.folder / "model"
    target.mkdir()
    (target / "old.txt").write_text("of an earlier export")
    mark(target, run.id, {"old.txt": None})
    export(target, run.policy, run.tokenizer, run.id)
    assert not (target / "old.txt").exists()
    assert not list(run.folder.glob("writing-*"))
    assert same_weights(AutoModelForCausalLM.from_pretrained(target), first_model)


class Killed(BaseException):
    """Simulates a SIGKILL."""


def killed_after(monkeypatch, owner, name: str, calls: int):
    """Raise Killed in the function's call number `calls`, after all or half of its work."""
    function = getattr(owner, name)
    done = []

    def until_killed(path, *rest):
        done.append(path)
        if len(done) < calls:
            return function(path, *rest)
        if name == "rmtree":  # the first file is deleted, others remain
            min(each for each in path.rglob("*") if each.is_file()).unlink()
        else:
            function(path, *rest)
        raise Killed

    monkeypatch.setattr(owner, name, until_killed)


@pytest.mark.parametrize(
    "owner, name, calls",
    [
        (checkpoints, "mark", 1),
        (folders.os, "rename", 1),
        (folders.os, "rename", 2),
        (folders.shutil, "rmtree", 1),
    ],
)
def test_an_export_killed_at_any_point_is_repeated(
    run, first_model, monkeypatch, owner, name, calls
):
    """What the killed export leaves must not be mistaken for a user's model."""
    target = run.folder / "model"
    export(target, run.policy, run.tokenizer, run.id)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        killed_after(patch, owner, name, calls)
        export(target, run.policy, run.tokenizer, run.id)

    train.prepare(run.cfg)  # as rerunning the command would
    assert not list(run.folder.glob("writing-*"))
    export(target, run.policy, run.tokenizer, run.id)
    assert sorted(path.name for path in run.folder.glob("model*")) == ["model"]
    assert same_weights(AutoModelForCausalLM.from_pretrained(target), first_model)


def test_a_model_too_large_for_the_disk_gets_a_one_line_error(run, monkeypatch):
    def no_room(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(run.tokenizer, "save_pretrained", no_room)
    with pytest.raises(Stop, match="model could not be written .*No space left.* free some"):
        export(run.folder / "model", run.policy, run.tokenizer, run.id)
