"""A check for each of recipes/*.diff, named like it. test_recipes.py runs it in a changed copy."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from toy_runs import next_step, read_lines, same_weights, small_config, train_small, train_steps
from transformers import AutoModelForCausalLM

import extensions
import toy
import train
from infra.progress import Stopwatch
from infra.ranks import full_tensor, start_ranks
from infra.run import export
from rollout import Response


def schedule(folder: Path) -> None:
    """The rates are the formula's, also in a resumed run; a step at a rate of 0 does nothing."""
    flags = ["--lr", "1e-3", "--warmup", "2", "--cosine", "6"]
    train_small(folder / "whole", *flags, steps=6)
    lines = read_lines(folder / "whole/metrics.jsonl")
    expected = torch.tensor([0.5, 1.0, 0.8535534, 0.5, 0.1464466, 0.0])
    torch.testing.assert_close(torch.tensor([line["lr"] for line in lines]), 1e-3 * expected)
    weights = []
    for steps in (4, 5, 6):
        assert train_small(folder / "parts", *flags, steps=steps) == lines[:steps]
        weights.append((folder / "parts/model/model.safetensors").read_bytes())
    assert weights[0] != weights[1] == weights[2]
    assert weights[2] == (folder / "whole/model/model.safetensors").read_bytes()


def mixture(folder: Path) -> None:
    """A step has 6 problems from --data and 2 from --more-data, whose 8 all come in 4 steps."""
    folder.mkdir()
    rows = [json.dumps(problem) for problem in toy.problems(8, k=3)]
    (folder / "more.jsonl").write_text("\n".join(rows))
    run = train.prepare(
        small_config(folder / "run", "--more-data", f"{folder}/more.jsonl", steps=4)
    )
    asked = Counter()
    for step in (1, 2, 3, 4):
        rollouts = train.sample(run, step, Stopwatch())
        assert Counter(each.problem["set"] for each in rollouts) == {0: 24, 1: 8}
        asked.update(each.problem["problem"] for each in rollouts if each.problem["set"] == 1)
    assert asked == {json.loads(row)["problem"]: 4 for row in rows}


def curriculum(folder: Path) -> None:
    """Problems are drawn in proportion to p (1 - p), and a checkpoint keeps the pass rates."""
    cfg = small_config(folder, "--curriculum", steps=2)
    run = train_steps(cfg)
    counts = [count for count, _ in run.state.tried.values()]
    assert sum(counts) == 2 * 8 * 4 and max(counts) <= 8
    assert train.prepare(cfg).state.tried == run.state.tried

    run.state.tried = dict.fromkeys(range(1, 48), (98, 98.0))  # the first is still at p = 1/2
    first = Counter(train.by_pass_rate(run, step)[0] for step in range(2000))
    worth = 0.25 / (0.25 + 47 * 0.99 * 0.01)
    assert abs(first[0] / 2000 - worth) < 0.03


def line_credit(folder: Path) -> None:
    """A is that of the line, and the gradient that of every token with an advantage."""
    problem = {"problem": "7*6+1=?"}  # 2, then 3
    texts = ["7*6=2\n2+1=3\nanswer \\boxed{3}", "7*6=2\n2+1=4\nanswer \\boxed{4}"]
    _, tokenizer = toy.base_model()
    rollouts = []
    for text, reward in zip(texts, (1.0, 0.0), strict=True):
        ids = np.array(tokenizer(text).input_ids, dtype=np.int32)
        response = Response([5], ids, np.zeros(len(ids), np.float32), text, False)
        rollouts.append(train.Rollout(response, problem, reward))
    half = [0.0] * 6 + [0.5**0.5] * 10  # of the first line both are right
    expected = torch.tensor(half + [-x for x in half])
    torch.testing.assert_close(train.line_advantages(rollouts, 2), expected, rtol=0, atol=1e-5)

    cfg = small_config(folder, "--method", "dapo", "--mini-batch", "8", steps=1)
    run = train.prepare(cfg)
    copy = toy.base_model("learn")[0]
    metrics, rollouts, tokens, _ = next_step(run, lambda responses, *_: [0.0] * len(responses))
    objective, first = 0.0, 0
    for response, *_ in rollouts:
        ids = torch.tensor([[*response.prompt, *response.tokens.tolist()]])
        logp = copy(ids).logits[0, :-1].log_softmax(1).gather(1, ids[0, 1:, None])
        own = logp[-len(response.tokens) :, 0]
        objective = objective + (own * tokens.advantage[first : first + len(own)]).sum()
        first += len(own)
    (objective / first).backward()
    norm = torch.stack([x.grad.norm() for x in copy.parameters()]).norm()
    torch.testing.assert_close(torch.tensor(metrics["grad_norm"]), norm, rtol=1e-3, atol=0)
    assert metrics["grad_norm"] > 0.01


def lora(folder: Path) -> None:
    """Layers change by matrices of rank 2 alone; the export is the trained policy; runs resume."""
    cfg = small_config(folder / "whole", "--lora", "2", "--lr", "1e-3", steps=2)
    run = train_steps(cfg)
    export(folder / "model", run.policy, run.tokenizer, cfg)
    model = AutoModelForCausalLM.from_pretrained(folder / "model")
    base = toy.base_model("learn")[0]
    ranks = Counter()
    for (name, a), b in zip(model.named_parameters(), base.parameters(), strict=True):
        rank = int(torch.linalg.matrix_rank((a - b).double(), atol=1e-6)) if a.dim() == 2 else 0
        assert rank or torch.equal(a, b), name
        ranks[rank] += 1
    assert ranks[2] == 14 and set(ranks) == {0, 2}

    ids = torch.randint(3, 20, (2, 30), generator=torch.Generator().manual_seed(0))
    mask = torch.arange(30).expand(2, -1) >= 10
    with torch.no_grad():
        ours = run.policy(ids, mask).logprob
        logp = model(ids).logits.log_softmax(2)[:, :-1].gather(2, ids[:, 1:, None])[..., 0]
    torch.testing.assert_close(ours, logp[mask[:, 1:]], rtol=1e-4, atol=1e-4)

    half = small_config(
        folder / "half", "--lora", "2", "--lr", "1e-3", "--save-every", "1", steps=1
    )
    train_steps(half)
    flags = ["--lora", "2", "--lr", "1e-3", "--save-every", "1"]
    assert same_weights(
        train_steps(small_config(folder / "half", *flags, steps=2)).policy, run.policy
    )


def own_pass(folder: Path) -> None:
    """The passes give Hugging Face's attention and log p, and the method's weights have mean 1."""
    run = train.prepare(small_config(folder, "--method", "focused", steps=1))
    _, rollouts, tokens, rho = next_step(run)
    torch.testing.assert_close(rho.mean(), torch.tensor(1.0))
    assert rho.std() > 0.1

    lm = toy.base_model("learn")[0]
    lm.set_attn_implementation("eager")
    prompt, answer = torch.arange(3, 13), torch.arange(4, 11)
    ids = torch.cat([prompt, answer])
    micro = train.micro_batches.MicroBatch(
        [0], ids[None], (torch.arange(17) >= 10)[None], None, True
    )
    policy, _ = train.load_policy(toy.BASES["learn"])
    with torch.no_grad():
        scrambled, entropy = extensions.own_passes(policy, micro).T
        p = torch.stack(lm(ids[None], output_attentions=True).attentions)[:, 0, :, 9:16]
        logp = lm(torch.cat([prompt.flip(0), answer])[None]).logits[0, 9:16].log_softmax(1)
    torch.testing.assert_close(entropy, -torch.special.xlogy(p, p).sum(3).mean((0, 1)))
    torch.testing.assert_close(scrambled, logp.gather(1, answer[:, None])[:, 0])


def inner_layer(folder: Path) -> None:
    """The states are Hugging Face's, with prompts shared or not, and every log p is as before."""
    start_ranks()
    policy, _ = train.load_policy(toy.BASES["learn"])
    lm = toy.base_model("learn")[0]
    layer = len(train.loading.decoder_layers(lm)) // 2
    for prompt in (10, 40):  # prompts above 32 tokens run once
        ids = torch.randint(3, 20, (2, 60), generator=torch.Generator().manual_seed(0))
        ids[1, :prompt] = ids[0, :prompt]
        mask = torch.arange(60).expand(2, -1) >= prompt
        with torch.no_grad():
            ours, out = policy(ids, mask), lm(ids, output_hidden_states=True)
        at = mask[:, 1:]
        expected = out.hidden_states[layer][:, :-1][at]
        torch.testing.assert_close(ours.inner, expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(
            ours.hidden, out.hidden_states[-1][:, :-1][at], rtol=1e-4, atol=1e-4
        )
        logp = out.logits.log_softmax(2)[:, :-1].gather(2, ids[:, 1:, None])[..., 0]
        torch.testing.assert_close(ours.logprob, logp[at], rtol=1e-4, atol=1e-4)
    metrics, *_ = next_step(train.prepare(small_config(folder, "--proxy", "inner", steps=1)))
    assert metrics["grad_norm"] > 0


def kl_penalty(folder: Path) -> None:
    """At θ_ref the penalty has no slope, so a first update is DAPO's; a large one holds θ there."""
    found = {}
    for kl in ("0", "0.001", "100"):
        cfg = small_config(folder / kl, "--method", "dapo", "--kl", kl, steps=1)
        run = train.prepare(cfg)
        metrics, *_ = next_step(run)
        whole = [full_tensor(x).detach() for x in run.policy.parameters()]
        found[kl] = metrics["grad_norm"], torch.cat([x.flatten() for x in whole])
    assert abs(found["0.001"][0] / found["0"][0] - 1) < 1e-2
    apart = [float((found[kl][1] - found["0"][1]).abs().sum()) for kl in ("0.001", "100")]
    assert 0 < apart[0] < apart[1] / 10
