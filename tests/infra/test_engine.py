"""rollout.generate replaced as in docs/extending.md, with a stub for the engine."""

import json
import sys

import pytest
import torch
from conftest import ROOT
from toy_runs import small_config

import evaluate
import toy
import train
from infra.errors import UserError
from infra.folder import unlock
from infra.problems import encode_prompts

PAGE = (ROOT / "docs/extending.md").read_text()


class StubEngine:
    """Answers a prompt alternately right and wrong from a table, with any weights."""

    def __init__(self, tokenizer, problems: list[dict], prompts: list[list[int]]):
        self.tokenizer = tokenizer
        self.answers = {}
        for problem, prompt in zip(problems, prompts, strict=True):
            self.answers[tuple(prompt)] = int(problem["answer"])
        self.asked = 0
        self.loaded = []

    def load(self, weights: dict[str, torch.Tensor]) -> None:
        self.loaded.append({name: weight.clone() for name, weight in weights.items()})

    def sample(self, prompt, ends, sampling):
        self.asked += 1
        digit = self.answers[tuple(prompt)] + self.asked % 2
        text = rf"answer \boxed{{{digit % 10}}}"
        tokens = self.tokenizer.encode(text, add_special_tokens=False) + ends[:1]
        assert len(tokens) <= sampling.max_new_tokens
        return tokens, None


@pytest.fixture
def plug_in(monkeypatch):
    """A function that replaces rollout.generate by an engine, as the page says."""

    def put(engine):
        section = PAGE.split("## A serving engine instead of `generate`")[1]
        code = section.split("```python\n")[1].split("```")[0]
        monkeypatch.setattr(sys.modules["rollout"], "generate", None)  # put back at the end
        exec(compile(code, "docs/extending.md", "exec"), {"engine": engine})

    return put


def test_training_and_its_evaluation_sample_from_an_engine(tmp_path, plug_in):
    run = train.prepare(small_config(tmp_path, steps=2))
    engine = StubEngine(run.tokenizer, run.problems, run.prompts)
    plug_in(engine)
    before = run.policy.lm.lm_head.weight.full_tensor().detach().clone()
    try:
        for step in (1, 2):
            train.train_step(run, step)
    finally:
        unlock(tmp_path)

    assert engine.asked == 2 * 8 * 4
    assert run.state.position == 16
    rows = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert len(rows) == 2
    assert all('"reward": 0.5' in row for row in rows)
    first, second = (weights["lm_head.weight"] for weights in engine.loaded)
    assert torch.equal(first, before)  # θ_old of each step
    assert not torch.equal(second, before)


def test_an_importance_cap_needs_log_probabilities_from_the_engine(tmp_path, plug_in):
    run = train.prepare(small_config(tmp_path, "--importance-cap", "2", steps=1))
    plug_in(StubEngine(run.tokenizer, run.problems, run.prompts))
    try:
        with pytest.raises(UserError, match="the sampler gave no finite log-prob"):
            train.train_step(run, 1)
    finally:
        unlock(tmp_path)


def test_an_evaluation_samples_from_an_engine(tmp_path, base, plug_in):
    model, tokenizer = base
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    problems = toy.problems(5, seed=9)
    benchmark = tmp_path / "bench.jsonl"
    benchmark.write_text("".join(json.dumps(problem) + "\n" for problem in problems))
    config = evaluate.Config(
        model=str(tmp_path / "model"),
        benchmarks=str(benchmark),
        samples=2,
        max_new_tokens=16,
        output_dir=str(tmp_path / "out"),
    )
    _, prompts = encode_prompts(problems, tokenizer, 64, "")
    engine = StubEngine(tokenizer, problems, prompts)
    plug_in(engine)
    scores = evaluate.run(config)
    assert scores["average"] == 0.5
    assert engine.asked == 10
