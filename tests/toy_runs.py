"""Starts small runs of the toy, and reads their files.

A step has 8 prompts x 4 responses of at most 16 tokens, because sampling takes most of a run's
time. So short a response states no answer, so the rewards are stand-ins (hashed_rewards.py).
"""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from forked import ROOT, Forked
from hashed_rewards import hashes, rewarded
from transformers import AutoModelForCausalLM, AutoTokenizer

import train
from config import Config, parse_config
from infra.progress import Stopwatch
from infra.ranks import full_tensor
from methods import Method

SCRIPT = "tests/hashed_rewards.py"  # train.py with these rewards
PROBLEMS = str(ROOT / "tests" / "data" / "toy_problems.jsonl")  # 48 of toy.problems(seed=1)
HELD_OUT = str(ROOT / "tests" / "data" / "toy_few.jsonl")  # the first eight, so that it is fast

SMALL = ["--model", "toy", "--prompts", "8", "--group-size", "4", "--mini-batch", "4"]
SMALL += ["--save-every", "2", "--max-new-tokens", "16", "--data", PROBLEMS, "--eval-data", ""]
EVALUATED = ["--eval-data", HELD_OUT, "--eval-every", "2", "--eval-greedy", "False"]


def train_small(folder: Path, *flags: str, steps: int) -> list[dict]:
    """Run train.py from the command line. Returns the run's metrics."""
    with rewarded():
        train.main([*SMALL, "--steps", str(steps), "--output-dir", str(folder), *flags])
    return read_lines(folder / "metrics.jsonl")


def small_config(folder: Path, *flags: str, steps: int) -> Config:
    """The configuration of a small run."""
    return parse_config([*SMALL, "--steps", str(steps), "--output-dir", str(folder), *flags])


def train_steps(cfg: Config, method: Method | None = None, rewards=hashes) -> train.Run:
    """Train every step of a run, without the final export and report.

    method: replaces the method that the flags select.
    """
    run = train.prepare(cfg)
    run.method = method or run.method
    while run.state.step < cfg.steps:
        metrics, *_ = next_step(run, rewards)
        train.evaluate_and_save(run, metrics)
    return run


def next_step(run: train.Run, rewards=hashes) -> tuple:
    """Train one more step, as train.train does. Returns (metrics, rollouts, tokens, ρ [N])."""
    step = run.state.step + 1
    watch = Stopwatch()
    with rewarded(rewards):
        rollouts = train.sample(run, step, watch)
    metrics, tokens, weight = train.train_step(
        run.policy, run.optimizer, run.method, rollouts, run.cfg, step, watch
    )
    run.state.step = step
    run.save_samples(rollouts, tokens, weight)
    run.stop_if_diverged(metrics)
    return metrics | watch.seconds(), rollouts, tokens, weight


def in_turn(rewards) -> Callable:
    """A grader that gives the responses these rewards, in order."""
    numbers = iter(rewards)

    def next_rewards(responses, *_):
        return [next(numbers) for _ in responses]

    return next_rewards


TURNS = "{% for m in messages %}{{ m.content }}{% if not loop.first %}<turn>{% endif %}{% endfor %}"


def with_turns(base: Path, folder: Path) -> int:
    """Write a toy that ends with <turn>, which its configs do not name, as in Qwen2.5's bases.

    base: an ordinary toy. Returns the id of <turn>.
    """
    lm = AutoModelForCausalLM.from_pretrained(base)
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.add_tokens(["<turn>"], special_tokens=True)
    tokenizer.chat_template = TURNS
    lm.resize_token_embeddings(len(tokenizer))
    head = lm.lm_head.weight.data
    head[-1] = head[tokenizer.eos_token_id]
    head[tokenizer.eos_token_id] = head[tokenizer.pad_token_id]  # now as rare
    lm.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return len(tokenizer) - 1


def read_lines(path: Path) -> list[dict]:
    """The lines of a .jsonl file without wall-clock times, which differ between identical runs."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [
        {name: value for name, value in row.items() if not name.startswith("seconds")}
        for row in rows
    ]


def wait_for_step(step: int, folder: Path, process: Forked, seconds: float = 120) -> None:
    """Wait until the metrics of a run in another process contain the step."""
    path = folder / "metrics.jsonl"
    deadline = time.time() + seconds
    while time.time() < deadline and process.returncode is None:
        if path.exists() and f'"step": {step}' in path.read_text():
            return
        time.sleep(0.005)
    raise AssertionError(f"step {step} did not appear in {path}: {process.stderr[-3000:]}")


def refusal(program: Callable, argv: list, capsys) -> str:
    """The one-line message that `main` prints when it refuses a command with exit code 2."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:
        program([str(word) for word in argv])
    error = capsys.readouterr().err
    assert stopped.value.code == 2
    assert error.count("\n") == 1
    return error


def contents(folder: Path) -> dict[Path, bytes]:
    """{path: bytes} for every file below `folder`."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def same_weights(a: torch.nn.Module, b: torch.nn.Module) -> bool:
    """Whether all parameters of two models, sharded or not, are bitwise equal."""
    pairs = zip(a.parameters(), b.parameters(), strict=True)
    return all(torch.equal(full_tensor(x).cpu(), full_tensor(y).cpu()) for x, y in pairs)
