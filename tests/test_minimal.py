"""Tests that minimal.py, the specification of train.py, has the same numbers in every step."""

import ast
import json
import math
import re
from pathlib import Path

import pytest
import torch
from hashed_rewards import rewarded
from models import published_model, response_logits, save_random_model
from references import two_sides
from toy_runs import HELD_OUT, read_lines, refusal, with_turns
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3ForCausalLM

import grpo
import minimal
import toy
import train
from delta import delta_coefficients, token_gradient_proxy
from infra.errors import UserError
from infra.loading import load_model
from infra.problems import load_problems
from methods import DAPO_CLIP
from minimal import Settings


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> str:
    """A file of problems of three lengths."""
    path = tmp_path_factory.mktemp("data") / "mixed.jsonl"
    problems = [problem for k in (1, 3, 5) for problem in toy.problems(6, seed=5, k=k)]
    path.write_text("".join(f"{json.dumps(problem)}\n" for problem in problems))
    return str(path)


@pytest.fixture
def hashed():
    """The rewards of hashed_rewards.py, which differ within a group."""
    with rewarded():
        yield


def assert_same_steps(folder: Path, steps: list[dict]) -> None:
    """Rewards and lengths are those of train.py's run in `folder`; the rest differs by rounding."""
    lines = [line for line in read_lines(folder / "metrics.jsonl") if line["step"] > 0]
    for line, step in zip(lines, steps, strict=True):
        assert step["reward"] == pytest.approx(line["reward"], abs=1e-7)
        assert step["length"] == line["response_length"]
        assert step["loss"] == pytest.approx(line["loss"], abs=1e-5)
        assert step["grad_norm"] == pytest.approx(line["grad_norm"], rel=1e-5, abs=1e-5)
    assert len({step["grad_norm"] for step in steps}) == len(steps)


def test_minimal_and_train_have_the_same_steps_and_accuracies(tmp_path, capsys):
    """Both train the toy. Most of its held-out problems are left out, for speed."""
    flags = ["--K", "2", "--steps", "2", "--seed", "5", "--eval-data", HELD_OUT]
    train.main([*flags, "--micro-batch-tokens", "700", "--output-dir", str(tmp_path)])
    before, *lines = read_lines(tmp_path / "metrics.jsonl")
    capsys.readouterr()
    steps = minimal.main(flags)

    assert_same_steps(tmp_path, steps)
    printed = [line for line in capsys.readouterr().out.splitlines() if line[:8] == "accuracy"]
    assert printed == [
        f"accuracy {line['eval_accuracy']:.3f}, greedy {line['eval_greedy']:.3f}"
        for line in (before, lines[-1])
    ]


@pytest.mark.parametrize(
    "name, flags",
    [
        ("llama", ["--K", "0"]),
        ("qwen3", ["--K", "3", "--seed", "4"]),
        ("gemma3_text", ["--K", "1"]),
        ("gemma3_text", ["--method", "dapo"]),
    ],
)
def test_the_steps_of_a_model_are_those_of_train(name, flags, data, hashed, tmp_path, capsys):
    """Prompts have several lengths, and a template's \\n is a line break."""
    model, saved = tmp_path / "model", tmp_path / "saved"
    save_random_model(name, model, final_logit_softcapping=None)
    flags = [*flags, "--model", str(model), "--data", data, "--steps", "2", "--lr", "1e-3"]
    flags += ["--prompts", "6", "--group-size", "4", "--mini-batch", "2", "--max-new-tokens", "12"]
    template = "7+1=?\\n{problem}"
    flags += ["--prompt-template", template, "--eval-data", ""]
    train.main([*flags, "--dtype", "float32", "--output-dir", str(tmp_path / "run")])
    page = ["--micro-batch", "5", "--save", str(saved)]
    assert_same_steps(tmp_path / "run", minimal.main([*flags, *page]))

    trained = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model").state_dict()
    for key, weight in AutoModelForCausalLM.from_pretrained(saved).state_dict().items():
        torch.testing.assert_close(weight, trained[key], rtol=0, atol=1e-3)
    assert AutoTokenizer.from_pretrained(saved).eos_token_id == 1
    assert json.loads((saved / "prompt.json").read_text()) == {"prompt_template": template}


@pytest.mark.parametrize(
    "name", ["gemma2", "granite", "cohere", "recurrent_gemma", "qwen3_5", "opt", "bloom", "mamba"]
)
def test_a_model_is_exact_or_refused(name, data, tmp_path, capsys):
    """Padded samples have the log p that the published model gives each of them alone."""
    save_random_model(name, tmp_path)
    cfg = Settings(prompt_template="{problem}", max_new_tokens=12)
    if name == "recurrent_gemma":
        with pytest.raises(UserError, match="train"):
            load_model(tmp_path, outputs=minimal.token_outputs)
        return
    lm, tokenizer = load_model(tmp_path, outputs=minimal.token_outputs)
    problems = minimal.with_prompts(load_problems(data), tokenizer, cfg)
    rollouts = minimal.sample(lm, tokenizer, problems, range(0, 18, 3), cfg)
    alone = minimal.sample(lm, tokenizer, problems, [0], cfg)  # the shortest: without padding
    assert torch.equal(rollouts.ids[:8][rollouts.is_token[:8]], alone.ids[alone.is_token])
    logprob, _ = minimal.token_outputs(lm, rollouts.ids, rollouts.is_token, micro_batch=7)
    published, expected = published_model(name, tmp_path), []
    for ids, is_token in zip(rollouts.ids, rollouts.is_token, strict=True):
        place = is_token.nonzero().squeeze(1)
        logits = response_logits(published, ids[: place[0]].tolist(), ids[is_token].tolist())
        expected.append(logits.log_softmax(dim=1).gather(1, ids[is_token][:, None]).squeeze(1))
    torch.testing.assert_close(logprob, torch.cat(expected), rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    "flags, message",
    [
        ("--method grpo", "--method: invalid choice: 'grpo'"),
        ("--method dapo --K 1", "--K does nothing"),
        ("--data DATA", "--data needs --model"),
        ("--model MODEL", "cannot load --data ''"),
        ("--model MODEL --data DATA --prompt-template Q:", "{problem}"),
        ("--model MODEL --data DATA --max-new-tokens 999", "128 tokens"),
        ("--model MODEL --data DATA --max-new-tokens 9 --save MODEL", "has files: name a new fold"),
    ],
)
def test_a_mistake_is_one_line(flags, message, data, tmp_path, capsys):
    save_random_model("qwen3", tmp_path / "model")
    names = {"MODEL": tmp_path / "model", "DATA": data}
    assert message in refusal(minimal.main, [names.get(x, x) for x in flags.split()], capsys)


def test_the_page_imports_no_formula():
    """All are defined in it: of the five files, it takes the order of the problems alone."""
    source = Path(minimal.__file__).read_text()
    imported = {line.split(".")[0] for line in re.findall(r"^(?:from|import) (\S+)", source, re.M)}
    assert imported == {"dataclasses", "typing", "numpy", "torch", "infra", "rollout"}
    assert re.findall(r"^from rollout import (.*)", source, re.M) == ["problems_of_step"]


def imported_by(source: str, package: str = "") -> set[str]:
    """The modules that are imported when the source is: not those imported inside functions."""
    names, waiting = set(), list(ast.parse(source).body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            names |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            parts = [package] * bool(node.level) + [node.module] * bool(node.module)
            module = ".".join(parts)
            names |= {module, *(f"{module}.{each.name}" for each in node.names)}
        elif not isinstance(node, ast.FunctionDef):
            waiting += ast.iter_child_nodes(node)
    return names


def test_page_and_notebooks_import_nothing_that_only_linux_has():
    root = Path(minimal.__file__).parent
    waiting = {"minimal"}
    for path in (root / "notebooks").glob("*.ipynb"):
        for cell in json.loads(path.read_text())["cells"]:
            if cell["cell_type"] == "code":
                waiting |= imported_by("".join(cell["source"]))
    seen = set()
    while waiting:
        name = waiting.pop()
        seen.add(name)
        place = name.replace(".", "/")
        for file in (f"{place}.py", f"{place}/__init__.py", f"notebooks/{place}.py"):
            if (root / file).exists():
                package = file.rpartition("/")[0].replace("/", ".")
                waiting |= imported_by((root / file).read_text(), package) - seen
    assert {"helpers", "infra.folder", "infra.sampler", "toy.task", "answers.units"} <= seen
    assert not seen & {"fcntl", "resource", "pwd", "grp", "termios", "pty"}
    assert not [name for name in seen if name.startswith("programs.sandbox")]


def test_prompts_order_and_padding_are_those_that_transformers_makes(data, hashed, monkeypatch):
    """Without a line of infra/: three steps of 18 problems, which come round a second time."""
    given = []
    generate = Qwen3ForCausalLM.generate

    def kept(self, ids, attention_mask=None, **how):
        if "max_new_tokens" in how:  # a step's; load_model's check has another setting
            given.append((ids, attention_mask))
        return generate(self, ids, attention_mask=attention_mask, **how)

    monkeypatch.setattr(Qwen3ForCausalLM, "generate", kept)
    base = str(toy.BASES["learn"])
    flags = ["--model", base, "--data", data, "--prompt-template", "7+1=?\\n{problem}"]
    flags += ["--steps", "3", "--prompts", "7", "--group-size", "2", "--max-new-tokens", "4"]
    minimal.main([*flags, "--seed", "3"])

    problems = [json.loads(line)["problem"] for line in Path(data).read_text().splitlines()]
    order = []
    for epoch in range(2):
        generator = torch.Generator().manual_seed(1_000_003 * 3 - epoch)
        order += torch.randperm(18, generator=generator).tolist()
    tokenizer = AutoTokenizer.from_pretrained(base, padding_side="left")
    for step, (ids, mask) in enumerate(given):
        texts = [f"7+1=?\n{problems[i]}" for i in order[7 * step : 7 * step + 7] for _ in range(2)]
        expected = tokenizer(texts, padding=True, return_tensors="pt")
        assert torch.equal(mask, expected.attention_mask)
        assert torch.equal(ids[mask == 1], expected.input_ids[mask == 1])
    assert len(given) == 3 and any((mask == 0).any() for _, mask in given)


def test_a_prompt_is_the_problem_and_an_instruction_in_the_chat_template(base_copy, tmp_path):
    turn = with_turns(base_copy, tmp_path / "turns")
    lm, tokenizer = load_model(tmp_path / "turns", outputs=minimal.token_outputs)
    problems = [{"problem": "7*6=?", "answer": "2"}, {"problem": "1+1-9=?", "answer": "3"}]
    cfg = Settings(group_size=8, max_new_tokens=40)
    asked = minimal.with_prompts(problems, tokenizer, cfg)
    rollouts = minimal.sample(lm, tokenizer, asked, range(2), cfg)
    order = "Please reason step by step, and put your final answer within \\boxed{}."
    for i, problem in enumerate(problems):
        chat = [{"role": "user", "content": f"{problem['problem']}\n{order}"}]
        expected = tokenizer.apply_chat_template(
            chat, add_generation_prompt=True, return_dict=False
        )
        assert rollouts.ids[8 * i, : len(expected)].tolist() == expected
        assert not rollouts.is_token[8 * i, : len(expected)].any()
    last = [row[own][-1] for row, own in zip(rollouts.ids, rollouts.is_token, strict=True)]
    assert turn in last  # the end of a turn, which no config names, ends a response


def test_grades_are_those_of_a_table(tmp_path, monkeypatch):
    """(gold, response, whether it ended, reward); the golds are read from a file."""
    table = [
        ("so 40+2=42\n#### 42", "it is \\boxed{42}.", True, 1),
        ("so it is $\\boxed{42}$.", "The answer is 42.", True, 1),
        ("42", "40 and 2 make 42", True, 1),
        ("42", "40 and 2 make 42", False, 0),  # cut off: its last number may be no answer
        ("42", "The answer is 42. And", False, 1),
        ("42", "\\boxed{42} or \\boxed{43}", True, 0),  # the last box counts
        ("B", "The answer is (B).", True, 1),
        ("B", "It is not B, but A", True, 0),
        ("42", "<think>\\boxed{42}", True, 0),  # an unfinished thought
    ]
    choices = {gold: " (A) 1 (B) 2" if gold == "B" else "" for gold, *_ in table}
    rows = [
        {"problem": f"{i}?{choices[gold]}", "answer": gold} for i, (gold, *_) in enumerate(table)
    ]
    path = tmp_path / "golds.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    lm, tokenizer = toy.base_model("learn")
    cfg = Settings(group_size=1, prompt_template="{problem}", max_new_tokens=1)
    problems = minimal.with_prompts(load_problems(str(path)), tokenizer, cfg)
    texts = iter([text for _, text, _, _ in table])
    monkeypatch.setattr(minimal, "text_decoder", lambda _: lambda prompt, response: next(texts))
    eos = lm.generation_config.eos_token_id
    ended = torch.tensor([eos if end else eos + 1 for _, _, end, _ in table])
    monkeypatch.setattr(lm, "generate", lambda ids, **_: torch.cat([ids, ended[:, None]], dim=1))
    rollouts = minimal.sample(lm, tokenizer, problems, range(len(table)), cfg, greedy=True)
    assert rollouts.rewards.tolist() == [right for *_, right in table]


def test_steps_without_a_mixed_problem_and_an_infinite_gradient_are_said(monkeypatch, capsys):
    flags = ["--prompts", "2", "--group-size", "2", "--mini-batch", "1", "--max-new-tokens", "3"]
    minimal.main([*flags, "--steps", "3", "--eval-data", ""])  # no answer fits into 3 tokens
    assert capsys.readouterr().out.count("equal rewards, so nothing is learnt") == 1

    infinite = iter([True, False, False, False])
    surrogate = minimal.clipped_surrogate

    def of(logprob, old_logprob, A):
        return surrogate(logprob, old_logprob, A) * (torch.inf if next(infinite) else 1.0)

    monkeypatch.setattr(minimal, "clipped_surrogate", of)
    flags[-1] = "12"  # responses differ
    with rewarded():
        steps = minimal.main([*flags, "--steps", "2", "--eval-data", ""])
    assert not math.isfinite(steps[0]["loss"]) and math.isfinite(steps[1]["loss"])
    assert all(math.isfinite(step["logprob"] + step["grad_norm"]) for step in steps)

    monkeypatch.setattr(minimal, "clipped_surrogate", lambda *x: surrogate(*x) * torch.inf)
    with rewarded(), pytest.raises(SystemExit):
        minimal.main([*flags, "--group-size", "8", "--steps", "9", "--eval-data", ""])
    said = capsys.readouterr()
    assert "step    3/9" in said.out and "step    4/9" not in said.out
    assert "not finite in three steps in a row: try a lower --lr" in said.err


@pytest.mark.parametrize("K", [0, 1, 2, 3])
def test_token_weights_are_delta_coefficients(K):
    hidden, A = two_sides()
    logprob = -torch.rand(len(A), generator=torch.Generator().manual_seed(0))
    v = token_gradient_proxy(hidden, logprob)
    for advantage in (A, A.abs(), -A.abs()):  # both sides, and one of them empty
        ours = minimal.token_weights("delta", hidden, logprob, advantage, K)
        torch.testing.assert_close(ours, delta_coefficients(v, advantage, K), rtol=0, atol=2e-6)
    assert torch.equal(minimal.token_weights("dapo", hidden, logprob, A, K), torch.ones(len(A)))


def test_advantages_and_surrogate_are_those_of_grpo():
    g = torch.Generator().manual_seed(0)
    rewards = (torch.rand(80, generator=g) < 0.2).float()  # in some groups all rewards are equal
    advantage = minimal.group_advantages(rewards, 8)
    assert torch.equal(advantage, grpo.group_advantages(rewards, 8))
    assert (advantage == 0).any() and (advantage != 0).any()

    assert not minimal.group_advantages(torch.full((8,), 0.7), 8).any()  # the float mean is not 0.7

    log_ratio = torch.linspace(-3, 3, 80)  # both clips and the dual clip
    old = torch.full((80,), -1.0)
    for A in (advantage, torch.ones(80), -torch.ones(80)):
        ours = minimal.clipped_surrogate(old + log_ratio, old, A)
        assert torch.equal(ours, grpo.clipped_surrogate(old + log_ratio, old, A, *DAPO_CLIP))


def test_a_step_without_an_advantage_changes_nothing_and_prints_no_nan():
    cfg = Settings(max_new_tokens=8)
    lm, tokenizer = toy.base_model("learn")
    before = [p.detach().clone() for p in lm.parameters()]
    problems = minimal.with_prompts(toy.problems(16, seed=1), tokenizer, cfg)
    rollouts = minimal.sample(lm, tokenizer, problems, range(16), cfg)
    optimizer = torch.optim.AdamW(lm.parameters())
    rollouts = rollouts._replace(rewards=torch.ones(128))
    metrics, A, weight = minimal.train_step(lm, optimizer, rollouts, cfg)
    logprob, length = metrics.pop("logprob"), metrics.pop("length")
    assert 0 < metrics.pop("mismatch") < 1e-6
    assert metrics == {"reward": 1.0, "mixed": 0.0, "loss": 0.0, "grad_norm": 0.0, "|r-1|": 0.0}
    assert -0.2 < logprob < 0 and length <= 8
    assert not A.any() and torch.equal(weight, torch.ones_like(weight))
    assert all(torch.equal(a, b) for a, b in zip(before, lm.parameters(), strict=True))


def test_numbers_of_a_step_tell_equal_groups_and_a_policy_that_does_not_move():
    cfg = Settings(method="dapo", max_new_tokens=24)
    moved = {}
    for rate in (0.0, 1e-3):
        lm, tokenizer = toy.base_model("learn")
        problems = minimal.with_prompts(toy.problems(8, seed=1), tokenizer, cfg)
        rollouts = minimal.sample(lm, tokenizer, problems, range(8), cfg)
        rewards = torch.tensor([[1.0, 0] * 4, [1] * 8, [0] * 7 + [1], [0] * 8] * 2).flatten()
        optimizer = torch.optim.AdamW(lm.parameters(), lr=rate)
        with torch.no_grad():
            old, _ = minimal.token_outputs(lm, rollouts.ids, rollouts.is_token)
        rollouts = rollouts._replace(rewards=rewards)
        metrics, _, _ = minimal.train_step(lm, optimizer, rollouts, cfg)
        assert metrics["mixed"] == 0.5
        assert metrics["logprob"] == pytest.approx(float(old.mean()), abs=1e-6)
        moved[rate] = metrics["|r-1|"]
    assert moved[0.0] < 1e-5 < 1e-3 < moved[1e-3]
