"""Tests that minimal.py, the specification of train.py, has the same numbers in every step."""

import json
import re
from pathlib import Path

import pytest
import torch
from hashed_rewards import hashes, rewarded
from models import published_model, response_logits, save_random_model
from references import two_sides
from toy_runs import HELD_OUT, read_lines, refusal, with_turns
from transformers import AutoModelForCausalLM, AutoTokenizer

import grpo
import minimal
import toy
import train
from delta import delta_coefficients, token_gradient_proxy
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
def hashed(monkeypatch):
    """minimal.py with the rewards of hashed_rewards.py, which differ within a group."""
    monkeypatch.setattr(minimal, "reward", lambda text, gold, truncated: hashes([text], [], [])[0])


def assert_same_steps(folder: Path, steps: list[dict]) -> None:
    """Rewards and lengths are those of train.py's run in `folder`; the rest differs by rounding."""
    lines = [line for line in read_lines(folder / "metrics.jsonl") if line["step"] > 0]
    for line, step in zip(lines, steps, strict=True):
        assert step["reward"] == pytest.approx(line["reward"], abs=1e-7)
        assert step["length"] == line["response_length"]
        assert step["loss"] == pytest.approx(line["loss"], abs=1e-5)
        assert step["grad_norm"] == pytest.approx(line["grad_norm"], rel=1e-5, abs=1e-5)
    assert len({step["grad_norm"] for step in steps}) == len(steps)


def test_minimal_and_train_have_the_same_steps_and_accuracies(tmp_path, monkeypatch, capsys):
    """Both train the toy. Most of its held-out problems are left out, for speed."""
    flags = ["--K", "2", "--steps", "2", "--seed", "5"]
    own = ["--micro-batch-tokens", "700", "--eval-data", HELD_OUT, "--output-dir", str(tmp_path)]
    train.main([*flags, *own])
    before, *lines = read_lines(tmp_path / "metrics.jsonl")
    capsys.readouterr()
    problems = toy.problems

    def with_few_held_out(count, seed):
        return problems(48, seed)[:8] if seed == 1 else problems(count, seed)  # HELD_OUT has these

    monkeypatch.setattr(toy, "problems", with_few_held_out)
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
    own = ["--eval-data", "", "--dtype", "float32", "--output-dir", str(tmp_path / "run")]
    with rewarded():
        train.main([*flags, "--prompt-template", template, *own])
    page = ["--template", template, "--micro-batch", "5", "--save", str(saved)]
    assert_same_steps(tmp_path / "run", minimal.main([*flags, *page]))

    trained = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model").state_dict()
    for key, weight in AutoModelForCausalLM.from_pretrained(saved).state_dict().items():
        torch.testing.assert_close(weight, trained[key], rtol=0, atol=1e-3)
    assert AutoTokenizer.from_pretrained(saved).eos_token_id == 1


def test_a_chat_template_and_its_end_of_a_turn(data, hashed, tmp_path, base_copy):
    """The toy's tokenizer cannot spell the instruction: both see the same unknown words."""
    folder = tmp_path / "turns"
    turn = with_turns(base_copy, folder)
    cfg = minimal.parse_flags(["--model", str(folder), "--data", data, "--max-new-tokens", "40"])
    lm, tokenizer, problems, _ = minimal.load(cfg)
    assert turn in lm.generation_config.eos_token_id
    text = tokenizer.decode(minimal.encode(tokenizer, problems[:1], cfg.template).input_ids[0])
    chat = [{"role": "user", "content": problems[0]["problem"] + minimal.BOXED}]
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    assert text == tokenizer.decode(ids)
    rollouts = minimal.sample(lm, tokenizer, problems, range(4), cfg._replace(group_size=8))
    assert (rollouts.ids[rollouts.is_token] == turn).any()


@pytest.mark.parametrize(
    "name", ["gemma2", "granite", "cohere", "recurrent_gemma", "qwen3_5", "opt", "bloom", "mamba"]
)
def test_a_model_is_exact_or_refused(name, data, tmp_path, capsys):
    """Padded samples have the log p that the published model gives each of them alone."""
    save_random_model(name, tmp_path)
    flags = ["--model", str(tmp_path), "--data", data, "--template", "{problem}"]
    cfg = minimal.parse_flags([*flags, "--max-new-tokens", "12"])
    if name not in ("opt", "bloom", "mamba"):
        assert "train.py" in refusal(lambda _: minimal.load(cfg), [], capsys)
        return
    lm, tokenizer, problems, _ = minimal.load(cfg)
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
        ("--method grpo", "--method is delta or dapo"),
        ("--method dapo --K 1", "--K does nothing"),
        ("--model MODEL --data DATA --template {problem} --prompts 19", "fewer than --prompts"),
        ("--data DATA", "--model and --data"),
        ("--eval-data DATA", "--eval-data needs both"),
        ("--model MODEL --eval-data DATA", "--model and --data"),
        ("--group-size 1", "--group-size must be 2 or more"),
        ("--model MODEL", "--model and --data"),
        ("--model MODEL --data DATA", "--template"),
        ("--model MODEL --data DATA --template Q:", "{problem}"),
        ("--model MODEL --data nowhere.jsonl", "nowhere.jsonl"),
        ("--model ./nowhere --data DATA --template {problem}", "nowhere"),
        ("--model MODEL --data OTHER --template {problem}", "record 1"),
        ("--model MODEL --data DATA --template {problem} --max-new-tokens 999", "train.py"),
        ("--model MODEL --data DATA --template {problem} --save MODEL", "exists"),
        ("--prompts x", "--prompts"),
    ],
)
def test_a_mistake_is_one_line(flags, message, data, tmp_path, capsys):
    save_random_model("qwen3", tmp_path / "model")
    (tmp_path / "other.jsonl").write_text('{"question": "1+1", "answer": 2}\n')
    names = {"MODEL": tmp_path / "model", "DATA": data, "OTHER": tmp_path / "other.jsonl"}
    assert message in refusal(minimal.main, [names.get(x, x) for x in flags.split()], capsys)


def test_the_page_imports_only_the_task_and_the_reward():
    """No formula is defined elsewhere."""
    source = Path(minimal.__file__).read_text()
    imported = {line.split(".")[0] for line in re.findall(r"^(?:from|import) (\S+)", source, re.M)}
    libraries = {"argparse", "json", "pathlib", "typing", "numpy", "torch", "transformers"}
    assert imported == libraries | {"toy", "verify"}


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
    rollouts = minimal.sample(lm, tokenizer, toy.problems(16, seed=1), range(16), cfg)
    optimizer = torch.optim.AdamW(lm.parameters())
    rollouts = rollouts._replace(rewards=torch.ones(128))
    metrics, A, weight = minimal.train_step(lm, optimizer, rollouts, cfg)
    logprob, length = metrics.pop("logprob"), metrics.pop("length")
    assert metrics == {"reward": 1.0, "mixed": 0.0, "loss": 0.0, "grad_norm": 0.0, "|r-1|": 0.0}
    assert -0.2 < logprob < 0 and length <= 8
    assert not A.any() and torch.equal(weight, torch.ones_like(weight))
    assert all(torch.equal(a, b) for a, b in zip(before, lm.parameters(), strict=True))


def test_numbers_of_a_step_tell_equal_groups_and_a_policy_that_does_not_move():
    cfg = Settings(method="dapo", max_new_tokens=24)
    moved = {}
    for rate in (0.0, 1e-3):
        lm, tokenizer = toy.base_model("learn")
        rollouts = minimal.sample(lm, tokenizer, toy.problems(8, seed=1), range(8), cfg)
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
