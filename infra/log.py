"""The first rank's reports: a line per step, metrics.jsonl and samples.jsonl."""

import math
import os
import sys
from dataclasses import fields
from datetime import timedelta

import torch

from infra.files import append_line, read_lines
from infra.flags import spelled
from infra.packing import Rollouts, TokenBatch, packed_rows
from infra.ranks import this_device
from infra.training_flags import TRAINING_GROUPS

GROUPS = 4  # groups per step whose responses are saved
LARGE_MISMATCH = 0.05  # nats; rounding in bfloat16 gives about 0.01

SHOWN = (
    "reward",
    "response_length",
    "entropy",
    "grad_norm",
    "clip_fraction",
    "lambda_std",
    "seconds",
    "eval_accuracy",
    "eval_greedy",
)


# ---- a line per step -----------------------------------------------------------------------------


def log(run, metrics: dict) -> None:
    """Append a line to metrics.jsonl and print a summary."""
    if run.rank > 0:
        return
    append_line(run.folder / "metrics.jsonl", metrics)
    if run.track:
        run.track(metrics)
    gist = [f"{name} {metrics[name]:.3g}" for name in SHOWN if name in metrics]
    if metrics.get("mismatch", 0) > LARGE_MISMATCH:
        gist.append(f"mismatch {metrics['mismatch']:.3g} nats: sampler and scoring disagree")
    if "seconds" in metrics:
        gist += pace(run, metrics)
    print(f"step {metrics['step']:4d}/{run.cfg.steps}  " + "  ".join(gist), flush=True)
    if "lambda_mean" in metrics:
        print_hints(run, metrics)


def pace(run, metrics: dict) -> list[str]:
    """A step's response tokens per second, and the remaining time, excluding evaluations."""
    run.seconds.append(metrics["seconds"])
    tokens = metrics["response_length"] * run.cfg.prompts * run.cfg.group_size
    recent = run.seconds[-20:]
    left = sum(recent) / len(recent) * (run.cfg.steps - metrics["step"])
    return [f"tokens/s {tokens / metrics['seconds']:.0f}", f"left {timedelta(seconds=round(left))}"]


def print_hints(run, metrics: dict) -> None:
    """Print a hint once if ten consecutive steps had no signal, or the mean weight is not 1."""
    silent = metrics["grad_norm"] == 0 and metrics["skipped_updates"] == 0
    run.without_signal = run.without_signal + 1 if silent else 0
    if run.without_signal == 10:
        print(
            "hint: for ten steps no group had unequal rewards, so nothing is learnt. Are responses "
            "cut off (`truncated`)? Does verify.py find the answers (samples.jsonl)? Are the "
            "problems far too hard or easy? --dynamic-sampling and a larger --group-size help",
            flush=True,
        )
    mean = metrics["lambda_mean"]
    if len(run.seconds) == 1 and abs(mean - 1) >= 0.01:  # the program's first step
        print(
            f"hint: the token weights of --method {run.cfg.method} have mean {mean:.3g}, not 1, "
            "which scales loss and gradient. Divide them by their mean, unless the method omits "
            "this on purpose, like --delta-variant no_norm",
            flush=True,
        )


def rollout_metrics(
    rollouts: Rollouts, rewards: torch.Tensor, tokens: TokenBatch, weights: torch.Tensor
) -> dict:
    """The metrics of a rollout batch, at θ_old; docs/running.md explains each.

    rewards: [B]; weights: ρ [N].
    """
    return {
        "reward": float(rewards.mean()),
        "entropy": float(tokens.entropy.mean()),
        "response_length": float(tokens.length.float().mean()),
        "truncated": float(rollouts.truncated.float().mean()),
        "lambda_mean": float(weights.mean()),
        "lambda_std": float(weights.std()),
        "lambda_above_one": float((weights > 1).float().mean()),
        **mismatch(tokens.logprob, tokens.sampler_logprob),
    }


def mismatch(logprob: torch.Tensor, sampled: torch.Tensor) -> dict:
    """How far the sampler's distribution is from the scoring distribution: metrics in nats.

    logprob, sampled: [N] log-probabilities of the drawn tokens, as scored and from the sampler.
    Tokens without a value from the sampler are left out; if none remain, there are no metrics.
    mismatch_kl estimates KL(π_sampler || π_score) by the mean of r - 1 - log r, where
    r = π_score / π_sampler (Schulman 2020, "Approximating KL divergence"). This estimator is
    unbiased and has no negative terms.
    """
    told = ~sampled.isnan()
    if not told.any():
        return {}
    log_ratio = (logprob - sampled)[told].double()
    return {
        "mismatch": float(log_ratio.abs().mean()),
        "mismatch_max": float(log_ratio.abs().max()),
        "mismatch_kl": float((log_ratio.expm1() - log_ratio).mean()),
    }


# ---- samples.jsonl -------------------------------------------------------------------------------


def save_samples(
    run,
    step: int,
    problems: list[dict],
    rollouts: Rollouts,
    rewards: torch.Tensor,
    tokens: TokenBatch,
    weights: torch.Tensor,
) -> None:
    """Append two responses from each of four groups, spread over the batch, to samples.jsonl.

    The two rewards differ if the group's rewards do. Only the first rank writes.
    problems: B, saved without their tests, which are often long. rewards: [B].
    weights: [N], saved as the `lambda` of each token.
    """
    if run.rank > 0:
        return
    G = run.cfg.group_size
    groups = rewards.view(-1, G).tolist()
    every = max(1, len(groups) // GROUPS)
    for g in range(0, len(groups), every)[:GROUPS]:
        first = groups[g][0]
        differing = [j for j in range(G) if groups[g][j] != first]
        for j in (0, differing[0] if differing else 1):
            i = g * G + j
            rows = packed_rows(torch.tensor([i]), rollouts.response_length.cpu())
            rows = rows.to(weights.device)
            ids = rollouts.response_ids(i).tolist()
            sample = {
                "step": step,
                **{name: cell for name, cell in problems[i].items() if name != "tests"},
                "group": g,
                "group_rewards": groups[g],
                "reward": groups[g][j],
                "advantage": round(float(tokens.advantage[rows[0]]), 4),
                "response": rollouts.texts[i],
                "tokens": [run.tokenizer.decode([token]) for token in ids],
                "lambda": rounded(weights[rows], 4),
                "logprob": rounded(tokens.logprob[rows], 3),
                "entropy": rounded(tokens.entropy[rows], 3),
            }
            append_line(run.folder / "samples.jsonl", sample)


def rounded(values: torch.Tensor, digits: int) -> list[float | None]:
    """The rounded values, with None for NaN and inf, which JSON cannot represent."""
    return [round(value, digits) if math.isfinite(value) else None for value in values.tolist()]


# ---- first and last lines ------------------------------------------------------------------------


def introduce(run) -> None:
    """Print a run's settings before its first step."""
    if run.rank > 0:
        return
    cfg = run.cfg
    parameters = sum(p.numel() for p in run.policy.parameters())
    defaults = {each.name: each.default for each in fields(cfg)}
    for group in TRAINING_GROUPS:
        for each in fields(group):
            del defaults[each.name]  # the flags for the method and its ablations remain
    defaults["method"] = cfg.method
    if run.method.clips:
        defaults["clip_low"], defaults["clip_high"] = run.method.default_clip
    changed = [
        f"{spelled(name)} {getattr(cfg, name)}"
        for name, default in defaults.items()
        if getattr(cfg, name) != default
    ]
    prompt = run.tokenizer.decode(run.prompts[0])
    if len(prompt) > 300:
        prompt = prompt[:150] + " ... " + prompt[-150:]
    layout = "packed" if run.policy.packed else "padded"
    start = f"after step {run.state.step}" if run.state.step else "from the beginning"
    facts = {
        "model": f"{cfg.model}, {type(run.policy.lm).__name__}, {parameters:,} parameters",
        "ranks": f"{run.world} on {this_device().type}, micro-batches {layout}",
        "method": " ".join([cfg.method, *changed]),
        "problems": f"{len(run.problems)} for training, {len(run.held_out)} held out",
        "a prompt": repr(prompt),
        "folder": f"{run.folder}, {start}",
    }
    for name, fact in facts.items():
        print(f"{name:10s} {fact}", flush=True)


def report(run) -> None:
    """Print the gain in accuracy, the output files, and the programs that draw them."""
    if run.rank > 0:
        return
    metrics = read_lines(run.folder / "metrics.jsonl")
    seconds = sum(row.get("seconds", 0) for row in metrics)
    python = min(sys.executable, os.path.relpath(sys.executable), key=len)
    gained = ""
    for name, words in (("eval_accuracy", "accuracy"), ("eval_greedy", "greedy")):
        found = [row[name] for row in metrics if name in row]
        if found:
            gained += f"{words} {found[0]:.3f} before and {found[-1]:.3f} after, "
    print(
        f"done: {metrics[-1]['step']} steps in {seconds:.0f} s, {gained}"
        f"model/, metrics.jsonl and samples.jsonl in {run.folder}\n"
        f"see it: {python} -m benchmarks.curves {run.folder}; "
        f"{python} -m infra.samples {run.folder}"
    )
