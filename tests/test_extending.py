"""Tests that every block in docs/extending.md runs, in a copy of the module that it extends."""

import json
import re
import shlex
from types import ModuleType, SimpleNamespace

import pytest
import torch
from conftest import ROOT
from hashed_rewards import rewarded
from references import token_batch, two_sides
from toy_runs import SMALL, small_config

import config
import delta
import evaluate
import extensions
import train
from config import parse_config
from infra.errors import UserError
from infra.flags import function_of
from infra.grading import rewards_by
from infra.progress import Stopwatch
from infra.rows import Rows

PAGE = (ROOT / "docs/extending.md").read_text()


def blocks(language: str) -> list[str]:
    """The page's fenced blocks with this tag."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return [code for tag, code in found if tag == language]


COUNTDOWN, RARITY, POWER, TOWARDS, _, VERL = blocks("python")  # test_ranks.py runs the other
RECORD, COMMANDS = blocks("")


# ---- a reward ------------------------------------------------------------------------------------


@pytest.fixture
def countdown(tmp_path) -> str:
    """The value of --reward for the page's function."""
    (tmp_path / "countdown.py").write_text(COUNTDOWN)
    return f"{tmp_path}/countdown.py:reward"


GAME = {"numbers": [44, 19, 35], "target": 98}
ANSWERS = [
    ("<answer>44 + 19 + 35</answer>", 1.0),
    ("<answer>1</answer> no: <answer>(44+19)+35</answer>", 1.0),
    ("<answer>44 + 19 - 35</answer>", 0.1),
    ("<answer>98</answer>", 0.1),
    ("<answer>44 + 19 + 35 + 35 - 35</answer>", 0.1),
    ("<answer>44 ** 19 ** 35</answer>", 0.1),  # it would take for ever
    ("<answer>44 (19) 35</answer>", 0.1),
    ("<answer>44 / (19 - 19) + 35</answer>", 0.1),
    ("<answer>__import__('os')</answer>", 0.1),
    ("<answer></answer>", 0.0),
    ("<answer>44 + 19 + 35</answer> <answer> \n</answer>", 0.0),
    (r"\boxed{98}", 0.0),
]


def test_countdown_in_25_lines(countdown):
    code = [line for line in COUNTDOWN.splitlines() if line.strip()]
    assert len(code) <= 25
    texts, expected = zip(*ANSWERS, strict=True)
    problems = [{"problem": "p", "record": GAME}] * len(texts)
    assert rewards_by(countdown, texts, problems) == list(expected)


def test_countdown_credits_no_floor_division(countdown):
    problems = [{"problem": "p", "record": {"numbers": [7, 2], "target": 3}}]
    assert rewards_by(countdown, ["<answer>7//2</answer>"], problems) == [0.1]


def test_the_pages_data_and_commands_are_accepted(countdown, tmp_path, monkeypatch):
    (tmp_path / "countdown.jsonl").write_text(RECORD)
    monkeypatch.chdir(tmp_path)
    train_line, evaluate_line = COMMANDS.splitlines()
    cfg = parse_config(shlex.split(train_line)[2:])
    assert cfg.reward == "countdown.py:reward"
    evaluate.parse_config(evaluate_line.split()[2:])
    (problem,), _ = train.load_sets(**cfg.sets)
    assert problem["record"]["numbers"] == [44, 19, 35]
    assert len(problem["chat"]) == 1


LENGTH = """
def score(response, problem):
    assert problem["numbers"] == [3, 7] and problem["answer"] == 5
    return len(response) / 100
"""


@pytest.fixture
def graded(tmp_path):
    """(the flags of a run with partial credit for length, its folder)."""
    (tmp_path / "own.py").write_text(LENGTH)
    records = [{"problem": f"{i}+1=?", "answer": 5, "numbers": [3, 7]} for i in range(8)]
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (tmp_path / "data.jsonl").write_text(lines)
    data, reward = f"{tmp_path}/data.jsonl", f"{tmp_path}/own.py:score"
    return ["--data", data, "--eval-data", data, "--reward", reward], tmp_path / "run"


def test_training_and_both_evaluations_use_the_reward(graded, capsys):
    """The reward gives partial credit, so its metrics have no accuracy in their names."""
    flags, folder = graded
    more = ["--output-dir", str(folder), "--steps", "2", "--eval-samples", "2"]
    train.main([*SMALL, "--eval-greedy", "False", *flags, *more])
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    samples = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    assert all(each["reward"] == len(each["response"]) / 100 for each in samples)
    assert not {name for line in lines for name in line if "accuracy" in name}
    assert {"step", "eval_reward"} == lines[0].keys()
    assert 0 < lines[-1]["eval_reward"] < 1 and lines[-1]["grad_norm"] > 0
    assert (folder / "best").exists()

    capsys.readouterr()
    words = ["--model", str(folder / "model"), "--benchmarks", flags[1], *flags[4:]]
    evaluate.main([*words, "--samples", "2", "--max-new-tokens", "16"])
    result = json.loads((folder / "model-evaluation/averages.json").read_text())
    wrong = (folder / "model-evaluation/data.jsonl/wrong.jsonl").read_text().splitlines()
    rewards = [len(json.loads(line)["response"]) / 100 for line in wrong]
    assert result["average"] == pytest.approx(sum(rewards) / len(rewards))
    assert "| mean reward of 2 | best of 2 |" in capsys.readouterr().out


@pytest.mark.parametrize(
    "code, said",
    [
        ("return None", "returned None: return a finite float"),
        ("return True", "returned True: return a finite float"),
        ("return '1'", "returned '1': return a finite float"),
        ("return float('nan')", "returned nan: return a finite float"),
        ("return [0.5]", r"returned \[0.5\]: return a finite float"),
        ("return 1 / 0", r"failed \(ZeroDivisionError: division by zero; .*own.py, line 2\)"),
    ],
)
def test_a_wrong_reward_is_one_line(code, said, tmp_path):
    (tmp_path / "own.py").write_text(f"def score(response, problem):\n    {code}\n")
    with pytest.raises(UserError, match=said) as refused:
        rewards_by(f"{tmp_path}/own.py:score", ["a"], [{}])
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "name, said",
    [
        ("own.py:other", "there is no such function: write FILE.py:FUNCTION"),
        ("own.py", "there is no such function"),
        ("none.py:score", r"none.py cannot be imported \(FileNotFoundError"),
        ("broken.py:score", r"broken.py cannot be imported \(SyntaxError"),
    ],
)
def test_a_reward_that_is_not_there_is_one_line(name, said, tmp_path):
    (tmp_path / "own.py").write_text("x = 1\n")
    (tmp_path / "broken.py").write_text("def\n")
    with pytest.raises(UserError, match=said):
        function_of("reward", f"{tmp_path}/{name}")


# ---- a method ------------------------------------------------------------------------------------


def executed(code: str, module: ModuleType) -> dict:
    """The names in a module after an example of the page has run inside it."""
    namespace = dict(vars(module))
    exec(compile(code, "docs/extending.md", "exec"), namespace)
    return namespace


@pytest.fixture
def other_methods(monkeypatch) -> dict:
    """extensions.OTHER_METHODS, which is restored after the test."""
    monkeypatch.setattr(extensions, "OTHER_METHODS", dict(extensions.OTHER_METHODS))
    return extensions.OTHER_METHODS


def test_the_example_method_runs(other_methods):
    executed(RARITY, extensions)
    tokens = token_batch([4, 6, 3])
    weights = other_methods["rarity"].weights(tokens, None, None)
    torch.testing.assert_close(weights, -tokens.old_logprob / -tokens.old_logprob.mean())


def test_the_examples_flag_fits_config():
    source = (ROOT / "config.py").read_text().replace("\n    # Rollouts\n", f"{POWER}\n", 1)
    cfg = executed(source, config)["Config"]()
    assert cfg.power == 1.0


def test_the_example_with_hidden_states_runs(other_methods):
    executed(TOWARDS, extensions)
    record = other_methods["towards_the_mean"]
    hidden = torch.randn(13, 4, generator=torch.Generator().manual_seed(0))
    v = Rows(13)
    for part in torch.arange(13).split(5):
        v.add(part, record.features(SimpleNamespace(hidden=hidden[part]), None))
    weights = record.weights(token_batch([4, 6, 3]), v, None)
    expected = 1 + torch.nn.functional.cosine_similarity(hidden, hidden.mean(dim=0), dim=1)
    torch.testing.assert_close(weights, expected / expected.mean())


def test_the_lines_for_verl_run():
    _, advantage = two_sides(N=60)
    mask = (torch.arange(15) < torch.tensor([[15], [7], [0], [11]])).long()
    old, A = -torch.rand(4, 15, generator=torch.Generator().manual_seed(0)), advantage.view(4, 15)
    x = {"response_mask": mask, "old_log_probs": old, "advantages": A.clone()}
    exec(VERL, vars(delta) | {"x": x})
    own = mask.bool()
    rho = delta.delta_coefficients(-torch.expm1(old[own])[:, None], A[own])
    torch.testing.assert_close(x["advantages"], A.masked_scatter(own, rho * A[own]))


# ---- changes of train.py -------------------------------------------------------------------------


def changed_train(diff: str) -> SimpleNamespace:
    """The names in train.py after this change. The lines that stay or go must be there once."""
    source = (ROOT / "train.py").read_text()
    old = "".join(f"{line[1:]}\n" for line in diff.splitlines() if line[0] in " -")
    new = "".join(f"{line[1:]}\n" for line in diff.splitlines() if line[0] in " +")
    assert source.count(old) == 1, old
    source = source.replace(old, new)
    namespace = {"__name__": "changed_train"}
    exec(compile(source, "train.py", "exec"), namespace)
    return SimpleNamespace(**namespace)


(ADVANTAGES,) = blocks("diff")


def one_step(program, folder):
    """(the policy's parameters, the metrics) after one step of a small run."""
    cfg = small_config(folder, "--method", "dapo", steps=1)
    run = program.prepare(cfg)
    with rewarded():
        rollouts = program.sample(run, 1, Stopwatch())
    trained = run.policy, run.optimizer, run.method, rollouts, cfg
    found, tokens, _ = program.train_step(*trained, 1, Stopwatch())
    return [x.detach().clone() for x in run.policy.parameters()], found, tokens


def test_other_advantages_are_one_line(tmp_path):
    _, _, tokens = one_step(changed_train(ADVANTAGES), tmp_path / "run")
    groups = tokens.reward.view(-1, 4)
    expected = groups - groups.mean(dim=1, keepdim=True)
    assert expected.abs().max() > 0.1
    torch.testing.assert_close(
        tokens.advantage, expected.flatten().repeat_interleave(tokens.length)
    )
