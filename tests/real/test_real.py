"""Tests the promises of train.py and evaluate.py on a real model: `make real MODEL=... DATA=...`.

MODEL is a folder or a hub id, DATA a file of problems or a hub id, and COLUMN DATA's column of
problems. A step has 2 short problems x 2 responses of at most 16 tokens. The rewards are stand-ins
(hashed_rewards.py), and the runs use no chat template. Prompts are long enough that responses share
them (infra/shared_prompts.py). Everything is computed in float32.
"""

import os
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
from forked import call, finished, start, torchrun
from models import response_logits
from sampling import sampled
from torch.nn.utils.rnn import pad_sequence
from toy_runs import SCRIPT, next_step, read_lines, same_weights
from transformers import AutoModelForCausalLM

import minimal
import train
from config import parse_config
from infra import sampler
from infra.folder import write_lines
from infra.micro_batches import mini_batches
from infra.model_files import locate
from infra.problems import load_problems
from infra.run import export
from infra.shared_prompts import shares_prompts
from rollout import Response
from train import Rollout, pass_at_theta_old

MODEL = os.environ["MODEL"]
BOUND = 1e-4  # nats; the most that rounding may change a token's log p
LIMIT = 1800  # seconds that a run may take
PROMPT = (
    "Read the problem twice, think about it step by step without writing anything down, and then "
)
PROMPT += (
    "answer with a single number and no other word, even if you are not sure of it.\n{problem}\n"
)
LONG = 550  # tokens of a prompt that exceeds the sliding windows of gemma-3-270m
SMALL = ["--model", MODEL, "--eval-data", "", "--prompt-template", PROMPT]
SMALL += ["--prompts", "2", "--mini-batch", "1", "--group-size", "2", "--save-every", "1"]
SMALL += ["--max-new-tokens", "16", "--micro-batch-tokens", "128"]


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """A folder with two problems of the same length in train.jsonl, and six in bench.jsonl."""
    folder = tmp_path_factory.mktemp("data")
    _, _, tokenizer = locate(MODEL)
    problems = load_problems(os.environ["DATA"], os.environ.get("COLUMN", "problem"))
    problems = sorted(problems, key=lambda problem: len(problem["problem"]))[:100]
    of_length = {}
    for problem in problems:
        length = len(tokenizer(problem["problem"]).input_ids)
        of_length.setdefault(length, []).append(problem)
    write_lines(folder / "train.jsonl", next(x for x in of_length.values() if len(x) > 1)[:2])
    write_lines(folder / "bench.jsonl", problems[:6])
    return folder


def flags(data: Path, folder: Path, steps: int) -> list[str]:
    """The flags of a run that writes to `folder`."""
    own = [("--data", data / "train.jsonl"), ("--output-dir", folder), ("--steps", steps)]
    return [*SMALL, *(str(word) for pair in own for word in pair)]


def plain_model(folder: str | Path = MODEL):
    """from_pretrained's model in float32."""
    folder, _, _ = locate(folder)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@torch.no_grad()
def plain_logprob(lm, responses: list[Response]) -> torch.Tensor:
    """log p of the responses' tokens [N], one unpadded sequence at a time."""
    parts = []
    for response in responses:
        token = torch.from_numpy(response.tokens).long()
        logits = response_logits(lm, response.prompt, response.tokens)
        parts.append(logits.log_softmax(-1).gather(1, token[:, None]).squeeze(1))
    return torch.cat(parts)


# ---- one step ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def step(data, tmp_path_factory) -> dict:
    """What `one_step` has saved. The process of `one_step` has ended, so its memory is free."""
    folder = tmp_path_factory.mktemp("runs") / "one"
    call(one_step, flags(data, folder, steps=1))
    return torch.load(folder / "step.pt", weights_only=False)


def one_step(words: list[str]) -> None:
    """Sample, train a step and export the model. Saves to step.pt what the tests compare."""
    run = train.prepare(parse_config(words))
    text = " ".join(problem["problem"] for problem in run.problems)
    long = run.tokenizer(LONG * text).input_ids[:LONG]
    prompts = [run.prompts[0], long, run.prompts[1][:9]]
    # Sampling takes two chunks, and responses wait for their turn.
    with patch.object(sampler, "CHUNK", 8), run.policy.unsharded() as lm:
        responses = sampled(
            lm, run.tokenizer, prompts, [0, 1, 2], 2, seed=1, max_new_tokens=16, in_flight=2
        )
    assert shares_prompts(run.policy.lm)
    advantage = torch.ones(sum(len(each.tokens) for each in responses))
    plan = mini_batches(responses, advantage, 6, 2 * LONG, run.policy.lm)
    old = pass_at_theta_old(run.policy, plan, run.method)[0]

    metrics, rollouts, tokens, weight = next_step(run)
    run.log(metrics)  # test_two_ranks_match_one reads them
    export(run.folder / "model", run.policy, run.tokenizer, run.cfg)
    found = {
        "responses": responses,
        "old": old,
        "cfg": run.cfg,
        "rollouts": rollouts,
        "advantage": tokens.advantage,
        "weight": weight,
        "metrics": metrics,
        "model": run.folder / "model",
        "same_weights": same_weights(plain_model(run.folder / "model"), run.policy.lm),
    }
    torch.save(found, run.folder / "step.pt")


def test_log_p_of_policy_and_sampler_is_that_of_a_plain_forward_pass(step):
    """The responses are two to a long prompt, which they share, and two to each shorter prompt."""
    expected = plain_logprob(plain_model(), step["responses"])
    drawn = torch.cat(
        [torch.from_numpy(response.sampler_logprob) for response in step["responses"]]
    )
    for logprob in (step["old"], drawn):
        torch.testing.assert_close(logprob, expected, rtol=0, atol=BOUND)


def assert_same_update(theirs, ours) -> None:
    """Two models, trained from MODEL, differ by less than 1 % of what the training changed."""
    triples = list(zip(*(lm.parameters() for lm in (theirs, ours, plain_model())), strict=True))
    apart = sum((a - b).square().sum() for a, b, _ in triples)
    moved = sum((a - before).square().sum() for a, _, before in triples)
    assert apart < 0.01**2 * moved


def as_minimal(rollouts: list[Rollout]) -> minimal.Rollouts:
    """minimal.py's record of these rollouts."""
    ids, is_token = [], []
    for prompt, tokens in ((x.response.prompt, x.response.tokens) for x in rollouts):
        ids.append(torch.tensor([*prompt, *tokens.tolist()]))
        is_token.append(torch.arange(len(ids[-1])) >= len(prompt))
    rewards = torch.tensor([x.reward for x in rollouts])
    ids, is_token = (pad_sequence(rows, batch_first=True) for rows in (ids, is_token))
    logprob = torch.zeros(ids.shape)
    logprob[is_token] = torch.cat([torch.tensor(x.response.sampler_logprob) for x in rollouts])
    return minimal.Rollouts(ids, is_token, rewards, logprob)


def test_a_step_is_minimals(step):
    """Advantages, token weights, loss, gradient norm and two updates are minimal.py's."""
    lm, cfg = plain_model(), step["cfg"]
    optimizer = torch.optim.AdamW(lm.parameters(), cfg.lr, weight_decay=cfg.weight_decay)
    page = minimal.Settings(prompts=2, group_size=2, mini_batch=1)
    metrics, A, weight = minimal.train_step(lm, optimizer, as_minimal(step["rollouts"]), page)
    del optimizer

    assert A.abs().min() > 0.1 and weight.std() > 0.01
    torch.testing.assert_close(step["advantage"], A, rtol=0, atol=1e-6)
    torch.testing.assert_close(step["weight"], weight, rtol=0, atol=1e-3)
    assert step["metrics"]["loss"] == pytest.approx(metrics["loss"], abs=1e-5)
    assert step["metrics"]["grad_norm"] == pytest.approx(metrics["grad_norm"], rel=1e-3)
    assert_same_update(lm, plain_model(step["model"]))


def samples_of(folder: Path) -> list[list[str]]:
    """The tokens of each response of a run of one step."""
    return [line["tokens"] for line in read_lines(folder / "samples.jsonl")]


def first_difference(ours: list[str], theirs: list[str]) -> int:
    """The index of the first token that differs. Raises StopIteration if one is a prefix."""
    return next(t for t, (x, y) in enumerate(zip(ours, theirs, strict=False)) if x != y)


@torch.no_grad()
def distance_of_draw(lm, response: Response, t: int, draws) -> float:
    """How far the draw of a response's token t lies from the ends of the token's interval of F.

    F is the cumulative distribution, by a plain pass. Other tokens' ends do not count, because F
    has so many steps that one is always near.
    """
    logits = response_logits(lm, response.prompt, response.tokens[: t + 1])[-1]
    cdf = logits.double().softmax(-1).cumsum(-1)
    token = int(response.tokens[t])
    ends = torch.cat([torch.zeros(1), cdf])[token : token + 2]  # F below the token, and F of it
    return float((draws.random(t + 1)[t] * cdf[-1] - ends).abs().min())


def test_two_ranks_match_one(step, data, tmp_path):
    """Only one step is compared: Adam turns the rounding of a tiny gradient into a full step, which
    may change a token in the next step.

    A token may also differ in the first step if its draw lies within rounding of a step of F,
    because two ranks divide rows and threads differently. Then another seed is compared.
    """
    one, two = step["model"].parent, tmp_path / "two"
    finished(torchrun(2, SCRIPT, *flags(data, two, steps=1)), seconds=LIMIT)
    pairs = list(zip(samples_of(one), samples_of(two), strict=True))
    other = {i: first_difference(*pair) for i, pair in enumerate(pairs) if pair[0] != pair[1]}
    if other:
        one, two = tmp_path / "one-1", tmp_path / "two-1"
        words = [SCRIPT, *flags(data, one, steps=1), "--seed", "1"]
        finished(start(*words), seconds=LIMIT)
        finished(torchrun(2, *words, "--output-dir", str(two)), seconds=LIMIT)
        assert samples_of(one) == samples_of(two)
    # This comes after the last run, which is forked: torch must not have started threads before.
    lm, problems = plain_model(), [x["problem"] for x in read_lines(data / "train.jsonl")]
    for i, t in other.items():
        response = step["rollouts"][i]
        key = (0, 1, problems.index(response.problem["problem"]), i % 2)
        draws = np.random.default_rng(key)
        assert distance_of_draw(lm, response.response, t, draws) < 1e-4  # F sums all p's errors
    del lm
    (expected,), (row,) = (read_lines(folder / "metrics.jsonl") for folder in (one, two))
    timeless = {name: expected[name] for name in row if not name.startswith("seconds")}
    assert {name: row[name] for name in timeless} == pytest.approx(timeless, rel=1e-3, abs=1e-4)
    assert_same_update(plain_model(two / "model"), plain_model(one / "model"))


def test_an_exported_model_is_the_policy(step):
    assert step["same_weights"]
