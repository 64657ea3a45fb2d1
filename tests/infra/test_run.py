"""Tests infra/run.py: runs that are killed or stopped, continued, refused, or exported."""

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from importlib.machinery import ModuleSpec
from unittest import mock

import forked
import pytest
import torch
from hashed_rewards import hashes, rewarded
from models import save_random_model
from toy_runs import (
    EVALUATED,
    HELD_OUT,
    PROBLEMS,
    SCRIPT,
    SMALL,
    TURNS,
    contents,
    next_step,
    read_lines,
    refusal,
    same_weights,
    small_config,
    train_small,
    with_turns,
)
from transformers import AutoModelForCausalLM, AutoTokenizer

import toy
import train
from infra import run as run_module
from infra.run import export


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of an uninterrupted run of four steps. Read-only."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    train_small(folder, *EVALUATED, steps=4)
    return folder


@pytest.fixture
def two_steps(tmp_path_factory, tmp_path):
    """A finished run of two steps, to be continued or damaged."""
    original = tmp_path_factory.getbasetemp() / "two"
    if not original.exists():
        train_small(original, *EVALUATED, steps=2)
    return shutil.copytree(original, tmp_path / "copy")


def assert_same_run(a, b):
    """Assert that two runs wrote equal metrics, samples, models and checkpoints, and no more."""
    for name in ("metrics.jsonl", "samples.jsonl"):
        assert read_lines(a / name) == read_lines(b / name)
    for name in ("model", "best"):
        models = [AutoModelForCausalLM.from_pretrained(folder / name) for folder in (a, b)]
        assert same_weights(*models)
    assert names(a) == names(b)


def names(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.name != "lock"}


AT_ONCE = [SCRIPT, *SMALL, *EVALUATED, "--steps", "4", "--output-dir"]


def train_until(words):
    """Run a script in this process, and kill it just before a chosen change to a file.

    words: a pattern for the change, then the command's words.
    """
    pattern, *command = words

    def watch(event, arguments):
        change = event == "os.rename"
        if event == "open":
            change = arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if change and re.search(pattern, f"{event} {arguments[0]} {arguments[1]}"):
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    forked.run_script(command)


MOMENTS = {  # in the order in which they are reached
    "before any write but the first": "open .*/metrics.jsonl a",
    "while a checkpoint is written": "open .*being-written/.metadata",
    "after a model's weights, before its config": "rename .*being-written/config.json .*/model/",
}


def test_a_run_killed_three_times_gives_the_same_files(whole, tmp_path):
    """Each start continues from what the last kill left."""
    folder = tmp_path / "cut"
    for moment, pattern in MOMENTS.items():
        process = forked.Forked(train_until, [pattern, *AT_ONCE, str(folder)])
        assert process.wait() == -signal.SIGKILL, (moment, process.stderr)
    assert not (folder / "model" / "config.json").exists()  # so that no mix of two models loads
    assert (folder / "model" / "model.safetensors").exists()
    with open(folder / "metrics.jsonl", "a") as file:
        file.write('{"step": 4, "lo')  # as if killed within a line
    forked.finished(forked.start(*AT_ONCE, str(folder)))
    assert_same_run(folder, whole)


def test_a_finished_run_stays_as_it_is_without_what_a_kill_left(two_steps, tmp_path):
    (two_steps / ".metrics.jsonl").write_text("mine")
    before = contents(tmp_path)
    (two_steps / "being-written").mkdir()
    for name in ("being-written/config.json", "config.json.being-written"):
        (two_steps / name).write_text("cut off")
    train_small(two_steps, *EVALUATED, steps=2)
    before[two_steps / "config.json"] = (two_steps / "config.json").read_bytes()  # of the copy
    assert contents(tmp_path) == before


@pytest.fixture
def run(tmp_path):
    """A run that is prepared but not started."""
    with rewarded():
        yield train.prepare(small_config(tmp_path / "run", steps=9))


def test_save_keeps_the_newest_two_and_what_a_user_put_there(run):
    kept = run.folder / "checkpoint-000001"  # as if a user had copied it back
    kept.mkdir()
    (kept / "mine").touch()
    next_step(run)  # there are no moments before it
    for step in (2, 4, 6):
        run.state.step = step
        run.save()
    found = sorted(path.name for path in run.folder.glob("checkpoint-*"))
    assert found == ["checkpoint-000001", "checkpoint-000004", "checkpoint-000006"]
    assert (kept / "mine").exists()


def test_a_run_without_unequal_rewards_goes_on_like_any_other(tmp_path, first_model):
    """Before the first update there are no moments, and model/ is the model that it began with."""

    def equal_in_step_1():
        calls = itertools.count()
        return lambda *given: [1.0] * 32 if next(calls) == 0 else hashes(*given)

    for folder, ends in ((tmp_path / "cut", (1, 3)), (tmp_path / "whole", (3,))):
        with rewarded(equal_in_step_1()):
            for steps in ends:
                train.train(small_config(folder, "--save-every", "1", steps=steps))
                if steps == 1:
                    model = AutoModelForCausalLM.from_pretrained(folder / "model")
                    assert same_weights(model, first_model)
                    assert (folder / "checkpoint-000001").exists()
    lines = [read_lines(tmp_path / name / "metrics.jsonl") for name in ("cut", "whole")]
    assert lines[0] == lines[1]
    models = [
        AutoModelForCausalLM.from_pretrained(tmp_path / name / "model") for name in ("cut", "whole")
    ]
    assert same_weights(*models) and not same_weights(models[0], first_model)


def test_the_best_model_is_known_without_metrics_jsonl(tmp_path, monkeypatch, capsys):
    """Its score is in the checkpoint. What is lost is said, and nothing else is "before"."""
    scores = {0: 0.5, 2: 0.9, 4: 0.3}
    evaluated = lambda run: {"eval_accuracy": scores[run.state.step]}  # noqa: E731
    monkeypatch.setattr(train, "evaluate_held_out", evaluated)
    train_small(tmp_path, *EVALUATED, steps=2)
    best = contents(tmp_path / "best")
    (tmp_path / "metrics.jsonl").write_text("")
    capsys.readouterr()
    train_small(tmp_path, *EVALUATED, steps=4)
    assert contents(tmp_path / "best") == best
    newest = (tmp_path / "model/model.safetensors").read_bytes()
    assert newest != best[tmp_path / "best/model.safetensors"]
    said = capsys.readouterr().out
    assert f"{tmp_path}/metrics.jsonl lacks 2 of the 2 steps so far\n" in said
    assert "eval_accuracy 0.300 after" in said and "before" not in said


def test_the_best_model_is_in_a_checkpoint_before_it_is_in_best(tmp_path):
    """A kill in its export is mended by the next start, whatever --eval-every is then."""
    flags = ["--eval-every", "1", "--save-every", "3"]
    kill = ["rename .*being-written/config.json .*/best/", *AT_ONCE, str(tmp_path), *flags]
    process = forked.Forked(train_until, kill)
    assert process.wait() == -signal.SIGKILL, process.stderr
    assert not (tmp_path / "best/config.json").exists()
    run = train.prepare(small_config(tmp_path, *EVALUATED, "--eval-every", "7", steps=4))
    best = AutoModelForCausalLM.from_pretrained(tmp_path / "best")
    assert run.state.step == run.state.best_step == 1 and same_weights(best, run.policy.lm)
    assert read_lines(tmp_path / "metrics.jsonl")[1]["eval_accuracy"] == run.state.best


DAMAGES = {
    "the metadata is cut": lambda path: cut(path / ".metadata"),
    "the metadata is empty": lambda path: (path / ".metadata").write_bytes(b""),
    "the metadata is lost": lambda path: (path / ".metadata").unlink(),
    "the data are cut": lambda path: cut(path / "__0_0.distcp"),
    "the data are empty": lambda path: (path / "__0_0.distcp").write_bytes(b""),
    "the data are lost": lambda path: (path / "__0_0.distcp").unlink(),
}


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_one_line_that_names_the_older_one(damage, whole, tmp_path, capsys):
    folder = shutil.copytree(whole, tmp_path / "copy")
    DAMAGES[damage](folder / "checkpoint-000004")
    before = contents(folder)
    said = refusal_of(folder, capsys, steps=4)
    assert f"{folder}/checkpoint-000004 cannot be read (" in said
    assert said.endswith("): delete it, and the run goes on from checkpoint-000002\n")
    assert contents(folder) == before


def test_a_run_whose_checkpoints_were_moved_away_keeps_its_metrics(whole, tmp_path, capsys):
    folder = shutil.copytree(whole, tmp_path / "copy")
    for name in ("model", "checkpoint-000002", "checkpoint-000004"):  # it was not finished
        shutil.rmtree(folder / name)
    before = contents(folder)
    assert f"{folder} has metrics of 4 steps but no checkpoint" in refusal_of(folder, capsys)
    assert contents(folder) == before


def test_a_run_that_goes_on_under_other_code_says_so(two_steps, capsys):
    path = two_steps / "config.json"
    train_small(two_steps, *EVALUATED, steps=2)
    config = json.loads(path.read_text())
    assert "other code" not in capsys.readouterr().out
    assert config["torch"] == torch.__version__ and config["transformers"]
    path.write_text(json.dumps(config | {"commit": "abc", "transformers": "4.1"}))
    train_small(two_steps, *EVALUATED, steps=2)
    said = capsys.readouterr().out
    assert f"goes on under other code: commit abc, now {config['commit']}; transformers 4.1" in said
    older = {name: config[name] for name in config if name not in run_module.code_and_versions()}
    path.write_text(json.dumps(older))
    train_small(two_steps, *EVALUATED, steps=2)
    assert "other code" not in capsys.readouterr().out
    assert json.loads(path.read_text()) == config


def test_a_folder_that_is_no_repository_has_no_commit(tmp_path, monkeypatch):
    code = run_module.code_and_versions()
    here = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True)
    assert code["commit"] == here.stdout.strip()
    monkeypatch.setattr(run_module, "__file__", str(tmp_path / "run.py"))
    unknown = code | {"commit": "", "changed_files": []}
    assert run_module.code_and_versions() == unknown
    monkeypatch.setenv("PATH", str(tmp_path))  # without git
    assert run_module.code_and_versions() == unknown


def test_fewer_problems_than_prompts_are_refused(tmp_path, capsys):
    """As many are taken: each is asked once in a step."""
    flags = [*SMALL, "--data", HELD_OUT, "--output-dir", tmp_path / "run", "--steps", "1"]
    said = refusal(train.main, [*flags, "--prompts", "12"], capsys)
    assert f"--data {HELD_OUT} has 8 problems, fewer than --prompts 12: lower" in said
    assert not (tmp_path / "run").exists()
    assert len(train_small(tmp_path / "run", "--data", HELD_OUT, steps=1)) == 1


@pytest.mark.parametrize("name", ["phi", "gemma2"])
def test_a_proxy_that_the_head_does_not_allow_is_refused(name, tmp_path, capsys):
    save_random_model(name, tmp_path / "model")
    flags = [*SMALL, "--model", tmp_path / "model", "--prompt-template", "{problem}"]
    command = [*flags, "--proxy", "topk", "--output-dir", tmp_path / "run"]
    assert "has a bias or a soft cap: use" in refusal(train.main, command, capsys)


def test_a_finished_run_whose_checkpoints_were_deleted_is_refused(two_steps, capsys):
    """Otherwise the run would begin again and replace its model."""
    shutil.rmtree(two_steps / "checkpoint-000002")
    before = contents(two_steps)
    said = refusal_of(two_steps, capsys, steps=1)
    assert f"{two_steps} has a model but no checkpoint" in said
    assert contents(two_steps) == before


def refusal_of(folder, capsys, *flags, steps=6):
    """The line with which train.py refuses to continue the run in `folder`."""
    command = [*SMALL, *EVALUATED, "--steps", steps, "--output-dir", folder, *flags]
    return refusal(train.main, command, capsys)


def test_a_full_disk_ends_the_run_with_one_line_and_loses_nothing(two_steps, whole):
    """No file may exceed a megabyte here, and a checkpoint has 1.4 MB."""
    before = contents(two_steps / "checkpoint-000002")
    full = forked.start(*AT_ONCE, str(two_steps), file_limit=2**20)
    forked.finished(full, code=1)
    assert full.stderr.count("\n") == 1
    assert "checkpoint-000004 could not be written ([Errno 27] File too large): " in full.stderr
    assert contents(two_steps / "checkpoint-000002") == before
    assert [line["step"] for line in read_lines(two_steps / "metrics.jsonl")] == [0, 1, 2, 3, 4]

    train_small(two_steps, *EVALUATED, steps=4)
    assert_same_run(two_steps, whole)


def test_export_replaces_a_model_but_no_users_files(run, first_model):
    target = run.folder / "model"
    export(target, run.policy, run.tokenizer, run.cfg)
    assert same_weights(AutoModelForCausalLM.from_pretrained(target), first_model)
    written = names(target)
    users = {"averages.json", "model-step4.safetensors", "model_ema.safetensors"}
    users |= {"model.safetensors.bak"}
    stale = {"model-00001-of-00002.safetensors", "model.safetensors.index.json"}  # are replaced
    for name in users | stale:
        (target / name).touch()
    next_step(run)
    export(target, run.policy, run.tokenizer, run.cfg)
    assert names(target) == written | users
    assert same_weights(AutoModelForCausalLM.from_pretrained(target), run.policy.lm)
    assert not (run.folder / "being-written").exists()

    link = run.folder / "best"
    link.symlink_to(target)
    before = contents(target)
    export(link, run.policy, run.tokenizer, run.cfg)
    assert contents(target) == before and not link.is_symlink()


def test_an_exported_model_ends_where_the_run_ended(tmp_path):
    turn = with_turns(toy.BASES["sharpen"], tmp_path / "base")
    odd = {"do_sample": False, "temperature": 0.9}  # transformers saves it only if it is unchanged
    (tmp_path / "base/generation_config.json").write_text(json.dumps(odd))
    flags = ["--model", str(tmp_path / "base"), "--prompt-template", "{problem}", "--lr", "1e-6"]
    train_small(tmp_path / "run", *EVALUATED, *flags, steps=2)
    for name in ("model", "best"):
        folder = tmp_path / "run" / name
        tokenizer = AutoTokenizer.from_pretrained(folder)
        assert tokenizer.chat_template == TURNS
        lm = AutoModelForCausalLM.from_pretrained(folder)
        ids = tokenizer("8+3-3*9+6*8=?", return_tensors="pt")
        ids = lm.generate(**ids, do_sample=False, max_new_tokens=200)[0].tolist()
        assert ids.index(turn) == len(ids) - 1 < 200


@pytest.mark.parametrize(
    "flags, steps, message",
    [
        (["--lr", "1"], 6, "another run or other files (lr 0.0001, not 1.0): choose another"),
        (["--data", HELD_OUT, "--lr", "1"], 6, "(lr 0.0001, not 1.0)"),  # and no hashes
        (["--K", "2"], 6, "(K 1, not 2)"),  # of the run's own method
        ([], 1, "already at step 2: raise --steps"),
    ],
)
def test_another_run_is_refused(flags, steps, message, two_steps, capsys):
    before = contents(two_steps)
    assert message in refusal_of(two_steps, capsys, *flags, steps=steps)
    assert contents(two_steps) == before


def test_a_run_may_change_flags_that_are_free(two_steps, whole):
    """Flags of other methods are free, so a fork that adds a method can continue earlier runs."""
    config = json.loads((two_steps / "config.json").read_text())
    (two_steps / "config.json").write_text(json.dumps(config | {"cispo_cap": 3.0}))
    flags = (*EVALUATED, "--in-flight", "5", "--save-every", "6", "--eval-every", "6")
    assert train_small(two_steps, *flags, steps=3)[:3] == read_lines(whole / "metrics.jsonl")[:3]
    assert json.loads((two_steps / "config.json").read_text())["in_flight"] == 5


def test_a_run_is_not_continued_with_changed_problems_or_another_model(
    tmp_path, capsys, monkeypatch
):
    """The changed problems and the other model have the names of the old ones."""
    problems = shutil.copy(PROBLEMS, tmp_path / "mine.jsonl")
    model = shutil.copytree(toy.BASES["sharpen"], tmp_path / "base")
    held_out = shutil.copy(HELD_OUT, tmp_path / "held_out.jsonl")
    flags = ("--data", str(problems), "--model", str(model), "--eval-data", str(held_out))
    folder = tmp_path / "run"
    train_small(folder, *flags, steps=1)
    before = contents(folder)
    changes = [(problems, "other problems"), (held_out, "other problems")]
    for path, name in (*changes, (model / "tokenizer.json", "other model files")):
        content = path.read_text()
        path.write_text(content.replace("8+3", "9+3") + "\n")
        said = refusal_of(folder, capsys, *flags)
        assert re.search(rf"\({name}(; other prompts)?\): choose another, such as", said)
        path.write_text(content)
    encode = run_module.encode_prompts

    def longer(*arguments):
        problems, prompts = encode(*arguments)
        return problems, [[*prompt, 2] for prompt in prompts]

    monkeypatch.setattr(run_module, "encode_prompts", longer)  # as another template would
    said = refusal_of(folder, capsys, *flags)
    assert f"(other prompts): choose another, such as {folder}-2\n" in said
    assert contents(folder) == before


def test_a_tracker_receives_the_metrics(tmp_path, monkeypatch):
    wandb = mock.Mock(spec=["init", "log", "finish", "__spec__"])
    wandb.__spec__ = ModuleSpec("wandb", loader=None)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setenv("WANDB_RUN_ID", "")
    monkeypatch.delenv("WANDB_RUN_ID")
    train_small(tmp_path / "run", "--track", "wandb", steps=2)
    written = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    lines = [call.kwargs | call.args[0] for call in wandb.log.call_args_list]
    assert lines == [json.loads(line) for line in written]
    assert wandb.init.call_args.kwargs["name"] == os.environ["WANDB_RUN_ID"]
