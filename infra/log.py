"""The first rank's reports: a line per step, metrics.jsonl and samples.jsonl."""

from datetime import timedelta

import torch

from infra.errors import UserError
from infra.folder import append_line, read_json, read_lines

GROUPS = 4  # groups per step whose responses are saved
LARGE_MISMATCH = 0.05  # nats; rounding in bfloat16 gives about 0.01
REFUSED_MISMATCH = 0.3  # nats; with vLLM only, which may run a model differently

# The metrics in the line of a step
SHOWN = ["reward", "response_length", "entropy", "grad_norm", "clip_fraction", "lambda_std"]
SHOWN += ["seconds", "eval_accuracy", "eval_greedy"]


def introduce(run) -> None:
    """Print a run's size, folder, first prompt and end tokens before its first step."""
    if run.rank == 0:
        size = f"{run.policy.lm.num_parameters():,} parameters, {run.world} rank(s)"
        count = f"{len(run.problems)} problems for training, {len(run.held_out)} held out"
        print(f"{run.cfg.model}: {size}, {count}, {run.folder} after step {run.state.step}")
        texts = read_json(run.folder / "config.json")
        ends = " or ".join(map(repr, texts["end_tokens"]))
        prompt = texts["first_prompt"][:300]
        print(f"a prompt: {prompt!r}; a response ends with {ends}", flush=True)


def refuse_mismatch(run, mismatch: float) -> None:
    """Raise UserError, on all ranks, if vLLM samples from another distribution than the policy."""
    if run.cfg.engine == "vllm" and not mismatch <= REFUSED_MISMATCH:  # NaN too
        raise UserError(
            f"--engine vllm: log-probabilities differ by {mismatch:.2g} nats from the policy's: "
            "vLLM runs this model differently: drop the flag, and choose another --output-dir"
        )


def log(run, metrics: dict) -> None:
    """Append a line to metrics.jsonl, send it to the tracker and print a summary."""
    step = metrics["step"]
    run.logged = step
    if run.rank > 0:
        return
    append_line(run.folder / "metrics.jsonl", metrics)
    if run.tracker:
        run.tracker.log({name: metrics[name] for name in metrics if name != "step"}, step=step)

    gist = [f"{name} {metrics[name]:.3g}" for name in SHOWN if name in metrics]
    mismatch = metrics.get("mismatch", 0)
    if not mismatch <= LARGE_MISMATCH:  # NaN too
        gist.append(f"mismatch {mismatch:.3g} nats: sampler and policy disagree")
    if metrics.get("without_advantage") == 1:
        gist.append("each group has equal rewards, so nothing is learned: docs/running.md")
    if "seconds" in metrics:
        run.seconds.append(metrics["seconds"])
        recent = run.seconds[-20:]
        left = sum(recent) / len(recent) * (run.cfg.steps - step)  # without evaluations
        tokens = metrics["response_length"] * run.cfg.prompts * run.cfg.group_size
        gist.append(f"tokens/s {tokens / metrics['seconds']:.0f}")
        gist.append(f"left {timedelta(seconds=round(left))}")
    print(f"step {step:4d}/{run.cfg.steps}  " + "  ".join(gist), flush=True)


def report(run) -> None:
    """Print the gain in accuracy, the output files, and the programs that draw them."""
    if run.rank > 0:
        return
    metrics = read_lines(run.folder / "metrics.jsonl")
    seconds = [line["seconds"] for line in metrics if "seconds" in line]
    gained = ""
    for name in ("eval_accuracy", "eval_greedy"):
        accuracy = [line[name] for line in metrics if name in line]
        if accuracy:
            gained += f"{name} {accuracy[0]:.3f} before and {accuracy[-1]:.3f} after, "
    print(
        f"done: {len(seconds)} steps in {sum(seconds):.0f} s, {gained}"
        f"model/, metrics.jsonl and samples.jsonl in {run.folder}\n"
        f"see it: python -m benchmarks.curves {run.folder}\n"
        f"        python -m benchmarks.samples {run.folder}"
    )


def rollout_metrics(rollouts: list, tokens) -> dict:
    """The metrics of a rollout batch, at θ_old; docs/running.md explains each.

    rollouts: B batch.Rollouts with rewards. tokens: their batch.TokenBatch.
    """
    return {
        "reward": sum(response.reward for response in rollouts) / len(rollouts),
        "entropy": float(tokens.entropy.mean()),
        "response_length": float(tokens.length.float().mean()),
        "truncated": sum(response.truncated for response in rollouts) / len(rollouts),
        "without_advantage": float((tokens.advantage == 0).float().mean()),
        "mismatch": float((tokens.logprob - tokens.sampler_logprob).abs().mean()),
    }


def save_samples(run, step: int, rollouts: list, tokens, weight: torch.Tensor) -> None:
    """Append two responses from each of four groups, spread over the batch, to samples.jsonl.

    The two rewards differ if the group's rewards do. Only the first rank writes. Problems are saved
    without their tests, which are often long, and ρ as each token's `lambda`. The arguments are
    those of rollout_metrics, and ρ [N].
    """
    if run.rank > 0:
        return
    G = run.cfg.group_size
    count = len(rollouts) // G
    for g in range(0, count, max(1, count // GROUPS))[:GROUPS]:
        group = rollouts[g * G : (g + 1) * G]
        rewards = [response.reward for response in group]
        differing = [j for j in range(G) if rewards[j] != rewards[0]]
        for j in (0, differing[0] if differing else 1):
            own = tokens.span(g * G + j)
            sample = {
                "step": step,
                **{key: cell for key, cell in group[j].problem.items() if key != "tests"},
                "group": g,
                "group_rewards": rewards,
                "reward": rewards[j],
                "advantage": round(float(tokens.advantage[own.start]), 4),
                "response": group[j].text,
                "tokens": [run.tokenizer.decode([token]) for token in group[j].tokens],
                "lambda": weight[own].double().round(decimals=4).tolist(),
                "logprob": tokens.logprob[own].double().round(decimals=3).tolist(),
                "entropy": tokens.entropy[own].double().round(decimals=3).tolist(),
            }
            append_line(run.folder / "samples.jsonl", sample)
