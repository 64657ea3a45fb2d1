"""train.py: the loop's promises, end to end on the toy."""
import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import data
import grpo
import train
from conftest import ROOT
from evaluate import collect

SMALL = ["--prompts", "4", "--group-size", "4", "--mini-batch", "2", "--save-every", "2", "--eval-every", "2"]


def run(folder, *flags, steps=3):
    train.main([*SMALL, "--steps", str(steps), "--output-dir", str(folder), *flags])
    return read(folder / "metrics.jsonl")


def read(path):
    """Lines of a .jsonl file without the wall-clock times, the one thing two runs may differ in."""
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in path.read_text().splitlines()]


@pytest.mark.parametrize("method", sorted(grpo.METHODS))
def test_train_writes_what_it_promises(method, tmp_path, base, capsys):
    rows = run(tmp_path / "r", "--method", method)
    assert [row["step"] for row in rows] == [0, 1, 2, 3] and set(rows[0]) == {"step", "eval_accuracy"}
    for row in rows[1:]:
        assert {"loss", "reward", "response_length", "entropy", "grad_norm", "clip_fraction", "lambda_std", "lambda_above_one"} <= set(row)
        assert ("eval_accuracy" in row) == (row["step"] in (2, 3)) and row["grad_norm"] > 0
    assert (rows[1]["lambda_std"] > 0.01) == (method in ("delta", "forking_tokens"))
    assert (tmp_path / "r" / "best" / "model.safetensors").exists()
    assert json.loads((tmp_path / "r" / "config.json").read_text())["method"] == method
    assert (tmp_path / "r" / "curves.png").read_bytes()[:4] == b"\x89PNG"
    for sample in read(tmp_path / "r" / "samples.jsonl"):
        assert len(sample["tokens"]) == len(sample["lambda"]) > 0 and sample["reward"] in (0.0, 1.0)
        assert "".join(sample["tokens"]).removesuffix("<eos>") == sample["response"]
    model, tokenizer = (c.from_pretrained(tmp_path / "r" / "model") for c in (AutoModelForCausalLM, AutoTokenizer))
    moved = sum(float((a - b).detach().abs().sum()) for a, b in zip(model.parameters(), base[0].parameters()))
    assert moved > 0 and tokenizer.eos_token == "<eos>"
    last = capsys.readouterr().out.splitlines()[-1]
    assert f"accuracy {rows[0]['eval_accuracy']:.3f} before" in last and str(tmp_path / "r") in last


def test_train_same_seed_same_metrics_other_seed_others(tmp_path):
    a, b, c = (run(tmp_path / name, "--seed", seed) for name, seed in (("a", "0"), ("b", "0"), ("c", "1")))
    assert a == b != c
    assert read(tmp_path / "a" / "samples.jsonl") == read(tmp_path / "b" / "samples.jsonl")


def test_the_ratio_is_exactly_one_on_the_first_update(tmp_path, monkeypatch):
    """Log-probabilities of the first mini-batch equal the scoring pass's to the last bit; after an update they differ."""
    seen, original = [], train.clipped_surrogate
    monkeypatch.setattr(train, "clipped_surrogate", lambda new, old, *rest, **clip: seen.append(float((new - old).detach().abs().max()))
                        or original(new, old, *rest, **clip))
    run(tmp_path / "r", "--prompts", "16", "--mini-batch", "8", "--micro-batch-tokens", "100000", "--lr", "1e-3", steps=1)
    assert len(seen) == 2 and seen[0] == 0.0 and seen[1] > 1e-4


def test_micro_batches_do_not_change_the_update(tmp_path):
    whole, parts = (run(tmp_path / t, "--micro-batch-tokens", t, steps=1)[1] for t in ("100000", "150"))
    for key in ("loss", "grad_norm", "entropy"):
        assert whole[key] == pytest.approx(parts[key], rel=1e-3, abs=1e-6)


def test_interrupted_run_continues_to_the_same_metrics(tmp_path):
    """kill -9 in the middle of training, then the same command again."""
    whole = run(tmp_path / "whole", steps=6)
    command = [sys.executable, "train.py", *SMALL, "--steps", "6", "--output-dir", str(tmp_path / "cut")]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    metrics, deadline = tmp_path / "cut" / "metrics.jsonl", time.time() + 120
    while process.poll() is None and time.time() < deadline:  # killed after step 3: past a checkpoint, before the next
        if metrics.exists() and '"step": 3' in metrics.read_text():
            process.send_signal(signal.SIGKILL)
            break
        time.sleep(0.002)
    assert process.wait() == -signal.SIGKILL
    with open(metrics, "a") as file:
        file.write('{"step": 4, "lo')  # what a kill in the middle of a write leaves
    continued = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert continued.returncode == 0 and "continuing" in continued.stdout, continued.stderr
    assert read(metrics) == read(tmp_path / "whole" / "metrics.jsonl") == whole
    assert read(tmp_path / "cut" / "samples.jsonl") == read(tmp_path / "whole" / "samples.jsonl")
    a, b = (AutoModelForCausalLM.from_pretrained(tmp_path / name / "model").state_dict() for name in ("whole", "cut"))
    assert all(torch.equal(a[k], b[k]) for k in a)


def test_more_steps_continue_a_finished_run(tmp_path):
    run(tmp_path / "r", steps=2)
    longer = run(tmp_path / "r", steps=4)
    assert longer == run(tmp_path / "whole", steps=4)


def test_a_finished_run_is_left_as_it_is(tmp_path):
    run(tmp_path / "r", steps=2)
    before = (tmp_path / "r" / "metrics.jsonl").read_bytes()
    run(tmp_path / "r", steps=2)
    assert (tmp_path / "r" / "metrics.jsonl").read_bytes() == before


@pytest.fixture
def exploding():
    """Registers a method whose weights are inf in the updates listed in `bad` (counted over rollout batches)."""
    bad, count = set(), iter(range(1, 100))
    grpo.METHODS["exploding"] = lambda tokens, **_: torch.full_like(tokens.advantage, float("inf") if next(count) in bad else 1.0)
    yield bad
    del grpo.METHODS["exploding"]


def config(folder, steps, **changes):
    cfg = train.parse_config([*SMALL, "--steps", str(steps), "--output-dir", str(folder)])
    for key, value in ({"method": "exploding", "prompts": 8, "mini_batch": 8} | changes).items():
        setattr(cfg, key, value)
    return cfg


def test_a_gradient_that_is_not_finite_skips_the_update_and_is_counted(tmp_path, exploding, base):
    exploding.add(1)
    train.train(config(tmp_path / "r", 1))
    assert read(tmp_path / "r" / "metrics.jsonl")[1]["skipped_updates"] == 1
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "r" / "model")
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), base[0].parameters()))


def test_three_gradients_in_a_row_that_are_not_finite_stop_the_run(tmp_path, exploding, monkeypatch):
    exploding |= {4, 5, 6}
    cfg = config(tmp_path / "r", 9)
    monkeypatch.setattr(train, "parse_config", lambda argv: cfg)
    with pytest.raises(SystemExit) as stopped:
        train.main([])
    assert "not finite in 3 updates in a row" in stopped.value.code
    assert [path.name for path in (tmp_path / "r").glob("checkpoint-*")] == ["checkpoint-000002"]
    assert [row["step"] for row in read(tmp_path / "r" / "metrics.jsonl")] == [0, 1, 2, 3, 4, 5]


def test_a_new_method_is_a_function_of_a_few_lines(tmp_path):
    """The README's example."""
    @grpo.method
    def surprise(tokens, **_):
        weights = -tokens.logprob
        return weights / weights.mean()
    try:
        cfg = config(tmp_path / "r", 2, method="surprise")
        train.train(cfg)
    finally:
        del grpo.METHODS["surprise"]
    assert read(tmp_path / "r" / "metrics.jsonl")[1]["lambda_std"] > 0.1


def test_any_model_folder_and_problem_file_train(tmp_path):
    run(tmp_path / "r", steps=1)
    problems = tmp_path / "problems.jsonl"
    problems.write_text("".join(json.dumps({"problem": f"{a}+{b}=?", "answer": (a + b) % 10}) + "\n" for a in range(5) for b in range(5)))
    rows = run(tmp_path / "s", "--model", str(tmp_path / "r" / "model"), "--data", str(problems), "--eval-data", str(problems),
               "--max-new-tokens", "20", "--max-prompt-tokens", "8", steps=2)
    assert [row["step"] for row in rows] == [0, 1, 2] and "eval_accuracy" in rows[2]


def test_paper_defaults_and_toy_preset():
    toy, real, grpo_ = (train.parse_config(a) for a in ([], ["--model", "x/y"], ["--method", "grpo"]))
    assert (real.data, real.eval_data, real.overlong_buffer, real.dynamic_sampling) == ("deepmath", "aime25", 0, False)
    assert (real.prompts, real.group_size, real.mini_batch, real.max_new_tokens, real.lr) == (128, 16, 32, 20480, 1e-6)
    assert (real.clip_low, real.clip_high, real.K, real.lam_min, real.lam_max, real.steps) == (0.2, 0.28, 1, 0.8, 1.2, 220)
    assert toy.prompts == train.TOY["prompts"] and toy.output_dir == "runs/toy-delta-0" and real.output_dir == "runs/y-delta-0"
    assert grpo_.clip_high == 0.2 and train.parse_config(["--prompts", "32"]).prompts == 32


@pytest.mark.parametrize("flags, message", [
    (["--group-size", "1"], "at least 2"), (["--K", "-1"], "--K is -1"), (["--lam-min", "1.3"], "--lam-min 1.3"),
    (["--step", "3"], "--step"), (["--lr", "fast"], "--lr"), (["--method", "ppo"], "--method"), (["--prompts", "5"], "multiple"),
    (["--steps", "0"], "at least 1"), (["--temperature", "0"], "--temperature"), (["--delta-variant", "x"], "--delta-variant"),
    (["--model", "/no/such/folder", "--data", "toy", "--eval-data", ""], "/no/such/folder"), (["--proxy", "topk", "--method", "grpo"], "--proxy is DelTA's"),
    (["--K", "2", "--method", "dapo"], "--K is DelTA's"), (["--select", "top", "--method", "fipo"], "--select"), (["--select-share", "0"], "share"),
    (["--delta-variant", "random", "--proxy", "topk"], "uses no proxy"), (["--prompt-template", "x"], "{problem}"),
    (["--eval-data", "/no/such.csv"], "/no/such.csv"),
    (["--output-dir", "/dev/null/run"], "/dev/null/run"), (["--data", "/no/such.jsonl"], "/no/such.jsonl"),
    (["--max-prompt-tokens", "3"], "--max-prompt-tokens"), (["--lr", "nan"], "--lr")])
def test_user_errors_are_one_line_and_exit_code_2(flags, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        train.main(flags)
    error = capsys.readouterr().err
    assert stopped.value.code == 2 and message in error and error.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("flags, message", [(["--lr", "1"], "other settings"), (["--resume", "never"], "already holds a run"),
                                            (["--steps", "1"], "already at step 2")])
def test_a_run_is_never_overwritten(flags, message, tmp_path, capsys):
    run(tmp_path / "r", steps=2)
    before = {path: path.read_bytes() for path in (tmp_path / "r").rglob("*") if path.is_file()}
    with pytest.raises(SystemExit) as stopped:
        train.main([*SMALL, "--steps", "2", "--output-dir", str(tmp_path / "r"), *flags])
    assert stopped.value.code == 2 and message in capsys.readouterr().err
    assert before == {path: path.read_bytes() for path in (tmp_path / "r").rglob("*") if path.is_file()}


def test_a_folder_with_other_metrics_is_left_alone(tmp_path, capsys):
    (tmp_path / "metrics.jsonl").write_text("mine\n")
    with pytest.raises(SystemExit):
        run(tmp_path)
    assert (tmp_path / "metrics.jsonl").read_text() == "mine\n" and "choose another" in capsys.readouterr().err


def test_draw_is_an_endless_stream_of_shuffled_epochs():
    whole = data.draw(10, 0, 30, seed=1)
    assert [sorted(whole[i:i + 10]) for i in (0, 10, 20)] == [list(range(10))] * 3 and whole[:10] != whole[10:20]
    assert sum((data.draw(10, i, 4, seed=1) for i in (0, 4, 8)), []) == whole[:12] and data.draw(10, 0, 30, seed=2) != whole


def test_torchrun_runs_one_process(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "1", "train.py", *SMALL, "--steps", "1",
               "--output-dir", str(tmp_path / "r")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "2"})
    assert done.returncode == 0 and "done: 1 steps" in done.stdout, done.stderr


FLAGS = [["--method", m] for m in ("reinforce", "grpo", "dapo", "forking_tokens", "sapo", "fipo")] + [
    ["--K", "0"], ["--K", "3"], ["--lam-min", "0.5"], ["--lam-max", "1.5"], ["--proxy", "topk", "--proxy-topk", "5"], ["--proxy", "exact"],
    *[["--delta-variant", v] for v in ("full", "within_side", "hard", "no_norm", "no_range_map", "fixed_gamma", "random")],
    *[["--select", v, "--select-share", "0.3"] for v in ("top", "random", "bottom")], ["--overlong-buffer", "30"], ["--dynamic-sampling"]]


@pytest.mark.parametrize("flags", FLAGS, ids=" ".join)
def test_every_flag_value_trains_two_steps(flags, tmp_path):
    rows = run(tmp_path / "r", "--eval-data", "", *flags, steps=2)
    assert [row["step"] for row in rows] == [1, 2] and all(row["grad_norm"] > 0 and row["loss"] == row["loss"] for row in rows)


def test_fipo_equals_dapo_on_the_first_mini_batch_and_not_after(tmp_path):
    one = [run(tmp_path / f"{m}1", "--method", m, "--prompts", "16", "--mini-batch", "16", steps=1)[1] for m in ("fipo", "dapo")]
    assert one[0]["loss"] == one[1]["loss"] and one[0]["grad_norm"] == one[1]["grad_norm"]
    more = [run(tmp_path / f"{m}4", "--method", m, "--prompts", "16", "--mini-batch", "4", "--lr", "1e-3", steps=1)[1] for m in ("fipo", "dapo")]
    assert more[0]["grad_norm"] != more[1]["grad_norm"]


def test_overlong_shaping_reaches_the_advantages_not_the_reported_reward(tmp_path):
    plain, shaped = (run(tmp_path / b, "--overlong-buffer", b, "--prompts", "16", steps=1)[1] for b in ("0", "40"))
    assert plain["reward"] == shaped["reward"] and plain["loss"] != shaped["loss"]


def test_dynamic_sampling_fills_the_batch_with_groups_that_differ(base):
    model, tokenizer = base
    problems = data.load_problems("toy")
    problems, prompts = data.encode_prompts(problems, tokenizer, 64)
    state, cfg = {"position": 0}, train.parse_config(["--dynamic-sampling", "--prompts", "6", "--mini-batch", "6", "--group-size", "2"])
    rollouts, batch, rewards = collect(model, tokenizer, problems, prompts, cfg, state, step=1)
    assert rewards.shape == (12,) and all(len(set(group.tolist())) == 2 for group in rewards.view(6, 2)) and state["position"] > 6
    assert [data.grade(text, p) for text, p in zip(rollouts.texts, batch)] == rewards.tolist()


def test_fixed_gamma_survives_a_resumption(tmp_path):
    flags = ("--delta-variant", "fixed_gamma")
    run(tmp_path / "r", *flags, steps=2)
    assert run(tmp_path / "r", *flags, steps=4) == run(tmp_path / "whole", *flags, steps=4)


@pytest.mark.parametrize("stage, knob", [("collect", "--rollout-rows"), ("score", "--micro-batch-tokens"), ("update", "--micro-batch-tokens")])
def test_out_of_memory_says_which_knob_to_turn(stage, knob, tmp_path, monkeypatch):
    code = f"def {stage}(*_, **__): raise torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 2 GiB')"
    exec(code, names := {"torch": torch})
    monkeypatch.setattr(train, stage, names[stage])
    with pytest.raises(SystemExit) as stopped:
        run(tmp_path / "r", steps=1)
    assert f"out of GPU memory in {stage}" in stopped.value.code and knob in stopped.value.code


def test_a_hub_id_out_of_reach_says_how_to_pass_a_folder(capsys, monkeypatch):
    monkeypatch.setattr("policy.snapshot_download", lambda *_, **__: (_ for _ in ()).throw(OSError("no network")))
    with pytest.raises(SystemExit) as stopped:
        train.main(["--model", "some/where", "--data", "toy", "--eval-data", ""])
    assert stopped.value.code == 2 and "hf download" in capsys.readouterr().err
